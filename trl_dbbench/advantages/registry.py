"""Advantages by name: `advantage: NAME` in YAML, or a function of your own (`docs/extending.md` has two).

`grpo` is TRL's own, unchanged. The others replace it before anything is recorded, so `episodes.jsonl`, TRL's
logs and the report show the values used in training. `advantage_args` become keyword arguments.

An advantage with preparation or state is a class. `advantage_args` go to its constructor, and its instance is
called with each batch. It may have the methods:

```python
class Mine:
    def check(self, trainer) -> None: ...      # called once: raises ConfigError for an unsuitable trainer
    def prepare(self, trainer, episodes: list[Episode]) -> None: ...  # on each rank, with its own episodes
    def state_dict(self) -> dict: ...          # equal on all ranks; saved with each checkpoint
    def load_state_dict(self, state) -> None: ...
```

`@needs(...)` declares the requirements of a function or class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from trl_dbbench.advantages.batch import NEEDS, NO_TURN, AdvantageBatch, Need, turns_of_tokens
from trl_dbbench.advantages.estimators import (
    ProcessAvgUnique,
    TurnReturns,
    reinforce_pp,
    rloo,
    token_wise,
    weighted,
)
from trl_dbbench.advantages.gae import GAE
from trl_dbbench.advantages.prime import Prime
from trl_dbbench.advantages.reinforce import Reinforce
from trl_dbbench.advantages.state import StateGroups, StateTree
from trl_dbbench.advantages.vine import Vine
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.lookup import look_up

AdvantageFunction = Callable[[AdvantageBatch], torch.Tensor]
"""Function that returns (N,), a value per episode, or (N, T), one per token; NaN and infinity count as 0."""

ADVANTAGES: dict[str, Callable | None] = {
    "grpo": None,
    "rloo": rloo,
    "reinforce": Reinforce,
    "reinforce_pp": reinforce_pp,
    "weighted": weighted,
    "process_avg_unique": ProcessAvgUnique,
    "token_wise": token_wise,
    "turn": TurnReturns,
    "state": StateGroups,
    "tree": StateTree,
    "vine": Vine,
    "gae": GAE,
    "prime": Prime,
}
"""Advantage functions, and classes whose instances are such functions, by name.

`None` keeps TRL's result: rewards minus their group's mean, divided by its standard deviation if
`scale_rewards` says so (Shao et al., 2024, DeepSeekMath).
"""


def get_advantage(name: str, arguments: dict[str, Any] | str | None = None) -> AdvantageFunction | None:
    """Return the advantage function of that name or dotted path, with its arguments; `None` for TRL's own.

    Raise ConfigError if there is none, or if it does not take these arguments.
    """
    found = look_up("advantage", name, ADVANTAGES)
    arguments = arguments or {}
    if not isinstance(arguments, dict):
        raise ConfigError(
            f"advantage_args must be names with values, as in {{gamma: 0.9}}; given is {arguments!r}."
        )
    if found is None:
        if arguments:
            raise ConfigError(f"the advantage {name!r} takes no advantage_args; given is {arguments}.")
        return None
    own = () if inspect.isclass(found) else ("batch",)
    signature = inspect.signature(found)
    try:
        signature.bind(*own, **arguments)
    except TypeError as error:
        taken = [*signature.parameters][len(own) :]
        raise ConfigError(
            f"the advantage {name!r} cannot be called with advantage_args {arguments}: {error}; allowed are "
            f"{', '.join(taken) or 'none'}."
        ) from None
    made: Any = found
    return made(**arguments) if inspect.isclass(found) else partial(made, **arguments)


def needs_of(function: AdvantageFunction | None) -> frozenset[Need]:
    """Return the requirements declared with `needs`; TRL's own advantage needs groups."""
    if function is None:
        return frozenset({"groups"})
    return getattr(function.func if isinstance(function, partial) else function, "needs", frozenset())


def check_needs(name: str, function: AdvantageFunction | None, missing: Need) -> None:
    """Raise ConfigError if the function needs what is missing."""
    if missing in needs_of(function):
        raise ConfigError(f"the advantage {name!r} {NEEDS[missing]}.")


def compute(name: str, function: AdvantageFunction, batch: AdvantageBatch) -> torch.Tensor:
    """Return an advantage function's result, (N,) or (N, T), fp32; raise ConfigError for another shape.

    It is 0 for episodes whose environment failed, and on tokens that were not sampled.
    """
    given = function(batch)
    values: torch.Tensor | None = None
    with suppress(TypeError, ValueError, RuntimeError):  # None, or rows of different lengths
        values = torch.as_tensor(given).detach().to("cpu", torch.float32)
    allowed = (len(batch.episodes),), tuple(batch.mask.shape)
    if values is None or tuple(values.shape) not in allowed:
        found = f"{given!r:.80}" if values is None else f"the shape {tuple(values.shape)}"
        raise ConfigError(
            f"the advantage {name!r} gave {found}; allowed are tensors of the shapes {allowed[0]}, a value "
            f"for each episode, and {allowed[1]}, one for each token."
        )
    failed = torch.tensor([episode.status == Status.ENVIRONMENT_FAULT for episode in batch.episodes])
    values = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    if values.dim() == 1:
        return values.masked_fill(failed, 0.0)
    return (values * batch.mask).masked_fill(failed[:, None], 0.0)


def note(episodes: Sequence[Episode], values: torch.Tensor) -> list[float]:
    """Record advantages in the episodes; return one value per episode.

    Args:
        values: (N,) or (N, T). With (N, T), episodes and turns get the mean over their sampled tokens; turns
            get one only if an episode's turns differ.
    """
    for episode, value in zip(episodes, values, strict=True):
        if value.dim() == 0:
            episode.advantage = value.item()
            continue
        turns = torch.tensor(turns_of_tokens(episode))
        given = value[: len(turns)]
        sampled = turns != NO_TURN
        episode.advantage = given[sampled].mean().item() if sampled.any() else 0.0
        of_turns = [given[turns == number] for number in range(len(episode.turns))]
        means = [each.mean().item() if len(each) else 0.0 for each in of_turns]  # an SQL call has no tokens
        if any(mean != means[0] for mean in means):
            for turn, mean in zip(episode.turns, means, strict=True):
                turn.advantage = mean
    return [episode.advantage or 0.0 for episode in episodes]
