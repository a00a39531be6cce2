"""A frozen model of its own as the KL reference of a GRPO trainer."""

from __future__ import annotations

from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head, create_model_from_path, disable_dropout_in_model

from trl_dbbench.errors import ConfigError


def load_reference(trainer: GRPOTrainer, name_or_path: str) -> PreTrainedModel:
    """Loads a model and makes it ready as TRL makes its own reference ready.

    Raises:
        ConfigError: if its vocabulary does not hold the tokens of the trained model.
    """
    args = trainer.args
    kwargs = {"dtype": trainer.model.dtype, **(args.model_init_kwargs or {}), "device_map": None}
    model = create_model_from_path(name_or_path, **kwargs)
    if model.get_input_embeddings().weight.shape[0] < len(trainer._tokenizer):
        raise ConfigError(
            f"the reference model '{name_or_path}' has a smaller vocabulary than the tokenizer of the "
            "trained model; the two must share one."
        )
    disable_dropout_in_model(model)
    add_fused_lm_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(model, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(model, trainer.accelerator)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)
