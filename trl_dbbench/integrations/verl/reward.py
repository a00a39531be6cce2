"""Reward function for training with verl; docs/integrations.md shows its configuration.

An episode played with our tools (see `tool`) has been judged on its own tables already, and gets the reward
of that verdict. A text written without the tools counts as one turn, which is executed and judged here.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Mapping
from typing import Any

from trl_dbbench.database import Database, open_database
from trl_dbbench.episode.judge import Judge, Verdict
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Status
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.integrations.calls import Calls, play_calls
from trl_dbbench.rewards.outcome import OutcomeReward
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.formats.verl import DATA_SOURCE

PLAYED = "dbbench"
"""Key in an agent loop's `extra_fields` that holds an episode's state; see `standing`."""

_judges: dict[str, tuple[Database, Judge]] = {}
_opening = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any],
    *,
    database: str | None = None,
    protocol: str | None = None,
    fault: float | None = None,
    right: float = OutcomeReward.right,
    wrong: float = OutcomeReward.wrong,
    turn_limit: float = OutcomeReward.turn_limit,
    invalid_action: float = OutcomeReward.invalid_action,
    reward_router_address: object = None,
    reward_model_tokenizer: object = None,
) -> dict[str, float]:
    """Return an episode's reward by how it ended; see `OutcomeReward`.

    Args:
        solution_str: the model's text, used if none of our tools was called.
        ground_truth: not used: `extra_info` has the whole task.
        database: as in the tools' configuration.
        protocol: protocol of `solution_str`; by default the one that the row's prompt was written for.
        fault: reward of an episode whose database failed. By default such an episode ends the training: verl
            cannot leave an episode out, and any number would reward something that the model did not do.
        reward_router_address, reward_model_tokenizer: of verl's reward model, if one runs; not used.

    Returns:
        `score`; `acc`, which is 1 if the answer is right; and `void`, which is 1 if the database failed, so
        that `acc` counts void episodes as wrong.

    Raises:
        ConfigError: if `trl-dbbench convert` did not write the row, or no database is named.
        TaskError: if answers to the task cannot be judged in this protocol.
        EnvironmentFault: if the database failed.
    """
    if data_source != DATA_SOURCE or not isinstance(extra_info.get("task"), str):
        raise ConfigError(
            f"this reward function is for rows of `trl-dbbench convert`; this one is of {data_source!r}."
        )
    played = extra_info.get(PLAYED) or _standing_of_a_turn(
        solution_str, extra_info["task"], database, protocol or extra_info.get("protocol") or "tools"
    )
    if played["fault"] is not None and fault is None:
        raise EnvironmentFault(f"{played['fault']} (reward_kwargs.fault: 0.0 would go on without it.)")
    episode = Episode(Task.from_json(extra_info["task"]), [], Sampling(), status=Status(played["status"]))
    episode.verdict = Verdict(played["right"])
    (value,) = OutcomeReward(right, wrong, turn_limit, invalid_action)([episode])
    score = fault if value is None else value
    assert score is not None
    return {"score": score, "acc": float(episode.right), "void": float(value is None)}


def standing(episode: Episode | None) -> dict[str, Any]:
    """Return an episode's state as plain data; `None` means one that is still open, and counts as out of
    tokens."""
    if episode is None:
        return {"status": str(Status.OUT_OF_TOKENS), "right": False, "fault": None}
    return {"status": str(episode.status), "right": episode.right, "fault": episode.fault}


def failed(fault: str) -> dict[str, Any]:
    """Return the state of an episode that failed through no fault of the agent."""
    return {"status": str(Status.ENVIRONMENT_FAULT), "right": False, "fault": fault}


def opened(database: str | None) -> tuple[Database, Judge]:
    """Return this process's database and its judge, open until the process ends."""
    if database is None:
        raise ConfigError(
            "name the database, in reward_kwargs and in the tools' config: the URL of a server that all "
            "workers reach, as mysql+pymysql://user:password@host:3306/, or sqlite, which each has for "
            "itself."
        )
    with _opening:
        if database not in _judges:
            context = open_database(database)
            there = context.__enter__()
            atexit.register(context.__exit__, None, None, None)
            _judges[database] = there, Judge(there)
        return _judges[database]


def _standing_of_a_turn(text: str, task: str, database: str | None, protocol: str) -> dict[str, Any]:
    there, judge = opened(database)
    spoken, asked = get_protocol(protocol), Task.from_json(task)
    judge.check_task(asked, spoken)

    async def judged() -> Episode:
        calls = Calls(spoken)
        calls.call(text)
        start = Start(asked, [])
        return await play_calls(start, calls, there, judge, Rules(max_turns=1))

    return standing(asyncio.run(judged()))
