"""Backends bring the current weights to where tokens are generated, and create engines there.

```
Policy         the weights, as a trainer or an evaluation knows them (`policy.py`)
  -> Backend   brings them to an engine in this process (transformers, vllm) or to servers (vllm)
    -> Engine  answers the episodes' requests for turns with those weights
```

`engine:` in a YAML names one of our backends, or the dotted path of your own: a function or class that takes
(args, policy) and returns a `Backend`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from trl_dbbench.engines.policy import Policy, ServedPolicy
from trl_dbbench.episode.types import Engine
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.lookup import look_up


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an evaluation's backend; `DBBenchGRPOConfig` explains each."""

    engine: str | None = None
    vllm_server_urls: list[str] | None = None
    use_vllm: bool = False
    vllm_gpu_memory_utilization: float = 0.9
    vllm_max_model_length: int | None = None
    vllm_tensor_parallel_size: int = 1
    vllm_enable_sleep_mode: bool = False
    vllm_model_impl: str = "vllm"
    trust_remote_code: bool = False
    max_concurrent_episodes: int | None = None


class Backend(Protocol):
    """Source of engines that generate with the current weights."""

    @property
    def contexts(self) -> Sequence[int]:
        """Return the known limits on prompt and completion together, in tokens: the model's own, and those of
        the engines or servers that run it."""

    @property
    def collective(self) -> bool:
        """Return whether a forward pass is a collective operation of all ranks (FSDP, ZeRO-3), so that
        they cannot synchronise outside it during a rollout."""

    @property
    def detached(self) -> bool:
        """Return whether an engine keeps the weights it started with, also in other threads, while the model
        here is trained and further engines are created."""

    def engine(self) -> AbstractContextManager[Engine]:
        """Return a context manager that yields an engine with the current weights; all ranks enter it."""

    def close(self) -> None:
        """Release the backend's own resources, such as adapters on servers. Safe to call more than once."""


def engine_of(args: Any) -> str:
    """Return the name of the engine chosen by an `EngineSettings` or a `DBBenchGRPOConfig`."""
    return args.engine or ("vllm" if args.use_vllm or args.vllm_server_urls else "transformers")


def in_process_vllm(args: Any) -> bool:
    return engine_of(args) == "vllm" and not args.vllm_server_urls


def servers_asked(get: Callable[[str], Any]) -> list[str] | None:
    """Return the servers that settings name: `vllm_server_urls`, or the one of TRL's `vllm_mode: server`."""
    urls, base = get("vllm_server_urls"), get("vllm_server_base_url")
    if urls and base and [each.rstrip("/") for each in urls] != [base.rstrip("/")]:
        raise ConfigError(
            f"vllm_server_urls: {urls} and vllm_server_base_url: {base} name different servers; leave one of "
            "them out."
        )
    if urls is None and get("use_vllm") and get("vllm_mode") == "server":
        if not (base or get("vllm_server_host")):
            raise ConfigError("vllm_server_host is empty; give it a value, or set vllm_server_base_url.")
        address = f"http://{get('vllm_server_host')}:{get('vllm_server_port')}"
        return [base or address]
    return urls


def settings_asked(get: Callable[[str], Any]) -> EngineSettings:
    """Return the engine settings of a config that has not been checked yet."""
    return EngineSettings(
        engine=get("engine"), use_vllm=bool(get("use_vllm")), vllm_server_urls=servers_asked(get)
    )


def open_backend(args: Any, policy: Policy | ServedPolicy) -> Backend:
    """Return the backend of the engine that `engine_of` names.

    Raises:
        ConfigError, EngineError: if there is no such backend, it cannot serve this policy, or no server
            answers.
    """
    return look_up("engine", engine_of(args), BACKENDS)(args, policy)


def server_addresses(urls: Sequence[str]) -> list[str]:
    """Return the addresses in `vllm_server_urls`, checked and without trailing slashes."""
    if not urls:
        raise ConfigError("vllm_server_urls is empty; name at least one server, or leave it out.")
    addresses = [str(url).rstrip("/") for url in urls]
    for url in addresses:
        if not _is_address(url):
            raise ConfigError(
                f"vllm_server_urls: {url!r} is not a server's address; give scheme, host and port alone, as "
                "in http://10.0.0.7:8000."
            )
        if addresses.count(url) > 1:
            raise ConfigError(f"vllm_server_urls names {url} more than once.")
    return addresses


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading an invalid port raises ValueError
    except ValueError:
        return False
    named = parts.scheme in ("http", "https") and host and not re.search(r"\s", url)
    return bool(named) and not (parts.username or parts.path or parts.query or parts.fragment)


def _transformers(args: Any, policy: Policy) -> Backend:
    from trl_dbbench.engines.transformers.backend import TransformersBackend

    return TransformersBackend(policy, args.max_concurrent_episodes)


def _vllm(args: Any, policy: Policy | ServedPolicy) -> Backend:
    if in_process_vllm(args):
        from trl_dbbench.engines.vllm.in_process import InProcessBackend

        return InProcessBackend(args, policy)
    from trl_dbbench.engines.vllm.engine import VLLMBackend

    return VLLMBackend(args, policy)


# imported on demand: each needs libraries that the other does not
BACKENDS: dict[str, Callable[[Any, Any], Backend]] = {"transformers": _transformers, "vllm": _vllm}
