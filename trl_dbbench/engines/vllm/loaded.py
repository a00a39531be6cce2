"""Ways to bring weights to a vLLM engine in this process.

- A LoRA adapter that has changed is loaded before a rollout under a new name, so that no cached prefix comes
  from older weights. It is saved to an in-memory folder if there is one, and nothing is merged.
- Full weights overwrite vLLM's one by one, as in TRL's own trainer.
- Weights that vLLM loads itself (`ServedPolicy`) stay as they are; only the adapter can be exchanged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from peft import PeftConfig
from trl.generation.vllm_generation import VLLMGeneration

from trl_dbbench.engines.policy import ServedPolicy, TrainedPolicy
from trl_dbbench.engines.vllm.weights import TrainedWeights, Weights, check_lora
from trl_dbbench.errors import ConfigError, one_line

IN_MEMORY = Path("/dev/shm")

RANKS_OF_VLLM = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `max_lora_rank` that vLLM allows."""


def place_for(size: int) -> Path | None:
    """Return an in-memory folder with room for `size` bytes per local rank; `None` if there is none."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
    return IN_MEMORY if usable and shutil.disk_usage(IN_MEMORY).free > 2 * size * ranks else None


class AdapterWeights(TrainedWeights):
    """The LoRA adapter being trained."""

    def __init__(self, policy: TrainedPolicy, args: Any):
        super().__init__(policy, args)
        adapters = {"the adapter that is trained": policy.model.active_peft_config}
        self.options = lora_options(adapters) | loading_options(policy)
        if getattr(policy.model, "is_loaded_in_8bit", False):
            raise ConfigError("vLLM cannot load a model in 8 bits: set load_in_4bit, or leave use_vllm out.")
        self._request: Any = None
        self._count = 0

    def bring(self, llm: Any) -> Any:
        if not self.have_changed():
            return self._request
        trained = [weight for weight in self._policy.model.parameters() if weight.requires_grad]
        place = place_for(sum(weight.nbytes for weight in trained))
        self._count += 1
        with tempfile.TemporaryDirectory(prefix="trl-dbbench-", dir=place) as folder:
            saved = self._policy.save_adapter(Path(folder))
            self._request = _loaded(llm, f"policy-{self._count}", self._count, saved)
        return self._request


class FullWeights(TrainedWeights):
    """All weights of the model being trained."""

    sleep_level = 2

    def __init__(self, policy: TrainedPolicy, args: Any):
        super().__init__(policy, args)
        if policy.device.type == "cpu":
            raise ConfigError(
                "vLLM's CPU build cannot take new weights once it has laid out those that it loaded. Train "
                "an adapter (use_peft: true), or leave use_vllm out."
            )
        self.options = loading_options(policy)

    def open(self, llm: Any) -> None:
        self._sync = _Sync(self._policy, llm)

    def bring(self, llm: Any) -> None:
        if self.have_changed() or self._args.vllm_enable_sleep_mode:  # sleep has discarded them
            self._sync.model = self._policy.trainer.model  # FSDP wraps it when the training begins
            self._sync.sync_weights()


class _Sync(VLLMGeneration):
    """TRL's weight synchronisation, into an engine that exists already."""

    def __init__(self, policy: TrainedPolicy, llm: Any):
        self.llm = llm
        trainer = policy.trainer
        super().__init__(trainer.model, trainer.accelerator, trainer.processing_class, mode="colocate")

    def _init_vllm(self) -> None:
        """Do nothing: the engine exists already."""


class WeightsOfDisk(Weights):
    """A model that vLLM loads itself, with or without an adapter; see `ServedPolicy`."""

    def __init__(self, policy: ServedPolicy, args: Any):
        self._policy = policy
        self._adapters = [str(adapter) for adapter in policy.adapters or (policy.adapter,) if adapter]
        self.options = loading_options(policy)
        if self._adapters:
            self.options |= lora_options({each: PeftConfig.from_pretrained(each) for each in self._adapters})

    def bring(self, llm: Any) -> Any:
        if self._policy.adapter is None:
            return None
        path = str(self._policy.adapter)
        number = self._adapters.index(path) + 1
        return _loaded(llm, f"adapter-{number}", number, path)


def lora_options(adapters: dict[str, PeftConfig]) -> dict[str, Any]:
    """Return vLLM's options for these adapters, given by name. Only one of them is used at a time."""
    for name, config in adapters.items():
        check_lora(config, name, "use_vllm")
    ranks = [(config.r, *(config.rank_pattern or {}).values()) for config in adapters.values()]
    rank = max(map(max, ranks))
    allowed = [each for each in RANKS_OF_VLLM if each >= rank]
    if not allowed:
        raise ConfigError(f"vLLM takes adapters up to rank {RANKS_OF_VLLM[-1]}; the rank here is {rank}.")
    return {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": allowed[0]}


def loading_options(policy: TrainedPolicy | ServedPolicy) -> dict[str, Any]:
    """Return vLLM's options to load the policy's model with its revision, config changes and precision."""
    dtype, quantization = policy.computes_in
    options = {
        "revision": policy.revision,
        "hf_overrides": policy.config_changes,
        "dtype": dtype,
        # other methods are named in the model's config.json
        "quantization": quantization if quantization == "bitsandbytes" else None,
    }
    return {name: value for name, value in options.items() if value}


def _loaded(llm: Any, name: str, number: int, path: Path | str) -> Any:
    """Load an adapter into vLLM; return its `LoRARequest`."""
    from vllm.lora.request import LoRARequest

    request = LoRARequest(name, number, str(path))
    try:
        llm.llm_engine.add_lora(request)
    except Exception as error:  # vLLM raises many kinds
        raise ConfigError(f"vLLM does not take the adapter: {one_line(error)}") from error
    return request
