"""Alarms: metrics of every batch, and a warning when one of them stays bad.

`alarm_metrics` computes the metrics of a batch's sampled episodes; the trainer logs them beside TRL's.
`AlarmCallback` warns once about a metric whose mean over the last `alarm_window` logged values crosses its
threshold, and again only after that many values in a row were fine. It reads the values from the trainer's
log, which checkpoints keep, so a resumed run neither forgets values nor repeats warnings.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from transformers import TrainerCallback, TrainerState

from trl_dbbench.database import Dialect
from trl_dbbench.episode.types import Status
from trl_dbbench.runs.records import (
    EpisodeRecord,
    TurnRecord,
    commonest,
    is_scored,
    is_void,
    total_reward,
    void_reasons,
)

logger = logging.getLogger(__name__)

_ERROR_ADVICE = {
    "syntax": "The agent's SQL cannot be parsed: look whether it writes another dialect or prose.",
    "unknown_name": "The agent makes up names of tables or columns: look whether the prompt shows them.",
    "denied": "The agent tries what its account may not do: look at these statements before you go on.",
    "value": "The agent writes values that the columns do not take: look at the types in its tasks.",
    "limit_time": "The agent's statements run too long: look at them, or at the load of the database server.",
    "limit_rows": "The agent reads whole tables: it may have stopped filtering in SQL.",
    "limit_text": "The agent reads more text than a result may hold: it may have stopped filtering in SQL.",
    "limit_size": "The agent makes rows or tables of many megabytes: look at its statements.",
    "limit_server": "The agent's statements ask for more than the server has, or fake its failure.",
    "limit_emulation": "The embedded database fails at statements that a server may execute: look at "
    "the log, and set database: local or docker.",
    "other": "The agent's statements fail: look at the observations.",
}

ERROR_CLASSES = tuple(_ERROR_ADVICE)
"""Classes of failed statements: limits by name, other errors by number (`Dialect.error_class`)."""


MAX_ROLLOUTS = 100
"""Latest rollouts that are searched for the most common reason for void episodes."""


# --- metrics ------------------------------------------------------------------------------------------


def alarm_metrics(
    episodes: Sequence[EpisodeRecord],
    group_size: int,
    reward_weights: Sequence[float],
    dialect: Dialect,
) -> dict[str, list[float]]:
    """Return, by metric, a batch's values (0 to 1), whose means are logged. Void episodes are left out.

    Logged:

    - `alarm/invalid_actions`: share of the turns that the protocol could not read.
    - `alarm/answers_without_query`: share of the answers given without executing a statement.
    - `alarm/distinct_sql`: share of the pairs of a group's episodes that executed different statements
      (Simpson's index of diversity), averaged over groups: 0 if all execute the same, 1 if no two do.
      Episodes without SQL are left out.
    - `alarm/groups_without_spread`: share of the groups with at least two rewards whose rewards are all
      equal, so that no episode has an advantage.
    - `error/...`: share of the executed statements that failed in each of `ERROR_CLASSES`.

    `episodes` come from all ranks, in order; each `group_size` consecutive ones share a prompt.
    """
    groups = [
        [e for e in episodes[start : start + group_size] if not is_void(e)]
        for start in range(0, len(episodes), group_size)
    ]
    played = [episode for group in groups for episode in group]
    turns = [turn for episode in played for turn in episode["turns"]]
    answered = [episode for episode in played if episode["status"] == Status.ANSWERED]
    totals = [  # rounded, since TRL's are fp32
        [float(f"{total_reward(e, reward_weights):.6g}") for e in group if is_scored(e)] for group in groups
    ]
    errors = [error_class(turn, dialect) for turn in turns if _executed(turn)]
    values = {
        "alarm/invalid_actions": [float(turn["action"] == "invalid") for turn in turns],
        "alarm/answers_without_query": [float(not statements(episode)) for episode in answered],
        "alarm/distinct_sql": [share for share in map(_diversity, groups) if share is not None],
        "alarm/groups_without_spread": [float(len(set(t)) == 1) for t in totals if len(t) > 1],
        **{f"error/{name}": [float(error == name) for error in errors] for name in ERROR_CLASSES},
    }
    return {name: each for name, each in values.items() if each}


def statements(episode: EpisodeRecord) -> tuple[str, ...]:
    """Return the SQL that the episode executed, in order."""
    return tuple(turn["sql"] for turn in episode["turns"] if _executed(turn))


def error_class(turn: TurnRecord, dialect: Dialect) -> str | None:
    """Return the class of an executed statement's error; `None` if it did not fail."""
    if turn["limit"] is not None:
        name = f"limit_{turn['limit']}"
        return name if name in ERROR_CLASSES else "other"
    return None if turn["error_code"] is None else dialect.error_class(turn["error_code"])


def _executed(turn: TurnRecord) -> bool:
    return turn["sql_seconds"] is not None


def _diversity(group: Sequence[EpisodeRecord]) -> float | None:
    """Return the share of pairs of episodes with different SQL, among those that executed any."""
    differ = [a != b for a, b in combinations(filter(None, map(statements, group)), 2)]
    return sum(differ) / len(differ) if differ else None


# --- alarms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """Warning, with advice, about a logged metric above (or `below`) the threshold named by `setting`.

    It is off if `unless(args)` is true: with such a config the value is no sign of a problem.
    """

    metric: str
    setting: str
    advice: str
    below: bool = False
    unless: Callable[[Any], bool] = lambda args: False

    def bad(self, value: float, threshold: float) -> bool:
        return value < threshold if self.below else value > threshold


_EXPLORE = "raise temperature, lower learning_rate, or hold the policy back with beta or entropy_coef"
ALARMS = (
    Alarm(
        "alarm/invalid_actions",
        "alarm_invalid_actions",
        "The agent's turns are not what the protocol reads. Look at some: a model that does not know the "
        "protocol needs a warm start (recipes/sft_dbbench.py), one that is cut short a larger "
        "max_turn_tokens.",
    ),
    Alarm(
        "alarm/answers_without_query",
        "alarm_answers_without_query",
        "The agent answers without having looked. Guessing may pay: see what a wrong answer costs against "
        "running out of turns, and whether the questions can be answered by chance.",
        unless=lambda args: args.max_turns == 1,  # which is for the answer
    ),
    Alarm(
        "alarm/distinct_sql",
        "alarm_distinct_sql",
        "The samples of a prompt have become one and the same, and nothing new is tried. If accuracy is "
        f"not where it should be, {_EXPLORE}.",
        below=True,
    ),
    Alarm(
        "alarm/groups_without_spread",
        "alarm_groups_without_spread",
        "Nearly all groups have one reward for all their samples and teach nothing: the tasks are too easy "
        "or too hard for this model (see the reward). Take others, or raise num_generations or temperature.",
        unless=lambda args: (
            args.advantage in ("reinforce", "gae", "prime")
        ),  # these learn from such groups too
    ),
    Alarm(
        "entropy",
        "alarm_entropy",
        "The policy is nearly certain of every token and explores no more. If accuracy is not where it "
        f"should be, {_EXPLORE}.",
        below=True,
    ),
    Alarm(
        f"status/{Status.ENVIRONMENT_FAULT}",
        "alarm_void",
        "The environment of these episodes failed: they are void, and in no accuracy, reward or update. See "
        "to the database. If it is sound, look at their statements, and go by accuracy_void_wrong.",
    ),
    *(Alarm(f"error/{name}", "alarm_errors", _ERROR_ADVICE[name]) for name in ERROR_CLASSES),
)


class AlarmCallback(TrainerCallback):
    """Callback that warns about metrics that stay beyond their thresholds.

    `raised` holds the metrics that it warned about and that have not recovered; checkpoints keep it.
    """

    decides_weights = False

    def __init__(self):
        self.raised: set[str] = set()
        self._rollouts: deque[Counter[str]] = deque(maxlen=MAX_ROLLOUTS)  # reasons for void episodes

    def watch(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Record why episodes of a rollout are void, for a later warning."""
        self._rollouts.append(void_reasons(episodes))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        for alarm in ALARMS:
            if (logs or {}).get(alarm.metric) is None or alarm.unless(args):
                continue  # an evaluation's log, no value, or no problem with this config
            logged = (e[alarm.metric] for e in reversed(state.log_history) if e.get(alarm.metric) is not None)
            self._judge(alarm, list(islice(logged, args.alarm_window)), args, state)

    def _judge(self, alarm: Alarm, values: Sequence[float], args: Any, state: TrainerState) -> None:
        threshold = getattr(args, alarm.setting)
        bad = [alarm.bad(value, threshold) for value in values]
        mean = sum(values) / len(values)
        if alarm.metric in self.raised:
            if not any(bad):
                self.raised.remove(alarm.metric)
        elif len(values) == args.alarm_window and alarm.bad(mean, threshold):
            self.raised.add(alarm.metric)
            if state.is_world_process_zero:
                reasons = sum(self._rollouts, Counter[str]()) if alarm.setting == "alarm_void" else Counter()
                most = f" Most often: {commonest(reasons)}." if reasons else ""
                logger.warning(
                    "alarm at step %d: %s is %.3g on average over the last %d logged values, %s %s: %g. %s%s",
                    *(state.global_step, alarm.metric, mean, len(values)),
                    *("below" if alarm.below else "above", alarm.setting, threshold, alarm.advice, most),
                )

    def state_dict(self) -> dict[str, bool]:
        return dict.fromkeys(sorted(self.raised), True)

    def load_state_dict(self, state: dict[str, bool]) -> None:
        self.raised = set(state)
