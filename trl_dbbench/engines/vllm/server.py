"""One vLLM server: what is known of it, and what its replies mean."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx2

from trl_dbbench.episode.types import Sampling
from trl_dbbench.errors import ConfigError


class ServerFailure(Exception):
    """This server cannot answer now; another may."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that lies at `path`, a folder or hub id. `folder` was made for it and goes with it."""

    name: str
    path: str
    folder: str | None = None


@dataclass
class Server:
    """What is known of a server."""

    url: str
    up: bool = False
    base_model: str = ""
    """The name that it gives the model without adapter."""
    root: str = ""
    """Where it has that model from: a folder or a hub id."""
    context: int | None = None
    """Tokens of prompt and completion together."""
    processed: bool = False
    """Whether its log-probabilities are those after temperature, top-p and top-k (`processed_logprobs`) or
    those of temperature 1 (`raw_logprobs`, vLLM's default)."""
    adapters: set[str] = field(default_factory=set)
    """The names of the adapters that it holds."""

    @property
    def failed(self) -> bool:
        """Whether it was up once, and is no more."""
        return bool(self.base_model) and not self.up

    def policys_logprobs(self, sampling: Sampling) -> bool:
        """Whether its log-probabilities are the policy's own: of the logits / temperature, whatever top-p and
        top-k."""
        if self.processed and not sampling.greedy:  # vLLM takes any lower temperature for 0.01
            return sampling.top_p == 1 and sampling.top_k == 0 and sampling.temperature >= 0.01
        return sampling.temperature == 1


def check(server: Server, response: httpx2.Response) -> None:
    if response.status_code >= 500 or response.status_code in (408, 429):  # timeout, too many requests
        raise ServerFailure(f"status {response.status_code}, {message_of(response)}")
    if not response.is_success:
        raise ConfigError(
            f"the vLLM server {server.url} refuses a request (status {response.status_code}): "
            f"{message_of(response)}. Compare how it was started with what the recipe asks."
        )


def read_turn(server: Server, response: httpx2.Response) -> tuple[list[int], list[float]]:
    choice = response.json()["choices"][0]
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
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


def message_of(response: httpx2.Response) -> str:
    """The error message of a response."""
    try:
        body = response.json()
        return body["error"]["message"] if "error" in body else str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500]


def describe(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip(" .")
