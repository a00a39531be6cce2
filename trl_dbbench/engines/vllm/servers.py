"""vLLM servers: which of them answer, what they serve, and which LoRA adapter they generate with.

The main process connects to them before each rollout. An adapter is saved to a folder that the servers can
read, and each server loads it under a name never used before, so that no cached prefix comes from older
weights. It stays loaded as long as a rollout generates with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from trl_dbbench.engines.policy import Precision
from trl_dbbench.episode.types import Request, Sampling
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ServerFailure(Exception):
    """This server cannot answer now; another may."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter at `path`, a folder or hub id. `folder`, if any, was made for it and goes with it."""

    name: str
    path: str
    folder: str | None = None


@dataclass
class Server:
    """State of a server."""

    url: str
    up: bool = False
    base_model: str = ""
    """Its name for the model without an adapter; empty until it has answered once."""
    root: str = ""
    """Folder or hub id that it loaded the model from."""
    context: int | None = None
    """Context length in tokens, prompt and completion together."""
    processed: bool = False
    """True if its log-probabilities are computed after temperature, top-p and top-k (`processed_logprobs`),
    False if at temperature 1 (`raw_logprobs`, vLLM's default)."""
    adapters: set[str] = field(default_factory=set)
    """Names of the adapters that it has loaded."""

    @property
    def failed(self) -> bool:
        """Return whether it has answered before and no longer does."""
        return bool(self.base_model) and not self.up


def check(server: Server, response: httpx2.Response) -> httpx2.Response:
    if response.status_code >= 500 or response.status_code in (408, 429):  # timeout, too many requests
        raise ServerFailure(f"status {response.status_code}, {message_of(response)}")
    if not response.is_success:
        raise ConfigError(
            f"the vLLM server {server.url} refuses a request (status {response.status_code}): "
            f"{message_of(response)}. Compare how it was started with what the recipe asks."
        )
    return response


def read_turn(server: Server, response: httpx2.Response) -> tuple[list[int], list[float]]:
    try:
        choice = response.json()["choices"][0]
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ServerFailure(f"what it sends is no turn: {response.text[:200]!r}") from None
    if choice.get("finish_reason") == "abort":  # it was stopped or paused, and sends a partial turn
        raise ServerFailure("it has aborted a turn")
    if not ids or logprobs is None or len(ids) != len(logprobs):
        raise ConfigError(
            f"the vLLM server {server.url} returns no token ids with log-probabilities; they need vLLM "
            "0.10.2 or newer."
        )
    if max(logprobs) > 0:
        raise ConfigError(
            f"the vLLM server {server.url} returns logits for log-probabilities; start it with "
            "--logprobs-mode raw_logprobs or processed_logprobs."
        )
    return ids, logprobs


def settings_of(request: Request, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Return a turn's settings under the names that vLLM's `SamplingParams` and its HTTP API share."""
    sampling = request.sampling
    return {
        "max_tokens": request.max_new_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": request.seed,
        "logprobs": 0,  # of the chosen token alone
        "ignore_eos": True,  # the model's own eos tokens; ours follow
        "stop_token_ids": list(eos_token_ids),
    }


PROCESSED_MIN_TEMPERATURE = 0.01
"""Lowest temperature that vLLM samples with; it raises lower ones to this."""


def policys_logprobs(sampling: Sampling, processed: bool) -> bool:
    """Return whether vLLM's log-probabilities are the policy's: of the logits / temperature, before top-p and
    top-k. For `processed`, see `Server`.
    """
    if processed and not sampling.greedy:
        unrestricted = sampling.top_p == 1 and sampling.top_k == 0
        return unrestricted and sampling.temperature >= PROCESSED_MIN_TEMPERATURE
    return sampling.temperature == 1


def message_of(response: httpx2.Response) -> str:
    try:
        body = response.json()
        return body["error"]["message"] if "error" in body else str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500]


def describe(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip(" .")


CONNECT_SECONDS = 10.0
READY_SECONDS = 120.0
"""Time limit for loading an adapter, in seconds."""

PATIENCE_SECONDS = 600.0
"""Total seconds that a rollout waits while no server answers, before it gives up."""

LONGEST_WAIT_SECONDS = 30.0

# a server may close an idle connection just as it is used again, which looks like a failure
CONNECTION_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
READY_TIMEOUT = httpx2.Timeout(READY_SECONDS, connect=CONNECT_SECONDS)


class VLLMServers:
    """The servers of a run, as the main process sees them; `on_main` informs the other ranks.

    If the environment variable `VLLM_API_KEY` is set, which the servers read too, each request sends it.

    Args:
        adapters: a folder for saved adapters, which only this object writes to and every server can read
            under the same path; `None` if there are none to save.
        full_weights: whether the caller sends full weights. A server that fails then stays out, since its
            weights are unknown when it comes back.
        logprobs_of: sampling settings whose log-probabilities must be the policy's. With other settings they
            are NaN if a server does not give the policy's.
        patience: total seconds to wait while no server answers.
    """

    def __init__(
        self,
        urls: Sequence[str],
        eos_token_ids: Sequence[int],
        adapters: str | Path | None = None,
        *,
        full_weights: bool = False,
        logprobs_of: Sampling | None = None,
        patience: float = PATIENCE_SECONDS,
    ):
        self.servers = [Server(url) for url in urls]
        self.adapter: Adapter | None = None
        self._eos_token_ids = list(eos_token_ids)
        self._adapters = Path(adapters).resolve() if adapters is not None else None
        self._full_weights = full_weights
        self._logprobs_of = logprobs_of
        self.patience = patience
        key = os.environ.get("VLLM_API_KEY")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(timeout=READY_TIMEOUT, limits=CONNECTION_LIMITS, headers=self.headers)

        self._run, self._loads = uuid.uuid4().hex[:8], 0
        self._loaded: list[Adapter] = []
        self._held: list[Adapter] = []  # by rollouts that are running
        self._clean_up = weakref.finalize(self, _remove, self._loaded, self.servers, self.headers)

    def connect(self) -> None:
        """Make all servers ready that answer; if none does, wait for one.

        Raises:
            EngineError, ConfigError: if none answers, or one cannot be used as it was started.
        """
        for seconds in wait_times(self.patience):
            self.announce(seconds)
            time.sleep(seconds)
            self.make_ready()
            if any(server.up for server in self.servers):
                return
            if self.all_lost:
                break
        raise self.given_up()

    def on_main(self, action: Callable[[], T]) -> T:
        """Run an action on the main process; return its result, or raise its error, on all ranks."""
        ranks = Ranks()
        outcome: Any = None
        if ranks.is_main:
            try:
                outcome = action(), self.servers, self.adapter
            except Exception as error:  # of any kind, or the other ranks would wait forever
                outcome = error
        told = ranks.from_main(outcome)
        if isinstance(told, Exception):
            raise told
        result, self.servers, self.adapter = told
        return result

    def load_adapter(self, save: Callable[[Path], Path]) -> None:
        """Save an adapter and make the servers load it instead of the last one; raises as `connect` does.

        `save` writes it into the given folder, and returns that or the subfolder that holds it.
        """
        assert self._adapters is not None
        if not self._loads:  # remove what a killed run left
            shutil.rmtree(self._adapters, ignore_errors=True)
        name = self._new_name()
        folder = self._adapters / name
        folder.mkdir(parents=True)
        self._replace(Adapter(name, str(save(folder)), str(folder)))

    def use_adapter(self, path: str | Path) -> None:
        """Make the servers load an adapter from a folder that they can read, or from the hub."""
        place = Path(path)
        self._replace(Adapter(self._new_name(), str(place.resolve() if place.exists() else path)))

    def _new_name(self) -> str:
        self._loads += 1
        return f"dbb-{self._run}-{self._loads}"

    def _replace(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._loaded.append(adapter)
        self.connect()
        self._remove_unused()

    @contextmanager
    def holding(self) -> Iterator[Adapter | None]:
        """Yield the current adapter; servers keep it until the block ends, whatever is loaded meanwhile."""
        adapter = self.adapter
        if adapter is None:
            yield None
            return
        self._held.append(adapter)
        try:
            yield adapter
        finally:
            self._held.remove(adapter)
            self._remove_unused()

    @property
    def _used(self) -> list[Adapter]:
        """The adapters that servers must keep loaded."""
        return [*self._held, *([self.adapter] if self.adapter else [])]

    def _remove_unused(self) -> None:
        unused = [adapter for adapter in self._loaded if adapter not in self._used]
        _remove(unused, self.servers, self.headers)
        self._loaded[:] = [adapter for adapter in self._loaded if adapter not in unused]

    def close(self) -> None:
        """Unload and delete the last adapter. Also happens when the process exits."""
        self._clean_up()
        self._http.close()

    @property
    def all_lost(self) -> bool:
        """Return whether waiting is useless: servers that lack the full weights do not come back."""
        return self._full_weights and all(server.failed for server in self.servers)

    def make_ready(self) -> None:
        """Reconnect to lost servers, and load missing adapters on each that answers."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(self._make_server_ready, self.servers))

    def _make_server_ready(self, server: Server) -> None:
        if self._full_weights and server.failed:
            return
        try:
            if not server.up:
                self._greet(server)
            elif self._adapters is None:
                check(server, self._send(server, "GET", "/health"))
            for adapter in self._used:
                if adapter.name not in server.adapters:
                    self._load(server, adapter)
            server.up = True
        except ServerFailure as failure:
            logger.warning("vLLM server %s cannot be used now: %s.", server.url, failure)
            server.up = False

    def _greet(self, server: Server) -> None:
        """Find out what a server serves, and whether its log-probabilities are processed."""
        response = check(server, self._send(server, "GET", "/v1/models"))
        try:
            card = next(
                card for card in response.json()["data"] if not card["parent"]
            )  # an adapter has a parent
            server.base_model, server.root, server.context = card["id"], card["root"], card["max_model_len"]
        except (ValueError, LookupError, TypeError, StopIteration):
            raise ConfigError(
                f"what answers at {server.url} is not a vLLM server; give its address without a path."
            ) from None
        server.adapters = set()  # it may have been restarted
        probe = Request((self._eos_token_ids[0],), 1, Sampling(top_k=1), row=0, turn=0)
        body = self.body(server.base_model, probe)
        response = check(server, self._send(server, "POST", "/v1/completions", body))
        # top_k 1 leaves only the most likely token: processed, its probability is 1
        server.processed = read_turn(server, response)[1] == [0.0]
        sampling = self._logprobs_of
        if sampling is not None and not policys_logprobs(sampling, server.processed):
            mode, rule = (
                ("processed_logprobs", "top_p 1, top_k 0 and a temperature of at least 0.01")
                if server.processed
                else ("raw_logprobs", "temperature 1")
            )
            raise ConfigError(
                f"the update is to use the rollout's log-probabilities, and the vLLM server {server.url} "
                f"(--logprobs-mode {mode}) gives the policy's own only with {rule}; set are temperature "
                f"{sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}. Start it with the "
                "other of raw_logprobs (for temperature 1) and processed_logprobs (for top_p 1 and top_k "
                "0), change these settings, or do without use_rollout_logprobs, rollouts_ahead, "
                "rollout_correction, off_policy_mask_threshold, kl_reference: rollout and kl_in_reward."
            )

    def precision_of(self, server: Server) -> Precision | None:
        """Return a server's precision; `None` if it does not report it, as without VLLM_SERVER_DEV_MODE."""
        try:
            response = self._send(server, "GET", "/server_info?config_format=json")
            config = response.json()["vllm_config"]["model_config"]
            return Precision(config["dtype"].removeprefix("torch."), config["quantization"])
        except (ServerFailure, ValueError, LookupError, TypeError):
            return None

    def _load(self, server: Server, adapter: Adapter) -> None:
        body = {"lora_name": adapter.name, "lora_path": adapter.path}
        response = self._send(server, "POST", "/v1/load_lora_adapter", body)
        said = message_of(response)
        if response.is_success or "already been loaded" in said:
            server.adapters.add(adapter.name)
            return
        if response.status_code >= 500 and not self._send(server, "GET", "/health").is_success:
            raise ServerFailure(said)
        raise ConfigError(
            f"the vLLM server {server.url} cannot load the adapter {adapter.path}: {said}. It must be "
            "started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and a --max-lora-rank of at "
            "least the adapter's, and see that folder under the same path."
        )

    def _send(
        self, server: Server, method: str, path: str, body: dict[str, Any] | None = None
    ) -> httpx2.Response:
        try:
            return self._http.request(method, server.url + path, json=body)
        except httpx2.TransportError as error:
            raise ServerFailure(describe(error)) from error

    def body(self, model: str, request: Request) -> dict[str, Any]:
        """Return the body of a turn's request to `/v1/completions`."""
        # for settings that are left out, the server uses the model's generation_config.json
        named = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        asked = {"model": model, "prompt": list(request.ids), "return_token_ids": True}
        return asked | named | settings_of(request, self._eos_token_ids)

    def announce(self, seconds: float) -> None:
        if seconds:
            logger.warning("No vLLM server answers; trying again in %g seconds.", seconds)

    def given_up(self) -> EngineError:
        urls = ", ".join(server.url for server in self.servers)
        what = "answers any more" if self.all_lost else f"answered for {self.patience:g} seconds"
        return EngineError(
            f"no vLLM server {what}, of {urls}; the log says how each failed. Start them again, and "
            "continue a training with resume_from_checkpoint."
        )


def wait_times(patience: float) -> Iterator[float]:
    """Yield 0, then 1, 2, 4, ... seconds, each at most `LONGEST_WAIT_SECONDS`, `patience` in total."""
    yield 0.0
    seconds = 1.0
    while patience > 0:
        yield (seconds := min(seconds, LONGEST_WAIT_SECONDS, patience))
        patience -= seconds
        seconds *= 2


def _remove(adapters: Sequence[Adapter], servers: Sequence[Server], headers: dict[str, str]) -> None:
    """Unload adapters from servers that are up, ignoring failures; delete the folders made for them."""
    for adapter in adapters:
        for server in servers:
            if server.up:
                try:
                    httpx2.post(
                        f"{server.url}/v1/unload_lora_adapter",
                        json={"lora_name": adapter.name},
                        headers=headers,
                        timeout=CONNECT_SECONDS,
                    )
                except httpx2.TransportError as error:
                    logger.debug("%s: %s", server.url, error)
        if adapter.folder is not None:
            shutil.rmtree(adapter.folder, ignore_errors=True)
