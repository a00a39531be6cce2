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
from trl_dbbench.episode.player import DEFAULT_SAMPLING, Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Status
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.evaluation.evaluate import open_model, player_of
from trl_dbbench.rewards.steps import potential
from trl_dbbench.runs.conversations import Labels, Played, labels_of_all
from trl_dbbench.runs.few_shot import with_examples
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.runs.settings import SETTINGS_FILE, RunSettings
from trl_dbbench.runs.trained import find_trained
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import operation_of
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger(__name__)


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

    Raises:
        ConfigError: if the run recorded no such step reward, or the model cannot be loaded.
    """
    if by == "state_progress":
        with open_database() as database:
            judge = Judge(database, settings.grader)
            return [by_state_progress(record, task, database, judge) for record, task in played]
    if by != "continuations":
        return labels_of_all((record for record, _ in played), by)
    if k < 1 or model is None:
        raise ConfigError(f"labels: continuations needs at least one continuation and a model; given is {k}.")
    is_run = any((place / SETTINGS_FILE).exists() for place in (Path(model), Path(model).parent))
    backend, policy = open_model(find_trained(run=Path(model)) if is_run else find_trained(model=model))
    with open_database() as database:
        player = player_of(settings, policy, database)
        labels = by_continuations(
            played, player, backend, k=k, system_prompt=settings.system_prompt, seed=seed
        )
    return Ranks().from_main(labels)  # what is sampled may differ in a last digit, and then in more


# --- by what a statement did to the tables ------------------------------------------------------------


def by_state_progress(record: EpisodeRecord, task: Task, database: Database, judge: Judge) -> Labels | None:
    """Return for each turn whether it brought the tables nearer to the gold state; `None` if the database
    failed."""
    try:
        progress = state_progress(record, task, database, judge)
    except EnvironmentFault as fault:
        logger.warning("task %s: an episode gets no labels: %s", task.id, fault)
        return None
    labels: Labels = [None if value == 0 else value > 0 for value in progress]
    return [*labels[:-1], record["right"]]


def state_progress(record: EpisodeRecord, task: Task, database: Database, judge: Judge) -> list[float]:
    """Return for each turn by how much its statement raised the tables' potential; 0 for questions.

    Raises:
        EnvironmentFault: if the database fails.
    """
    progress = [0.0] * len(record["turns"])
    gold = None if task.is_question else judge.gold_state(task).state
    if gold is not None:
        with database.sandbox(task) as sandbox:
            before = potential(sandbox.state(), gold)
            for number, turn in enumerate(record["turns"]):
                # a statement that was cut off has no observation: nobody executed it
                if (
                    turn.get("observation") is None
                    or "sql" not in turn
                    or operation_of(turn["sql"], task.dialect) == "SELECT"
                ):
                    continue
                sandbox.execute(turn["sql"])
                after = potential(sandbox.state(), gold)
                progress[number], before = after - before, after
    return progress


# --- by what a model makes of what is left ------------------------------------------------------------


def by_continuations(
    played: Sequence[Played],
    player: Player,
    backend: Backend,
    *,
    k: int,
    system_prompt: Opening | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    seed: int = 0,
    batch_size: int = 64,
) -> list[Labels | None]:
    """Labels for the turns of each episode: k times a model plays on from after each turn but the last.

    The saved turns are played again first, as their token ids are not saved; what the database says then is
    what counts.

    Args:
        player: with the protocol, the rules and the tokenizer of the model that goes on.
        backend: where that model generates.
        sampling: of the continuations.

    Returns:
        For each episode its labels, `None` for a turn after which no continuation had room; `None` for an
        episode that does not come out again as it was, or whose database fails.
    """
    again = replay_turns(played, player, system_prompt)
    starts, places = [], []
    for number, ((record, _), episode) in enumerate(zip(played, again, strict=True)):
        if episode is None:
            logger.warning(
                "task %s: an episode does not come out again and gets no labels", record["task_id"]
            )
            continue
        for turn in range(len(episode.turns) - 1):
            if not _room_after(episode, turn, player.rules):
                continue  # in other tokens than the saved ones it may fill all that there is
            for copy in range(k):
                drawn = random.Random(f"{seed}/{number}/{turn}/{copy}").getrandbits(31)
                past = episode.turns[: turn + 1]
                starts.append(Start(episode.task, episode.prompt_ids, replace(sampling, seed=drawn), past))
                places.append((number, turn))
    ends: list[Episode] = []
    with backend.engine() as engine:
        for first in range(0, len(starts), batch_size):
            ends += player.play_all(starts[first : first + batch_size], engine)
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


def _room_after(episode: Episode, turn: int, rules: Rules) -> bool:
    """Return whether anything fits in after that turn."""
    used = sum(len(t.completion.ids) + len(t.observation_ids) for t in episode.turns[: turn + 1])
    in_context = rules.context is None or len(episode.prompt_ids) + used < rules.context
    return used < rules.max_completion_length and in_context


def replay_turns(
    played: Sequence[Played], player: Player, system_prompt: Opening | None = None
) -> list[Episode | None]:
    """Saved episodes as played ones, with ids that the player's tokenizer gives their texts.

    Returns:
        The episodes; `None` for one that ends otherwise, in another number of turns, or reads something else.
    """
    protocol, starts = player.chat.protocol, []
    for record, task in played:  # with the earlier episodes that the saved prompt showed
        prompt = with_examples(protocol.messages(task, system_prompt), record.get("shown", ()), protocol)
        starts.append(Start(task, player.chat.prompt_ids(prompt), shots=record.get("shots", ())))
    rules = Rules(player.rules.max_turns, 10**6, 10**6)  # the saved ones kept theirs
    chat = player.chat  # an episode with more turns than were saved is another one, which `_same` sees
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
