"""Reward models: `model:PATH` in `reward_funcs`, and the base of `prm:PATH`.

```
model:PATH  sequence classifier  the whole conversation -> one score
prm:PATH    `process`            the conversation       -> one score per turn
```

They read the policy's messages (its roles, tools and template settings) with their own tokenizer and chat
template. Each rank has the whole model, in eval mode and without gradients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
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

from trl_dbbench.engines.transformers.models import all_layers_found
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.templates import as_data, check_shows_episodes, control_tokens
from trl_dbbench.episode.tool_calls import has_header
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError, load_errors, why_not_loaded
from trl_dbbench.utils.files import found_from_everywhere

ROWS_AT_ONCE = 16

Messages = list[dict[str, Any]]


class Reader:
    """Renderer and tokeniser of conversations for a scoring model. `shown` has further arguments of the chat
    template: `tools`, and the policy's template settings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: dict[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.shown = shown or {}
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token

    def rendered(self, messages: Messages) -> str:
        """Return the conversation as text, in which no message contains a token that would start another."""
        return self._render([*map(self._without_marks, messages)])

    def _render(self, messages: Messages) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **self.shown))

    def _without_marks(self, message: dict[str, Any]) -> dict[str, Any]:
        """Insert a blank into control tokens; in a turn, which may hold calls, only those around messages."""
        text, turn = message.get("content"), message.get("role") == "assistant"
        if not isinstance(text, str) or message.get("role") == "system" or (turn and has_header(text)):
            return message
        around, others = self._marks
        return {**message, "content": as_data(text, around if turn else [*around, *others])}

    @cached_property
    def _marks(self) -> tuple[list[str], list[str]]:
        """Control tokens around messages, and the other ones."""
        shown = self._render([{"role": role, "content": "-"} for role in ("user", "assistant", "user")])
        parts: tuple[list[str], list[str]] = ([], [])
        for mark in sorted(control_tokens(self.tokenizer)):
            parts[mark not in shown and mark != self.tokenizer.eos_token].append(mark)
        return parts

    def ids_of(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def conversation_ids(self, prompt: Messages, completion: Messages) -> list[int]:
        return self.ids_of(self.rendered([*prompt, *completion]))


class LearnedReward:
    """Base class of reward functions that are models.

    Args:
        path: recorded with the run; its last part is the name in the log.
        model: on any device; `read_as` moves it.
    """

    kind = ""

    def __init__(self, path: str | Path, model: Any, reader: Reader):
        self.path = found_from_everywhere(path)
        self.__name__ = self.path.split("/")[-1]
        self.model, self.reader = model, reader
        # a classifier scores the last token before the padding
        model.config.get_text_config().pad_token_id = reader.tokenizer.pad_token_id

    @property
    def name(self) -> str:
        """Its entry in `reward_funcs`."""
        return f"{self.kind}:{self.path}"

    @property
    def tolerance(self) -> float:
        """Largest difference between two scores of an episode, relative to max(1, score): batches sum in
        different orders."""
        return max(1e-4, 8 * torch.finfo(self.model.dtype).eps)

    def read_as(self, protocol: AgentProtocol, template_kwargs: dict[str, Any], device: Any) -> None:
        """Prepare for a run's episodes, with the policy's protocol and chat template arguments; raise
        ConfigError if the model's own chat template cannot show them."""
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
        """Return a value of `score` per episode; `None` if its environment failed or it has no turns."""
        played = [row for row, e in enumerate(episode) if e.status != Status.ENVIRONMENT_FAULT and e.turns]
        scores = self.score([(prompts[row], completions[row]) for row in played])
        by_row = dict(zip(played, scores, strict=True))
        return [by_row.get(row) for row in range(len(episode))]

    def score(self, conversations: Sequence[tuple[Messages, Messages]]) -> list[Any]:
        """Return a value per (prompt, completion)."""
        raise NotImplementedError

    def batches(self, rows: Sequence[Sequence[int]]):
        """Yield batches (row numbers, ids, attention mask) in eval mode, long rows first to save padding."""
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


class RewardModel(LearnedReward):
    """One score for the whole conversation, as TRL's `RewardTrainer` trains it."""

    kind = "model"
    steps = False

    @classmethod
    def load(cls, path: str) -> Self:
        """Load a sequence classifier with one output, or an adapter of one, from a folder or hub id."""
        made = "Give the output_dir of recipes/rm_dbbench.py, or another sequence classifier with one output."
        adapter = adapter_of(path, made)
        if adapter is not None and "score" not in (adapter.get("modules_to_save") or []):
            raise ConfigError(f"'model:{path}' is not a reward model: the adapter has no score head. {made}")
        model, tokenizer = load_scorer("model", path, AutoModelForSequenceClassification, adapter, made)
        return cls(path, model, Reader(tokenizer))

    def score(self, conversations: Sequence[tuple[Messages, Messages]]) -> list[float]:
        """Return an unbounded score per (prompt, completion); only differences have a meaning."""
        return self.score_ids([self.reader.conversation_ids(*each) for each in conversations])

    @torch.no_grad()
    def score_ids(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the scores of tokenised conversations."""
        scores = [0.0] * len(rows)
        for numbers, ids, mask in self.batches(rows):
            values = self.model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
            for number, value in zip(numbers, values, strict=True):
                scores[number] = value
        return scores


def file_of(path: str, name: str) -> str | None:
    """Return the path of a file in a folder or hub repository; `None` if it has none."""
    try:
        return cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None


def adapter_of(path: str, made: str) -> dict[str, Any] | None:
    """Return an adapter's PEFT config, `None` for a whole model; raise ConfigError, with the remedy `made`,
    if there is neither."""
    file = file_of(path, "adapter_config.json")
    if file is None and file_of(path, "config.json") is None:
        raise ConfigError(
            f"there is no model in '{path}': it is no folder with a config.json, and the hub gives none of "
            f"that name. {made}"
        )
    return None if file is None else json.loads(Path(file).read_bytes())


def load_scorer(
    kind: str, path: str, auto: Any, adapter: dict[str, Any] | None, made: str
) -> tuple[Any, Any]:
    """Load a scoring model and its tokenizer; raise ConfigError, with the remedy `made`, if it is not one."""
    named, classifies = f"'{kind}:{path}'", auto is AutoModelForSequenceClassification
    if is_deepspeed_zero3_enabled():
        raise ConfigError(
            f"{named} cannot be used under DeepSpeed ZeRO-3, which would split it between the ranks; take "
            "ZeRO-2 or FSDP."
        )
    if file_of(path, "tokenizer_config.json") is None:
        # transformers would make an empty one from the model's config
        raise ConfigError(
            f"{named} has no tokenizer, and the policy's is not taken in its place: the vocabularies may "
            f"differ. Save its own there (tokenizer.save_pretrained). {made}"
        )
    only_score = {"num_labels": 1} if classifies and adapter else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        base = adapter["base_model_name_or_path"] if adapter else path
        model, info = auto.from_pretrained(base, dtype="auto", output_loading_info=True, **only_score)
        if adapter:
            with all_layers_found():
                model = PeftModel.from_pretrained(model, path)
    except load_errors() as error:
        raise ConfigError(f"{named} cannot be loaded: {why_not_loaded(error)} {made}") from None
    if (missing := info["missing_keys"]) and not adapter:
        what = f"it has no weights for {', '.join(sorted(missing)[:3])}"
        raise ConfigError(f"{named} is not a reward model: {what}. {made}")
    if classifies and model.config.num_labels != 1:
        what = f"it has {model.config.num_labels} outputs, not 1"
        raise ConfigError(f"{named} is not a reward model: {what}. {made}")
    if len(tokenizer) > (rows := model.get_input_embeddings().weight.shape[0]):
        raise ConfigError(
            f"{named} has a tokenizer of another vocabulary: {len(tokenizer):,} tokens, and embeddings for "
            f"{rows:,}. Save the model's own there."
        )
    return model.eval().requires_grad_(False), tokenizer
