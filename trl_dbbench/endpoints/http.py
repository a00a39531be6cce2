"""Asking an OpenAI-compatible server: what is sent, what is tried again, and when it is given up.

| the server | what follows |
|---|---|
| fails (5xx, a broken connection, no answer in time, no JSON) | tried again after 1, 2, 4, ... seconds |
| throttles (429, 503) | tried again when its Retry-After says, else as above |
| does not take a setting (`max_tokens`, `temperature`) | asked again without it, from then on |
| says that the conversation is too long | the episode is out of tokens |
| refuses this request (400, 403, 422) | the episode ends, by no fault of the agent |
| knows neither key nor model, or has no credit left; nobody listens | everything ends |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx2

from trl_dbbench.endpoints.messages import Message, Reply, read_reply
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.rollout import Sampling

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEY_VARIABLE = "OPENAI_API_KEY"

CONNECT_SECONDS = 10.0
TURN_SECONDS = 600.0
"""For a reply; a server that takes longer counts as hung."""

PATIENCE_SECONDS = 180.0
"""For a request, from its first failure on."""

START_SECONDS = 15.0
"""The same, while nothing has ever been heard of the server: its address may be wrong."""

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0

OPTIONAL = ("max_tokens", "temperature", "top_p", "seed")
"""What can be left out of a request; `max_completion_tokens` then says what `max_tokens` did."""

DEAD_AFTER = 3
"""So many requests given up in a row, none answered meanwhile, and nothing more is asked."""

_TOO_LONG = re.compile(
    r"context.?(length|window)|maximum context|too many (input )?tokens|(prompt|input) is too long",
    re.IGNORECASE,
)


class TooLong(Exception):
    """The conversation does not fit the model."""


class _Failure(Exception):
    """This may work when it is tried again; `wait` seconds, if the server said so."""

    def __init__(self, text: str, wait: float | None = None, absent: bool = False):
        super().__init__(text)
        self.wait = wait
        self.absent = absent  # nobody listens there


class _Again(Exception):
    """The next request leaves out what the server does not take."""


class _Final(Exception):
    """Nothing will work."""


def read_key(variable: str | None) -> str | None:
    """The API key; `None` if there is none to send.

    Args:
        variable: the environment variable that holds it; if left out, `OPENAI_API_KEY`, which may be unset.

    Raises:
        ConfigError: if a variable is named and not set.
    """
    key = os.environ.get(variable or KEY_VARIABLE, "").strip()
    if variable is not None and not key:
        raise ConfigError(f"--api-key-env: the environment variable {variable} is not set.")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable or KEY_VARIABLE} holds no usable API key.")
    return key or None


def base_url(url: str) -> str:
    """The address that `/chat/completions` is put behind: `/v1` is added where only a host is named.

    Raises:
        ConfigError: if it is no server's address, or holds what may be secret.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "--endpoint: give a server's address, such as http://localhost:8000/v1 or https://api.openai.com/v1."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "--endpoint: give scheme, host and path alone; the API key comes from the environment "
            f"({KEY_VARIABLE}, or the variable that --api-key-env names)."
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


class Endpoint:
    """An OpenAI-compatible server and one of its models.

    Args:
        url: as [`base_url`] takes it.
        model: its name there.
        key: sent as a bearer token; in no log, error or record.
        template_kwargs: sent as `chat_template_kwargs`, which vLLM and SGLang pass on to the chat template.
        patience: seconds that a request is tried again for.
        turn_seconds: for a reply.

    Attributes:
        gave_up: why nothing more is asked; `None` while it is.
        left_out: the settings that the server does not take.
        requests: how many were sent, repeated ones too.

    Raises:
        ConfigError: if `url` is no address.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
        patience: float = PATIENCE_SECONDS,
        turn_seconds: float = TURN_SECONDS,
    ):
        self.url = base_url(url)
        self.model = model
        self.gave_up: str | None = None
        self.left_out: set[str] = set()
        self.requests = 0
        self._key = key
        self._template_kwargs = template_kwargs
        self._patience = patience
        self._timeout = httpx2.Timeout(turn_seconds, connect=CONNECT_SECONDS, pool=None)
        self._heard = False
        self._given_up = 0  # in a row
        self._over = asyncio.Event()
        self._http: httpx2.AsyncClient | None = None

    def __str__(self) -> str:
        return f"{self.model} at {self.url}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Requests can be made within."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # no redirects: they would carry the key elsewhere
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=self._timeout, limits=limits, headers=headers) as self._http:
            yield

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        max_tokens: int,
        sampling: Sampling,
    ) -> Reply:
        """The model's next message.

        Raises:
            TooLong: if the conversation does not fit the model.
            EnvironmentFault: if the server gives none, however often it is asked; `gave_up` says whether it
                is worth to ask for another.
        """
        failing_since, pause = None, FIRST_WAIT_SECONDS
        while self.gave_up is None:
            body = self._body(messages, tools, max_tokens, sampling)
            try:
                reply = await self._unless_over(self._ask(body))
            except _Again:
                continue
            except _Final as error:
                self._give_up(str(error))
            except _Failure as failure:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                # requests that failed together are not sent together again
                wait = (failure.wait or 0.0) + pause * random.uniform(0.5, 1.0)
                if now - failing_since + wait > self._patience_with(failure):
                    raise self._given_up_on(failure) from None
                logger.warning("%s: %s; trying again in %.3g s.", self.url, failure, wait)
                await self._unless_over(asyncio.sleep(wait))
                pause = min(2 * pause, LONGEST_WAIT_SECONDS)
            else:
                self._given_up = 0
                return reply
        raise EnvironmentFault(self.gave_up)

    # --- a request ------------------------------------------------------------------------------------

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        max_tokens: int,
        sampling: Sampling,
    ) -> dict[str, Any]:
        settings: dict[str, Any] = {"temperature": 0.0 if sampling.greedy else sampling.temperature}
        if not sampling.greedy:
            settings |= {"top_p": sampling.top_p, "seed": sampling.seed}
        renamed = "max_completion_tokens" if "max_tokens" in self.left_out else "max_tokens"
        settings[renamed] = max_tokens
        if tools:
            settings["tools"] = list(tools)
        if self._template_kwargs:
            settings["chat_template_kwargs"] = self._template_kwargs
        taken = {name: value for name, value in settings.items() if name not in self.left_out}
        return {"model": self.model, "messages": list(messages), **taken}

    async def _ask(self, body: dict[str, Any]) -> Reply:
        assert self._http is not None
        self.requests += 1
        try:
            response = await self._http.post(f"{self.url}/chat/completions", json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise _Failure(f"nobody answers there ({self._said(error)})", absent=True) from None
        except httpx2.TimeoutException:
            raise _Failure(f"no reply within {self._timeout.read:g} s") from None
        except httpx2.HTTPError as error:
            raise _Failure(f"the connection broke ({self._said(error)})") from None
        self._heard = True
        if not response.is_success:
            self._refused(response, body)
        try:
            return read_reply(response.json())
        except (ValueError, RecursionError) as error:  # a JSON decoder's too
            raise _Failure(f"no usable reply ({self._scrubbed(str(error))})") from None

    def _refused(self, response: httpx2.Response, body: dict[str, Any]) -> NoReturn:
        """Raises what an error's status means."""
        status, error = response.status_code, _error_of(response)
        message = self._scrubbed(str(error.get("message") or response.text))[:500].rstrip(". ")
        said = f"status {status}: {message}" if message else f"status {status}"
        code, setting = str(error.get("code")), str(error.get("param"))
        if "context_length" in code or (status in (400, 413, 422) and _TOO_LONG.search(message)):
            raise TooLong(said)
        if status in (401, 402, 404) or code == "insufficient_quota":
            raise _Final(f"{said}. {_REMEDIES.get(status, 'Look at your account there')}")
        if status in (408, 409, 425, 429) or status >= 500:
            raise _Failure(said, _retry_after(response))
        if status == 400 and code.startswith("unsupported") and setting in OPTIONAL:
            if setting not in self.left_out:
                what = " (its turns are not greedy)" if setting == "temperature" else ""
                logger.warning("%s does not take %s, so it is left out%s.", self, setting, what)
            self.left_out.add(setting)
            raise _Again(said)
        raise self._given_up_on(_Failure(said))

    # --- giving up ------------------------------------------------------------------------------------

    def _patience_with(self, failure: _Failure) -> float:
        lost = failure.absent and not self._heard
        return min(START_SECONDS, self._patience) if lost else self._patience

    def _given_up_on(self, failure: _Failure) -> EnvironmentFault:
        self._given_up += 1
        if failure.absent or self._given_up >= DEAD_AFTER:
            self._give_up(str(failure))
        return EnvironmentFault(f"the endpoint {self.url}: {failure}")

    def _give_up(self, why: str) -> None:
        if self.gave_up is None:
            self.gave_up = f"the endpoint {self.url} ({self.model}) gives no turns: {why}"
            self._over.set()

    async def _unless_over(self, work: Awaitable[T]) -> T:
        """What `work` gives; it is cut off when the endpoint is given up."""
        task, over = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise EnvironmentFault(str(self.gave_up))
        finally:
            over.cancel()
            task.cancel()  # no effect on one that is done

    def _said(self, error: Exception) -> str:
        return self._scrubbed(f"{type(error).__name__} {error}".strip())

    def _scrubbed(self, text: str) -> str:
        """Without the key, which some servers repeat."""
        text = " ".join(text.split())
        return text.replace(self._key, "***") if self._key else text


_REMEDIES = {
    401: f"Set {KEY_VARIABLE}, or name the variable that holds the key by --api-key-env",
    402: "Look at your account there",
    404: "Compare --endpoint and --model with what the server offers (GET /v1/models lists it)",
}


def _error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error object of a response, in any of the shapes that servers give it."""
    with contextlib.suppress(ValueError, RecursionError):
        body = response.json()
        if isinstance(body, list) and body:
            body = body[0]
        if isinstance(body, dict):
            error = body.get("error", body)
            return error if isinstance(error, dict) else {"message": str(error)}
    return {}


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds, from a header that gives them or a date; `None` without one."""
    value = response.headers.get("Retry-After", "").strip()
    with contextlib.suppress(ValueError, TypeError):
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None
