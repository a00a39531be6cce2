"""Label the turns of saved episodes, by the database or by a model, to train process reward models.

| label by | a turn is good if | source |
|---|---|---|
| `outcome` | the episode ended right | |
| `state_progress` | it brings more of the tables' rows to the gold state; bad if fewer | Ng et al. 1999 |
| `continuations` | one of k episodes continued from it ends right | Math-Shepherd, Wang et al. 2024 |

The last turn is always labelled by the outcome. With `state_progress` a turn without changes has no label.
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
"""Number of continuations played at a time."""


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
    """Return labels for the turns of each episode; `None` for an episode that cannot be labelled.

    Args:
        settings: the settings that the episodes were played with.
        by: `outcome`, `state_progress`, `continuations`, or the name of a step reward that the run recorded.
        open_database: opens the database on which `state_progress` and `continuations` execute statements.
        k: number of continuations after each turn.
        model: plays the continuations: a run's folder, a checkpoint or a model.
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
    return Ranks().from_main(labels)  # samples may differ between ranks by rounding


# --- labels by the state of the tables ----------------------------------------------------------------


def by_state_progress(played: Sequence[Played], database: Database, judge: Judge) -> list[Labels | None]:
    """Label turns by whether they bring tables closer to the gold state; `None` if the database fails."""
    episodes = [episode_of(record, task, [], [([], [])] * len(record["turns"])) for record, task in played]
    labels: list[Labels | None] = []
    for (record, _), episode, values in zip(
        played, episodes, StateProgress(database, judge)(episodes), strict=True
    ):
        progress = values or [None] * len(episode.turns)  # none for questions, or if it crashed the server
        known: Labels = [value > 0 if value else None for value in progress[:-1]]
        fails = episode.status == Status.ENVIRONMENT_FAULT
        labels.append(None if fails else [*known, record["right"]])
    return labels


# --- labels by continuations --------------------------------------------------------------------------


def by_continuations(
    played: Sequence[Played], settings: RunSettings, player: Player, backend: Backend, *, k: int, seed: int
) -> list[Labels | None]:
    """Label each turn by k continuations that a model plays after it, the last turn by the outcome.

    The saved turns are replayed first, as their token ids are not saved. The label of a turn that leaves no
    room for a continuation is `None`; so are the labels of an episode that differs from the saved one when
    replayed, or whose database fails.
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
                continue  # tokenized again, the turns may leave no room
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
    """Replay saved turns with the player's tokens; return `None` for an episode that turns out different."""
    chat = player.chat
    starts = [
        Start(task, chat.prompt_ids(prompt_messages(record, task, settings)), shots=record.get("shots", ()))
        for record, task in played
    ]
    rules = Rules(player.rules.max_turns, 10**6, 10**6)  # the saved episodes kept to their own limits
    # `_same` rejects an episode with more turns than were saved
    ids = [[chat.ids_of(turn["text"]) for turn in record["turns"]] for record, _ in played]
    episodes = replace(player, rules=rules).play_all(starts, Script(ids, chat.ids_of("")))
    for (record, _), episode in zip(played, episodes, strict=True):
        if record["status"] == Status.OUT_OF_TOKENS:  # later turns had no room when it was saved
            del episode.turns[len(record["turns"]) :]
    return [
        episode if _same(record, episode) else None
        for (record, _), episode in zip(played, episodes, strict=True)
    ]


def _same(record: EpisodeRecord, episode: Episode) -> bool:
    """Return whether both are equal except for the last turn, which no continuation starts from."""
    saved = [(turn["text"], turn.get("observation")) for turn in record["turns"][:-1]]
    now = [(turn.text, turn.observation) for turn in episode.turns[:-1]]
    return saved == now and len(episode.turns) == len(record["turns"])
