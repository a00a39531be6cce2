"""Ways to bring weights to vLLM servers.

- A LoRA adapter is saved before a rollout, and the servers load it (`VLLMServers.load_adapter`).
- Full weights are broadcast over NCCL by TRL's own client, which also works with plain `vllm serve`. Every
  rank takes part, since sharded weights are gathered one by one.
- Weights that the servers have already (`ServedPolicy`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftType
from trl.generation.vllm_generation import VLLMGeneration

from trl_dbbench.engines.policy import Policy, ServedPolicy, TrainedPolicy, changes_base
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.episode.types import Sampling
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.utils.ranks import together

ADAPTERS_FOLDER = "_vllm_adapters"
"""Folder in `output_dir`. Names that start with "_" are not pushed to the hub."""


class Weights:
    """One way to bring weights to vLLM: to `VLLMServers`, or to an `LLM` in this process. All ranks call its
    methods together.

    Attributes:
        temperature: the policy's sampling temperature.
        logprobs_of: the sampling settings, if training uses the rollout's log-probabilities.
        adapters, full: `adapters` and `full_weights` of `VLLMServers`.
        options: options of vLLM's `LLM`, besides those that all ways share.
        sleep_level: vLLM's sleep level: 1 keeps the weights in main memory, 2 discards them.
    """

    temperature = 1.0
    logprobs_of: Sampling | None = None
    adapters: Path | None = None
    full = False
    options: dict[str, Any]
    sleep_level = 1

    def open(self, vllm: Any) -> None:
        """Prepare, once the servers are connected or the engine is loaded."""

    def bring(self, vllm: Any) -> Any:
        """Give vLLM the current weights; return the `LoRARequest` of an adapter in an `LLM`, if any."""
        raise NotImplementedError


class TrainedWeights(Weights):
    """Weights that each update changes."""

    def __init__(self, policy: TrainedPolicy, args: Any):
        self._policy, self._args = policy, args
        self.temperature = policy.sampling.temperature
        self.logprobs_of = policy.sampling if args.needs_rollout_logprobs else None
        self._brought: Any = None

    def have_changed(self) -> bool:
        """Return whether the weights have changed since the last call."""
        before, self._brought = self._brought, self._policy.version
        return before != self._brought


Way = Callable[[Any, Any], Weights]
"""A subclass of `Weights`, called with a policy and the settings."""


def way_of(policy: Policy | ServedPolicy, setting: str, served: Way, full: Way, adapter: Way) -> Way:
    """Return the class for this policy's weights: `served` by vLLM already, `full`, or a LoRA `adapter`.

    Raises ConfigError, which names the `setting` that asks for vLLM, if vLLM cannot take the weights.
    """
    if isinstance(policy, ServedPolicy):
        return served
    if not isinstance(policy, TrainedPolicy):
        raise ConfigError(
            "vLLM cannot take the weights of a model that was loaded in this process and is not trained; "
            "name the model's folder or hub id with ServedPolicy."
        )
    if policy.adapter_type is None:  # full weights, sharded or not
        return full
    if policy.adapter_type != PeftType.LORA.value:
        raise ConfigError(
            f"vLLM takes LoRA adapters and full weights, not {policy.adapter_type}. Leave {setting} out."
        )
    if policy.sharded:
        raise ConfigError(
            "a LoRA adapter goes to vLLM from a rank that has the whole model: train with DDP or DeepSpeed "
            f"ZeRO-2 instead of FSDP or ZeRO-3, or leave {setting} out."
        )
    return adapter


NOT_IN_VLLM = (
    *("use_dora", "modules_to_save", "trainable_token_indices", "lora_bias", "alora_invocation_tokens"),
    *("layer_replication", "use_qalora", "use_bdlora"),
)
"""LoRA settings that vLLM refuses, in some cases only when it gets the weights, or ignores silently."""

NOT_ON_SERVERS = (*NOT_IN_VLLM, "rank_pattern", "alpha_pattern")
"""LoRA settings refused for servers. vLLM 0.32 reads the last two, but older ones ignore them silently."""


def check_lora(config: PeftConfig, name: str, setting: str, unread: Sequence[str] = NOT_IN_VLLM) -> None:
    """Raise ConfigError for an adapter that is not LoRA, changes the base, or has settings in `unread`.

    The error names the adapter and the setting that asks for vLLM.
    """
    if config.peft_type != PeftType.LORA:
        raise ConfigError(f"vLLM takes LoRA adapters; {name} is one of {config.peft_type.value}.")
    unknown = [each for each in unread if getattr(config, each, None)]
    unknown += filter(None, [changes_base(config)])
    if unknown:
        raise ConfigError(f"vLLM takes no adapter with {unknown[0]}, as {name} is. Leave {setting} out.")


class ServedWeights(Weights):
    """Weights that the servers load themselves."""

    def __init__(self, policy: ServedPolicy, args: Any):
        self._adapter = policy.adapter
        if policy.adapter is not None:
            with suppress(ValueError, OSError):  # it may be readable by the servers only
                config = PeftConfig.from_pretrained(policy.adapter)
                check_lora(config, str(policy.adapter), "vllm_server_urls", NOT_ON_SERVERS)

    def open(self, servers: VLLMServers) -> None:
        if (adapter := self._adapter) is not None:
            servers.on_main(lambda: servers.use_adapter(adapter))

    def bring(self, servers: VLLMServers) -> None:
        servers.on_main(servers.connect)


class AdapterWeights(TrainedWeights):
    """A LoRA adapter that is saved in `output_dir` and loaded from there by the servers."""

    def __init__(self, policy: TrainedPolicy, args: Any):
        super().__init__(policy, args)
        config = policy.model.active_peft_config
        check_lora(config, "the adapter that is trained", "vllm_server_urls", NOT_ON_SERVERS)
        self.adapters = Path(args.output_dir) / ADAPTERS_FOLDER

    def bring(self, servers: VLLMServers) -> None:
        servers.on_main(
            lambda: (
                servers.load_adapter(self._policy.save_adapter) if self.have_changed() else servers.connect()
            )
        )


class FullWeights(TrainedWeights):
    """Full weights, sent by TRL's client to one server after another."""

    full = True

    def open(self, servers: VLLMServers) -> None:
        self._senders: list[_Sender] = []
        for number, server in enumerate(servers.servers):
            with together():
                self._senders.append(self._sender(server.url, self._args.vllm_group_port + number))
        servers.on_main(servers.connect)  # the senders have waited for them

    def bring(self, servers: VLLMServers) -> None:
        servers.on_main(servers.connect)
        if servers.on_main(self.have_changed):
            for server, sender in zip(servers.servers, self._senders, strict=True):
                if server.up:
                    with together():  # no rank generates before the main process has sent all
                        self._send(server.url, sender)

    def _sender(self, url: str, group_port: int) -> _Sender:
        """Return a sender of weights; only the main process's has a connection. All ranks call this."""
        trainer = self._policy.trainer
        try:
            return _Sender(
                trainer.model,
                trainer.accelerator,
                trainer.processing_class,
                mode="server",
                server_base_url=url,
                server_timeout=self._args.vllm_server_timeout,
                group_port=group_port,
            )
        except (ImportError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(
                f"the weights cannot be sent to the vLLM server {url}: {error} Or train an adapter "
                "(use_peft: true), which needs none of this; or leave vllm_server_urls out."
            ) from error
        except OSError as error:
            raise EngineError(f"{error} Full weights need every server from the start.") from error

    def _send(self, url: str, sender: _Sender) -> None:
        sender.model = self._policy.trainer.model  # FSDP wraps it when the training begins
        try:
            sender.sync_weights()
        except Exception as error:  # requests' errors, and a bare Exception if the server refuses
            sender.walk_on()
            raise EngineError(
                f"the vLLM server {url} failed while the weights were sent to it: {error}. Start it again, "
                "and continue the training with resume_from_checkpoint."
            ) from error


class _Sender(VLLMGeneration):
    """TRL's sender, which sends weights as it iterates over them; if sharded, all ranks iterate together."""

    def _init_vllm(self) -> None:
        try:
            super()._init_vllm()
        except Exception:
            self.accelerator.wait_for_everyone()  # as at the end of a successful call
            raise

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._walk = super()._iter_named_params()
        return self._walk

    def walk_on(self) -> None:
        """Finish the iteration after the server has failed: the other ranks wait at the next weight."""
        for _ in self._walk:
            pass
