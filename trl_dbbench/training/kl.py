"""KL: the reference that the policy is kept close to, and where the KL is added.

```
kl_reference   base     TRL's reference, the model before the run; or reference_model_name_or_path
               rollout  the policy that played, by its log-probabilities; needs no further model
               stage    the policy before the current stage of the stream
kl_in_reward   false    beta times the KL is added to the loss (k3, per token)
               true     beta times the log ratio of an episode's sampled tokens is subtracted from its reward
```

Logged:

- `kl_penalty`: amount that `kl_in_reward` subtracts from an episode's reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head, create_model_from_path, disable_dropout_in_model

from trl_dbbench.advantages.gradients import check_whole_weights
from trl_dbbench.errors import ConfigError, loading


def load_reference(trainer: GRPOTrainer, name_or_path: str) -> PreTrainedModel:
    """Load a model and prepare it as TRL prepares its reference.

    Raises:
        ConfigError: if there is no such model, or its vocabulary is smaller than the trained model's
            tokenizer.
    """
    args = trainer.args
    kwargs = {"dtype": trainer.model.dtype, "trust_remote_code": args.trust_remote_code}
    kwargs |= {**(args.model_init_kwargs or {}), "device_map": None}
    kwargs.pop("revision", None)  # a revision of the trained model's repository
    with loading(f"the reference model '{name_or_path}'"):
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


def without_dropout(model: torch.nn.Module) -> None:
    """Switch off dropout in the adapter "ref", which computes the reference's log-probabilities."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and name.endswith(".ref"):
            module.p = 0.0


def of_adapter(name: str, adapter: str) -> str:
    """Return the name, in another adapter, of a weight of the adapter `default`."""
    return re.sub(r"\.default(?=\.|$)", f".{adapter}", name)


class StageReference:
    """Reference of `kl_reference: stage`: a copy of the policy at the beginning of the stage.

    It replaces TRL's reference: an adapter named "ref" if an adapter is trained, otherwise `ref_model`.
    Checkpoints keep it.
    """

    changes_within_a_step = False

    def __init__(self, trainer: GRPOTrainer):
        check_whole_weights(trainer, "kl_reference: stage")
        self._trainer = trainer
        model = trainer.model
        if trainer.ref_model is None and "ref" not in model.peft_config:
            model.add_adapter("ref", model.peft_config["default"])
            model.set_adapter("default")
            self.renew()

    def _pairs(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """Return, for each trained weight, its name, the reference's weight and the policy's."""
        model, other = self._trainer.model, self._trainer.ref_model
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        if other is not None:
            of_reference = dict(other.named_parameters())
            return [(name, of_reference[name], weight) for name, weight in trained]
        return [(name, model.get_parameter(of_adapter(name, "ref")), weight) for name, weight in trained]

    def renew(self) -> None:
        """Copy the policy's current weights into the reference."""
        for _, reference, weight in self._pairs():
            reference.data.copy_(weight.data)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: reference.data for name, reference, _ in self._pairs()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, reference, _ in self._pairs():
            reference.data.copy_(state[name])


NEVER = -1e4
"""Log-probability given to tokens that were not sampled."""


def apply_kl(
    output: dict[str, Any],
    mask: torch.Tensor,
    args: Any,
    gather: Callable[[torch.Tensor], torch.Tensor],
    training: bool,
) -> torch.Tensor | float:
    """Add the log-probabilities of `kl_reference: rollout` to a scored batch; with `kl_in_reward`, turn those
    of the reference into penalties.

    Args:
        output: the batch as TRL scored it. `kl_in_reward` removes its `ref_per_token_logps`.
        mask: (n, T), 1 on the sampled tokens of rows that did not fail.
        training: whether episodes were sampled; in an evaluation they are greedy.

    Returns:
        Penalties to subtract from the rewards of all ranks' rows, (N,); 0.0 without `kl_in_reward`.
    """
    played = output["sampling_per_token_logps"]
    if args.kl_reference == "rollout" and training:
        # TRL masks only after exponentiating, which may give infinity on the database's tokens
        output["ref_per_token_logps"] = played.masked_fill(mask == 0, NEVER)
    if not args.kl_in_reward:
        return 0.0
    ratios = (played - output.pop("ref_per_token_logps")).nan_to_num() * mask  # (n, T)
    return gather(args.beta * ratios.sum(dim=1)).cpu()
