"""PRIME (Cui et al., 2025): process rewards without step labels, from a model trained on outcomes.

pi_phi is a second adapter on the policy's base model, pi_ref is that base model alone. The reward of a
sampled token is

    r_t = beta * log(pi_phi(token) / pi_ref(token)),

and the sum over an episode is the logit of the probability that the episode is right. After a batch's token
rewards are computed, pi_phi is trained on the batch for one step, with cross-entropy. Groups that are all
right or all wrong train it too; episodes whose environment failed do not.

The second adapter is in the model only during this. At other times its weights are kept here on the CPU, so
that they are never part of the saved model, evaluated, served or seen by the policy's optimizer.

Logged:

- `prime/loss`: pi_phi's cross-entropy, in nats per episode, before its step.
- `prime/accuracy`: share of episodes that pi_phi classifies correctly, before its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from peft import PeftModel, PeftType, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import use_adapter

from trl_dbbench.advantages.batch import AdvantageBatch, needs, padded
from trl_dbbench.advantages.estimators import rloo
from trl_dbbench.advantages.gradients import check_whole_weights, reduce_gradients
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.settings import check_number

ADAPTER = "prime"


@needs("groups")
class Prime:
    """Returns of outcomes and of implicit process rewards, each minus the mean over the group's others.

    A_t = (R - mean of the others' R) + sum over s >= t of (r_s - mean of the others' mean r)

    R is an episode's weighted reward; t and s count its sampled tokens. An episode that is the only one left
    in its group gets 0.

    Args:
        beta: scale of the implicit rewards.
        learning_rate: learning rate of pi_phi, for AdamW without weight decay; gradients are clipped to
            `max_grad_norm`.
        by: `token`, or `turn`: rewards are summed per turn, t and s count turns, and all tokens of a turn get
            the same advantage.
    """

    def __init__(
        self, beta: float = 0.05, learning_rate: float = 1e-5, by: Literal["token", "turn"] = "token"
    ):
        check_number("advantage_args.beta", beta)
        check_number("advantage_args.learning_rate", learning_rate)
        check_choice("advantage_args.by", by, ("token", "turn"))
        self.beta, self.learning_rate, self.by = beta, learning_rate, by
        self._adapter: dict[str, torch.Tensor] = {}
        self._optimizer: dict[str, Any] = {}

    def check(self, trainer: Any) -> None:
        """Raise ConfigError if the trainer's model cannot have a second LoRA adapter."""
        config = getattr(trainer.model, "active_peft_config", None)
        if config is None or config.peft_type != PeftType.LORA:
            raise ConfigError(
                "the advantage 'prime' trains a second LoRA adapter beside the policy's, which has none; set "
                "use_peft: true, or take another advantage."
            )
        check_whole_weights(trainer, "the advantage 'prime'")
        if trainer.args.fp16:
            raise ConfigError("the advantage 'prime' trains without a loss scaler; set fp16: false.")

    # --- pi_phi -----------------------------------------------------------------------------------

    def prepare(self, trainer: Any, episodes: Sequence[Episode]) -> None:
        """Record the implicit rewards in the episodes (`token_rewards`), then train pi_phi for one step."""
        played = [each for each in episodes if each.status != Status.ENVIRONMENT_FAULT]
        accelerator, device = trainer.accelerator, trainer.accelerator.device
        number = accelerator.reduce(torch.tensor(float(len(played)), device=device), reduction="sum").item()
        sums = torch.zeros(2, device=device)  # loss, and correct classifications
        with self._model(trainer) as (model, optimizer), torch.enable_grad():
            for rows in trainer.forwards.groups(played):
                rewards, sampled = self._rewards(trainer, model, rows)
                for episode, values in zip(rows, (rewards * sampled).detach().tolist(), strict=True):
                    episode.token_rewards = values[: len(episode.mask)]
                logits = (rewards * sampled).sum(dim=1)
                right = torch.tensor([float(each.right) for each in rows], device=device)
                loss = F.binary_cross_entropy_with_logits(logits, right, reduction="sum")
                (loss / number).backward()
                sums += torch.stack([loss.detach(), ((logits > 0) == right.bool()).sum()])
            if number:
                weights = optimizer.param_groups[0]["params"]
                reduce_gradients(weights, accelerator, "sum", trainer.args.max_grad_norm)
                optimizer.step()
                means = (accelerator.reduce(sums, reduction="sum") / number).tolist()
                for name, mean in zip(("loss", "accuracy"), means, strict=True):
                    trainer._metrics["train"][f"prime/{name}"].append(mean)

    def _rewards(
        self, trainer: Any, model: PeftModel, rows: Sequence[Episode]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return beta times the log ratio of each token, and the mask of sampled tokens, both (n, T)."""
        prompts = _padded([each.prompt_ids for each in rows], "left")
        completions = _padded([each.completion_ids for each in rows], "right")
        device, width = trainer.accelerator.device, completions[0].shape[1]
        ids, there = (torch.cat(each, dim=1).to(device) for each in zip(prompts, completions, strict=True))
        score = trainer._get_per_token_logps_and_entropies
        with torch.no_grad(), model.disable_adapter():
            base, *_ = score(model, ids, there, width)
        own, *_ = score(model, ids, there, width)
        return self.beta * (own - base), padded([each.mask for each in rows], 0).to(device)

    @contextmanager
    def _model(self, trainer: Any) -> Iterator[tuple[PeftModel, torch.optim.Optimizer]]:
        """Yield the model with pi_phi as its active adapter, and pi_phi's optimizer; store both states."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        device = trainer.accelerator.device
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
            torch.manual_seed(trainer.args.seed)  # equal on all ranks
            model.add_adapter(ADAPTER, _config(model))
        try:
            if self._adapter:
                set_peft_model_state_dict(model, self._adapter, adapter_name=ADAPTER)
            with use_adapter(model, ADAPTER):
                optimizer = torch.optim.AdamW(
                    [weight for weight in model.parameters() if weight.requires_grad],
                    lr=self.learning_rate,
                    weight_decay=0.0,
                )
                if self._optimizer:
                    optimizer.load_state_dict(self._optimizer)
                    optimizer.param_groups[0]["lr"] = self.learning_rate  # a resumed run may set another
                yield model, optimizer
            weights = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
            self._adapter = {name: weight.detach().cpu() for name, weight in weights.items()}
            self._optimizer = send_to_device(optimizer.state_dict(), "cpu")
        finally:
            model.delete_adapter(ADAPTER)

    def state_dict(self) -> dict[str, Any]:
        return {"adapter": self._adapter, "optimizer": self._optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adapter, self._optimizer = state["adapter"], state["optimizer"]

    # --- advantages -------------------------------------------------------------------------------

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        rewards = batch.noted([episode.token_rewards for episode in batch.episodes])
        outcome = rloo(batch)[:, None]
        counted = batch.mask.bool()
        if self.by == "turn":
            of_turn = batch.turns[:, None] == torch.arange(batch.has_turn.shape[1])[:, None]  # (N, K, T)
            rewards, counted = (rewards[:, None] * of_turn).sum(dim=2), batch.has_turn
        advantages = outcome + implicit_returns(rewards, counted, batch.groups, ~batch.weighted.isnan())
        return batch.over_tokens(advantages) if self.by == "turn" else advantages


def implicit_returns(
    rewards: torch.Tensor, counted: torch.Tensor, groups: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """Return, from each position on, the sum of rewards minus the mean reward of the group's other rows.

    Args:
        rewards: (N, L), of tokens or turns.
        counted: (N, L), mask of the positions that exist.
        groups: (N,), group numbers.
        known: (N,), mask of the rows that count; others get 0, as does a row that is the only one left in
            its group.

    Returns:
        (N, L), 0 where `counted` is 0.
    """
    rewards = rewards * counted
    means = rewards.sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    others = (groups[:, None] == groups) & known & ~torch.eye(len(groups), dtype=torch.bool)  # (N, N)
    number = others.sum(dim=1)
    baseline = (others * means).sum(dim=1) / number.clamp(min=1)
    centred = (rewards - baseline[:, None]) * counted
    returns = centred.flip(1).cumsum(dim=1).flip(1)
    return returns * counted * (known & (number > 0))[:, None]


def _config(model: PeftModel) -> Any:
    """Copy the policy's adapter config, but zero-initialised, without dropout, biases or whole modules."""
    config = deepcopy(model.active_peft_config)
    config.lora_dropout, config.init_lora_weights = 0.0, True
    config.bias, config.modules_to_save, config.trainable_token_indices = "none", None, None
    return config


def _padded(rows: Sequence[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded rows and their mask, both (n, L)."""
    ids = [torch.tensor(row) for row in rows]
    there = [torch.ones_like(row) for row in ids]
    return pad_sequence(ids, True, padding_side=side), pad_sequence(there, True, padding_side=side)
