"""A trainer's vLLM engine: how its weights get to the servers, on one rank or many.

A LoRA adapter is saved and loaded (`VLLMEngine.load_adapter`). Full weights are broadcast over NCCL by TRL's own
client, whose server is plain `vllm serve` too; every rank takes part, since sharded weights are gathered one by one.

The main process alone deals with the servers outside of episodes. The others learn from it which of them are up and
what the adapter is called there, or that it failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from peft import PeftType
from trl.generation.vllm_generation import VLLMGeneration

from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.errors import ConfigError, EngineError
from trl_dbbench.ranks import together
from trl_dbbench.rollout import Sampling

if TYPE_CHECKING:
    from trl_dbbench.trainer import DBBenchGRPOTrainer

logger = logging.getLogger(__name__)


class VLLMSync:
    """Connects at once, so that what cannot work is known before the first step.

    Raises:
        ConfigError: if the trained weights cannot be sent to servers, or a server cannot be used as it was started.
        EngineError: if no server answers; with full weights, if one does not.
    """

    def __init__(self, trainer: DBBenchGRPOTrainer, urls: list[str]):
        check_trainable(trainer)
        args = trainer.args
        # what these read, the off-policy mask among TRL's own, must be right
        logprobs_used = args.use_rollout_logprobs or args.off_policy_mask_threshold is not None
        sampling = Sampling(trainer.temperature, trainer.top_p, trainer.top_k or 0)
        self._full_weights = getattr(trainer.model, "active_peft_config", None) is None
        self._trainer = trainer
        self._sent: Any = None
        self._engine = VLLMEngine(
            urls,
            trainer.eos_token_ids,
            None if self._full_weights else Path(args.output_dir) / "_vllm_adapters",  # "_": not for the hub
            rank=trainer.accelerator.process_index,
            logprobs_of=sampling if logprobs_used else None,
        )
        self._on_main_process(self._engine.connect)
        self._senders: list[_Sender] = []
        if self._full_weights:
            for number, server in enumerate(self._engine.servers):
                with together():
                    self._senders.append(self._sender(server.url, args.vllm_group_port + number))
            self._on_main_process(self._engine.connect)  # those that the senders have waited for
        if trainer.accelerator.is_main_process:
            self._compare_models()

    @property
    def contexts(self) -> list[int | None]:
        """Tokens of prompt and completion together that each server takes, as far as it is known."""
        return [server.context for server in self._engine.servers]

    def engine_of_current_weights(self) -> VLLMEngine:
        """The engine, with the weights as they are now on the servers. To be called on all ranks.

        Raises:
            ConfigError, EngineError: as above; on all ranks, whichever met it.
        """
        if self._on_main_process(self._make_ready):
            for server, sender in zip(self._engine.servers, self._senders, strict=True):
                if server.up:
                    with together():  # no rank generates before the main process has sent all
                        self._send_weights(server.url, sender)
        return self._engine

    def _on_main_process(self, action: Callable[[], bool | None]) -> bool | None:
        """What `action` returns there, on all ranks, as what it raises."""
        main = self._trainer.accelerator.is_main_process
        outcome: list[Any] = [None]
        if main:
            try:
                result = action()
                outcome = [(result, self._engine.servers, self._engine.adapter)]
            except Exception as error:  # whatever it is: the other ranks would wait for ever
                outcome = [error]
        broadcast_object_list(outcome)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        result, *known = outcome[0]
        if not main:
            self._engine.join(*known)
        return result

    def _make_ready(self) -> bool:
        """Sees to the servers and to the adapter on them; returns whether full weights are to be sent."""
        trainer = self._trainer
        # the versions tell when weights change within a step, as when the best checkpoint is loaded at the end
        versions = [weight._version for weight in trainer.model.parameters() if weight.requires_grad]
        current = (trainer.state.global_step, versions)
        changed = current != self._sent
        if changed and not self._full_weights:
            self._engine.load_adapter(self._save_adapter)
        else:
            self._engine.connect()
        self._sent = current
        return changed and self._full_weights

    def _save_adapter(self, folder: Path) -> Path:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model_wrapped)
        name = model.active_adapter
        # False: "auto" asks the hub each time, and vLLM takes no embeddings from an adapter
        model.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        return folder if name == "default" else folder / name

    def _sender(self, url: str, group_port: int) -> _Sender:
        """Only the main process's has a connection. To be called on all ranks."""
        trainer = self._trainer
        try:
            return _Sender(
                trainer.model,
                trainer.accelerator,
                trainer.processing_class,
                mode="server",
                server_base_url=url,
                server_timeout=trainer.args.vllm_server_timeout,
                group_port=group_port,
            )
        except (ImportError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(
                f"the weights cannot be sent to the vLLM server {url}: {error} Or train an adapter "
                "(use_peft: true), which needs none of this; or leave vllm_server_urls out."
            ) from error
        except OSError as error:
            raise EngineError(f"{error} Full weights need every server from the start.") from error

    def _send_weights(self, url: str, sender: _Sender) -> None:
        try:
            sender.sync_weights()
        except Exception as error:  # requests' errors, and a bare Exception where the server refuses
            sender.walk_on()
            raise EngineError(
                f"the vLLM server {url} failed while the weights were sent to it: {error}. Start it again, and "
                "continue the training with resume_from_checkpoint."
            ) from error

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


class _Sender(VLLMGeneration):
    """TRL's, which sends the weights as it walks over them; where they are sharded, all ranks walk together."""

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
        """To the end, when the server has failed on the way: the other ranks are waiting at the next weight."""
        for _ in self._walk:
            pass


def check_trainable(trainer: DBBenchGRPOTrainer) -> None:
    """Raises ConfigError if the trained weights are none that can be brought to running servers."""
    config = getattr(trainer.model, "active_peft_config", None)
    if config is None:  # full weights, sharded or not
        return
    if config.peft_type != PeftType.LORA:
        raise ConfigError(
            f"vllm_server_urls takes LoRA adapters and full weights, not {config.peft_type.value}. Leave it out."
        )
    if trainer._dist.is_fsdp or trainer._dist.is_zero3:
        raise ConfigError(
            "vllm_server_urls needs the whole model on each rank, to save the adapter from: train with DDP or "
            "DeepSpeed ZeRO-2 instead of FSDP or ZeRO-3."
        )
