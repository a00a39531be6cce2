"""Chat text <-> token ids; sampled ids are never tokenised again.

Stock loops render the whole conversation for every turn. Templates that rewrite earlier turns (dropped
thoughts, trimmed blanks) then train on ids that were never sampled. Here the prompt is rendered once and
sampled ids stay unchanged. The text *between* two turns is found by rendering a conversation with a
placeholder as the assistant's turn: the part after the placeholder is appended as ids.

```
<|im_start|>user\\nHow many?<|im_end|>\\n<|im_start|>assistant\\n  PLACEHOLDER  <|im_end|>\\n<|im_start|>...
└───────────────────── prompt, rendered once ────────────────────┘  └─ sampled ─┘  └── appended, mask 0 ──┘
```

The template is checked at the start, by rendering; `docs/models.md` has the results for TRL's templates. A
server renders all turns again for each request, so its text must consist of the same pieces, with the
thoughts of earlier turns. Text from tasks and databases is data: it never becomes a control token.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from trl_dbbench.episode.protocol import AgentProtocol, Answer, Invalid, Operation
from trl_dbbench.episode.templates import (
    TEMPLATE_ERRORS,
    THOUGHT_SWITCHES,
    as_data,
    control_tokens,
    keeping_variants,
    knows_thoughts,
    own_template,
)
from trl_dbbench.episode.tool_calls import (
    THOUGHT_FIELDS,
    THOUGHTS,
    after_thoughts,
    end_thought,
    has_header,
    has_thought,
    split_prompt,
    thought_of,
)
from trl_dbbench.episode.types import Completion, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.nesting import not_nested_deeply

logger = logging.getLogger(__name__)

_PLACEHOLDER = "PLACEHOLDER-OF-THE-TURN"
_THOUGHT = "THOUGHT-OF-THE-TURN"
_QUESTION = {"role": "user", "content": "?"}
_CALL_ID = "000000000"
"""Id of a tool call: nine letters or digits, as Mistral's templates require."""

_PROBE = [{"role": "system", "content": "SYSTEM-RULES"}, {"role": "user", "content": "USER-QUESTION"}]
_PROBE_ACTIONS = (
    Operation("SELECT `a b`, 'it''s', \"x , y\" FROM t -- < 50 % & [1], {2} \\ é🍐\nWHERE c = ' . '"),
    Answer(str(["a, b", "it's", '"']), ("a, b", "it's", '"')),
)
"""Actions that every template must write in a form that the protocol reads back."""

_TAG = re.compile(r"<[/|｜]?[\w▁:\"-]{1,40}[|｜/]?>|\[/?[A-Z][A-Z_]{1,40}\]|<</?SYS>>")
"""Marks that begin or end a part of a template's text: `<|im_end|>`, `</tool_response>`, `[INST]`."""

_REMEDY = (
    "Try the other protocol (`protocol: text` or `tools`), or another template with `chat_template:`, the "
    "path of a jinja file or the name of one of TRL's."
)

HISTORIES = ("kept", "template")
"""Ways to show earlier turns: as they were written, or as the template shows them."""

_REMEDY_SHOTS = f"{_REMEDY} Or leave few_shot out."
_REMEDY_THOUGHTS = (
    f"{_REMEDY} Or set `history: template`, which trains each turn after what the template shows of earlier "
    "ones. Or switch thoughts off where the template can: `chat_template_kwargs: {enable_thinking: false}`."
)
_REMEDY_END = "Add the token that ends its turns to eos_token_id in the model's generation_config.json."


class ChatFormat:
    """A tokenizer's chat template, as one protocol uses it.

    Args:
        protocol: sets the tools of the prompt and the role of observations.
        eos_token_ids: ids that end a turn; the tokenizer's own if left out. Models with several
            (`<|eot_id|>`, `<|eom_id|>`) list them in their generation config.
        template_kwargs: arguments of the template (`enable_thinking`, ...).
        history: one of `HISTORIES`.

    Attributes:
        chat_template: the tokenizer's own template, or one with the same prompts that keeps the thoughts of
            earlier turns, if its own drops them. The saved model needs it.
        rewrites: whether the template changes earlier turns; then each turn is sampled after the ids that
            `context_ids` returns.

    Raises:
        ConfigError: if there is no chat template or it does not fit the protocol: it refuses the roles, omits
            the system prompt, tools or observations, changes the prompt when a turn is added, writes an
            action that the protocol does not read back, or drops the thoughts of earlier turns.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        protocol: AgentProtocol,
        eos_token_ids: Sequence[int] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        history: str = "kept",
    ):
        check_choice("history", history, HISTORIES)
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
        # cached, since the episodes of a group see similar observations
        self._observation_ids = lru_cache(maxsize=1024)(self._render_observation)
        self.rewrites = history == "template" and not self._use(own)
        if history == "kept":
            self._choose(own)

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the ids of the prompt.

        Control tokens are broken up in all messages except the system's. Turns of earlier episodes (see
        `runs.few_shot`) lose their thoughts, and become tool calls if the protocol writes tool calls.
        """
        return self._encode(self._render([self._prompt_message(message) for message in messages]))

    def observation_ids(self, observation: str, *, end: int | None) -> list[int]:
        """Return the ids between a sampled turn and the next one.

        Args:
            observation: the text shown to the agent. Control tokens in it are broken up: a cell that holds
                `<|im_end|>` must not end the turn.
            end: the id that ended the turn; `None` if its token limit did. Then the template's end-of-turn
                token is added.
        """
        ids = list(self._observation_ids(observation))
        # without an end token in the template, the next role's token ends the turn: keep it unless sampled
        if end is not None and (ids[0] == end or (self._ends_turns and ids[0] in self.eos_token_ids)):
            return ids[1:]
        return ids

    def context_ids(self, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> list[int]:
        """Return the ids before the next turn, with earlier turns as the template shows them.

        The parts of earlier turns that the template shows keep their sampled ids.
        """
        messages = [_QUESTION]
        for number, turn in enumerate(turns):
            messages += [self._shown(number, turn), self._observed(self._as_data(turn.observation or ""))]
        stem, tail = split_prompt(self._render([_QUESTION]))
        ids = list(prompt_ids[: len(prompt_ids) - len(self._encode(tail))])
        return ids + self._with_turns(self._render(messages).removeprefix(stem), dict(enumerate(turns)))

    def messages_ids(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        turns: Mapping[int, Turn],
    ) -> list[int]:
        """Return the ids of any conversation, as the template shows it.

        Args:
            turns: the sampled turns among the messages, by message index. Their ids are kept if the template
                shows the turns without their calls; otherwise thoughts and calls are rendered again.

        Raises:
            TEMPLATE_ERRORS: if the template refuses the messages, or leaves out a message or the tools.
        """
        plain = [*map(self._client_message, messages)]
        shown = [
            self._shown(place, turns[place]) if place in turns else message
            for place, message in enumerate(plain)
        ]
        try:
            text = self._render(shown, tools=tools)
            all_shown = all(f"{_PLACEHOLDER}-{place}." in text for place in turns)
            if all_shown and not self._left_out(shown, tools):
                return self._with_turns(text, turns)
        except TEMPLATE_ERRORS:
            pass  # it needs the calls of a turn, which `_shown` leaves in the text
        for place, turn in turns.items():
            if self._has_thought(turn):
                plain[place] |= dict.fromkeys(THOUGHT_FIELDS, self._as_data(thought_of(turn.text)))
        if left_out := self._left_out(plain, tools):
            raise ValueError(f"it leaves out {left_out}")
        return self._encode(self._render(plain, tools=tools))

    def _left_out(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str | None:
        """Return the first message or tool that the template leaves out; replies may lose their text."""
        marked = list(messages)
        for place, message in enumerate(messages):
            if message.get("content") and message.get("role") != "assistant":
                marked[place] = message | {"content": f"MESSAGE-{place}."}
        text = self._render(marked, tools=tools)
        for place, message in enumerate(marked):
            if message is not messages[place] and message["content"] not in text:
                return f"message {place + 1}, of the role {message.get('role')!r}"
        told = " ".join([text, *(message["content"] for message in messages if message.get("content"))])
        names = (tool.get("function", {}).get("name", "") for tool in tools or ())
        missing = next((name for name in names if name not in told), None)
        return None if missing is None else f"the tool {missing!r}; describe it in a message"

    def _client_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as templates read it: arguments of calls as objects, content as one text.

        Fields without a value are left out. The role `developer` is OpenAI's newer name for `system`.
        """
        content = content_of(message)
        message = {key: value for key, value in message.items() if value or key == "content"}
        if message.get("role") == "developer":
            message["role"] = "system"
        if content is not None:
            message["content"] = content if message.get("role") == "system" else self._as_data(content)
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_with_object(call) for call in calls]
        return message

    def _with_turns(self, text: str, turns: Mapping[int, Turn]) -> list[int]:
        """Return the ids of a rendered text, with sampled ids where the placeholders of `_shown` are."""
        ids: list[int] = []
        for number, turn in turns.items():
            content, thought = f"{_PLACEHOLDER}-{number}.", f"{_THOUGHT}-{number}."
            before, _, text = text.partition(content)
            whole = not self._has_thought(turn) and not has_header(turn.text)
            if thought in before:
                # a mark that opens the thought is among the turn's ids, if the prompt does not end in it
                before, whole = self._before_turn(before.partition(thought)[0]) + self._begun, True
            ids += [*self._encode(before), *(self._unended_ids(turn) if whole else self._content_ids(turn))]
        return [*ids, *self._encode(text)]

    def _before_turn(self, text: str) -> str:
        """Return a text without the start of a turn at its end: a header, or a mark that opens a thought.

        The prompt's blanks before that mark are kept; other blanks are among the turn's ids.
        """
        if has_header(self._begun):
            return text.rpartition(self._begun)[0]
        before = split_prompt(text)[0].rstrip()
        return before and before + self._blanks

    def turn_ids(self, action: Operation | Answer) -> list[int]:
        """Return the ids that an agent would sample for this action, including the end token."""
        ids = self._encode(self._rendered_turn(action))
        end = next((i for i, id in enumerate(ids) if id in self.eos_token_ids), None)
        if end is None:  # a template without a token for the end of a turn
            following = self._observation_ids("")[0]
            return [*ids, following if following in self.eos_token_ids else min(self.eos_token_ids)]
        return ids[: end + 1]

    def ids_of(self, text: str) -> list[int]:
        """Tokenise the text of a saved turn and add an end token. The sampled ids may have been different."""
        return [*self._encode(text.removeprefix(self._begun)), self.turn_ids(_PROBE_ACTIONS[1])[-1]]

    def text(self, ids: Sequence[int]) -> str:
        """Return a sampled turn as text, without the end token.

        If the template's prompt opens a thought, the text begins with its mark.
        """
        if ids and ids[-1] in self.eos_token_ids:
            ids = ids[:-1]
        return self._begun + self._decode(ids)

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
        """Render a conversation with a placeholder as the assistant's turn, then this observation."""
        return self._render([*messages, self._placeholder(), self._observed(observation)])

    def _placeholder(self) -> dict[str, Any]:
        turn = self._message(Operation(_PLACEHOLDER))
        return turn if self._writes_calls else turn | {"content": _PLACEHOLDER}

    def _observed(self, observation: str) -> dict[str, Any]:
        message = {"role": self.protocol.observation_role, "content": observation}
        if self._writes_calls:
            (call,) = self._message(Operation(""))["tool_calls"]
            message |= {"name": call["function"]["name"], "tool_call_id": _CALL_ID}
        return message

    # --- earlier turns, as the template shows them ------------------------------------------------

    def _has_thought(self, turn: Turn) -> bool:
        return knows_thoughts(self.chat_template) and has_thought(turn.text)

    def _shown(self, number: int, turn: Turn) -> dict[str, Any]:
        """Return a turn as a client sends it back, with placeholders for its content and thought."""
        content, thought = f"{_PLACEHOLDER}-{number}.", f"{_THOUGHT}-{number}."
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if not self._has_thought(turn):
            return message
        fields, *texts = self._with_thought(message, thought)
        return fields if any(field in self.chat_template for field in THOUGHT_FIELDS) else texts[0]

    def _with_thought(self, turn: dict[str, Any], thought: str) -> list[dict[str, Any]]:
        """Return versions of a turn: with the thought in fields, then in the text between pairs of marks."""
        marks = [pair for pair in THOUGHTS if any(mark in self.chat_template for mark in pair)]
        texts = [f"{opened}\n{thought}\n{closed}\n\n{turn['content']}" for opened, closed in marks]
        return [turn | dict.fromkeys(THOUGHT_FIELDS, thought), *(turn | {"content": text} for text in texts)]

    def _unended_ids(self, turn: Turn) -> list[int]:
        ids = turn.completion.ids
        return ids[:-1] if ids and ids[-1] in self.eos_token_ids else ids

    def _content_ids(self, turn: Turn) -> list[int]:
        """Return the sampled ids after the turn's thought, or tokenise the content if no id begins there."""
        ids, content = self._unended_ids(turn), after_thoughts(turn.text).strip()
        # the text of the remaining ids gets shorter token by token
        first = bisect_left(range(len(ids)), -len(content), key=lambda start: -len(self._decode(ids[start:])))
        for start in range(max(0, first - 2), min(len(ids), first + 3)):
            if self._decode(ids[start:]) == content:
                return ids[start:]
        return self._encode(content)

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
        return self._encode(rendered.partition(_PLACEHOLDER)[2])[self._unended :]

    def _render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **switched: Any
    ) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=switched.pop("tools", self.protocol.tools),
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **{**self._template_kwargs, **switched},
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    # --- data -------------------------------------------------------------------------------------

    def _as_data(self, text: str) -> str:
        """Break up each control token of the tokenizer and each mark of the template by a space."""
        return as_data(text, self._marks)

    def _find_marks(self, rendered: str) -> list[str]:
        """Return all marks that are not text: special tokens, added tokens in the template, and its tags."""
        added = (token.content for token in self.tokenizer.added_tokens_decoder.values())
        named = {mark for mark in added if mark in self.chat_template and _TAG.fullmatch(mark)}
        return sorted(control_tokens(self.tokenizer) | named | {*_TAG.findall(rendered)})

    # --- checks -----------------------------------------------------------------------------------

    def check_shots(self) -> None:
        """Raise ConfigError if the template does not show an earlier episode before the question."""
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

    def check_context(self) -> None:
        """Raise ConfigError if `context_ids` differ from what a server renders for the same messages."""
        action = _PROBE_ACTIONS[0]
        ids = self.turn_ids(action)
        text = self.text(ids)
        turn = Turn(Completion(ids, []), text, self.protocol.parse(text), observation="OBSERVATION")
        sent = self._message(action)
        forms = [sent]
        if any(closed in text for _, closed in THOUGHTS) and text.endswith(sent.get("content") or "\0"):
            # with the thought, which is empty here, in the text or in a field
            forms += [sent | {"content": text}, sent | dict.fromkeys(THOUGHT_FIELDS, _THOUGHT)]
        with suppress(*TEMPLATE_ERRORS):
            read = self._decode(self.context_ids(self._encode(self._render([_QUESTION])), [turn, turn]))
            observed = self._observed("OBSERVATION")
            if any(read == self._render([_QUESTION, *[form, observed] * 2]) for form in forms):
                return
        raise self._refusal(
            "shows a sampled turn in another way than one that is sent to a server, so that earlier turns "
            "cannot be shown anew (history: template, compaction_tokens)"
        )

    def _choose(self, own: str) -> None:
        """Use the tokenizer's template, or one that shows the same prompts and keeps earlier turns."""
        if self._use(own):
            return
        shown = self._shown_by(own)
        for name, template in keeping_variants(own):
            with suppress(*TEMPLATE_ERRORS, ConfigError):
                if knows_thoughts(template) and self._shown_by(template) == shown and self._use(template):
                    logger.info("Chat template: %s, which keeps the thoughts of earlier turns.", name)
                    return
        raise self._refusal(
            "does not keep earlier turns as the agent writes them, thoughts included, under `protocol: "
            f"{self.protocol.name}`; training does, so the model would read other prompts once it is served",
            _REMEDY_THOUGHTS,
        )

    def _shown_by(self, template: str) -> tuple[str, str]:
        """Return the prompt and the text between two turns: what the agent sees of a template."""
        self.chat_template = template
        between = self._after_a_turn(_PROBE, "OBSERVATION").partition(_PLACEHOLDER)[2]
        return self._render(_PROBE), between

    def _use(self, template: str) -> bool:
        """Use a template; return whether a server that renders earlier turns again shows the same prompts.

        Raises:
            ConfigError: if it does not fit the protocol.
        """
        self.chat_template = template
        self._observation_ids.cache_clear()
        self._marks: list[str] = []
        prompt, conversation = self._check_layout()
        stem, self._begun = split_prompt(prompt)
        self._blanks = stem[len(stem.rstrip()) :]
        after_the_question = prompt.rpartition(_PROBE[1]["content"])[2]
        self._marks = self._find_marks(after_the_question + conversation.removeprefix(stem))
        between = conversation.partition(_PLACEHOLDER)[2]
        closing = self._encode(between.partition("OBSERVATION")[0])
        # number of ids before the end of the agent's turn, such as the rest of a call
        self._unended = next((i for i, id in enumerate(closing) if id in self.eos_token_ids), 0)
        turn = self._encode(self._rendered_turn(_PROBE_ACTIONS[0]))
        self._ends_turns = not self.eos_token_ids.isdisjoint(turn)
        self._check_actions()
        thinks = self._thinks(prompt)
        handed_back = [self._placeholder()]
        if thinks:  # the forms in which clients send a turn back to a server
            handed_back = self._with_thought(handed_back[0], _THOUGHT)
        return any(self._keeps(turn, thinks, prompt, between) for turn in handed_back)

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
                raise self._refusal(f"does not show the tools ({function['name']}) in the prompt")
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

    def _thinks(self, prompt: str) -> bool:
        """Return whether the template lets the model think: it knows thoughts, and they are switched on."""
        if not knows_thoughts(self.chat_template):
            return False
        with suppress(*TEMPLATE_ERRORS):
            off, on = (self._render(_PROBE, **dict.fromkeys(THOUGHT_SWITCHES, to)) for to in (False, True))
            return prompt != off or prompt == on
        return True

    def _keeps(self, turn: dict[str, Any], thinks: bool, prompt: str, between: str) -> bool:
        """Return whether a conversation is its prompt, then each turn and what training appends to it."""
        played = [turn, self._observed("OBSERVATION")]
        try:
            once, twice = (self._render([*_PROBE, *played * turns]) for turns in (1, 2))
        except TEMPLATE_ERRORS:
            return False
        added = once.removeprefix(prompt)
        before, _, after = added.partition(_PLACEHOLDER)
        begun, thought, _ = before.partition(_THOUGHT)
        return (
            (once, twice) == (prompt + added, once + added)
            and after == between
            and bool(thought) == thinks
            and not any(closed in begun for _, closed in THOUGHTS)  # an empty thought before the agent's
        )

    def _check_actions(self) -> None:
        for action in _PROBE_ACTIONS:
            written = self.protocol.write(action)
            meant = self.protocol.parse(written) if isinstance(written, str) else action
            if type(meant) is not type(action):
                raise ConfigError(
                    f"the protocol '{self.protocol.name}' writes {action!r} as {written!r}, which it reads "
                    f"as {meant!r}. Let its `write` return a turn that its `parse` reads as the same action."
                )
            text = self.text(self.turn_ids(action))
            read = self.protocol.parse(text)
            # an SQL answer has only a text
            if read != meant and (isinstance(read, Invalid) or self.protocol.write(read) != written):
                said = read.reason if isinstance(read, Invalid) else read
                raise self._refusal(
                    f"writes an action in a form that the protocol '{self.protocol.name}' does not read as "
                    f"this action: {text!r} is read as {said!r}",
                    _REMEDY if self._ends_turns else _REMEDY_END,
                )

    def _refusal(self, problem: str, remedy: str = _REMEDY) -> ConfigError:
        return ConfigError(f"the chat template of '{self.tokenizer.name_or_path}' {problem}. {remedy}")


def content_of(message: dict[str, Any]) -> str | None:
    """Return the text of a client's message, with its parts joined by newlines, as in vLLM."""
    content = message.get("content")
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = {"arguments": "{}"} | call["function"]
    with suppress(ValueError, TypeError, RecursionError):
        function["arguments"] = not_nested_deeply(json.loads(function["arguments"] or "{}"))
    return {**call, "function": function}
