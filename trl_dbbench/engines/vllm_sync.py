"""A trainer's vLLM engine: which adapter the servers are to hold, on one rank or many.

The main process alone deals with the servers outside of episodes. The others learn from it which of them are up and
what the adapter is called there, or that it failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from peft import PeftType

from trl_dbbench.engines.vllm import VLLMEngine
from trl_dbbench.errors import ConfigError
from trl_dbbench.rollout import Sampling

if TYPE_CHECKING:
    from trl_dbbench.trainer import DBBenchGRPOTrainer

logger = logging.getLogger(__name__)


class VLLMSync:
    """Connects at once, so that what cannot work is known before the first step.

    Raises:
        ConfigError: without LoRA, with a sharded model, or if a server cannot be used as it was started.
        EngineError: if no server answers.
    """

    def __init__(self, trainer: DBBenchGRPOTrainer, urls: list[str]):
        check_trainable(trainer)
        args = trainer.args
        # what these read, the off-policy mask among TRL's own, must be right
        logprobs_used = args.use_rollout_logprobs or args.off_policy_mask_threshold is not None
        sampling = Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)
        self._trainer = trainer
        self._loaded: Any = None
        self._engine = VLLMEngine(
            urls,
            trainer.eos_token_ids,
            Path(args.output_dir) / "_vllm_adapters",  # with "_" it is not pushed to the hub
            rank=trainer.accelerator.process_index,
            logprobs_of=sampling if logprobs_used else None,
        )
        self._on_main_process(self._engine.connect)
        if trainer.accelerator.is_main_process:
            self._compare_models()

    @property
    def contexts(self) -> list[int | None]:
        """Tokens of prompt and completion together that each server takes, as far as it is known."""
        return [server.context for server in self._engine.servers]

    def engine_of_current_weights(self) -> VLLMEngine:
        """The engine, with the adapter as it is now on the servers. To be called on all ranks.

        Raises:
            ConfigError, EngineError: as above; on all ranks, whichever met it.
        """
        self._on_main_process(self._load_adapter)
        return self._engine

    def _on_main_process(self, action: Callable[[], None]) -> None:
        main = self._trainer.accelerator.is_main_process
        outcome: list[Any] = [None]
        if main:
            try:
                action()
                outcome = [(self._engine.servers, self._engine.adapter)]
            except Exception as error:  # whatever it is: the other ranks would wait for ever
                outcome = [error]
        broadcast_object_list(outcome)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        if not main:
            self._engine.join(*outcome[0])

    def _load_adapter(self) -> None:
        trainer = self._trainer
        # the versions tell when weights change within a step, as when the best checkpoint is loaded at the end
        versions = [weight._version for weight in trainer.model.parameters() if weight.requires_grad]
        current = (trainer.state.global_step, versions)
        if current == self._loaded:
            self._engine.connect()
        else:
            self._engine.load_adapter(self._save_adapter)
            self._loaded = current

    def _save_adapter(self, folder: Path) -> Path:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model_wrapped)
        name = model.active_adapter
        # False: "auto" asks the hub each time, and vLLM takes no embeddings from an adapter
        model.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        return folder if name == "default" else folder / name

    def _compare_models(self) -> None:
        trained = self._trainer.model.config.name_or_path
        for server in self._engine.servers:
            if server.up and server.root != trained:
                logger.warning(
                    "vLLM server %s serves %s, trained is %s; see that they are the same model.",
                    server.url,
                    server.root,
                    trained,
                )


def check_trainable(trainer: DBBenchGRPOTrainer) -> None:
    """Raises ConfigError if the trained weights are none that can be loaded into running servers."""
    config = getattr(trainer.model, "active_peft_config", None)
    if config is None or config.peft_type != PeftType.LORA:
        raise ConfigError(
            "vllm_server_urls needs LoRA (use_peft: true): only an adapter can be loaded into running servers. Leave "
            "vllm_server_urls out to train the full weights."
        )
    if trainer._dist.is_fsdp or trainer._dist.is_zero3:
        raise ConfigError(
            "vllm_server_urls needs the whole model on each rank, to save the adapter from: train with DDP or "
            "DeepSpeed ZeRO-2 instead of FSDP or ZeRO-3."
        )
