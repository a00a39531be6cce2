"""Requests to an OpenAI-compatible server: when to retry, and when to give the server up.

| the server | what follows |
|---|---|
| fails (5xx, an error with status 200, broken connection, no answer, no JSON) | retried after 1, 2, 4 ... s |
| throttles (429, 503) | retried when its Retry-After says, else as above |
| rejects a setting (`temperature`) or a field of a message | sent again without it, as are later requests |
| says that `max_tokens` does not fit | sent again with the number that it names, or half |
| says that the conversation is too long | the episode is out of tokens |
| refuses this request (400, 403, 422) | the episode ends, through no fault of the agent |
| refuses or fails several in a row, with no reply at as late a turn in between | everything ends |
| has never answered, and fails for as long as a request is retried | everything ends |
| rejects key or model, has no credit left, is not there, redirects, or sends web pages | everything ends |
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import tenacity

from trl_dbbench.episode.types import Sampling
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.integrations.endpoints.messages import Message, Reply, read_reply
from trl_dbbench.integrations.endpoints.refusals import (
    FEWEST_TOKENS,
    ServerError,
    described,
    error_of,
    hidden_error,
    json_of,
    redirection,
    refusal_hint,
    retry_after,
    without_fields,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEY_VARIABLE = "OPENAI_API_KEY"

CONNECT_SECONDS = 10.0
TURN_SECONDS = 600.0
"""Time limit of a reply, in seconds; a slower server counts as hung."""

PATIENCE_SECONDS = 180.0
"""Seconds for which a request is retried, from its first failure."""

START_SECONDS = 15.0
"""Seconds for which a request is retried while the server has never answered: its address may be wrong."""

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0

DEAD_AFTER = 3
"""Requests given up in a row after which everything ends; a reply at as late a turn restarts the count."""


_AZURE = re.compile(r"\.(openai|cognitiveservices|services\.ai)\.azure\.(com|us|cn)\Z")
"""End of the host names of Azure OpenAI, whose portal shows the address without a path."""


class TooLong(Exception):
    """The conversation does not fit the model."""


@dataclass(eq=False)
class _Failure(Exception):
    """A request that got no reply.

    Args:
        wait: seconds that the server asks to wait before the next try.
        absent: nothing listens at the address.
        strange: the response is not a reply.
        final: the server would refuse the same request again.
    """

    text: str
    wait: float = 0.0
    absent: bool = False
    strange: bool = False
    final: bool = False

    def __str__(self) -> str:
        return self.text


def _failure_of(state: Any) -> _Failure:
    return state.outcome.exception()


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds until the next try, with jitter: requests that failed together are retried apart."""
    pause = tenacity.wait_exponential(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)(state)
    return _failure_of(state).wait + pause * random.uniform(0.5, 1.0)


@dataclass(eq=False)
class _Adapted(Exception):
    """Signal to send the request again, without what the server rejects or with at most `tokens` tokens."""

    tokens: int | None = None


def read_key(variable: str | None) -> str | None:
    """Return the API key in this environment variable, by default `OPENAI_API_KEY`; only the default may be
    unset, which gives `None`."""
    key = os.environ.get(variable or KEY_VARIABLE, "").strip()
    if variable is not None and not key:
        raise ConfigError(f"--api-key-env: the environment variable {variable} is not set.")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the environment variable {variable or KEY_VARIABLE} holds no usable API key.")
    return key or None


def base_url(url: str) -> str:
    """Return the address without `/chat/completions` and the like, and with `/v1` if it has no path."""
    try:
        parts = urlsplit(url)
        address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # such as a port that is not a number
        address = None
    if not address:
        raise ConfigError(
            "--endpoint: give a server's address, such as http://localhost:8000/v1 or https://api.openai.com/v1."
        )
    azure = _AZURE.search(parts.hostname or "") and "/openai/v1" not in parts.path
    if azure or "api-version=" in parts.query:
        raise ConfigError(
            "--endpoint: give Azure's address of its v1 API, which has no api-version: "
            "https://YOUR-RESOURCE.openai.azure.com/openai/v1, with the deployment's name as --model."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "--endpoint: give scheme, host and path alone; the API key comes from the environment "
            f"({KEY_VARIABLE}, or the variable that --api-key-env names)."
        )
    path, given = re.subn(r"/chat/completions/?$", "", parts.path)
    if not given:
        path = re.sub(r"/(completions|messages|responses|models|api/(chat|generate|tags))/?$", "", path)
    path = path.rstrip("/") or ("" if given else "/v1")  # some servers have /chat/completions at the root
    return f"{parts.scheme}://{parts.netloc}{path}"


class Endpoint:
    """An OpenAI-compatible server and one of its models.

    Args:
        url, model: the address, as [`base_url`] takes it, and the model's name on that server.
        key: sent as a bearer token; kept out of logs, errors and records.
        template_kwargs: sent as `chat_template_kwargs`, which vLLM and SGLang pass on to the chat template.
        patience: seconds for which a request is retried.
        turn_seconds: time limit of a reply.

    Attributes:
        too_long: the server's last message about a conversation that does not fit the model.
        squeezed: number of turns that got fewer tokens than asked for.
        gave_up: why no more requests are sent; `None` as long as they are.
        left_out: the settings, and fields of messages, that the server rejects.
        requests: number of requests sent, retries included.
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
        self.too_long: str | None = None
        self.squeezed = 0
        self._key = key
        self._template_kwargs = template_kwargs
        self._patience = patience
        self._timeout = httpx2.Timeout(turn_seconds, connect=CONNECT_SECONDS, pool=None)
        self._heard = False
        self._answered = False
        self._given_up = 0  # in a row
        self._given_up_at = 0  # the most turns before any of them
        self._over = asyncio.Event()
        self._http: httpx2.AsyncClient | None = None

    def __str__(self) -> str:
        return f"{self.model} at {self.url}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Open the HTTP client that requests need."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # no redirects: they would carry the key elsewhere
        limits = httpx2.Limits(max_connections=None)
        try:
            client = httpx2.AsyncClient(timeout=self._timeout, limits=limits, headers=headers)
        except (ImportError, ValueError) as error:  # from the environment's proxy settings
            raise ConfigError(
                f"the proxy of this environment (ALL_PROXY, HTTPS_PROXY, HTTP_PROXY) cannot be used: {error} "
                "Unset it, list the server in NO_PROXY, or install what it needs "
                "(pip install 'httpx2[socks]' for SOCKS)."
            ) from None
        async with client as self._http:
            yield

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        max_tokens: int,
        sampling: Sampling,
    ) -> Reply:
        """Return the model's next message.

        Raises:
            TooLong: if the conversation does not fit the model.
            EnvironmentFault: if no reply comes after all tries; sets `gave_up` if no other request would get
                one.
        """
        turns = sum(message["role"] == "assistant" for message in messages)
        allowed = max_tokens

        async def ask() -> Reply:
            nonlocal allowed
            while self.gave_up is None:
                try:
                    return await self._unless_over(self._ask(self._body(messages, tools, allowed, sampling)))
                except _Adapted as adapted:
                    allowed = adapted.tokens or allowed
            raise EnvironmentFault(self.gave_up)

        failed_since = None

        def is_over(state: tenacity.RetryCallState) -> bool:
            nonlocal failed_since
            now = time.monotonic()
            failed_since = now if failed_since is None else failed_since
            failure = _failure_of(state)
            return failure.final or now - failed_since + state.upcoming_sleep > self._patience_with(failure)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Failure),
            wait=_wait,
            stop=is_over,
            before_sleep=lambda state: logger.warning(
                "%s: %s; trying again in %.3g s.", self.url, _failure_of(state), state.upcoming_sleep
            ),
            sleep=lambda seconds: self._unless_over(asyncio.sleep(seconds)),
            reraise=True,
        )
        try:
            reply: Reply = await retrying(ask)
        except _Failure as failure:
            raise self._given_up_on(failure, turns) from None
        self._answered = True
        if turns >= self._given_up_at:
            self._given_up = 0
        self.squeezed += allowed < max_tokens
        return replace(reply, squeezed=allowed < max_tokens)

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
            settings["seed"] = sampling.seed & 0x7FFFFFFF  # Gemini takes a signed one
            if sampling.top_p < 1:
                settings["top_p"] = sampling.top_p
        renamed = "max_completion_tokens" if "max_tokens" in self.left_out else "max_tokens"
        settings[renamed] = max_tokens
        if tools:
            settings["tools"] = list(tools)
        if self._template_kwargs:
            settings["chat_template_kwargs"] = self._template_kwargs
        taken = {name: value for name, value in settings.items() if name not in self.left_out}
        return {"model": self.model, "messages": without_fields(messages, self.left_out), **taken}

    async def _ask(self, body: dict[str, Any]) -> Reply:
        assert self._http is not None
        self.requests += 1
        try:
            # the client's own limit is for each read, and some proxies send blanks while they wait
            async with asyncio.timeout(self._timeout.read):
                response = await self._http.post(f"{self.url}/chat/completions", json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise _Failure(f"nobody answers there ({self._said(error)})", absent=True) from None
        except (httpx2.TimeoutException, TimeoutError):
            raise _Failure(f"no reply within {self._timeout.read:g} s") from None
        except httpx2.HTTPError as error:
            raise _Failure(f"the connection broke ({self._said(error)})") from None
        self._heard = True
        if not response.is_success:
            return self._refused(response.status_code, error_of(response), response, body)
        try:
            told = json_of(response)
            if (hidden := hidden_error(told)) is not None:
                return self._refused(*hidden, response, body)
            return read_reply(told)
        except (ValueError, RecursionError) as error:  # the JSON decoder's, too
            what, is_json = described(response)
            if not (is_json or self._answered or "json" in response.headers.get("Content-Type", "")):
                raise self._give_up(
                    f"it answers with {self._scrubbed(what)} where a chat completion in JSON belongs. "
                    f"{_COMPARE}"
                ) from None
            why = str(error) if is_json else f"it is {what}"
            raise _Failure(f"no usable reply ({self._scrubbed(why)})", strange=True) from None

    def _refused(
        self, status: int, error: ServerError, response: httpx2.Response, body: dict[str, Any]
    ) -> Reply:
        """Return the turn that an error complains about, or raise the exception that the error calls for."""
        if error.reply is not None:
            return error.reply
        message = self._scrubbed(error.message)[:500].rstrip(". ")
        said = f"status {status}: {message}" if message else f"status {status}"
        if status in (400, 413, 422, 500) or "context_length" in error.code:
            self._adapt(error, said, body)
        if target := redirection(response):
            raise self._give_up(
                f"{said}: it redirects to {target}. Give that address to --endpoint, if you trust it"
            )
        status = error.meant_status(status)
        if remedy := _REMEDIES.get(status) or (error.code == "insufficient_quota" and _REMEDIES[402]):
            raise self._give_up(f"{said}.{refusal_hint(said) if status == 404 else ''} {remedy}")
        if status in (408, 409, 425, 429) or status >= 500:
            # an error with status 200 is strange
            raise _Failure(said, retry_after(response), strange=response.is_success)
        raise _Failure(said, final=True)

    def _adapt(self, error: ServerError, said: str, body: dict[str, Any]) -> None:
        """Raise `_Adapted` if the error says how to change the request, or TooLong if the conversation is too
        long."""
        allowed = body.get("max_tokens", body.get("max_completion_tokens"))
        if allowed is not None and (tokens := error.tokens_left(allowed)) is not None:
            if tokens >= FEWEST_TOKENS:
                if not self.squeezed:
                    logger.warning("%s leaves %d tokens for a turn, not %d: %s.", self, tokens, allowed, said)
                raise _Adapted(tokens)
            self.too_long = said
            raise TooLong(said)
        if error.is_too_long:
            self.too_long = said
            raise TooLong(said)
        if (name := error.unwanted(body)) is not None:
            if name not in self.left_out:
                what = " (its turns are not greedy)" if name == "temperature" else ""
                logger.warning("%s does not take %s, so it is left out%s.", self, name, what)
            self.left_out.add(name)
            raise _Adapted

    # --- giving up ------------------------------------------------------------------------------------

    def _patience_with(self, failure: _Failure) -> float:
        lost = (failure.absent and not self._heard) or (failure.strange and not self._answered)
        return min(START_SECONDS, self._patience) if lost else self._patience

    def _given_up_on(self, failure: _Failure, turns: int) -> EnvironmentFault:
        # replies on early turns say nothing about later turns that fail
        self._given_up_at = max(turns, self._given_up_at if self._given_up else 0)
        self._given_up += 1
        never = not (self._answered or failure.final)
        if never or failure.absent or self._given_up >= DEAD_AFTER:
            hint = ". It refuses every such request, so nothing more is asked." if failure.final else ""
            hint += refusal_hint(str(failure)) if failure.final else ""
            when = f" to each request after {turns} turns" if failure.final and turns else ""
            self._give_up(f"{failure}{f' (said{when})' if when else ''}{hint}")
        return EnvironmentFault(f"the endpoint {self.url}: {failure}")

    def _give_up(self, why: str) -> EnvironmentFault:
        if self.gave_up is None:
            self.gave_up = f"the endpoint {self.url} ({self.model}) gives no turns: {why}"
            self._over.set()
        return EnvironmentFault(self.gave_up)

    async def _unless_over(self, work: Awaitable[T]) -> T:
        """Return the result of `work`; cancel it and raise EnvironmentFault when the endpoint is given up."""
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
        """Return the text without the API key, which some servers repeat."""
        text = " ".join(text.split())
        return text.replace(self._key, "***") if self._key else text


_COMPARE = "Compare --endpoint and --model with what the server offers (GET /v1/models lists it)"
_REMEDIES = {
    401: f"Set {KEY_VARIABLE}, or name the variable that holds the key by --api-key-env",
    402: "Look at your account there",
    **dict.fromkeys((404, 405, 415, 501, 505), _COMPARE),
}
