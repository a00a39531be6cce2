"""The result of a replay: differences between saved episodes and their replays, and a summary."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.runs.records import PHASES, EpisodeRecord, TurnRecord, episode_record, is_void

_OF_A_TURN = ("action", "sql", "answer", "reason", "observation")
_OF_THE_DATABASE = ("observation", "right", "published_right", "state")


@dataclass(frozen=True)
class Difference:
    """A saved value and the different one of the replay.

    `turn` counts from 1; 0 means the whole episode. `excuse` is a legitimate reason for the difference.
    """

    what: str
    was: Any
    now: Any
    turn: int = 0
    excuse: str | None = None

    def __str__(self) -> str:
        was, now = _shown(self.was, self.now)
        turn = f"turn {self.turn}, " if self.turn else ""
        excuse = f" ({self.excuse})" if self.excuse else ""
        return f"{turn}{self.what}: was {was}, is {now}{excuse}"


@dataclass
class Replayed:
    """A saved episode and its replay.

    `line` is its line number in `episodes.jsonl`. `saved` is its record, without turns that execute nothing;
    `turns` has all turns. `episode` is `None` if it was not replayed: its environment had failed, it had
    ended the database server, its program had done nothing, or its task is missing.
    """

    line: int
    saved: EpisodeRecord
    turns: list[TurnRecord]
    episode: Episode | None = None
    differences: list[Difference] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Return whether there is a difference without an excuse."""
        return any(difference.excuse is None for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Return the saved record with the new rewards; the run's rewards are under `saved_rewards`."""
        record = {name: value for name, value in self.saved.items() if name != "shown"}
        return record | {
            "turns": self._turns(),
            "rewards": self.episode.rewards if self.episode else {},
            "advantage": None,  # depends on the saved rewards
            "saved_rewards": self.saved["rewards"],
            "saved_advantage": self.saved.get("advantage"),
        }

    def _turns(self) -> list[TurnRecord]:
        """Return all turns without their saved step rewards; replayed turns have the new ones."""
        played = self.episode.turns if self.episode else []
        again = {id(saved): turn for saved, turn in zip(self.saved["turns"], played, strict=False)}
        turns: list[TurnRecord] = []
        for turn in self.turns:
            kept = turn.copy()
            kept.pop("rewards", None)
            kept.pop("advantage", None)  # depends on the saved rewards
            if id(turn) in again and (rewards := again[id(turn)].rewards):
                kept["rewards"] = dict(rewards)
            turns.append(kept)
        return turns

    def __str__(self) -> str:
        saved = self.saved
        where = f"line {self.line}: step {saved['step']}, {PHASES[saved['phase']]}, task {saved['task_id']}"
        return "\n".join([where, *(f"  {difference}" for difference in self.differences)])


def compare(saved: EpisodeRecord, episode: Episode, dialect: Dialect) -> Iterator[Difference]:
    """Yield the differences between a saved episode and its replay."""
    if episode.status == Status.ENVIRONMENT_FAULT:
        yield Difference("status", saved["status"], f"{episode.status}: {episode.fault}")
        return
    first, excuse = excuse_of(saved, episode, dialect)
    now = _facts(episode_record(episode, saved["phase"], saved["step"]))
    for (turn, what), was in _facts(saved).items():
        found = now.get((turn, what))
        if turn <= len(episode.turns) and found != was:
            excused = what in _OF_THE_DATABASE and (turn or math.inf) >= first
            yield Difference(what, was, found, turn, excuse if excused else None)


def _facts(episode: Mapping[str, Any]) -> dict[tuple[int, str], Any]:
    """Return the reproducible values, by (turn, name); turn 0 is the whole episode."""
    facts = {
        (number, what): turn[what]
        for number, turn in enumerate(episode["turns"], 1)
        for what in _OF_A_TURN
        if what in turn
    }
    facts[0, "turns"] = len(episode["turns"])
    facts[0, "status"] = episode["status"]
    facts[0, "right"] = episode["right"]
    verdict = episode.get("verdict")
    if isinstance(verdict, dict):
        facts |= {(0, what): verdict[what] for what in ("published_right", "state") if what in verdict}
    return facts


def excuse_of(saved: EpisodeRecord, episode: Episode, dialect: Dialect) -> tuple[float, str | None]:
    """Return the first turn whose database reply may legitimately differ, and why; else (inf, None)."""
    if any(dialect.varies(column.type) for table in episode.task.tables for column in table.columns):
        return 1, "its tables hold the time of their changes"
    for number, (was, now) in enumerate(zip(saved["turns"], episode.turns, strict=False), 1):
        if now.result is None:
            continue
        if (was.get("limit") == "time") != (now.result.limit == "time"):
            return number, f"the statement of turn {number} hit the time limit in one of the two runs"
        if dialect.varies(str(was.get("sql"))):
            return number, f"the SQL of turn {number} asks for the time, chance or the server itself"
    return math.inf, None


class Summary:
    """Counts of the episodes and differences that `replay` yields."""

    def __init__(self) -> None:
        self.episodes = self.unplayed = self.differing = self.excused = 0
        self.whats: Counter[str] = Counter()  # unexcused difference -> episodes with it
        self.rewards: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        """(phase, name, `was` or `is`) -> the saved or the new rewards"""
        self.void: Counter[tuple[str, str]] = Counter()
        """(phase, `was` or `is`) -> number of void episodes in the run or in the replay"""

    def add(self, replayed: Replayed) -> None:
        self.episodes += 1
        was, now = is_void(replayed.saved), replayed.episode
        self.unplayed += now is None and not replayed.differences
        failed = now is not None and now.status == Status.ENVIRONMENT_FAULT
        phase = replayed.saved["phase"]
        self.void.update({(phase, "was"): int(was), (phase, "is"): int(was or failed)})
        self.differing += replayed.differs
        self.excused += bool(replayed.differences) and not replayed.differs
        self.whats.update({each.what for each in replayed.differences if each.excuse is None})
        if now is not None:
            for when, rewards in (("was", replayed.saved["rewards"]), ("is", now.rewards)):
                for name, value in rewards.items():
                    if isinstance(value, int | float):
                        self.rewards[phase, name, when].append(value)

    def __str__(self) -> str:
        played = self.episodes - self.unplayed
        equal = played - self.differing - self.excused
        lines = [f"{equal} of {played} episodes came out equal, {self.differing} differ."]
        lines += [f"  {what}: {count}" for what, count in self.whats.most_common()]
        if self.excused:
            lines.append(
                f"{self.excused} differ for no fault: their SQL met the time limit, or asks for the time, "
                "chance or the server itself."
            )
        if self.unplayed:
            lines.append(
                f"{self.unplayed} were not played: in the run their environment had failed, they had ended "
                "the database server, or their program had done nothing."
            )
        return "\n".join(lines)

    def mean_rewards(self) -> str:
        """Return a line per phase and reward with its mean in the run and now."""
        return "\n".join(
            f"mean {name}, {PHASES[phase]}: was {self._mean(phase, name, 'was')}, "
            f"is {self._mean(phase, name, 'is')}"
            for phase, name in sorted({(phase, name) for phase, name, _ in self.rewards})
        )

    def _mean(self, phase: str, name: str, when: str) -> str:
        values, void = self.rewards.get((phase, name, when)), self.void[phase, when]
        mean = f"{sum(values) / len(values):.4f} of {len(values)} episodes" if values else "none"
        return f"{mean} ({void:,} void)" if void else mean


def _shown(was: Any, now: Any, characters: int = 120) -> tuple[str, str]:
    """Return both values as JSON; long texts are cut to the surroundings of their first difference."""
    texts = [json.dumps(value, ensure_ascii=False) for value in (was, now)]
    start = 0
    if max(map(len, texts)) > characters:
        same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        start = max(0, same - characters // 3)
    was, now = (
        ("..." if start else "")
        + text[start : start + characters]
        + ("..." if text[start + characters :] else "")
        for text in texts
    )
    return was, now
