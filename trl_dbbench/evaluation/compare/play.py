"""Play of the arms: each task once greedily, then sampled several times, with rewards. Adapters share one
model in memory, and all arms draw their samples with the same random numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trl.trainer.utils import get_callable_name

from trl_dbbench.engines.base import Backend
from trl_dbbench.engines.policy import Policy, ServedPolicy, changes_base
from trl_dbbench.episode.plan import Plan
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError, load_errors, why_not_loaded
from trl_dbbench.evaluation.compare.arms import Arm, Sampling, gold_of, portable_digests_of
from trl_dbbench.evaluation.evaluate import Evaluation, evaluate, shots_of, within_context
from trl_dbbench.rewards.registry import with_step_rewards
from trl_dbbench.runs.few_shot import Example, with_examples
from trl_dbbench.runs.journal import Journal
from trl_dbbench.runs.rescore import loaded_rewards, outcome_of, values_of
from trl_dbbench.runs.trained import TAKEN, Trained
from trl_dbbench.tasks import Task
from trl_dbbench.utils.files import found_from_everywhere, shortest_names

logger = logging.getLogger(__name__)

BASE = "base"


@dataclass
class ArmPlayer:
    """Player of an arm's greedy episodes and samples, rewarded by the outcome and by the scorer.

    The outcome reward has the run's values if the run recorded some.

    Args:
        trained: the model, and the settings to play with.
        plan: plan of the samples; `None` draws none.
        scorer: the reward that selects the best sample, by a name for `load_reward_functions`.
        batch_size: episodes played concurrently.
        few_shot_update: whether right greedy episodes join the few-shot memory.
        journal: saves each episode; episodes that it already has are not played again.

    Raises:
        ConfigError: if a reward cannot be loaded, or the scorer has the same name as the outcome reward.
    """

    tasks: Sequence[Task]
    trained: Trained
    player: Player
    backend: Backend
    plan: Plan | None = None
    scorer: str | None = None
    batch_size: int = 64
    few_shot_update: bool = False
    journal: Journal | None = None

    def __post_init__(self) -> None:
        # so that errors show before hours of play
        settings, scorer = self.trained.settings, self.scorer
        names = ["outcome", *([scorer] if scorer not in (None, "outcome") else [])]
        functions = loaded_rewards(names, settings, self.player.database, outcome_of(settings))
        self._rewards = {get_callable_name(each): with_step_rewards(each) for each in functions}
        if len(self._rewards) < len(names):
            raise ConfigError(f"the reward '{scorer}' is called outcome, as the library's own. Rename it.")
        self._scorer = None if scorer is None else list(self._rewards)[-1]

    def greedy(self) -> Evaluation:
        """Play each task greedily and reward the episodes; raise as `evaluate` does."""
        return self._play(None, self.few_shot_update)

    def judged(self, name: str, evaluation: Evaluation) -> Arm:
        """Draw the samples, and return the arm with these greedy episodes; raise as `evaluate` does."""
        trained, gold = self.trained, gold_of(self.tasks)
        arm = Arm(
            *(name, evaluation.records),
            gold=gold,
            model=trained.model,
            adapter=trained.adapter,
            portable_digests=portable_digests_of(self.tasks),
        )
        if (plan := self.plan) is None:
            return arm
        return replace(arm, samples=self._play(plan).records, sampling=sampling_of(plan, self._scorer))

    def _play(self, plan: Plan | None, few_shot_update: bool = False) -> Evaluation:
        player = within_context(self.player, self.backend)
        return evaluate(
            *(self.tasks, player, self.backend),
            system_prompt=self.trained.settings.system_prompt,
            batch_size=self.batch_size,
            shots=shots_of(self.trained, player, self.tasks, few_shot_update),
            journal=self.journal,
            reward=self._reward,
            plan=plan,
        )

    def _reward(self, episodes: Sequence[Episode], shots: Mapping[str, str]) -> None:
        """Reward the episodes as the trainer does; raise ConfigError if a reward function fails. `shots` maps
        ids to memory lines of the earlier episodes in their prompts."""
        played = [episode for episode in episodes if episode.status != Status.ENVIRONMENT_FAULT]
        ids = [episode.completion_ids for episode in played]
        for name, function in self._rewards.items():
            try:
                prompts = [self._prompt(episode, shots) for episode in played]
                values = values_of(function, played, prompts, completion_ids=ids)
            except ConfigError:
                raise
            except Exception as error:  # a user's function may raise anything
                raise ConfigError(
                    f"the reward function '{name}' fails: {type(error).__name__}: {error}"
                ) from error
            for episode, value in zip(played, values, strict=True):
                episode.rewards[name] = value

    def _prompt(self, episode: Episode, shots: Mapping[str, str]) -> list[dict[str, Any]]:
        protocol = self.player.chat.protocol
        prompt = protocol.messages(episode.task, self.trained.settings.system_prompt)
        return with_examples(prompt, [Example.from_line(shots[id]) for id in episode.shots], protocol)


def sampling_of(plan: Plan, scorer: str | None = None) -> Sampling:
    """Return the sampling settings of a plan, for an arm."""
    return Sampling(plan.n, plan.temperature, plan.top_p, plan.top_k, plan.seed, scorer)


# --- one model, several adapters ----------------------------------------------------------------------


def each_once(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks without duplicates."""
    return list({task.digest: task for task in tasks}.values())


def check_one_base(trained: Sequence[Trained]) -> list[str]:
    """Raise ConfigError if the base models of adapters differ; return notes on other differing settings.

    Args:
        trained: one adapter each; all are played with the settings of the first one.
    """
    first, notes = trained[0], []
    for other in trained[1:]:
        if found_from_everywhere(other.model) != found_from_everywhere(first.model):
            raise ConfigError(
                f"'{first.adapter}' is an adapter of '{first.model}', '{other.adapter}' of '{other.model}'. "
                "Evaluate each with eval --json, and compare the files. If it is one model in two places, "
                "name one of them by --model."
            )
        differing = [
            name
            for name in (*TAKEN, "autocast", "quantized")
            if name != "model" and getattr(other.settings, name) != getattr(first.settings, name)
        ]
        if differing:
            notes.append(
                f"'{other.adapter}' was trained with other settings ({', '.join(differing)}) than "
                f"'{first.adapter}', whose settings all are played with here."
            )
    return notes


def arm_names(adapters: Sequence[str]) -> list[str]:
    """Return each adapter's folder name, or as much of its path as makes it unique; raise ConfigError if an
    adapter is named twice."""
    names = shortest_names([Path(found_from_everywhere(adapter)).parts for adapter in adapters], {BASE})
    if names is not None:
        return names
    raise ConfigError(f"an adapter is named twice: {', '.join(adapters)}. Name each once.")


def play_adapters(trained: Sequence[Trained], policy: Policy | ServedPolicy, playing: ArmPlayer) -> list[Arm]:
    """Play the model without an adapter, then with each.

    Args:
        trained: one adapter each, all on the same base model (`check_one_base`).
        policy: a PEFT model with the first adapter, into which the others are loaded, or a model that vLLM
            loads in this process with all adapters.
        playing: plays the episodes, with the first adapter's settings.

    Raises:
        ConfigError: if an adapter does not fit the model.
        DatabaseError, EngineError: as in [`evaluate`].
    """
    loaded = {} if isinstance(policy, ServedPolicy) else _loaded(policy.model, trained)
    arms = []
    names = [BASE, *arm_names([str(each.adapter) for each in trained])]
    for name, adapter in zip(names, [None, *(each.adapter for each in trained)], strict=True):
        with _playing(policy, adapter, loaded.get(adapter)):
            logger.info("%s plays %d tasks", name, len(playing.tasks))
            arm = playing.judged(name, playing.greedy())
        arms.append(replace(arm, adapter=adapter))
    return arms


def _loaded(model: Any, trained: Sequence[Trained]) -> dict[str | None, str]:
    """Load the other adapters into the PEFT model that has the first; return PEFT's name for each."""
    first, names = trained[0], {trained[0].adapter: model.active_adapter}
    for number, other in enumerate(trained[1:], 1):
        names[other.adapter] = f"adapter{number}"
        try:
            loaded = model.load_adapter(other.adapter, adapter_name=names[other.adapter])
            if loaded.missing_keys:  # PEFT would just skip them
                raise ValueError(f"it has no weights for {loaded.missing_keys[0]}")
        except load_errors() as error:
            why = why_not_loaded(error)
            raise ConfigError(
                f"the adapter '{other.adapter}' cannot be put on '{first.model}': {why}"
            ) from None
    for adapter, name in names.items():
        if (setting := changes_base(model.peft_config[name])) is not None:
            raise ConfigError(
                f"the adapter '{adapter}' changes the weights of '{first.model}' itself ({setting}), so no "
                "other can be played on it. Evaluate each with eval --json, and compare the files."
            )
    return names


@contextmanager
def _playing(policy: Policy | ServedPolicy, adapter: str | None, name: str | None) -> Iterator[None]:
    """Let the model generate with this adapter, which PEFT knows by `name`; without one if it is `None`."""
    if isinstance(policy, ServedPolicy):
        policy.adapter = adapter
    elif adapter is None:
        with policy.model.disable_adapter():
            yield
        return
    else:
        policy.model.set_adapter(name)
        policy.model.eval()
    yield
