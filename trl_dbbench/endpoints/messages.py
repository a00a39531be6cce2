"""A server's reply <-> a turn: what it means to the protocol, and how the next request tells it again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl_dbbench.protocol import Action, AgentProtocol, Invalid
from trl_dbbench.rollout import Completion, Turn, Usage

Message = dict[str, Any]
"""A chat message, as the API has it."""

SECOND_CALL = "Error: not executed. Only the first call of a turn is."
"""What later calls of a turn get: servers want a result for each."""


@dataclass(frozen=True)
class Call:
    """A native tool call: `arguments` are text, JSON or what the model wrote instead."""

    id: str
    name: str
    arguments: str

    def text(self) -> str:
        """The call in a form that `markup.tool_call` reads as this one, however broken its arguments are."""
        call = {"name": self.name, "arguments": _object(self.arguments) or self.arguments}
        # a statement may hold the closing tag
        body = json.dumps(call, ensure_ascii=False).replace("</", "<\\/")
        return f"<tool_call>{body}</tool_call>"

    def message(self) -> Message:
        """As it stands in a conversation. Arguments that are no JSON object are wrapped in one, since chat
        templates take them for objects."""
        readable = _object(self.arguments) is not None
        arguments = self.arguments if readable else json.dumps({"unreadable": self.arguments})
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name or "unknown", "arguments": arguments},
        }


@dataclass(frozen=True)
class Reply:
    """What a server said: the message's content, its native calls, and why it ended.

    `thoughts` are those that the server tells apart, `usage` is `None` where it counts nothing.
    """

    content: str
    calls: Sequence[Call] = ()
    thoughts: str = ""
    refused: bool = False
    finish: str | None = None
    usage: Usage | None = None

    def turn(self, protocol: AgentProtocol) -> Turn:
        """The turn, read by the protocol. Calls count where the protocol has tools."""
        parts = [f"<think>\n{self.thoughts}\n</think>\n"] if self.thoughts else []
        parts += [self.content] if self.content else []
        parts += [call.text() for call in self.calls]
        return Turn(
            Completion([], []),
            "\n".join(parts),
            self._action(protocol),
            cut_off=self.finish == "length",
            usage=self.usage,
        )

    def _action(self, protocol: AgentProtocol) -> Action:
        if self.finish == "content_filter":
            return Invalid("Error: the server's content filter stopped the turn.")
        # alone, so that nothing in the content is taken for the call
        said = self.calls[0].text() if self.calls and protocol.tools else self.content
        action = protocol.parse(said)
        if isinstance(action, Invalid) and self.refused:
            return Invalid(f"{action.reason} (the model refused)")
        return action

    def message(self) -> Message:
        """The turn as the next request tells it. Thoughts that the server told apart stay out, as it wants
        them."""
        message: Message = {"role": "assistant", "content": self.content or None}
        if self.calls:
            message["tool_calls"] = [call.message() for call in self.calls]
        elif not self.content:
            message["content"] = "(nothing)"  # servers refuse an empty message
        return message

    def observed(self, observation: str, protocol: AgentProtocol) -> list[Message]:
        """The observation of the turn, as the messages after it."""
        if not self.calls:
            # a tool's message must name the call that it answers
            role = "user" if protocol.observation_role == "tool" else protocol.observation_role
            return [{"role": role, "content": observation}]
        texts = [observation, *[SECOND_CALL] * (len(self.calls) - 1)]
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(self.calls, texts, strict=True)
        ]


def read_reply(body: Any) -> Reply:
    """The reply in a response's JSON.

    Raises:
        ValueError: if there is none: a proxy's page, an error under status 200, an empty list.
    """
    try:
        choice = body["choices"][0]
        message = choice["message"]
        content, refusal = _text(message.get("content")), _text(message.get("refusal"))
        thoughts = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
        calls = [_call(number, call) for number, call in enumerate(message.get("tool_calls") or [])]
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"no reply: {json.dumps(body, ensure_ascii=False)[:200]}") from None
    if finish == "error":
        raise ValueError("the reply ended in an error")
    return Reply(content or refusal, calls, thoughts, bool(refusal), finish, _usage(body.get("usage")))


def _call(number: int, call: Any) -> Call:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    # nine digits, as Mistral's servers want them
    return Call(str(call.get("id") or f"{number:09d}"), str(function.get("name") or ""), text)


def _text(content: Any) -> str:
    if isinstance(content, list):  # in parts
        return "".join(part.get("text") or "" for part in content)
    return content if isinstance(content, str) else ""


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    return Usage(*(count if isinstance(count, int) else 0 for count in counts))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
