"""Chat text <-> token ids, without ever tokenising again what the model has seen.

Stock loops render the whole conversation for every turn; templates that rewrite earlier turns (dropped
thoughts, trimmed blanks) then train on ids that were never sampled. Here the prompt is rendered once, the
sampled ids stay as they are, and what the template puts *between* two turns is read off a difference: a
conversation is rendered with a placeholder as the assistant's turn, and what follows it is appended as ids.

```
<|im_start|>user\\nHow many?<|im_end|>\\n<|im_start|>assistant\\n  PLACEHOLDER  <|im_end|>\\n<|im_start|>...
└───────────────────── prompt, rendered once ────────────────────┘  └─ sampled ─┘  └── appended, mask 0 ──┘
```
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from trl_dbbench.errors import ConfigError
from trl_dbbench.protocol import AgentProtocol, Answer, Operation

_PLACEHOLDER = "PLACEHOLDER-OF-THE-TURN"


class ChatFormat:
    """A tokenizer's chat template, as one protocol uses it.

    Args:
        tokenizer: has a chat template.
        protocol: says which tools the prompt offers and in which role observations come.
        eos_token_ids: ids that end a turn; the tokenizer's own if left out. Models with several
            (`<|eot_id|>`, `<|eom_id|>`) list them in their generation config.
        template_kwargs: passed on to the template (`enable_thinking`, ...).

    Raises:
        ConfigError: if the tokenizer has no chat template, or its template refuses these roles, or
            changes the prompt when a turn is added.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        protocol: AgentProtocol,
        eos_token_ids: Sequence[int] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ):
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"the tokenizer of '{tokenizer.name_or_path}' has no chat template. Take an "
                "instruction-tuned model, or set tokenizer.chat_template (see TRL's clone_chat_template)."
            )
        if not eos_token_ids and tokenizer.eos_token_id is None:
            raise ConfigError(
                f"the tokenizer of '{tokenizer.name_or_path}' has no eos token; set tokenizer.eos_token."
            )
        self.tokenizer = tokenizer
        self.protocol = protocol
        self.eos_token_ids = frozenset(eos_token_ids or [tokenizer.eos_token_id])
        self._template_kwargs = template_kwargs or {}
        self._check_template()
        # a group's episodes see much the same
        self._observation_ids = lru_cache(maxsize=1024)(lambda text: self._encode(self._suffix(text)))

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """The ids that the first turn is sampled after."""
        return self._encode(self._render(messages))

    def observation_ids(self, observation: str, *, turn_ended: bool) -> list[int]:
        """What stands between a sampled turn and the next one.

        Args:
            observation: the text shown to the agent. Special tokens in it are broken up: a cell that holds
                `<|im_end|>` must not end the turn.
            turn_ended: whether the turn's last sampled id ended it. If it did not (the turn was cut at
                its token limit), the template's end-of-turn token is put in, as context.
        """
        ids = list(self._observation_ids(self._without_special_tokens(observation)))
        if turn_ended and ids[0] in self.eos_token_ids:
            return ids[1:]
        return ids

    def turn_ids(self, action: Operation | Answer) -> list[int]:
        """The turn that means this action, as the agent would have to sample it: with the token that ends
        it."""
        written = self.protocol.write(action)
        turn = {"role": "assistant", **({"content": written} if isinstance(written, str) else written)}
        start = [{"role": "user", "content": "?"}]
        rendered = self._render([*start, turn], add_generation_prompt=False)
        ids = self._encode(rendered.removeprefix(self._render(start)))
        end = next((i for i, id in enumerate(ids) if id in self.eos_token_ids), None)
        if end is None:  # a template without a token for the end of a turn
            return [*ids, min(self.eos_token_ids)]
        return ids[: end + 1]

    def text(self, ids: Sequence[int]) -> str:
        """A sampled turn as text, without the token that ended it."""
        if ids and ids[-1] in self.eos_token_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids)

    def _without_special_tokens(self, text: str) -> str:
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _suffix(self, observation: str) -> str:
        conversation = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _PLACEHOLDER},
            {"role": self.protocol.observation_role, "content": observation},
        ]
        return self._render(conversation).partition(_PLACEHOLDER)[2]

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=self.protocol.tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._template_kwargs,
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _check_template(self) -> None:
        start = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Question?"}]
        turn = {"role": "assistant", "content": _PLACEHOLDER}
        observation = {"role": self.protocol.observation_role, "content": "OBSERVATION"}
        whose = f"the chat template of '{self.tokenizer.name_or_path}'"
        try:
            prompt = self._render(start)
            conversation = self._render([*start, turn, observation])
        except (TemplateError, TypeError, ValueError, LookupError) as error:  # what a template can run into
            raise ConfigError(
                f"{whose} refuses a system turn or an observation in the role '{observation['role']}': "
                f"{error}. Try the other protocol, or another template."
            ) from None
        if not conversation.startswith(prompt):
            raise ConfigError(
                f"{whose} renders the prompt in another way once a turn is added, so turns cannot be "
                "appended to it. Use a prefix-preserving template (trl.chat_template_utils has some for "
                "training)."
            )
        if "OBSERVATION" not in conversation.partition(_PLACEHOLDER)[2]:
            raise ConfigError(
                f"{whose} does not show an observation in the role '{observation['role']}' after the turn. "
                "Try the other protocol, or another template."
            )
