"""Conversion of a server's reply to a turn, and back to messages of the next request."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trl_dbbench.episode.protocol import Action, AgentProtocol, Invalid
from trl_dbbench.episode.tool_calls import THOUGHT_FIELDS, as_arguments, meant_tool, without_marks
from trl_dbbench.episode.types import Completion, Turn, Usage

Message = dict[str, Any]
"""Chat message in the API's format."""

SECOND_CALL = "Error: not executed. Only the first call of a turn is."
"""Reply to every call of a turn but the first; servers require a result for each."""

_READ = ("role", "content", "tool_calls", "function_call", "refusal")
"""Fields of a message that are rebuilt for the next request; others are sent back as they came."""

_ARGUMENTS = ("arguments", "parameters", "input")
"""Fields of a call that may hold its arguments."""

_NOT_ENDED = ("length", "content_filter")
"""Finish reasons of incomplete replies."""

_CUT_OFF = ("max_tokens", "model_length")
"""Finish reasons that mean `length`."""

_FAILED = ("error", "abort", "insufficient_system_resource")
"""Finish reasons of replies that the server aborted: vLLM and SGLang as they stop, DeepSeek under load."""


@dataclass(frozen=True)
class Call:
    """Native tool call; `arguments` is the model's text, JSON or not."""

    id: str
    name: str
    arguments: str

    sent: Message = field(default_factory=dict)
    """Fields of the call as the server sent them; some must be sent back, such as Gemini's
    `extra_content`."""
    old: bool = False
    """True if it came as `function_call`, which is answered in the role `function`."""

    def text(self) -> str:
        """Return the call as text that `tool_calls.tool_call` parses as this call, even if its arguments are
        broken."""
        readable = _object(self.arguments)
        call = {"name": self.name, "arguments": self.arguments if readable is None else readable}
        return f"<tool_call>{without_marks(json.dumps(call, ensure_ascii=False))}</tool_call>"

    def message(self, tools: Collection[str] = ()) -> Message:
        """Return the call as part of a conversation.

        Its name becomes that of the tool that is meant, since servers reject names with other characters.
        Arguments that are not a JSON object are wrapped in one, since chat templates expect objects.
        """
        arguments = self.arguments
        if not isinstance(_decoded(arguments), dict):
            readable = _object(arguments)
            wrapped = {"unreadable": arguments} if readable is None else readable
            arguments = json.dumps(wrapped, ensure_ascii=readable is None)
        function = {"name": meant_tool(self.name, tools) or "unknown", "arguments": arguments}
        if self.old:
            return function
        sent = self.sent | {"function": self.sent.get("function", {}) | function}
        return {"type": "function", **sent, "id": self.id}


@dataclass(frozen=True)
class Reply:
    """Server's reply: the message's content, its native calls, and why it ended.

    `thoughts` is the reasoning that the server separates from the content, `usage` is `None` if it reports no
    counts, and `sent` is the message as it came. `squeezed` is true if fewer tokens were allowed than asked
    for, because the model's context was nearly full.
    """

    content: str
    calls: Sequence[Call] = ()
    thoughts: str = ""
    refused: bool = False
    finish: str | None = None
    usage: Usage | None = None
    sent: Message = field(default_factory=dict)
    squeezed: bool = False

    def turn(self, protocol: AgentProtocol) -> Turn:
        """Return the turn, parsed by the protocol. Native calls count if the protocol has tools."""
        action = self._action(protocol)
        if self._all_in_thoughts(protocol):
            parts = [self.thoughts]
        else:
            parts = [f"<think>\n{self.thoughts}\n</think>\n"] if self.thoughts else []
        parts += [self.content] if self.content else []
        parts += [call.text() for call in self.calls]
        return Turn(
            Completion([], []),
            "\n".join(parts),
            action,
            cut_off=self.finish == "length",
            usage=self.usage,
        )

    def _action(self, protocol: AgentProtocol) -> Action:
        if self.finish == "content_filter":
            return Invalid("Error: the server's content filter stopped the turn.")
        if self._all_in_thoughts(protocol):
            return protocol.parse(self.thoughts)
        # without the content, so that nothing in it is taken for the call
        said = self.calls[0].text() if self.calls and protocol.tools else self.content
        action = protocol.parse(said)
        if isinstance(action, Invalid) and self.refused:
            return Invalid(f"{action.reason} (the model refused)")
        return action

    def _all_in_thoughts(self, protocol: AgentProtocol) -> bool:
        """Return whether the server sent the whole turn as thoughts, as some do if they find no end of the
        thoughts."""
        if self.content.strip() or self.calls or not self.thoughts or self.finish in _NOT_ENDED:
            return False
        return not isinstance(protocol.parse(self.thoughts), Invalid)

    def message(self, protocol: AgentProtocol) -> Message:
        """Return the turn as a message of the next request, with the server's own fields such as
        `reasoning_content`."""
        told = {key: value for key, value in self.sent.items() if value is not None and key not in _READ}
        message: Message = {"role": "assistant", **told, "content": self.sent.get("content") or None}
        if self.calls and self.calls[0].old:
            return message | {"function_call": self.calls[0].message(_names(protocol))}
        if self.calls:
            return message | {"tool_calls": [call.message(_names(protocol)) for call in self.calls]}
        if not self.content:
            # servers reject an empty message
            message["content"] = self.thoughts if self._all_in_thoughts(protocol) else "(nothing)"
        elif self.refused:
            message["content"] = self.content
        return message

    def observed(self, observation: str, protocol: AgentProtocol) -> list[Message]:
        """Return the observation of the turn as messages."""
        if not self.calls:
            # a tool's message must name the call that it answers
            role = "user" if protocol.observation_role == "tool" else protocol.observation_role
            return [{"role": role, "content": observation}]
        if self.calls[0].old:
            name = meant_tool(self.calls[0].name, _names(protocol))
            return [{"role": "function", "name": name, "content": observation}]
        texts = [observation, *[SECOND_CALL] * (len(self.calls) - 1)]
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(self.calls, texts, strict=True)
        ]


def read_reply(body: Any) -> Reply:
    """Parse the reply in a response's JSON; raise ValueError if there is none, as in a proxy's answer."""
    try:
        choices = body.get("choices", [] if body.get("object") == "chat.completion" else None)
        blocked = (
            choices == [] and "usage" in body
        )  # by Gemini, which also leaves out an empty turn's message
        choice: Any = {"finish_reason": "content_filter"} if blocked else choices[0]
        # `text` and `delta` are of the older /completions and of a stream
        may_be_empty = "finish_reason" in choice and not choice.keys() & {"text", "delta"}
        message = (choice.get("message") if may_be_empty else choice["message"]) or {}
        content, refusal = _text(message.get("content")), _text(message.get("refusal"))
        thoughts = next(filter(None, (_text(message.get(name)) for name in THOUGHT_FIELDS)), "")
        thoughts = thoughts or _text(message.get("content"), "thinking", "reasoning")
        if not thoughts and content.startswith("<reasoning>"):  # gpt-oss on Amazon Bedrock
            thoughts, _, content = content.removeprefix("<reasoning>").partition("</reasoning>")
        calls = _calls(message)
        finish = choice.get("finish_reason")
        finish = finish.partition(":")[0] if isinstance(finish, str) else None  # content_filter: RECITATION
        finish = "length" if finish in _CUT_OFF else finish
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"no reply: {json.dumps(body, ensure_ascii=False)[:200]}") from None
    if finish in _FAILED:
        raise ValueError(f"the server ended the reply ({finish})")
    usage = _usage(body.get("usage"))
    return Reply(content or refusal, calls, thoughts, bool(refusal), finish, usage, dict(message))


def _calls(message: Message) -> list[Call]:
    told = message.get("tool_calls")
    told = _decoded(told) if isinstance(told, str) else told
    told = [told] if isinstance(told, dict) else told or []
    calls = [_call(number, call) for number, call in enumerate(told) if isinstance(call, dict)]
    ids = [call.id for call in calls]
    # servers reject a repeated id, even one that they have given themselves
    calls = [replace(call, id=_id(n)) if call.id in ids[:n] else call for n, call in enumerate(calls)]
    function = message.get("function_call")
    if not calls and isinstance(function, dict) and function:
        return [replace(_call(0, {"function": function}), old=True)]
    return calls


def _call(number: int, call: Message) -> Call:
    function = call.get("function") or call
    arguments = next((function[name] for name in _ARGUMENTS if name in function), None)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    sent = {key: value for key, value in call.items() if not (value is None or key in ("name", *_ARGUMENTS))}
    return Call(str(call.get("id") or _id(number)), str(function.get("name") or ""), text, sent)


def _id(number: int) -> str:
    """Return an id for a reply's call of this number: nine digits, as Mistral's servers require."""
    return f"{number:09d}"


def _text(content: Any, *kinds: str) -> str:
    """Return the text of a content without its thoughts, or only of its parts of these kinds."""
    if not isinstance(content, list | dict):
        return content if isinstance(content, str) and not kinds else ""
    texts = []
    for part in [content] if isinstance(content, dict) else content:
        part = part if isinstance(part, dict) else {"text": part}
        if (part.get("type") in kinds) if kinds else (part.get("type") not in ("thinking", "reasoning")):
            texts.append(_text(next(filter(None, map(part.get, ("text", "value", "thinking"))), "")))
    return "".join(texts)


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    read = _count(usage, "prompt_tokens", "input_tokens")
    written = _count(usage, "completion_tokens", "output_tokens")
    return None if read is None and written is None else Usage(read or 0, written or 0)


def _count(usage: Message, *names: str) -> int | None:
    counts = (usage.get(name) for name in names)
    numbers = (count for count in counts if isinstance(count, int | float) and not isinstance(count, bool))
    return next((int(number) for number in numbers if number >= 0), None)


def _names(protocol: AgentProtocol) -> list[str]:
    return [tool["function"]["name"] for tool in protocol.tools or ()]


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        return as_arguments(text)
    except ValueError:
        return None
