"""PPO's critic: a linear head on the hidden states of the policy's trunk, or of a separate trunk.

```
critic: head    the states of the policy's trunk, which the value loss trains too
critic: model   the states of a copy of that trunk, with its own adapters if the policy has any
```

V of a sampled token is the reward expected before it is sampled. It is read at the preceding token, like the
policy's distribution. The head is initialised to zero, so V starts at 0.

The policy's optimizer trains the critic in a parameter group with its own learning rate. The critic's trained
weights are saved beside the policy's, in `critic/weights.pt`; with LoRA, without the base model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from trl.trainer.utils import disable_dropout_in_model

from trl_dbbench.advantages.gradients import reduce_gradients
from trl_dbbench.errors import ConfigError

CRITICS = ("head", "model")
WEIGHTS = Path("critic") / "weights.pt"
"""File of the critic's weights, in a separate folder because vLLM reads all weights beside a model's."""


class Critic(nn.Module):
    """Critic that gives each token a value. `kind` is one of `CRITICS`; the policy is left unchanged."""

    def __init__(self, policy: PreTrainedModel, kind: str):
        super().__init__()
        self.trunk: PreTrainedModel | None = None
        if kind == "model":
            self.trunk = deepcopy(trunk_of(policy))
            disable_dropout_in_model(self.trunk)
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: torch.Tensor, width: int) -> torch.Tensor:
        """Return the values of the last `width` = T tokens, (B, T), fp32.

        Args:
            states: (B, L, H), the trunk's last hidden states.
        """
        before = states[:, -width - 1 : -1]
        with torch.autocast(states.device.type, enabled=False):
            return self.head(before.float()).squeeze(-1)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        (folder / WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: weight.detach() for name, weight in self.trained.items()}, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        """Load the trained weights; raise ConfigError if the folder has no critic, or a different one."""
        file = folder / WEIGHTS
        found = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
        own = self.trained
        shapes = [{name: tuple(weight.shape) for name, weight in each.items()} for each in (found, own)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"'{folder}' holds {'another critic' if found else 'no critic'}: PPO goes on only from a "
                "checkpoint of PPO with the same critic and adapter. Name one, or give another output_dir."
            )
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(found[name])

    def share(self, accelerator: Accelerator) -> None:
        """Copy the main rank's weights to all ranks."""
        if accelerator.num_processes > 1:
            for weight in self.trained.values():
                weight.data = broadcast(weight.data)

    def join(
        self, optimizer: torch.optim.Optimizer, accelerator: Accelerator, max_norm: float, **group: Any
    ) -> None:
        """Add the critic to an optimizer, as a parameter group with the settings in `group`.

        Before each optimizer step, gradients are averaged over the ranks and clipped to `max_norm`.
        """
        weights = list(self.trained.values())

        def average(*_: Any) -> None:
            reduce_gradients(weights, accelerator, "mean", max_norm)

        optimizer.add_param_group({"params": weights, **group})
        optimizer.register_step_pre_hook(average)
        # the trainer zeroes the policy's gradients only
        optimizer.register_step_post_hook(lambda *_: self.zero_grad())


def trunk_of(policy: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Return the model below the language-modelling head, with the policy's adapters."""
    return (policy.get_base_model() if isinstance(policy, PeftModel) else policy).base_model


@contextmanager
def states_of(trunk: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collect the last hidden states (B, L, H) of each forward pass within the block."""
    seen: list[torch.Tensor] = []
    hook = trunk.register_forward_hook(lambda module, args, output: seen.append(output.last_hidden_state))
    try:
        yield seen
    finally:
        hook.remove()
