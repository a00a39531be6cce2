"""Interpretation of servers' error messages, in the wording of many vendors.

| the error says | what it means |
|---|---|
| `context length is 2048 tokens ... 1700 input tokens` | 348 tokens are left for the turn |
| `'max_tokens' is too large`, without numbers that help | half as many are tried |
| `prompt is too long`, `context_length_exceeded` | the conversation does not fit |
| `Unsupported parameter: 'seed'`, `property 'reasoning' is unsupported` | that setting or field is left out |
| `Could not finish the message`, `error parsing tool call` | what the model wrote is the turn |
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from trl_dbbench.integrations.endpoints.messages import Message, Reply
from trl_dbbench.runs.read import loads

OPTIONAL = ("max_tokens", "temperature", "top_p", "seed", "chat_template_kwargs")
"""Settings that can be left out of a request; `max_completion_tokens` then replaces `max_tokens`."""

FEWEST_TOKENS = 16
"""Fewest tokens for which a turn is still requested."""

_OURS = {
    "message": ("role", "content", "tool_calls", "tool_call_id", "function_call", "name"),
    "call": ("id", "type", "function"),
    "function": ("name", "arguments"),
}
"""Fields of the API; any others came from the server and are only sent back."""

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|too many (input )?tokens|range of input length"
    r"|\b(prompt|inputs?|messages|sequence|body)\W+((length|tokens?|count|is|are|must|have|\d+)\W+)*"
    r"(too (long|large)|exceed|longer than|less than \d)"
    r"|exceed\w* (the )?(model'?s? )?(maximum |max )?(context|sequence length|token limit)"
    r"|maximum (number of )?input tokens|maximum prompt length|reduce the length of the (messages|prompt)",
    re.IGNORECASE,
)
_MAX_TOKENS = r"max(?:imum)?[_ ]?(?:completion|new|output)?[_ ]?tokens"
_COUNT = r"(\d[\d,]*)"
_ABOUT_MAX_TOKENS = re.compile(
    rf"{_MAX_TOKENS}\W.*"
    r"(too (large|big|high)|exceed|must be|(less|greater|larger|more) than|at most|range|limit|invalid)"
    rf"|(exceed|too (large|big|high)|invalid|limit).*{_MAX_TOKENS}",
    re.IGNORECASE | re.DOTALL,
)
_CONTEXT = (
    rf"context (?:length|window|size)[^\d.]{{0,40}}?{_COUNT}",
    rf"must be <= {_COUNT}",
    rf"{_COUNT} maximum context length",
    rf"\d > {_COUNT}",
    rf"n_ctx\W{{1,4}}{_COUNT}",
    rf"token limit: {_COUNT}",
)
_INPUT = (
    rf"{_COUNT} (?:tokens )?(?:input|prompt) tokens",
    rf"{_COUNT} (?:tokens )?(?:in the (?:messages|prompt|input)|of text input|from the input)",
    rf"(?:prompt|request|input|messages) (?:contains?|has|have|resulted in|is) (?:at least )?{_COUNT}",
    rf"{_COUNT} `inputs`",
    rf"limit: {_COUNT} \+",
)
_REQUESTED = (rf"(?:requested|total of) (?:about )?{_COUNT} tokens", rf"requested: {_COUNT}")
_CEILING = (
    rf"at most {_COUNT} (?:completion|output) tokens",
    rf"range of \W?{_MAX_TOKENS}\W? (?:is|should be) \[\d+, ?{_COUNT}\]",
    rf"{_MAX_TOKENS}\W{{0,3}} (?:must be|should be|is) (?:less than or equal to|at most) \W?{_COUNT}",
    rf"{_MAX_TOKENS}: \d+ > {_COUNT}",
    rf"{_MAX_TOKENS} > {_COUNT} must",
    rf"{_MAX_TOKENS} you requested exceeds the model limit of {_COUNT}",
)
_TOO_FEW = (
    rf"{_MAX_TOKENS}\W.{{0,40}}"
    r"(\b(must|should|to) be (strictly )?(greater|larger|more) than (?!or equal to 1\b)"
    r"|at least (?!1\b)|too (small|low)|below minimum)"
)
"""Pattern of errors about too small a `max_tokens`, as when thoughts have a budget of their own."""

_UNKNOWN = re.compile(
    r"unsupported|not (currently )?(supported?|allowed|permitted|accepted|recognized)|does not support"
    r"|cannot both|please remove"
    r"|unknown|unrecognized|unexpected|deprecated|extra_forbidden|extra (inputs|fields)|additional propert",
    re.IGNORECASE,
)
_BAD_VALUE = re.compile(
    r"ensure this value|should be greater|must be (strictly )?(positive|greater)|invalid|not valid"
    r"|may only be|must be (in|within|between)|out of range",
    re.IGNORECASE,
)
_MEANT = {
    404: r"\bmodel\b.{0,80}\b(not (found|exist)|unknown)|not a valid model|(unknown|no such) model"
    r"|requires? --jinja",
    401: r"(invalid|incorrect|missing|no) api.?key|api.?key (not valid|is invalid|required)",
    402: r"credit balance|insufficient (balance|credit|quota)",
}
"""Actual status of an error -> pattern of its message, for errors that come with another status."""

_CUT_OFF = re.compile(r"could not finish the message because max_tokens", re.IGNORECASE)
"""OpenAI's message if thoughts used up all tokens of a turn."""

_NO_CALL = re.compile(
    r"(?:error parsing tool call: raw='|failed to parse input at pos \d+: ?)(?P<text>.*?)(?:', err=.*)?\Z"
    r"|while expecting start token|tokens remaining in message header"
    r"|produced output that does not match the expected"
    r"|XML syntax error on line \d|expected element type <\w+> but have <|\Afailed to parse JSON: "
    # a proxy in Go may say "looking for beginning of value" of a page that it got
    r"|\Ainvalid character '.{1,8}' (?:after|in|looking for beginning of object key)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Errors of Ollama, llama.cpp and gpt-oss's parser (vLLM, SGLang) about a call that they cannot parse."""

_WANTED = re.compile(r"missing|required|must be (passed|provided|included)", re.IGNORECASE)


@dataclass(frozen=True)
class ServerError:
    """Error of a server, parsed from any of the known formats."""

    message: str
    code: str = ""
    setting: str = ""
    written: str | None = None
    """The model's text, if the server could not parse it as a call (Groq)."""

    @property
    def reply(self) -> Reply | None:
        """The model's turn, if the error is about the turn and not the request; else `None`."""
        if self.written is not None:
            return Reply(self.written)
        if unread := _NO_CALL.search(self.message):
            return Reply(unread["text"] or "")
        return Reply("", finish="length") if _CUT_OFF.search(self.message) else None

    @property
    def is_too_long(self) -> bool:
        """True if the conversation is too long for the model."""
        return "context_length" in self.code or bool(_TOO_LONG.search(self.message))

    @property
    def wants_more_tokens(self) -> bool:
        """True if the server wants a larger `max_tokens`."""
        return bool(re.search(_TOO_FEW, self.message, re.IGNORECASE))

    def meant_status(self, status: int) -> int:
        """Return the status that the error means; some servers give all errors the same one."""
        if status not in (400, 403, 422) and "--jinja" not in self.message:  # from llama.cpp, as 500
            return status
        found = (meant for meant, pattern in _MEANT.items() if re.search(pattern, self.message, re.I))
        return next(found, status)

    def tokens_left(self, allowed: int) -> int | None:
        """Return how many tokens a turn may have if the error is that `allowed` is too many; else `None`."""
        if (ceiling := self._number(*_CEILING)) is not None:
            return min(ceiling, allowed // 2) if ceiling >= allowed else ceiling
        about = self.is_too_long or _ABOUT_MAX_TOKENS.search(self.message)
        if not about or self.code.startswith("unsupported") or self.wants_more_tokens:
            return None
        context, requested = self._number(*_CONTEXT), self._number(*_REQUESTED)
        left = None
        if context is not None and (given := self._number(*_INPUT)) is not None:
            left = context - given
        elif context is not None and requested is not None and requested > context:
            left = allowed - (requested - context)
        if left is None:
            too_many = _ABOUT_MAX_TOKENS.search(self.message) and not _UNKNOWN.search(self.message)
            return allowed // 2 if too_many else None
        # vLLM stops counting the prompt where it no longer fits: "at least 3585 input tokens"
        return max(0, left) if left < allowed - 1 else allowed // 2

    def unwanted(self, body: dict[str, Any]) -> str | None:
        """Return the setting, or the field of a message, that the server rejects, if the error names one."""
        if _WANTED.search(self.message) or self.wants_more_tokens:
            return None
        told = _UNKNOWN.search(self.message) or _BAD_VALUE.search(self.message)
        if not (told or self.code.startswith("unsupported")):
            return None
        names = [name for name in OPTIONAL if name in body]
        if "both" in self.message:  # temperature and top_p: keep the temperature
            names.reverse()
        names += sorted(_strange_fields(body["messages"]), key=len, reverse=True)
        if self.setting in names:
            return self.setting
        found = {name: re.search(rf"\b{re.escape(name)}\b", self.message) for name in names}
        places = {name: match.start() for name, match in found.items() if match}
        if "both" in self.message:
            return next(iter(places), None)
        return min(
            places, key=places.__getitem__, default=None
        )  # the error may quote the model after the name

    def _number(self, *patterns: str) -> int | None:
        for pattern in patterns:
            if found := re.search(pattern, self.message, re.IGNORECASE):
                return int(found[1].replace(",", ""))
        return None


def _strange_fields(messages: Sequence[Message]) -> set[str]:
    found: set[str] = set()
    for message in messages:
        found |= message.keys() - set(_OURS["message"])
        for call in message.get("tool_calls") or ():
            found |= call.keys() - set(_OURS["call"])
            found |= call.get("function", {}).keys() - set(_OURS["function"])
    return found


def without_fields(messages: Sequence[Message], names: Collection[str]) -> list[Message]:
    """Return messages without these fields, which the server sent but does not accept back."""

    def kept(kind: str, entry: Message) -> Message:
        entry = {key: value for key, value in entry.items() if key in _OURS[kind] or key not in names}
        if "tool_calls" in entry:
            entry["tool_calls"] = [kept("call", call) for call in entry["tool_calls"]]
        if kind == "call":
            entry["function"] = kept("function", entry["function"])
        return entry

    return [kept("message", message) for message in messages]


def json_of(response: httpx2.Response) -> Any:
    """Return a response's JSON in a form that can be sent back: without lone surrogates, NaN and infinity."""
    text = json.dumps(response.json(), ensure_ascii=False).encode("utf-8", "replace")
    return loads(text)


def retry_after(response: httpx2.Response) -> float:
    """Return the seconds to wait that the Retry-After header gives, as a number or a date; 0 without one."""
    value = response.headers.get("Retry-After", "").strip()
    with contextlib.suppress(ValueError, TypeError):
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0


def redirection(response: httpx2.Response) -> str | None:
    """Return the address that a response redirects to, without its parts that may be secret."""
    target = response.headers.get("Location")
    if not (response.is_redirect and target):
        return None
    return str(response.url.join(target).copy_with(query=None, fragment=None, userinfo=b""))


def hidden_error(body: Any) -> tuple[int, ServerError] | None:
    """Return status and error of a body that came with a success status; `None` if it is a reply."""
    choices = body.get("choices") if isinstance(body, dict) else None
    body = choices[0] if isinstance(choices, list) and choices else body
    if not isinstance(body, dict) or not (body.get("error") or body.get("object") == "error"):
        return None
    error = _error_in(body) or ServerError("")
    return int(error.code) if re.fullmatch(r"[45]\d\d", error.code) else 500, error


def error_of(response: httpx2.Response) -> ServerError:
    """Parse the error in a response, in any of the formats that servers use."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return ServerError(response.text if not _is_page(response) else described(response)[0])
    error = _error_in(body) or ServerError("")
    # a form that is not known, such as Cloudflare's list of errors, is shown as it came
    return error if error.message or not body else replace(error, message=response.text)


def _error_in(body: Any) -> ServerError | None:
    if isinstance(body, list):
        body = body[0] if body else None
    if not isinstance(body, dict):
        return ServerError(body) if isinstance(body, str) else None
    details, said = body.get("detail"), body.get("message")
    if not isinstance(details, list):  # Mistral puts them into the message
        details = said.get("detail") if isinstance(said, dict) else said
    if isinstance(details, list):  # from FastAPI
        told = [each for each in details if isinstance(each, dict)]
        texts = [f"{'.'.join(map(str, each.get('loc') or ()))}: {each.get('msg')}" for each in told]
        return ServerError("; ".join(texts), str(told[0].get("type") or "") if told else "")
    error = body.get("error") or body
    if not isinstance(error, dict):
        return ServerError(str(error))
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str):  # OpenRouter: the provider's own error
        with contextlib.suppress(ValueError, RecursionError):
            if (inner := _error_in(json.loads(raw))) is not None and inner.message:
                return inner
        return ServerError(f"{error.get('message')}: {raw}", str(error.get("code")))
    said = error.get("message") or body.get("message") or body.get("detail") or ""
    message = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    written = error.get("failed_generation")
    written = written if isinstance(written, str) else None
    return ServerError(message, str(error.get("code")), str(error.get("param")), written)


def _is_page(response: httpx2.Response) -> bool:
    return response.text.lstrip()[:200].lower().startswith(("<!doctype", "<html", "<?xml", "<head"))


def described(response: httpx2.Response) -> tuple[str, bool]:
    """Return a description of the body, for error texts, and whether it is JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        response.json()
        return "JSON", True
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
    text = " ".join(response.text.split())
    if not text:
        return "nothing", False
    title = re.search(r"<title[^>]*>(.{1,200}?)</title>", text, re.IGNORECASE)
    if _is_page(response):
        return f"an HTML page ({title[1].strip() if title else text[:80]})", False
    return f"{kind or 'a text'} ({text[:80]})", False


_HINTS = {
    _TOO_FEW: " Give a turn more tokens by --max-turn-tokens.",
    r"\btool|function": " If this model or server has no tools, play with --protocol text (or text_sql).",
    r"system (role|message|prompt)|role.{0,20}system": (
        " If this model has no system role, its server's chat template has to allow one."
    ),
}


def refusal_hint(said: str) -> str:
    return next((hint for pattern, hint in _HINTS.items() if re.search(pattern, said, re.I)), "")
