"""Reward functions that are models: `model:PATH` in `reward_funcs`, and what `prm:PATH` shares with it.

```
model:PATH  a classifier of sequences  the whole conversation -> one score
prm:PATH    process_rewards.py         the conversation       -> one score for each turn
```

They read the messages that the policy read (its roles, tools and template settings), rendered by their own
tokenizer's template. Each rank has the whole model, in eval mode and without gradients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import cached_file

from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.templates import check_shows_episodes
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError, one_line
from trl_dbbench.utils.files import found_from_everywhere

ROWS_AT_ONCE = 16

Messages = list[dict[str, Any]]


# --- both kinds ---------------------------------------------------------------------------------------


class Reader:
    """Renders conversations for a scoring model, by its own tokenizer's template.

    Args:
        tokenizer: its chat template is used; without one, only texts are read.
        shown: arguments of the template beside the messages: `tools`, and the settings of the policy's
            template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: dict[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.shown = shown or {}
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token

    def rendered(self, messages: Messages) -> str:
        """Return the conversation as text."""
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **self.shown))

    def ids_of(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def conversation_ids(self, prompt: Messages, completion: Messages) -> list[int]:
        return self.ids_of(self.rendered([*prompt, *completion]))


class LearnedReward:
    """Base class of both kinds: a model that reads conversations.

    Args:
        path: names it in logs, by its last part, and in run.json.
        model: on any device; `read_as` moves it.
        reader: how it reads.
    """

    kind = ""

    def __init__(self, path: str | Path, model: Any, reader: Reader):
        self.path = found_from_everywhere(path)
        self.__name__ = self.path.split("/")[-1]
        self.model, self.reader = model, reader
        # a classifier scores the last token that is no padding
        model.config.get_text_config().pad_token_id = reader.tokenizer.pad_token_id

    @property
    def name(self) -> str:
        """Its name in `reward_funcs`."""
        return f"{self.kind}:{self.path}"

    @property
    def tolerance(self) -> float:
        """Tolerance for the same episode's score, relative to 1 or the score: another batch sums in another
        order.
        """
        return max(1e-4, 8 * torch.finfo(self.model.dtype).eps)

    def read_as(self, protocol: AgentProtocol, template_kwargs: dict[str, Any], device: Any) -> None:
        """Make it ready for episodes of a run.

        Args:
            protocol: of the policy.
            template_kwargs: of the policy's chat template.
            device: where it computes from now on.

        Raises:
            ConfigError: if its chat template cannot show the protocol's episodes.
        """
        self.reader.shown = {**template_kwargs, "tools": protocol.tools}
        remedy = f"Train it with another one: `chat_template:` in the YAML that made {self.path}."
        check_shows_episodes(
            self.__name__, self.reader.tokenizer, protocol.observation_role, self.reader.shown, remedy=remedy
        )
        self.model.to(device)

    def __call__(
        self,
        episode: Sequence[Episode],
        prompts: Sequence[Messages],
        completions: Sequence[Messages],
        **kwargs: object,
    ) -> list[Any]:
        """Return a value for each episode, as `score` does; `None` where the environment failed."""
        values: list[Any] = [None] * len(episode)
        played = [row for row, e in enumerate(episode) if e.status != Status.ENVIRONMENT_FAULT and e.turns]
        scores = self.score([(prompts[row], completions[row]) for row in played])
        for row, score in zip(played, scores, strict=True):
            values[row] = score
        return values

    def score(self, conversations: Sequence[tuple[Messages, Messages]]) -> list[Any]:
        """Return the score of each (prompt, completion)."""
        raise NotImplementedError

    def batches(self, rows: Sequence[Sequence[int]]):
        """(numbers of the rows, ids, attention mask) of a batch, long rows first: padded little. The model is
        in eval mode meanwhile."""
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        training = self.model.training
        self.model.eval()
        try:
            for first in range(0, len(order), ROWS_AT_ONCE):
                numbers = order[first : first + ROWS_AT_ONCE]
                ids = [torch.tensor(rows[row], device=self.model.device) for row in numbers]
                mask = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
                padding = float(self.model.config.get_text_config().pad_token_id)
                yield numbers, pad_sequence(ids, batch_first=True, padding_value=padding), mask
        finally:
            self.model.train(training)


# --- one score an episode -----------------------------------------------------------------------------


class RewardModel(LearnedReward):
    """One score for the whole conversation, as TRL's `RewardTrainer` trains it."""

    kind = "model"

    @classmethod
    def load(cls, path: str) -> Self:
        """Read a folder or hub id: a sequence classifier with one output, or an adapter of one.

        Raises:
            ConfigError: if it is not one, or has no tokenizer of its own.
        """
        made = "Give the output_dir of recipes/rm_dbbench.py, or another sequence classifier with one output."
        adapter = adapter_of(path)
        if adapter is not None and "score" not in (adapter.get("modules_to_save") or []):
            raise ConfigError(f"'model:{path}' is no reward model: the adapter has no score head. {made}")
        model, tokenizer = load_scorer("model", path, AutoModelForSequenceClassification, adapter, made)
        return cls(path, model, Reader(tokenizer))

    def score(self, conversations: Sequence[tuple[Messages, Messages]]) -> list[float]:
        """Return the score of each (prompt, completion), on any scale; only differences are meaningful."""
        return self.score_ids([self.reader.conversation_ids(*each) for each in conversations])

    @torch.no_grad()
    def score_ids(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the scores of conversations that are ids already."""
        scores = [0.0] * len(rows)
        for numbers, ids, mask in self.batches(rows):
            values = self.model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
            for number, value in zip(numbers, values, strict=True):
                scores[number] = value
        return scores


# --- loading ------------------------------------------------------------------------------------------


def file_of(path: str, name: str) -> str | None:
    """Return the path of a file of a folder or hub id, if it exists."""
    if Path(path).is_dir():
        return str(Path(path) / name) if (Path(path) / name).is_file() else None
    try:
        return cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None


def adapter_of(path: str) -> dict[str, Any] | None:
    """Return PEFT's config of an adapter; `None` for a whole model."""
    file = file_of(path, "adapter_config.json")
    return None if file is None else json.loads(Path(file).read_bytes())


def load_scorer(
    kind: str, path: str, auto: Any, adapter: dict[str, Any] | None, made: str
) -> tuple[Any, Any]:
    """Return the model and its tokenizer.

    Raises:
        ConfigError: if they cannot be loaded, or do not fit each other.
    """
    if is_deepspeed_zero3_enabled():
        raise ConfigError(
            f"'{kind}:{path}' cannot be used under DeepSpeed ZeRO-3, which would split it between the ranks; "
            "take ZeRO-2 or FSDP."
        )
    if file_of(path, "tokenizer_config.json") is None:
        # transformers would make an empty one of the model's config
        raise ConfigError(
            f"'{kind}:{path}' has no tokenizer, and the policy's is not taken in its place: the vocabularies "
            f"may differ. Save its own there (tokenizer.save_pretrained). {made}"
        )
    only_score = {"num_labels": 1} if auto is AutoModelForSequenceClassification and adapter else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        base = adapter["base_model_name_or_path"] if adapter else path
        model, info = auto.from_pretrained(base, dtype="auto", output_loading_info=True, **only_score)
        if adapter:
            model = PeftModel.from_pretrained(model, path)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"'{kind}:{path}' cannot be loaded: {one_line(error)} {made}") from None
    if (missing := info["missing_keys"]) and not adapter:
        what = f"it has no weights for {', '.join(sorted(missing)[:3])}"
        raise ConfigError(f"'{kind}:{path}' is no reward model: {what}. {made}")
    if auto is AutoModelForSequenceClassification and model.config.num_labels != 1:
        raise ConfigError(
            f"'{kind}:{path}' is no reward model: it has {model.config.num_labels} outputs, not one. {made}"
        )
    if len(tokenizer) > (rows := model.get_input_embeddings().weight.shape[0]):
        raise ConfigError(
            f"'{kind}:{path}' has a tokenizer of another vocabulary: {len(tokenizer):,} tokens, and "
            f"embeddings for {rows:,}. Save the model's own there."
        )
    return model.eval().requires_grad_(False), tokenizer
