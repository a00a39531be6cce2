"""Chat text <-> token ids, without ever tokenising again what the model has seen.

Stock loops render the whole conversation for every turn; templates that rewrite earlier turns (dropped
thoughts, trimmed blanks) then train on ids that were never sampled. Here the prompt is rendered once, the
sampled ids stay as they are, and what the template puts *between* two turns is read off a difference: a
conversation is rendered with a placeholder in the assistant's turn, and what follows it is appended as ids.

```
<|im_start|>user\\nHow many?<|im_end|>\\n<|im_start|>assistant\\n  PLACEHOLDER  <|im_end|>\\n<|im_start|>...
└───────────────────── prompt, rendered once ────────────────────┘  └─ sampled ─┘  └── appended, mask 0 ──┘
```

Whether a template can be used so is found out at the start, by rendering: `docs/models.md` has the outcome
for the templates that TRL knows. Tasks and databases are data: no text of theirs makes a control token.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from trl_dbbench.episode.protocol import AgentProtocol, Answer, Invalid, Operation
from trl_dbbench.episode.templates import TEMPLATE_ERRORS, own_template, training_template
from trl_dbbench.episode.tool_calls import after_thoughts, end_thought, split_prompt
from trl_dbbench.errors import ConfigError

logger = logging.getLogger(__name__)

_PLACEHOLDER = "PLACEHOLDER-OF-THE-TURN"
_QUESTION = {"role": "user", "content": "?"}
_CALL_ID = "000000000"
"""Nine letters or digits, as Mistral's templates want them."""

_PROBE = [{"role": "system", "content": "SYSTEM-RULES"}, {"role": "user", "content": "USER-QUESTION"}]
_PROBE_ACTIONS = (
    Operation("SELECT `a b`, 'it''s', \"x , y\" FROM t -- < 50 % & [1], {2} \\ é🍐\nWHERE c = ' . '"),
    Answer(str(["a, b", "it's", '"']), ("a, b", "it's", '"')),
)
"""What every template must be able to write so that the protocol reads it again."""

_TAG = re.compile(r"<[/|｜]?[\w▁:\"-]{1,40}[|｜/]?>|\[/?[A-Z][A-Z_]{1,40}\]|<</?SYS>>")
"""How templates mark where something begins or ends: `<|im_end|>`, `</tool_response>`, `[INST]`."""

_REMEDY = (
    "Try the other protocol (`protocol: text` or `tools`), or another template with `chat_template:`, the "
    "path of a jinja file or the name of one of TRL's."
)

_REMEDY_SHOTS = f"{_REMEDY} Or leave few_shot out."

_REMEDY_END = "Add the token that ends its turns to eos_token_id in the model's generation_config.json."


class ChatFormat:
    """A tokenizer's chat template, as one protocol uses it.

    Args:
        tokenizer: has a chat template.
        protocol: says which tools the prompt offers and in which role observations come.
        eos_token_ids: ids that end a turn; the tokenizer's own if left out. Models with several
            (`<|eot_id|>`, `<|eom_id|>`) list them in their generation config.
        template_kwargs: passed on to the template (`enable_thinking`, ...).

    Attributes:
        chat_template: the template in use: the tokenizer's own, or TRL's variant of it for training where
            that one keeps the thoughts of earlier turns, and the own one does not.

    Raises:
        ConfigError: if there is no chat template, or it cannot be used with this protocol: it refuses the
            roles, leaves out the system prompt, the tools or observations, changes the prompt when a turn is
            added, or writes an action in a form that the protocol does not read as this action.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        protocol: AgentProtocol,
        eos_token_ids: Sequence[int] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ):
        own = own_template(tokenizer, protocol.tools)
        if not eos_token_ids and tokenizer.eos_token_id is None:
            raise ConfigError(
                f"the tokenizer of '{tokenizer.name_or_path}' has no eos token; set tokenizer.eos_token."
            )
        self.tokenizer = tokenizer
        self.protocol = protocol
        self.eos_token_ids = frozenset(eos_token_ids or [tokenizer.eos_token_id])
        self._template_kwargs = template_kwargs or {}
        self._writes_calls = "tool_calls" in self._message(Operation(_PLACEHOLDER))
        # a group's episodes see much the same
        self._observation_ids = lru_cache(maxsize=1024)(self._render_observation)
        try:
            self._use(own)
        except ConfigError as error:
            if not self._use_training_template(str(error)):
                raise
        else:
            if not self._keeps_the_prompt and not self._use_training_template(
                "it drops thoughts of earlier turns"
            ):
                self._use(own)

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """The ids that the first turn is sampled after.

        The text of the system turn is taken as written; in all others control tokens are broken up, as in
        observations. Turns of earlier episodes (see `few_shot`) are shown without their thoughts, and as
        tool calls in the template's form where the protocol writes such.
        """
        return self._encode(self._render([self._prompt_message(message) for message in messages]))

    def observation_ids(self, observation: str, *, end: int | None) -> list[int]:
        """What stands between a sampled turn and the next one.

        Args:
            observation: the text shown to the agent. Control tokens in it are broken up: a cell that holds
                `<|im_end|>` must not end the turn.
            end: the id that ended the turn. `None` if none did (the turn was cut at its token limit): then
                the template's end-of-turn token is put in, as context.
        """
        ids = list(self._observation_ids(observation))
        # where the template has no end of its own, the next role's token ends the turn: it stays, unless it
        # was sampled
        if end is not None and (ids[0] == end or (self._ends_turns and ids[0] in self.eos_token_ids)):
            return ids[1:]
        return ids

    def turn_ids(self, action: Operation | Answer) -> list[int]:
        """The turn that means this action, as the agent would have to sample it: with the token that ends
        it."""
        ids = self._encode(self._rendered_turn(action))
        end = next((i for i, id in enumerate(ids) if id in self.eos_token_ids), None)
        if end is None:  # a template without a token for the end of a turn
            following = self._observation_ids("")[0]
            return [*ids, following if following in self.eos_token_ids else min(self.eos_token_ids)]
        return ids[: end + 1]

    def ids_of(self, text: str) -> list[int]:
        """The ids of a turn of which only the text is left, with a token that ends it.

        It may have been sampled as other ids that mean the same text.
        """
        return [*self._encode(text.removeprefix(self._begun)), self.turn_ids(_PROBE_ACTIONS[1])[-1]]

    def text(self, ids: Sequence[int]) -> str:
        """A sampled turn as text, without the token that ended it.

        It begins with what the prompt had begun of it: an opened thought, where a template opens one.
        """
        if ids and ids[-1] in self.eos_token_ids:
            ids = ids[:-1]
        return self._begun + self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    # --- rendering --------------------------------------------------------------------------------

    def _message(self, action: Operation | Answer) -> dict[str, Any]:
        written = self.protocol.write(action)
        message = {"role": "assistant", **({"content": written} if isinstance(written, str) else written)}
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"id": _CALL_ID, **call} for call in calls]
        return message

    def _rendered_turn(self, action: Operation | Answer) -> str:
        prompt = self._render([_QUESTION])
        rendered = self._render([_QUESTION, self._message(action)], add_generation_prompt=False)
        if rendered.startswith(prompt):
            return rendered.removeprefix(prompt)
        stem, tail = split_prompt(prompt)
        return end_thought(tail, rendered.removeprefix(stem))

    def _after_a_turn(self, messages: list[dict[str, Any]], observation: str) -> str:
        """A conversation with a placeholder in the assistant's turn, and this observation after it."""
        turn = self._message(Operation(_PLACEHOLDER))
        if not self._writes_calls:
            turn["content"] = _PLACEHOLDER
        return self._render([*messages, turn, self._observed(observation)])

    def _observed(self, observation: str) -> dict[str, Any]:
        message = {"role": self.protocol.observation_role, "content": observation}
        if self._writes_calls:
            (call,) = self._message(Operation(""))["tool_calls"]
            message |= {"name": call["function"]["name"], "tool_call_id": _CALL_ID}
        return message

    def _prompt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        role, text = message["role"], message["content"]
        if role == "system":
            return message
        if role == "assistant":
            text = after_thoughts(text).strip() or text
            action = self.protocol.parse(text)
            if self._writes_calls and not isinstance(action, Invalid):
                return self._message(self._action_as_data(action))
        elif role == self.protocol.observation_role and self._writes_calls:
            return self._observed(self._as_data(text))
        return {**message, "content": self._as_data(text)}

    def _action_as_data(self, action: Operation | Answer) -> Operation | Answer:
        if isinstance(action, Operation):
            return Operation(self._as_data(action.sql))
        values = action.values and tuple(map(self._as_data, action.values))
        return Answer(self._as_data(action.text), values)

    def _render_observation(self, observation: str) -> list[int]:
        rendered = self._after_a_turn([_QUESTION], self._as_data(observation))
        ids = self._encode(rendered.partition(_PLACEHOLDER)[2])
        if not self._writes_calls:
            return ids
        # before the end of the turn stands the rest of the call
        return ids[next((i for i, id in enumerate(ids) if id in self.eos_token_ids), 0) :]

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=self.protocol.tools,
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._template_kwargs,
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    # --- data -------------------------------------------------------------------------------------

    def _as_data(self, text: str) -> str:
        """The text with a blank in each control token of the tokenizer and each mark of the template."""
        for mark in self._marks:
            if mark in text:
                text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _find_marks(self, rendered: str) -> list[str]:
        """What stands for no text: the tokenizer's special tokens, those others that the template names, and
        the marks that it puts around turns."""
        added = self.tokenizer.added_tokens_decoder.values()
        named = {token.content for token in added if token.content in self.chat_template}
        marks = {token.content for token in added if token.special} | {*self.tokenizer.all_special_tokens}
        marks |= {mark for mark in named if _TAG.fullmatch(mark)} | {*_TAG.findall(rendered)}
        return sorted(mark for mark in marks if len(mark.strip()) > 1)

    # --- checks -----------------------------------------------------------------------------------

    def check_shots(self) -> None:
        """Raises ConfigError if the template does not show an earlier episode before the question."""
        sql, answer = Operation("SELECT 'SHOT-SQL'"), Answer("SHOT-ANSWER", ("SHOT-ANSWER",))
        shot = [
            {"role": "user", "content": "SHOT-QUESTION"},
            *(self._message(sql), self._observed("SHOT-ROWS"), self._message(answer)),
        ]
        try:
            prompt = self._render([_PROBE[0], *shot, _PROBE[1]])
        except TEMPLATE_ERRORS as error:
            raise self._refusal(
                f"refuses earlier episodes in the prompt: {str(error).rstrip('.')}", _REMEDY_SHOTS
            ) from None
        parts = ("SHOT-QUESTION", "SHOT-SQL", "SHOT-ROWS", "SHOT-ANSWER", _PROBE[1]["content"])
        places = [prompt.find(part) for part in parts]
        if -1 in places or places != sorted(places):
            raise self._refusal(
                f"leaves out turns of earlier episodes, or shows them in another order: {prompt!r}",
                _REMEDY_SHOTS,
            )

    def _use_training_template(self, reason: str) -> bool:
        """Whether TRL has a variant for training of the tokenizer's template, and that one can be used."""
        training = training_template(self.tokenizer)
        if training is None:
            return False
        try:
            self._use(training)
        except ConfigError:
            return False
        if self._keeps_the_prompt:
            logger.info("TRL's variant for training replaces the model's own chat template: %s", reason)
        return self._keeps_the_prompt

    def _use(self, template: str) -> None:
        self.chat_template = template
        self._observation_ids.cache_clear()
        self._marks: list[str] = []
        prompt, conversation = self._check_layout()
        stem, self._begun = split_prompt(prompt)
        self._keeps_the_prompt = conversation.startswith(prompt)
        after_the_question = prompt.rpartition(_PROBE[1]["content"])[2]
        self._marks = self._find_marks(after_the_question + conversation.removeprefix(stem))
        turn = self._encode(self._rendered_turn(_PROBE_ACTIONS[0]))
        self._ends_turns = not self.eos_token_ids.isdisjoint(turn)
        self._check_actions()

    def _check_layout(self) -> tuple[str, str]:
        role = self.protocol.observation_role
        try:
            prompt = self._render(_PROBE)
            conversation = self._after_a_turn(_PROBE, "OBSERVATION")
        except TEMPLATE_ERRORS as error:
            raise self._refusal(
                f"refuses a system turn or an observation in the role '{role}': {str(error).rstrip('.')}"
            ) from None
        missing = [message["role"] for message in _PROBE if message["content"] not in prompt]
        if missing:
            raise self._refusal(f"leaves out the {missing[0]} turn")
        for tool in self.protocol.tools or []:
            function = tool["function"]
            if not all(name in prompt for name in (function["name"], *function["parameters"]["properties"])):
                raise self._refusal(f"does not tell the tools ({function['name']}) in the prompt")
        stem, begun = split_prompt(prompt)
        if not conversation.startswith(stem):
            raise self._refusal(
                "renders the prompt in another way once a turn is added, so turns cannot be appended to it"
            )
        after = conversation.removeprefix(stem).partition(_PLACEHOLDER)[2]
        if "OBSERVATION" not in after:
            raise self._refusal(f"does not show an observation in the role '{role}' after the turn")
        if split_prompt(after)[1] != begun:
            raise self._refusal("begins a turn after an observation in another way than the first one")
        if self._writes_calls and self.eos_token_ids.isdisjoint(
            self._encode(after.partition("OBSERVATION")[0])
        ):
            ends = ", ".join(self.tokenizer.convert_ids_to_tokens(sorted(self.eos_token_ids)))
            raise self._refusal(
                f"does not end a tool call with what ends the model's turns ({ends})", _REMEDY_END
            )
        return prompt, conversation

    def _check_actions(self) -> None:
        for action in _PROBE_ACTIONS:
            written = self.protocol.write(action)
            meant = self.protocol.parse(written) if isinstance(written, str) else action
            text = self.text(self.turn_ids(action))
            read = self.protocol.parse(text)
            if read != meant:
                said = read.reason if isinstance(read, Invalid) else read
                raise self._refusal(
                    f"writes an action in a form that the protocol '{self.protocol.name}' does not read as "
                    f"this action: {text!r} is read as {said!r}",
                    _REMEDY if self._ends_turns else _REMEDY_END,
                )

    def _refusal(self, problem: str, remedy: str = _REMEDY) -> ConfigError:
        return ConfigError(f"the chat template of '{self.tokenizer.name_or_path}' {problem}. {remedy}")
