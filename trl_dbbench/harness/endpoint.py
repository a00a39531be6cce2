"""HTTP server for programs on this machine: OpenAI's `/v1/chat/completions` and `/v1/models`, and `/sql`.

Each episode has its own API key, which identifies its calls and expires when it ends.

A request can choose neither the model nor the sampling (`temperature`, `top_p`, `seed`): the training decides
these. `tool_choice: "required"` is read as `"auto"`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trl_dbbench.episode.tool_calls import well_formed
from trl_dbbench.harness.answer import as_json
from trl_dbbench.harness.mysql import Databases
from trl_dbbench.harness.session import Failed, Refused, Said, Session
from trl_dbbench.utils.nesting import MAX_NESTING, not_nested_deeply

MAX_BODY = 8 << 20
"""Largest size of a request, in bytes."""

SERVED = "there is /v1/chat/completions, /v1/models and /sql; let the agent use chat completions"


class Endpoint:
    """The open sessions, served over HTTP in this event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/sql", self._sql, methods=["POST"]),
            ],
            exception_handlers={
                404: lambda request, _: _said(404, f"{request.url.path} is not served: {SERVED}"),
                HTTPException: lambda _, error: _said(error.status_code, error.detail),
                Refused: lambda _, refused: _said(400, str(refused)),
                Failed: lambda _, failed: _said(503, str(failed)),
            },
        )
        quiet: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False}
        config = uvicorn.Config(app, lifespan="off", timeout_graceful_shutdown=1, **quiet)
        self._server = uvicorn.Server(config)
        self.databases = Databases(self._sessions)
        self.started = asyncio.create_task(self.databases.start())
        self.episodes = 0
        """Number of episodes being played."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    @contextmanager
    def session(self, session: Session) -> Iterator[str]:
        """Register a session and yield its key, which is valid within the block."""
        key = secrets.token_urlsafe(24)
        self._sessions[key] = session
        try:
            yield key
        finally:
            del self._sessions[key]

    async def close(self) -> None:
        self.databases.close()
        self._server.should_exit = self._server.force_exit = True
        await self._serving
        self._socket.close()

    # --- routes -----------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    async def _chat(self, request: Request) -> Response:
        session, body = await self._asked(request)
        # half a surrogate pair, as in a text that was cut, has no token
        text = well_formed(json.dumps(body, ensure_ascii=False))
        asked = _checked(json.loads(text))
        async with session.chatting[text]:
            # a client that did not wait for the reply may send the request again
            if (heard := session.unread.pop(text, None)) is None:
                heard = [await session.reply(*asked) for _ in range(_count(body, session))]
            if await request.is_disconnected():
                session.unread[text] = heard
        usage = {"prompt_tokens": heard[0][1], "completion_tokens": sum(s.turn.tokens for s, _ in heard)}
        usage["total_tokens"] = sum(usage.values())
        choices = [_choice(place, said) for place, (said, _) in enumerate(heard)]
        common = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": int(time.time()), "model": "policy"}
        if body.get("stream"):
            wanted = body.get("stream_options") or {}
            chunks = _chunks(common, choices, usage if wanted.get("include_usage") else None)
            return StreamingResponse(chunks, media_type="text/event-stream")
        return JSONResponse({**common, "object": "chat.completion", "choices": choices, "usage": usage})

    async def _sql(self, request: Request) -> Response:
        session, body = await self._asked(request)
        if not isinstance(body.get("sql"), str):
            raise HTTPException(400, "sql must be a text: one statement")
        result, text = await session.execute(body["sql"])
        answer = {"rows": result.rows, "error": result.error, "affected": result.affected}
        answer |= {"limit": result.limit, "text": text}
        return Response(json.dumps(answer, default=as_json), media_type="application/json")

    async def _asked(self, request: Request) -> tuple[Session, dict[str, Any]]:
        """Return the session that a request belongs to, and its body."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        session = self._sessions.get(key.strip()) if scheme.lower() == "bearer" else None
        if session is None:
            raise HTTPException(401, "this key is none of an open episode; use the task's api_key")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"a request may have {MAX_BODY} bytes")
        try:
            asked = not_nested_deeply(json.loads(body))
        except RecursionError:
            raise HTTPException(
                400, f"the body has more than {MAX_NESTING} levels of lists and objects"
            ) from None
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise HTTPException(400, "the body must be a JSON object")
        return session, asked


def _said(status: int, message: str) -> Response:
    """Return an error in the form of OpenAI's API."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)


def _checked(body: dict[str, Any]) -> tuple[Any, ...]:
    """Return a request's arguments for `Session.reply`; raise HTTPException if one is invalid."""
    messages, tools, stop = body.get("messages"), body.get("tools"), body.get("stop") or []
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise HTTPException(400, "messages must be a list of at least one message, an object each")
    if not all(_is_text(message.get("content")) for message in messages):
        raise HTTPException(400, "content must be a text or a list of texts: the model reads no images")
    calls = [message.get("tool_calls") or [] for message in messages]
    for name, given in ("tools", tools or []), *(("tool_calls", each) for each in calls):
        if not isinstance(given, list) or not all(map(_is_function, given)):
            raise HTTPException(400, f"{name} must be a list of functions, each with a name")
    if body.get("functions"):
        raise HTTPException(400, "functions is the old form of tools, and no model reads it; send tools")
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise HTTPException(400, "stop must be a text, or a list of texts")
    if not isinstance(body.get("stream_options") or {}, dict):
        raise HTTPException(400, "stream_options must be an object")
    most = body.get("max_completion_tokens")
    most = body.get("max_tokens") if most is None else most
    if most is not None and (not isinstance(most, int) or most < 1):
        raise HTTPException(400, "max_tokens must be a number of at least 1")
    choice, form = body.get("tool_choice") or "auto", body.get("response_format") or {"type": "text"}
    if choice not in ("auto", "none", "required"):
        raise HTTPException(400, 'tool_choice cannot name a tool; it may be "auto", "none" or "required"')
    if form != {"type": "text"}:
        instead = "ask for it in the prompt, or as the arguments of a tool"
        raise HTTPException(400, f"response_format must be text: no reply is held to a form; {instead}")
    return messages, tools, most, stop, choice != "none"


def _is_text(content: Any) -> bool:
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _count(body: dict[str, Any], session: Session) -> int:
    count = body.get("n") or 1
    if not isinstance(count, int) or not 1 <= count <= max(1, session.calls_left):
        raise HTTPException(400, f"n must be from 1 to {session.calls_left}, the calls that are left")
    return count


def _choice(place: int, said: Said) -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, (name, arguments) in said.calls.items()
    ]
    message = {"role": "assistant", "content": said.content, **({"tool_calls": calls} if calls else {})}
    return {"index": place, "message": message, "finish_reason": said.finish, "logprobs": None}


async def _chunks(
    common: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, int] | None
) -> AsyncIterator[str]:
    """Yield a streamed answer, with each reply whole in one chunk."""
    common = {**common, "object": "chat.completion.chunk"}
    for choice in choices:
        message = dict(choice["message"])
        if "tool_calls" in message:
            message["tool_calls"] = [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]
        for delta, finish in ((message, None), ({}, choice["finish_reason"])):
            part = {"index": choice["index"], "delta": delta, "finish_reason": finish}
            yield f"data: {json.dumps({**common, 'choices': [part]})}\n\n"
    if usage is not None:
        yield f"data: {json.dumps({**common, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"
