"""vLLM servers that generate with the current weights, for one rank or many.

Outside episodes only the main process talks to the servers. The others learn from it which of them are up and
what the adapter is called there, or that it failed. How the weights get there is said in `weights.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from trl_dbbench.engines.policy import Policy, ServedPolicy
from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.engines.vllm.weights import weights_of
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

T = TypeVar("T")


class VLLMBackend:
    """Generates on servers; see `engines.base.Backend`. Connects at once, so that what cannot work is known
    early.

    Args:
        args: its `vllm_server_urls` are the servers. For a policy that is trained, `weights.py` says what
            else is read of it.
        policy: its weights.

    Raises:
        ConfigError: if the policy's weights cannot be sent to servers, or a server cannot be used as it was
            started.
        EngineError: if no server answers; with full weights, if one does not.
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
        self._weights = weights_of(policy, args)
        self._servers = VLLMServers(
            args.vllm_server_urls,
            policy.eos_token_ids,
            self._weights.adapters,
            full_weights=self._weights.full,
            logprobs_of=self._weights.logprobs_of,
        )
        self._on_main_process(self._servers.connect)
        self._weights.open(self._servers, self._on_main_process)
        if Ranks().is_main:
            self._compare_models()

    @property
    def contexts(self) -> Sequence[int]:
        lengths = [self._policy.context, *(server.context for server in self._servers.servers)]
        return [length for length in lengths if length]

    @contextmanager
    def engine(self) -> Iterator[VLLMEngine]:
        """The engine, with the weights as they are now on the servers.

        Raises:
            ConfigError, EngineError: as above; on all ranks, whichever met it.
        """
        self._weights.bring(self._servers, self._on_main_process)
        ranks = Ranks()
        first = ranks.number * len(self._servers.servers) // ranks.count  # so that they share all servers
        with self._servers.holding() as adapter:
            yield VLLMEngine(self._servers, adapter, first)

    def close(self) -> None:
        self._servers.close()

    def _on_main_process(self, action: Callable[[], T]) -> T:
        """What `action` returns there, on all ranks, as what it raises."""
        ranks = Ranks()
        outcome: Any = None
        if ranks.is_main:
            try:
                result = action()
                outcome = result, self._servers.servers, self._servers.adapter
            except Exception as error:  # whatever it is: the other ranks would wait for ever
                outcome = error
        told = ranks.from_main(outcome)
        if isinstance(told, Exception):
            raise told
        result, *known = told
        if not ranks.is_main:
            self._servers.join(*known)
        return result

    def _compare_models(self) -> None:
        for server in self._servers.servers:
            if server.up and server.root != self._policy.name_or_path:
                logger.warning(
                    "vLLM server %s serves %s, the policy is %s; make sure that they are the same model.",
                    server.url,
                    server.root,
                    self._policy.name_or_path,
                )
