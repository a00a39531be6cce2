"""Ways to bring weights to vLLM servers.

- A LoRA adapter is saved before a rollout, and the servers load it (`VLLMServers.load_adapter`).
- Full weights are broadcast over NCCL by TRL's own client, whose server is plain `vllm serve` too. Every rank
  takes part, since sharded weights are gathered one by one.
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
"""In `output_dir`. Names with "_" in front are not pushed to the hub."""


class Weights:
    """One way to bring weights to vLLM: to `VLLMServers`, or to an `LLM` in this process. All ranks call its
    methods together.

    Attributes:
        temperature: the policy's.
        logprobs_of: sampling whose log-probabilities are trained on, if they are.
        adapters, full: for `VLLMServers`.
        options: of vLLM's `LLM`, beside those that all ways share.
        sleep_level: vLLM's: 1 keeps the weights in main memory, 2 forgets them.
    """

    temperature = 1.0
    logprobs_of: Sampling | None = None
    adapters: Path | None = None
    full = False
    options: dict[str, Any]
    sleep_level = 1

    def open(self, vllm: Any) -> None:
        """Once, when the servers are connected, or the engine is there."""

    def bring(self, vllm: Any) -> Any:
        """Give vLLM the current weights; return the `LLM`'s request of the adapter, if there is one."""
        raise NotImplementedError


class TrainedWeights(Weights):
    """Weights that each update changes."""

    def __init__(self, policy: TrainedPolicy, args: Any):
        self._policy, self._args = policy, args
        self.temperature = policy.sampling.temperature
        self.logprobs_of = policy.sampling if args.needs_rollout_logprobs else None
        self._brought: Any = None

    def have_changed(self) -> bool:
        """Return whether the weights are others than when this was last asked."""
        before, self._brought = self._brought, self._policy.version
        return before != self._brought


Way = Callable[[Any, Any], Weights]
"""A class of weights, made from a policy and the settings."""


def way_of(policy: Policy | ServedPolicy, setting: str, served: Way, full: Way, adapter: Way) -> Way:
    """Return the class for this policy's weights: those that vLLM has, full ones, or a LoRA adapter.

    Raises ConfigError, which names the `setting` that asks for vLLM, if it takes none of them.
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
"""Settings of LoRA that vLLM refuses, some only when it gets the weights, or passes over without a word."""

NOT_ON_SERVERS = (*NOT_IN_VLLM, "rank_pattern", "alpha_pattern")
"""vLLM 0.32 reads the last two. Servers may be older, and pass over them without a word."""


def check_lora(config: PeftConfig, name: str, setting: str, unread: Sequence[str] = NOT_IN_VLLM) -> None:
    """Raise ConfigError for an adapter that vLLM does not take, or with settings that it leaves `unread`.

    The error names the adapter and the setting that asks for vLLM.
    """
    if config.peft_type != PeftType.LORA:
        raise ConfigError(f"vLLM takes LoRA adapters; {name} is one of {config.peft_type.value}.")
    unknown = [each for each in unread if getattr(config, each, None)]
    unknown += filter(None, [changes_base(config)])
    if unknown:
        raise ConfigError(f"vLLM takes no adapter with {unknown[0]}, as {name} is. Leave {setting} out.")


class ServedWeights(Weights):
    """The servers have them."""

    def __init__(self, policy: ServedPolicy, args: Any):
        self._adapter = policy.adapter
        if policy.adapter is not None:
            with suppress(ValueError, OSError):  # only the servers may see it
                config = PeftConfig.from_pretrained(policy.adapter)
                check_lora(config, str(policy.adapter), "vllm_server_urls", NOT_ON_SERVERS)

    def open(self, servers: VLLMServers) -> None:
        if (adapter := self._adapter) is not None:
            servers.on_main(lambda: servers.use_adapter(adapter))

    def bring(self, servers: VLLMServers) -> None:
        servers.on_main(servers.connect)


class AdapterWeights(TrainedWeights):
    """A LoRA adapter is saved into `output_dir`, and loaded from there by the servers."""

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
    """TRL's client sends them, one server after the other."""

    full = True

    def open(self, servers: VLLMServers) -> None:
        self._senders: list[_Sender] = []
        for number, server in enumerate(servers.servers):
            with together():
                self._senders.append(self._sender(server.url, self._args.vllm_group_port + number))
        servers.on_main(servers.connect)  # those that the senders have waited for

    def bring(self, servers: VLLMServers) -> None:
        servers.on_main(servers.connect)
        if servers.on_main(self.have_changed):
            for server, sender in zip(servers.servers, self._senders, strict=True):
                if server.up:
                    with together():  # no rank generates before the main process has sent all
                        self._send(server.url, sender)

    def _sender(self, url: str, group_port: int) -> _Sender:
        """Only the main process's has a connection. To be called on all ranks."""
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
        except Exception as error:  # requests' errors, and a bare Exception where the server refuses
            sender.walk_on()
            raise EngineError(
                f"the vLLM server {url} failed while the weights were sent to it: {error}. Start it again, "
                "and continue the training with resume_from_checkpoint."
            ) from error


class _Sender(VLLMGeneration):
    """TRL's, which sends weights as it walks over them; where they are sharded, all ranks walk together."""

    def _init_vllm(self) -> None:
        try:
            super()._init_vllm()
        except Exception:
            self.accelerator.wait_for_everyone()  # as it ends where it does not fail
            raise

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._walk = super()._iter_named_params()
        return self._walk

    def walk_on(self) -> None:
        """To the end, when the server has failed on the way: the other ranks wait at the next weight."""
        for _ in self._walk:
            pass
