"""Generation of turns on vLLM servers, any number of them: token ids in, ids and log-probabilities out.

Each turn is a separate HTTP request with its own sampling settings, so no episode waits for another. The
episodes of a prompt stay on one server, whose prefix cache then holds the prompt and the earlier turns. If a
server fails, its episodes continue on another; if none is left, the rollout logs a warning and waits for one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

import httpx2

from trl_dbbench.engines.policy import AUTO, Policy, Precision, ServedPolicy
from trl_dbbench.engines.vllm.servers import (
    CONNECT_SECONDS,
    CONNECTION_LIMITS,
    PATIENCE_SECONDS,
    Adapter,
    Server,
    ServerFailure,
    VLLMServers,
    check,
    describe,
    message_of,
    policys_logprobs,
    read_turn,
    wait_times,
)
from trl_dbbench.engines.vllm.weights import AdapterWeights, FullWeights, ServedWeights, way_of
from trl_dbbench.episode.types import Completion, Request
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

TURN_SECONDS = 600.0
"""Time limit of a turn in seconds, including its wait in the queue; a slower server counts as hung."""

LISTENING_SECONDS = 20.0
"""Seconds between checks, during a turn, that its server still accepts connections."""

TURN_TIMEOUT = httpx2.Timeout(TURN_SECONDS, connect=CONNECT_SECONDS, pool=None)


class VLLMEngine:
    """Engine of one rollout. Other rollouts may use the same servers meanwhile, with other weights.

    Args:
        adapter: the adapter to generate with, already loaded by the servers; `None` for the base model.
        first: index of the server that gets the first prompt. Ranks start with different ones.
    """

    def __init__(self, servers: VLLMServers, adapter: Adapter | None = None, first: int = 0):
        self.servers = servers
        self.adapter = adapter
        self._first = first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: httpx2.AsyncClient | None = None
        self._round: asyncio.Task[None] | None = None
        self._prompts: dict[int, tuple[int, ...]] = {}  # row -> its prompt
        self._homes: dict[tuple[int, ...], Server] = {}  # prompt -> the server of its episodes

    async def generate(self, request: Request) -> Completion:
        """Return a turn from the episode's server, or from another if that fails."""
        waits = wait_times(self.servers.patience)
        while True:
            server = self._home(request)
            if server is None:
                seconds = None if self.servers.all_lost else next(waits, None)
                if seconds is None:
                    raise self.servers.given_up()
                await self._try_all_again(seconds)
                continue
            try:
                return await self._ask(server, request)
            except ServerFailure as failure:
                if server.up:  # the first of its episodes to notice
                    logger.warning(
                        "vLLM server %s fails: %s. Its episodes go on at another.", server.url, failure
                    )
                    server.up = False

    def serve(self, episodes: Sequence[Future]) -> None:
        try:
            done, _ = wait(episodes, return_when=FIRST_EXCEPTION)
            for episode in done:
                episode.result()  # a bug in an episode ends the rollout here
        finally:
            for episode in episodes:
                episode.cancel()  # no effect on those that are done
            if self._loop is not None and self._http is not None:
                asyncio.run_coroutine_threadsafe(self._http.aclose(), self._loop).result()
            self._loop = self._http = self._round = None
            self._prompts, self._homes = {}, {}

    async def _ask(self, server: Server, request: Request) -> Completion:
        if self._http is None:
            self._loop = asyncio.get_running_loop()
            self._http = httpx2.AsyncClient(
                timeout=TURN_TIMEOUT, limits=CONNECTION_LIMITS, headers=self.servers.headers
            )
        model = self.adapter.name if self.adapter else server.base_model
        body = self.servers.body(model, request)
        asking = asyncio.create_task(self._http.post(f"{server.url}/v1/completions", json=body))
        try:
            while not (await asyncio.wait([asking], timeout=LISTENING_SECONDS))[0]:
                await self._check_listens(server)
            response = asking.result()
        except httpx2.TransportError as error:
            raise ServerFailure(describe(error)) from error
        finally:
            asking.cancel()
        if response.status_code == 404 and self.adapter:  # restarted since the adapter was loaded
            raise ServerFailure(f"it does not hold the adapter any more: {message_of(response)}")
        check(server, response)
        ids, logprobs = read_turn(server, response)
        if not policys_logprobs(request.sampling, server.processed):
            logprobs = [math.nan] * len(ids)
        return Completion(ids, logprobs)

    async def _check_listens(self, server: Server) -> None:
        """Raise ConnectError if the server is shutting down: it keeps connections but no longer answers."""
        assert self._http is not None
        with suppress(httpx2.TimeoutException):  # a busy server may take long
            await self._http.get(f"{server.url}/health", timeout=CONNECT_SECONDS)

    def _home(self, request: Request) -> Server | None:
        """Return the episode's server, the same for all episodes of its prompt; `None` if none is up."""
        prompt = self._prompts.setdefault(request.row, tuple(request.ids))  # of the first request
        home = self._homes.get(prompt)
        if home is None or not home.up:
            servers = self.servers.servers
            prompts = Counter(server.url for server in self._homes.values())
            up = [server for server in (*servers[self._first :], *servers[: self._first]) if server.up]
            home = min(up, key=lambda server: prompts[server.url], default=None)
            if home is not None:
                self._homes[prompt] = home
        return home

    async def _try_all_again(self, seconds: float) -> None:
        """Wait, then reconnect to the servers; one round serves all episodes that have no server."""

        async def play_round() -> None:
            self.servers.announce(seconds)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.servers.make_ready)

        if self._round is None or self._round.done():
            self._round = asyncio.create_task(play_round())
        await asyncio.shield(self._round)


class VLLMBackend:
    """Backend that generates on vLLM servers; see `engines.base.Backend`. Connects at once, to fail early.

    Args:
        args: `vllm_server_urls` names the servers. For a trained policy, `output_dir`, `vllm_group_port`,
            `vllm_server_timeout` and `needs_rollout_logprobs` are read too.

    Raises:
        ConfigError, EngineError: if a server cannot be used as it was started, or none answers.
    """

    collective = False  # the ranks' own models do not generate

    @property
    def detached(self) -> bool:
        return not self._weights.full

    def __init__(self, args: Any, policy: Policy | ServedPolicy):
        if not args.vllm_server_urls:
            raise ConfigError(
                "engine: vllm needs vllm_server_urls, the addresses of running servers such as "
                "http://10.0.0.7:8000."
            )
        self._policy = policy
        way = way_of(policy, "vllm_server_urls", ServedWeights, FullWeights, AdapterWeights)
        self._weights = way(policy, args)
        self._servers = VLLMServers(
            args.vllm_server_urls,
            policy.eos_token_ids,
            self._weights.adapters,
            full_weights=self._weights.full,
            logprobs_of=self._weights.logprobs_of,
            patience=getattr(args, "vllm_server_timeout", PATIENCE_SECONDS),
        )
        self._servers.on_main(self._servers.connect)
        self._weights.open(self._servers)
        if Ranks().is_main:
            self._compare_models()

    @property
    def contexts(self) -> Sequence[int]:
        lengths = [self._policy.context, *(server.context for server in self._servers.servers)]
        return [length for length in lengths if length]

    @contextmanager
    def engine(self) -> Iterator[VLLMEngine]:
        """Bring the current weights to the servers and yield an engine. Errors are raised on all ranks."""
        self._weights.bring(self._servers)
        ranks = Ranks()
        first = ranks.number * len(self._servers.servers) // ranks.count  # spreads the ranks over all servers
        with self._servers.holding() as adapter:
            yield VLLMEngine(self._servers, adapter, first)

    def close(self) -> None:
        self._servers.close()

    def _compare_models(self) -> None:
        """Warn about servers whose model, config, context or precision differs from the policy's."""
        longrope = self._policy.longrope_context
        for server in filter(attrgetter("up"), self._servers.servers):
            if server.root != self._policy.name_or_path:
                logger.warning(
                    "vLLM server %s serves %s, the policy is %s; make sure that they are the same model.",
                    *(server.url, server.root, self._policy.name_or_path),
                )
            if self._policy.config_changes:
                logger.warning(
                    "The model's config was changed (model_init_kwargs), and vLLM server %s reads its own: "
                    "start it with --hf-overrides '%s', unless it was.",
                    *(server.url, json.dumps(self._policy.config_changes)),
                )
            if longrope is not None and (server.context or 0) > longrope:
                logger.warning(
                    "vLLM server %s has a context of %d tokens, and beyond %d it computes all positions by "
                    "longrope's other factors: it plays another model. Start it with --max-model-len %d.",
                    *(server.url, server.context, longrope, longrope),
                )
            if self._policy.computes_in.dtype != AUTO.dtype:
                self._compare_precision(server, self._policy.computes_in)

    def _compare_precision(self, server: Server, own: Precision) -> None:
        told = self._servers.precision_of(server)
        quantized = f" --quantization {own.quantization}" if own.quantization else ""
        if told is None and quantized:
            logger.warning(
                "vLLM server %s does not say what it computes in, the policy computes in %s; start it with%s "
                "(and with VLLM_SERVER_DEV_MODE=1, then it says).",
                *(server.url, own, quantized),
            )
        elif told is not None and not told.agrees_with(own):
            logger.warning(
                "vLLM server %s computes in %s, the policy in %s: it samples from another model than is "
                "trained. Start it with --dtype %s%s.",
                *(server.url, told, own, own.dtype, quantized),
            )
