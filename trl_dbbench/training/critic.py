"""What PPO's critic is: a linear head on hidden states, the policy's own or those of a trunk for itself.

```
critic: head    the states of the policy's trunk; the loss of the values trains the trunk too
critic: model   the states of a copy of that trunk, with adapters of its own where the policy has such
```

V of a sampled token is what is expected from the state before it: read off where the policy's distribution
of the token is read off, at the token before. The head begins with zeros, so that V begins with 0.

The optimizer is the policy's, with a parameter group and a learning rate for the critic: a checkpoint holds
both. The critic's weights lie beside the policy's, in `critic/weights.pt`: what a run trains of it,
which with LoRA is not the base.
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
"""In a folder of its own, for vLLM reads all weights that lie beside a model's."""


class Critic(nn.Module):
    """A value for each token.

    Args:
        policy: with adapters or without. It is left as it is.
        kind: one of `CRITICS`.
    """

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
        """The values of the last tokens.

        Args:
            states: (B, L, H), a trunk's last hidden states of L tokens.
            width: T, tokens at the end that get a value.

        Returns:
            (B, T), fp32.
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
        """
        Raises:
            ConfigError: if the folder holds no critic, or another one.
        """
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
        """Gives all ranks the weights of the first."""
        if accelerator.num_processes > 1:
            for weight in self.trained.values():
                weight.data = broadcast(weight.data)

    def join(self, optimizer: torch.optim.Optimizer, accelerator: Accelerator, **settings: Any) -> None:
        """Has an optimizer train the critic; before each of its steps the ranks' gradients are averaged.

        Args:
            settings: of the parameter group, and `max_grad_norm`, beyond which gradients are scaled down.
        """
        max_norm = settings.pop("max_grad_norm")
        weights = list(self.trained.values())

        def average(*_: Any) -> None:
            reduce_gradients(weights, accelerator, "mean", max_norm)

        optimizer.add_param_group({"params": weights, **settings})
        optimizer.register_step_pre_hook(average)
        # the trainer forgets only the gradients of the policy
        optimizer.register_step_post_hook(lambda *_: self.zero_grad())


def trunk_of(policy: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The layers below the language model's head, with the policy's adapters in them."""
    return (policy.get_base_model() if isinstance(policy, PeftModel) else policy).base_model


@contextmanager
def states_of(trunk: nn.Module) -> Iterator[list[torch.Tensor]]:
    """The last hidden states (B, L, H) of each forward pass within the block, in a list that it fills."""
    seen: list[torch.Tensor] = []
    hook = trunk.register_forward_hook(lambda module, args, output: seen.append(output.last_hidden_state))
    try:
        yield seen
    finally:
        hook.remove()
