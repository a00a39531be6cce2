"""What an episode is worth, and what each token gets of it: TRL's rewards, and an advantage of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather

from trl_dbbench.advantages.registry import assign, check_needs, note
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.models import showing_tools
from trl_dbbench.rewards.registry import StepRewards, gives_no_steps, with_step_rewards
from trl_dbbench.training.kl import ReferenceGRPOTrainer
from trl_dbbench.utils.ranks import raise_on_all


class ScoredGRPOTrainer(ReferenceGRPOTrainer):
    """A trainer whose reward functions get episodes, and whose advantage is one of `ADVANTAGES`.

    Its rollouts give an `episode` for each row; the `player` that played them is set by the subclass.
    """

    player: Player
    _rows: list[dict[str, Any]]

    def __init__(self, *args: Any, reward_funcs: Callable | list[Callable], **kwargs: Any):
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        settings = kwargs["args"]
        self._advantage = settings.advantage_function()
        if gives_no_steps(functions):
            check_needs(settings.advantage, self._advantage, "step_rewards")
        super().__init__(*args, reward_funcs=[with_step_rewards(each) for each in functions], **kwargs)
        if hasattr(self._advantage, "state_dict"):
            self.stateful["advantage"] = self._advantage
        if hasattr(self._advantage, "check"):
            self._advantage.check(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self._assign_advantages([row["episode"] for row in inputs], output)
        return output

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = self._rewards = self._ask_for_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training and self._advantage is not None and hasattr(self._advantage, "prepare"):
            self._advantage.prepare(self, [row["episode"] for row in inputs])
        self._stop_without_database(self.player.database.gave_up)
        self._note_rewards(inputs, rewards)
        return rewards

    def _note_rewards(self, inputs: Sequence[dict[str, Any]], rewards: torch.Tensor) -> None:
        """Puts this rank's rewards into its episodes.

        Args:
            rewards: (N, F), of all ranks; NaN is put where the environment failed.
        """
        # whatever a reward function makes of it, what the environment did says nothing of the agent
        faulty = [row["episode"].status == Status.ENVIRONMENT_FAULT for row in inputs]
        rewards[gather(torch.tensor(faulty, device=rewards.device))] = torch.nan
        start = self.accelerator.process_index * len(inputs)
        for row, values in zip(inputs, rewards[start : start + len(inputs)].tolist(), strict=True):
            parts = zip(self.reward_func_names, values, strict=True)
            # TRL holds them in fp32, which has some seven digits: -0.8 comes back as -0.800000012
            row["episode"].rewards = {name: None if np.isnan(v) else float(f"{v:.7g}") for name, v in parts}

    def _ask_for_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        """What the reward functions say, (N, F), of all ranks."""
        error: Exception | None = None
        try:
            with showing_tools(self, self.player.chat.protocol):
                rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        except Exception as raised:
            error = raised
            # super ends by gathering the rewards, where the other ranks wait
            shape = len(inputs), len(self.reward_funcs)
            rewards = gather(torch.full(shape, torch.nan, device=self.accelerator.device))
        raise_on_all(error)
        return rewards

    def worth(self, episodes: Sequence[Episode]) -> list[float | None]:
        """The weighted rewards of other episodes of the prompts that are trained on; `None` where the
        environment failed.

        Raises:
            ConfigError: if a reward is a model's or a coroutine's, which only TRL asks.
        """
        shown = {tuple(row["episode"].prompt_ids): row["prompt"] for row in self._rows}
        total = [0.0] * len(episodes)
        for function, weight in zip(self.reward_funcs, self.reward_weights.tolist(), strict=True):
            if not isinstance(function, StepRewards):
                raise ConfigError(
                    f"the advantage {self.args.advantage!r} asks what other episodes than TRL's are worth, "
                    "which only reward functions tell: leave reward models and coroutines out."
                )
            values = function(
                episode=episodes,
                prompts=[shown[tuple(each.prompt_ids)] for each in episodes],
                completions=[each.messages() for each in episodes],
                completion_ids=[each.completion_ids for each in episodes],
                task=[each.task.to_json() for each in episodes],
                trainer_state=self.state,
            )
            total = [sum + weight * (value or 0.0) for sum, value in zip(total, values, strict=True)]
        failed = [each.status == Status.ENVIRONMENT_FAULT for each in episodes]
        return [None if gone else sum for sum, gone in zip(total, failed, strict=True)]

    def _assign_advantages(self, episodes: list[Episode], output: dict[str, Any]) -> None:
        """Notes what each episode is given; where that is not TRL's own, puts it in its place first."""
        if self._advantage is None or not self.model.training:
            note(episodes, output["advantages"])
            return
        own, of_all = assign(
            self.args.advantage,
            self._advantage,
            episodes,
            self._rewards,
            self.reward_weights,
            self.num_generations,
            width=output["completion_ids"].shape[1],  # as this rank's rows are padded
            penalties=self.penalties,
        )
        output["advantages"] = own.to(self.accelerator.device)
        for _ in of_all:
            self._logs["advantages"].pop()  # TRL's
        self._logs["advantages"].extend(of_all)
