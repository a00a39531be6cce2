"""Process reward models: `prm:PATH` in `reward_funcs`, a causal language model that scores turns.

It reads the conversation with a placeholder token after each turn's text. A turn's score is P(good), the
softmax over the logits of two tokens, good and bad, at the placeholder, as in Math-Shepherd (Wang et al.
2024).

```
prm.json   {"placeholder_token": "<extra_0>", "reward_tokens": ["+", "-"]}, beside the weights
```
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.learned import LearnedReward, Messages, Reader, adapter_of, file_of, load_scorer

PRM_FILE = "prm.json"

_MARK = "PLACEHOLDER-AFTER-THE-TURN"


@dataclass(frozen=True)
class StepTokens:
    """The placeholder and answer tokens of a process reward model.

    Args:
        placeholder_token: follows each step; the model answers there.
        reward_tokens: the answers "good" and "bad".
    """

    placeholder_token: str
    reward_tokens: tuple[str, str] = ("+", "-")

    def ids(self, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int, int]:
        """Return the ids of placeholder, good and bad; raise ConfigError if one is not a single token of this
        vocabulary, or two are equal."""
        found, vocabulary = list[int](), tokenizer.get_vocab()
        for token in (self.placeholder_token, *self.reward_tokens):
            known = token in vocabulary
            ids = [vocabulary[token]] if known else tokenizer(token, add_special_tokens=False)["input_ids"]
            if len(ids) != 1 or (ids[0] == tokenizer.unk_token_id and token != tokenizer.unk_token):
                raise ConfigError(
                    f"{token!r} is not one token of '{tokenizer.name_or_path}'. Name one of its vocabulary "
                    "for placeholder_token, and two for reward_tokens, as in reward_tokens: ['+', '-']."
                )
            found += ids
        if len({*found}) != 3:
            raise ConfigError(
                f"placeholder_token {self.placeholder_token!r} and reward_tokens {list(self.reward_tokens)} "
                "must be three different tokens."
            )
        return found[0], found[1], found[2]

    def write(self, folder: Path, **more: Any) -> None:
        """Write the tokens to a file beside the weights, for `prm:PATH`."""
        (folder / PRM_FILE).write_text(json.dumps(asdict(self) | more, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> StepTokens:
        """Read the tokens from a process reward model's folder or hub id."""
        file = file_of(path, PRM_FILE)
        try:
            if file is None:
                raise ValueError(f"it has no {PRM_FILE}")
            known = json.loads(Path(file).read_bytes())
            return step_tokens(known["placeholder_token"], known["reward_tokens"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise ConfigError(
                f"'prm:{path}' is not a process reward model: {what}. Give the output_dir of "
                f"recipes/prm_dbbench.py, or put a {PRM_FILE} beside its weights, as in "
                '{"placeholder_token": "<extra_0>", "reward_tokens": ["+", "-"]}.'
            ) from None


def step_tokens(placeholder_token: Any, reward_tokens: Any) -> StepTokens:
    """Return the tokens given in YAML or JSON; raise ConfigError unless they are a string and two strings."""
    good_and_bad = reward_tokens if isinstance(reward_tokens, list | tuple) else []
    if not (isinstance(placeholder_token, str) and placeholder_token) or [
        type(token) for token in good_and_bad
    ] != [str, str]:
        raise ConfigError(
            "a process reward model needs placeholder_token, a text, and reward_tokens, one for good and one "
            f"for bad; given are {placeholder_token!r} and {reward_tokens!r}."
        )
    return StepTokens(placeholder_token, (good_and_bad[0], good_and_bad[1]))


class StepReader(Reader):
    """Reader that tokenises conversations with a placeholder after each turn."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, tokens: StepTokens, shown: dict[str, Any] | None = None
    ):
        super().__init__(tokenizer, shown)
        self.placeholder, self.good, self.bad = tokens.ids(tokenizer)

    def encode(self, prompt: Messages, completion: Messages) -> tuple[list[int], list[int]]:
        """Return ids with a placeholder after each turn of the completion, and the placeholders' positions.

        Raise ConfigError if the chat template does not show each turn exactly once.

        ```
        <|im_start|>assistant Action: ... PLACEHOLDER <|im_end|> <|im_start|>user [(2,)] <|im_end|> ...
        ```

        The placeholder is inserted as an id, so that no text can imitate it.
        """
        turns = sum(message["role"] == "assistant" for message in completion)
        parts = self.rendered([*map(_without_mark, prompt), *map(_marked, completion)]).split(_MARK)
        if len(parts) != turns + 1:
            raise ConfigError(
                f"the chat template of '{self.tokenizer.name_or_path}' shows {len(parts) - 1} of {turns} "
                "turns; a process reward model needs one that shows each once."
            )
        return self.spliced([self.ids_of(part) for part in parts])

    def spliced(self, parts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
        """Join the parts with placeholders; return the ids and the placeholders' positions. A token always
        follows a placeholder, because training puts the label there."""
        ids, places = list(parts[0]), []
        for part in parts[1:]:
            places.append(len(ids))
            ids += [self.placeholder, *part]
        if places and places[-1] + 1 == len(ids):
            ids.append(self.tokenizer.eos_token_id)
        return ids, places

    def training_row(
        self, ids: list[int], places: Sequence[int], labels: Sequence[bool | None]
    ) -> dict[str, list[int]]:
        """Return a row for TRL's SFTTrainer: `input_ids`, and `labels`, -100 except for answers. Logits
        predict the next token, so a label is one position after its placeholder."""
        wanted = [-100] * len(ids)
        for place, label in zip(places, labels, strict=True):
            if label is not None:
                wanted[place + 1] = self.good if label else self.bad
        return {"input_ids": ids, "labels": wanted}

    def labelled_steps(self, row: dict[str, list[int]]) -> tuple[list[int], list[bool]]:
        """Return the positions of a training row's labelled placeholders, and whether each label is good."""
        places = [place - 1 for place, label in enumerate(row["labels"]) if label != -100]
        return places, [row["labels"][place + 1] == self.good for place in places]


def _without_mark(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"].replace(_MARK, _MARK.lower())}


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    message = _without_mark(message)
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"] + _MARK}


class ProcessRewardModel(LearnedReward):
    """A reward per turn: the probability that it was a good step."""

    kind = "prm"
    reader: StepReader

    @classmethod
    def load(cls, path: str) -> Self:
        """Load a causal language model with its `prm.json`, or an adapter of one, from a folder or hub id."""
        made = "Give the output_dir of recipes/prm_dbbench.py, or another causal language model."
        adapter, tokens = adapter_of(path, made), StepTokens.read(path)
        model, tokenizer = load_scorer("prm", path, AutoModelForCausalLM, adapter, made)
        return cls(path, model, StepReader(tokenizer, tokens))

    def __call__(self, episode: Sequence[Episode], *args: Any, **kwargs: Any) -> list[Any]:
        """Return a value for each turn; `None` for a program's turns, which the model does not read."""
        values = super().__call__(episode, *args, **kwargs)
        return [
            None if scores is None else _for_turns(e, scores)
            for e, scores in zip(episode, values, strict=True)
        ]

    def score(self, conversations: Sequence[tuple[Messages, Messages]]) -> list[list[float]]:
        """Return, per (prompt, completion), a probability for each turn of the completion."""
        return self.score_ids([self.reader.encode(*each) for each in conversations])

    @torch.no_grad()
    def score_ids(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Return, for each (ids, places), the probability of "good" at each place."""
        scores: list[list[float]] = [[]] * len(rows)
        for numbers, ids, mask in self.batches([ids for ids, _ in rows]):
            kept = sorted({place for number in numbers for place in rows[number][1]})
            keep = torch.tensor(kept, device=ids.device)
            logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=keep).logits
            answers = logits[..., [self.reader.good, self.reader.bad]].float().softmax(-1)[..., 0].tolist()
            for row, number in enumerate(numbers):
                scores[number] = [answers[row][kept.index(place)] for place in rows[number][1]]
        return scores


def _for_turns(episode: Episode, scores: Sequence[float]) -> list[float | None]:
    rest = iter(scores)
    return [next(rest) if said else None for said in episode.said]
