"""PPO on a database (Schulman et al., 2017): the GRPO trainer with a critic instead of groups.

```
rollouts, rewards, policy loss   as in DBBenchGRPOTrainer; one sample per prompt is enough
advantages                       `gae`: per sampled token, with a critic (advantages/gae.py)
critic                           a head on the policy's trunk, or a separate trunk (critic.py)
loss                             the policy loss plus value_loss_weight times the value loss
```

The value loss is half the squared distance from the returns, averaged over sampled tokens. A value gains
nothing by moving further than `value_clip` from where it was before the update.

Logged:

- `value/loss`: the value loss, before weighting.
- `value/clip_ratio`: share of the sampled tokens that `value_clip` holds back: their values moved further,
  towards the returns.
- `value/explained_variance`: share of the returns' variance that the values explain; at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trl_dbbench.advantages.gae import GAE, explained_variance
from trl_dbbench.advantages.gradients import check_whole_weights
from trl_dbbench.engines.policy import evaluating
from trl_dbbench.engines.shared_prompts import Tokens
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.training.config import DBBenchGRPOConfig
from trl_dbbench.training.critic import CRITICS, Critic, states_of, trunk_of
from trl_dbbench.training.forwards import Values
from trl_dbbench.training.trainer import DBBenchGRPOTrainer
from trl_dbbench.utils.ranks import Ranks
from trl_dbbench.utils.settings import option

VALUES, RETURNS, SAMPLED = "values", "returns", "valued"
"""Keys of (B, T) tensors in a scored batch: the critic's values before the update, their targets, and a mask
of the tokens that have a target."""

VALUED = "valued_tokens"
"""Key of a scalar tensor in a scored batch: the number of tokens with a target, over all ranks."""


@dataclass
class DBBenchPPOConfig(DBBenchGRPOConfig):
    """Configuration of [`DBBenchPPOTrainer`]. `advantage_args` are the arguments of `advantages.gae.GAE`."""

    advantage: str = option("gae", "gae; no other goes by a critic.")
    num_generations: int = option(
        1, "Samples of each prompt. The critic compares episodes of different prompts, so one is enough."
    )
    critic: str = option(
        "head",
        "head: a linear layer on the policy's trunk, which the value loss trains too. model: a separate copy "
        "of the trunk, with its own adapter if the policy has one.",
        CRITICS,
    )
    critic_learning_rate: float = option(
        1e-5, "Of the critic's own weights; it follows lr_scheduler_type too."
    )
    value_clip: float = option(
        0.5, "How far a value may move in an update, in units of reward. 0 clips nothing."
    )
    value_loss_weight: float = option(0.5, "Factor of the values' loss.")

    def __post_init__(self):
        super().__post_init__()
        if self.advantage != "gae":
            raise ConfigError(
                f"PPO goes by a critic, which the advantage {self.advantage!r} does not; set advantage: gae, "
                "or train with DBBenchGRPOTrainer (recipes/grpo_dbbench.py)."
            )
        if self.fp16:
            raise ConfigError("PPO trains its critic without a loss scaler; set fp16: false, or bf16: true.")


class DBBenchPPOTrainer(DBBenchGRPOTrainer):
    """Trainer for PPO on DB-Bench tasks, with the arguments of [`DBBenchGRPOTrainer`].

    Raises:
        ConfigError: as for [`DBBenchGRPOTrainer`], and if no rank has the whole policy (FSDP, DeepSpeed).
    """

    _tag_names = ["trl", "ppo", "dbbench"]  # noqa: RUF012 - TRL's own declaration
    _name = "PPO on DB-Bench"
    config_cls = DBBenchPPOConfig

    args: DBBenchPPOConfig
    advantage: GAE

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_whole_weights(self, "the critic of PPO")
        self._trunk = trunk_of(self.model)
        self.critic = Critic(self.model, self.args.critic).to(self.accelerator.device)
        self.critic.share(self.accelerator)
        self.forwards.count_shared = False  # the critic's passes share no prompts
        self.forwards.by_advantages = False  # values are learned from every row
        if self.critic.trunk is not None and self.args.gradient_checkpointing:
            self.critic.trunk.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)

    # --- values -----------------------------------------------------------------------------------

    def shares_prompts(self, model: Any) -> bool:
        # the head reads the hidden states of the loss's forward pass, which must have the plain rows
        return self.critic.trunk is not None and super().shares_prompts(model)

    def _states(self, trunk: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states (B, L, H) of prompts and completions."""
        with self.accelerator.autocast():
            return trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    @torch.no_grad()
    def values_of(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the critic's values for a scored batch, (B, T), fp32, computed without dropout."""
        trunk = self.critic.trunk or self._trunk

        def run(tokens: Tokens, rows: int | None) -> Values:
            passes = zip(*(each.split(rows or len(each)) for each in tokens[:2]), strict=True)
            return (
                torch.cat([self.critic(self._states(trunk, *each), tokens.completion) for each in passes]),
            )

        with evaluating(trunk):
            (values,) = self.forwards.score(
                VALUES, run, Tokens.of(batch), self.args.per_device_train_batch_size
            )
        return values

    def _assign_advantages(self, output: dict[str, Any], penalties: torch.Tensor | float) -> None:
        train = self.model.training
        if train:
            for episode, values in zip(self.batch.episodes, self.values_of(output).tolist(), strict=True):
                note_values(episode, values)
        super()._assign_advantages(output, penalties)
        if train:
            told = self.advantage
            spare = output["completion_ids"].shape[1] - told.values.shape[1]
            columns = ((VALUES, told.values), (RETURNS, told.returns), (SAMPLED, told.sampled))
            for name, of_all in columns:
                output[name] = F.pad(Ranks().own(of_all), (0, spare)).to(self.accelerator.device)
            own = output[SAMPLED] & (output["completion_mask"] * output["tool_mask"]).bool()
            output[VALUED] = self.accelerator.gather(own.sum()).sum()
            known = told.returns[told.sampled], told.values[told.sampled]
            self._metrics["train"]["value/explained_variance"].append(explained_variance(*known))

    # --- the loss ---------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if VALUES not in inputs:  # in an evaluation
            return super()._compute_loss(model, inputs)
        with states_of(self._trunk) as seen:
            loss = super()._compute_loss(model, inputs)
        trunk = self.critic.trunk

        def run(tokens: Tokens, rows: int | None) -> Values:
            states = seen[-1] if trunk is None else self._states(trunk, *tokens[:2])
            return (self.critic(states, tokens.completion),)

        (values,) = self.forwards.score(VALUES, run, Tokens.of(inputs))
        return loss + self.args.value_loss_weight * self._value_loss(values, inputs)

    def _value_loss(self, values: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        """Return this micro-batch's part of the mean over all sampled tokens of a step, on all ranks.

        Rows that no reward function scores are left out.
        """
        sampled = inputs[SAMPLED] & (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        errors, clipped = value_errors(
            values[sampled], inputs[VALUES][sampled], inputs[RETURNS][sampled], self.args.value_clip
        )
        sums = torch.stack([errors.detach().sum(), clipped.sum(), sampled.sum()])
        error, number, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        for name, total in (("loss", error), ("clip_ratio", number)):
            self._metrics["train"][f"value/{name}"].append(total / max(tokens, 1))
        # tokens are counted over a whole generation on all ranks, of which a step may be a part
        tokens_of_step = inputs[VALUED].clamp(min=1) / self.args.steps_per_generation
        steps, ranks = self.current_gradient_accumulation_steps, self.accelerator.num_processes
        return errors.sum() / (tokens_of_step * steps / ranks)

    # --- optimizer and checkpoints ----------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args, **kwargs)
        trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if id(self.critic.head.weight) not in trained:
            self.critic.join(
                optimizer,
                self.accelerator,
                lr=self.args.critic_learning_rate,
                weight_decay=self.args.weight_decay,
                max_norm=self.args.max_grad_norm,
            )
        return optimizer

    def _save(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        super()._save(output_dir, *args, **kwargs)
        if self.args.should_save:
            self.critic.save(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        self.critic.load(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.critic.load(Path(self.state.best_model_checkpoint))


def note_values(episode: Episode, values: Sequence[float]) -> None:
    """Record the critic's value of each token in the episode, and of each turn's first token in the turn."""
    episode.token_values = list(values[: len(episode.mask)])
    place = 0
    for turn in episode.turns:
        turn.value = episode.token_values[place]
        place += len(turn.completion.ids) + len(turn.observation_ids)


def value_errors(
    values: torch.Tensor, before: torch.Tensor, returns: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the errors of values, and a mask of the errors that come from clipped values; all are (M,).

    An error is half the squared distance from the return, of the value or of the value clipped to within
    `clip` of the one `before` the update, whichever is larger (Schulman et al., 2017, as in their code). A
    `clip` of 0 clips nothing.
    """
    errors, moved = 0.5 * (values - returns) ** 2, values - before
    if clip == 0:
        return errors, torch.zeros_like(errors, dtype=torch.bool)
    held = 0.5 * (before + moved.clamp(-clip, clip) - returns) ** 2
    return torch.maximum(errors, held), (moved.abs() > clip) & (held > errors)
