"""Labels for the turns of saved episodes that take the database or a model, for process reward models.

| label by | a turn is good if | source |
|---|---|---|
| `outcome` | the episode ended right | |
| `state_progress` | after it more of the tables' rows are as they should be, bad if fewer | Ng et al. 1999 |
| `continuations` | one of k episodes that go on from after it ends right | Math-Shepherd, Wang et al. 2024 |

The last turn always has the outcome. A turn that changes nothing has no label by `state_progress`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from trl_dbbench.data.demonstrations import Script
from trl_dbbench.database import Database
from trl_dbbench.engines.base import Backend
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.evaluate import open_model, player_of
from trl_dbbench.rewards.steps import StateProgress
from trl_dbbench.runs.conversations import Labels, Played, labels_of_all, prompt_messages
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.runs.tokens import episode_of
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)

SIDE_BY_SIDE = 64
"""Continuations played at a time."""


def label_steps(
    played: Sequence[Played],
    settings: RunSettings,
    by: str,
    *,
    open_database: Callable[[], AbstractContextManager[Database]],
    k: int = 4,
    model: str | None = None,
    seed: int = 0,
) -> list[Labels | None]:
    """Labels for the turns of each episode; `None` for one that cannot be labelled.

    Args:
        settings: how the episodes were played.
        by: `outcome`, `state_progress`, `continuations`, or the name of a step reward that the run recorded.
        open_database: where statements are executed again, for the two in the middle.
        k: continuations from after each turn.
        model: who continues: a run's folder, a checkpoint or a model.
    """
    if by == "state_progress":
        with open_database() as database:
            return by_state_progress(played, database, Judge(database, settings.grader))
    if by != "continuations":
        return labels_of_all((record for record, _ in played), by)
    if k < 1 or model is None:
        raise ConfigError(f"labels: continuations needs at least one continuation and a model; given is {k}.")
    is_run = any((place / SETTINGS_FILE).exists() for place in (Path(model), Path(model).parent))
    backend, policy = open_model(find_trained(run=Path(model)) if is_run else find_trained(model=model))
    with open_database() as database:
        player = player_of(settings, policy, database)
        labels = by_continuations(played, settings, player, backend, k=k, seed=seed)
    return Ranks().from_main(labels)  # what is sampled may differ in a last digit, and then in more


# --- by what a statement did to the tables ------------------------------------------------------------


def by_state_progress(played: Sequence[Played], database: Database, judge: Judge) -> list[Labels | None]:
    """Label turns by whether they bring tables nearer to the gold state; `None` if the database fails."""
    episodes = [episode_of(record, task, [], [([], [])] * len(record["turns"])) for record, task in played]
    labels: list[Labels | None] = []
    for (record, _), episode, values in zip(
        played, episodes, StateProgress(database, judge)(episodes), strict=True
    ):
        progress = values or [None] * len(episode.turns)  # none for questions, and where the server was ended
        known: Labels = [value > 0 if value else None for value in progress[:-1]]
        fails = episode.status == Status.ENVIRONMENT_FAULT
        labels.append(None if fails else [*known, record["right"]])
    return labels


# --- by what a model makes of what is left ------------------------------------------------------------


def by_continuations(
    played: Sequence[Played], settings: RunSettings, player: Player, backend: Backend, *, k: int, seed: int
) -> list[Labels | None]:
    """Label each turn by k continuations that a model plays from after it, the last turn by the outcome.

    The saved turns are played again first, as their token ids are not saved. A turn after which no
    continuation had room has `None`; so has an episode that comes out otherwise than it was saved, or whose
    database fails.
    """
    again = replay_turns(played, settings, player)
    starts, places = [], []
    for number, ((record, _), episode) in enumerate(zip(played, again, strict=True)):
        if episode is None:
            logger.warning(
                "task %s: an episode does not come out again and gets no labels", record["task_id"]
            )
            continue
        for turn in range(len(episode.turns) - 1):
            past = episode.turns[: turn + 1]
            used = sum(len(each.completion.ids) + len(each.observation_ids) for each in past)
            if player.rules.room(used, len(episode.prompt_ids) + used) <= 0:
                continue  # in other tokens than the saved ones it may fill all that there is
            for copy in range(k):
                drawn = random.Random(f"{seed}/{number}/{turn}/{copy}").getrandbits(31)
                starts.append(Start(episode.task, episode.prompt_ids, Sampling(seed=drawn), past))
                places.append((number, turn))
    ends: list[Episode] = []
    with backend.engine() as engine:
        for first in range(0, len(starts), SIDE_BY_SIDE):
            ends += player.play_all(starts[first : first + SIDE_BY_SIDE], engine)
    right: dict[tuple[int, int], bool] = {}
    for place, end in zip(places, ends, strict=True):
        right[place] = right.get(place, False) or end.right
    failed = {number for (number, _), end in zip(places, ends, strict=True) if end.fault is not None}
    return [
        None
        if episode is None or number in failed
        else [*(right.get((number, turn)) for turn in range(len(episode.turns) - 1)), record["right"]]
        for number, ((record, _), episode) in enumerate(zip(played, again, strict=True))
    ]


def replay_turns(played: Sequence[Played], settings: RunSettings, player: Player) -> list[Episode | None]:
    """Play saved turns again with the player's tokens; `None` for an episode that comes out otherwise."""
    chat = player.chat
    starts = [
        Start(task, chat.prompt_ids(prompt_messages(record, task, settings)), shots=record.get("shots", ()))
        for record, task in played
    ]
    rules = Rules(player.rules.max_turns, 10**6, 10**6)  # the saved ones kept theirs
    # an episode with more turns than were saved is another one, which `_same` sees
    ids = [[chat.ids_of(turn["text"]) for turn in record["turns"]] for record, _ in played]
    episodes = replace(player, rules=rules).play_all(starts, Script(ids, chat.ids_of("")))
    for (record, _), episode in zip(played, episodes, strict=True):
        if record["status"] == Status.OUT_OF_TOKENS:  # what follows now had no room then
            del episode.turns[len(record["turns"]) :]
    return [
        episode if _same(record, episode) else None
        for (record, _), episode in zip(played, episodes, strict=True)
    ]


def _same(record: EpisodeRecord, episode: Episode) -> bool:
    """Return whether both are equal up to the last turn, which no continuation starts from."""
    saved = [(turn["text"], turn.get("observation")) for turn in record["turns"][:-1]]
    now = [(turn.text, turn.observation) for turn in episode.turns[:-1]]
    return saved == now and len(episode.turns) == len(record["turns"])
