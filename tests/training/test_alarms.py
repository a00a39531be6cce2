"""Figures of hand-made batches, and the warnings that they lead to."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from fakes import play_script
from training import make_trainer
from transformers import PreTrainedTokenizerBase, TrainerControl, TrainerState

from trl_dbbench import ConfigError, DBBenchGRPOConfig
from trl_dbbench.database import Database
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.database.error_numbers import AGENT_ERRORS, ENVIRONMENT_FAULTS, TIME_LIMITS
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Task
from trl_dbbench.training.alarms import ALARMS, ERROR_CLASSES, AlarmCallback, alarm_metrics, error_class


def ran(
    sql: str, observation: str = "[(1,)]", limit: str | None = None, error_code: int | None = None
) -> dict[str, Any]:
    return {
        "action": "operation",
        "sql": sql,
        "observation": observation,
        "error_code": error_code,
        "limit": limit,
        "sql_seconds": 0.001,
    }


ANSWER = {"action": "answer", "answer": "1", "observation": None, "limit": None, "sql_seconds": None}
INVALID = {
    "action": "invalid",
    "reason": "no action",
    "observation": None,
    "limit": None,
    "sql_seconds": None,
}
CUT = {"action": "operation", "sql": "SELECT 9", "observation": None, "limit": None, "sql_seconds": None}


def episode(*turns: dict[str, Any], reward: float | None = 1.0, status: str = "answered") -> dict[str, Any]:
    """What the figures read of `Episode.to_dict`."""
    return {"status": status, "turns": list(turns), "rewards": {"outcome": reward, "format_reward": 0.5}}


FAULT = episode(ran("SELECT 7"), reward=None, status="environment_fault")


def figures(*episodes: dict[str, Any], group_size: int = 4, weights: tuple = (1.0, 1.0)) -> dict[str, float]:
    """As they are logged."""
    return {
        name: mean(values) for name, values in alarm_metrics(episodes, group_size, weights, MYSQL).items()
    }


# --- figures ------------------------------------------------------------------------------------------


def test_a_batch_of_two_groups() -> None:
    metrics = figures(
        # 1 and 2 differ from 3, 1 and 2 are alike: 2 of 3 pairs; the fourth executed nothing
        episode(ran("SELECT 1"), ANSWER),
        episode(ran("SELECT 1"), ANSWER, reward=-1.0),
        episode(
            ran("SELECT 2", "1064 (42000): You have an error", error_code=1064),
            INVALID,
            status="invalid_action",
        ),
        episode(ANSWER),
        # all alike, one failed with the server
        episode(ran("SELECT 3"), ran("SELECT 4"), ANSWER),
        FAULT,
        episode(ran("SELECT 3"), ran("SELECT 4"), ANSWER),
        episode(ran("SELECT 3"), ran("SELECT 4", "[(1,)] [TRUNCATED]", "rows"), CUT, status="out_of_tokens"),
    )
    assert metrics == {
        "alarm/invalid_actions": 1 / 16,  # turns
        "alarm/answers_without_query": 1 / 5,  # answers
        "alarm/distinct_sql": (2 / 3 + 0) / 2,
        "alarm/groups_without_spread": 1 / 2,
        "error/syntax": 1 / 9,  # statements
        "error/unknown_name": 0.0,
        "error/denied": 0.0,
        "error/value": 0.0,
        "error/limit_time": 0.0,
        "error/limit_rows": 1 / 9,
        "error/limit_text": 0.0,
        "error/limit_size": 0.0,
        "error/limit_server": 0.0,
        "error/limit_emulation": 0.0,
        "error/other": 0.0,
    }


def test_what_cannot_be_measured_is_left_out() -> None:
    assert figures(FAULT, FAULT) == {}
    assert figures(episode(INVALID, status="turn_limit")) == {"alarm/invalid_actions": 1.0}
    assert figures(episode(ANSWER), FAULT) == {
        "alarm/invalid_actions": 0.0,
        "alarm/answers_without_query": 1.0,
    }


def test_the_order_of_statements_and_each_character_count_as_different() -> None:
    a, b = ran("SELECT 1"), ran("SELECT 2")
    assert figures(episode(a, b), episode(b, a))["alarm/distinct_sql"] == 1.0
    assert figures(episode(a), episode(ran("select 1")))["alarm/distinct_sql"] == 1.0
    assert figures(episode(a, b), episode(a, b))["alarm/distinct_sql"] == 0.0
    assert "alarm/distinct_sql" not in figures(episode(a), episode(ANSWER))


@pytest.mark.parametrize("size", [2, 8, 64])
def test_distinct_sql_does_not_depend_on_the_size_of_a_group(size: int) -> None:
    """The published ratio of distinct to all statements would be 1/size for the first."""
    alike = [episode(ran("SELECT 1")) for _ in range(size)]
    unlike = [episode(ran(f"SELECT {i}")) for i in range(size)]
    assert figures(*alike, group_size=size)["alarm/distinct_sql"] == 0.0
    assert figures(*unlike, group_size=size)["alarm/distinct_sql"] == 1.0


@pytest.mark.parametrize(
    ("rewards", "weights", "share"),
    [
        ([1.0, 1.0, 1.0, 1.0], (1.0, 1.0), 1.0),
        ([1.0, 1.0, 1.0, -0.8], (1.0, 1.0), 0.0),
        ([1.0, 1.0, 1.0, -0.8], (0.0, 1.0), 1.0),  # a reward that is only logged
        ([0.1 + 0.2, 0.3, 0.3, 0.3], (1.0, 1.0), 1.0),
        ([1.0, 1.0, 1.0, None], (1.0, 0.0), 0.0),  # no reward of one part counts as 0, as in TRL
    ],
)
def test_spread_is_of_the_weighted_sum(rewards: list, weights: tuple, share: float) -> None:
    batch = [episode(ANSWER, reward=reward) for reward in rewards]
    assert figures(*batch, weights=weights)["alarm/groups_without_spread"] == share


REWARDS = {  # by group; the logged share is of the groups in which something can spread
    "one of four has none": ([1.0, None, 1.0, 1.0], [1.0, 2.0, 1.0, 2.0], 1 / 2),
    "none at all": ([None] * 4, [2.0, 2.0, 2.0, 2.0], 1.0),
    "one alone": ([1.0, None, None, None], [1.0, 1.0, 2.0, 1.0], 0.0),
}


@pytest.mark.parametrize("name", REWARDS)
def test_trl_and_the_alarm_agree_where_an_episode_has_no_reward(
    tiny_model: str, sqlite_database: Database, demo_tasks: list[Task], tmp_path: Path, name: str
) -> None:
    first, second, share = REWARDS[name]

    def given(episode: list, **kwargs: object) -> list[float | None]:
        return [*first, *second]

    trainer = make_trainer(
        tiny_model,
        sqlite_database,
        demo_tasks[:2],
        tmp_path,
        reward_funcs=[given],
        per_device_train_batch_size=8,
        max_steps=1,
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["alarm/groups_without_spread"] == logged["frac_reward_zero_std"] == share


@pytest.mark.parametrize(
    ("observation", "error_code", "limit", "name"),
    [
        ("[]", None, None, None),
        ("[('1064 (42000)',)]", None, None, None),
        ("1064 (42000): You have an error in your SQL syntax", 1064, None, "syntax"),
        ("1064 [TRUNCATED]", 1064, None, "syntax"),
        ("1054 (42S22): Unknown column 'x' in 'field list'", 1054, None, "unknown_name"),
        ("1146 (42S02): Table 'dbbench.t' doesn't exist", 1146, None, "unknown_name"),
        ("1142 (42000): DROP command denied to user", 1142, None, "denied"),
        ("1062 (23000): Duplicate entry '1' for key 'PRIMARY'", 1062, None, "value"),
        ("3024 (HY000): Query execution was interrupted", 3024, "time", "limit_time"),
        ("[(1,)] [TRUNCATED]", None, "rows", "limit_rows"),
        ("[('x',)] [TRUNCATED]", None, "text", "limit_text"),
        ("1114 (HY000): The table is full", 1114, "size", "limit_size"),
        ("1038 (HY001): Out of sort memory", 1038, "server", "limit_server"),
        ("1235 (42000): This statement cannot be executed here", 1235, "emulation", "limit_emulation"),
        ("1055 (42000): Expression #1 of SELECT list is not in GROUP BY clause", 1055, None, "other"),
        ("what no server says", 0, None, "other"),
        ("", 0, None, "other"),
        ("a protocol's own words", 1064, None, "syntax"),
        ("1064 rows", None, None, None),
    ],
)
def test_classes_of_errors(
    observation: str, error_code: int | None, limit: str | None, name: str | None
) -> None:
    """What the agent reads plays no part."""
    assert error_class(ran("SELECT 1", observation, limit, error_code), MYSQL) == name


def test_an_error_of_a_played_episode_is_counted(
    late_orders: Task, tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """By its number in the record, although the observation that the protocol writes does not hold it."""
    turns = [
        f"Action: Operation\n```sql\n{sql}\n```" for sql in ("SELEC 1", "SELECT no FROM orders", "SELECT 1")
    ]
    played: Any = episode_record(play_script(late_orders, turns, tokenizer, sqlite_database), "train", 0)
    assert [turn["error_code"] for turn in played["turns"]] == [1064, 1054, None]
    for turn in played["turns"]:
        turn["observation"] = "?"
    metrics = figures(played, group_size=1)
    assert (metrics["error/syntax"], metrics["error/unknown_name"], metrics["error/other"]) == (
        1 / 3,
        1 / 3,
        0.0,
    )


def test_a_number_has_one_class_and_is_not_the_environments() -> None:
    numbers = [number for of_class in AGENT_ERRORS.values() for number in of_class]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & (set(ENVIRONMENT_FAULTS) | TIME_LIMITS)
    assert {*AGENT_ERRORS, "other"} == {name for name in ERROR_CLASSES if not name.startswith("limit_")}


# --- alarms -------------------------------------------------------------------------------------------


class Log:
    """A trainer's log, watched: `log(entropy=0.1)` is a step that logs so."""

    def __init__(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, **settings: Any):
        defaults = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "alarm_window": 3}
        self.args = DBBenchGRPOConfig(**{**defaults, **settings})
        self.state = TrainerState(is_world_process_zero=True)
        self.callback = AlarmCallback()
        self.caplog = caplog

    def __call__(self, *values: float | None, metric: str = "alarm/invalid_actions") -> list[str]:
        """Logs the values, one a step, and returns the warnings."""
        self.caplog.clear()
        for value in values:
            self.state.global_step += 1
            logs = {} if value is None else {metric: value}
            self.state.log_history.append({**logs, "step": self.state.global_step})
            self.callback.on_log(self.args, self.state, TrainerControl(), logs=logs)
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def log_of(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "trl_dbbench.training.alarms")
    return lambda **settings: Log(tmp_path, caplog, **settings)


def test_a_warning_says_numbers_meaning_and_remedy(log_of) -> None:
    (warning,) = log_of()(0.2, 0.5, 0.8)
    assert warning.startswith(
        "alarm at step 3: alarm/invalid_actions is 0.5 on average over the last 3 logged values, above "
        "alarm_invalid_actions: 0.3. The agent's turns are not what the protocol reads."
    )
    (warning,) = log_of()(0.01, 0.003, 0.001, metric="entropy")
    assert (
        "entropy is 0.00467 on average over the last 3 logged values, below alarm_entropy: 0.005" in warning
    )
    (warning,) = log_of()(0.0, 0.9, 0.9, metric="error/denied")
    assert "error/denied is 0.6 on average" in warning and "above alarm_errors: 0.3" in warning


@pytest.mark.parametrize(
    "metric, settings, warnings",
    [
        ("alarm/groups_without_spread", {"advantage": "tree"}, 1),
        ("alarm/groups_without_spread", {"advantage": "reinforce"}, 0),  # it compares no group
        ("alarm/groups_without_spread", {"advantage": "prime"}, 0),  # its own rewards of the tokens differ
        ("alarm/answers_without_query", {"max_turns": 2}, 1),
        ("alarm/answers_without_query", {"max_turns": 1}, 0),  # as recipes/sql.yaml: the turn is the answer
    ],
)
def test_no_alarm_of_what_the_settings_make_so(log_of, metric, settings, warnings) -> None:
    assert len(log_of(**settings)(1.0, 1.0, 1.0, metric=metric)) == warnings


def test_void_episodes_are_warned_of_with_their_commonest_reason(log_of) -> None:
    """15 of 20 in each rollout; and a run that was resumed knows no reason yet."""
    metric = "status/environment_fault"
    log = log_of()
    failed = {"status": "environment_fault"}
    refused, full = failed | {"fault": "2003: cannot connect; waited"}, failed | {"fault": "3675: disk full"}
    log.callback.watch([*[refused] * 9, *[full] * 6, *[{"status": "answered"}] * 5])
    (warning,) = log(0.75, 0.75, 0.75, metric=metric)
    assert "status/environment_fault is 0.75 on average" in warning and "above alarm_void: 0.05" in warning
    assert warning.endswith("go by accuracy_void_wrong. Most often: 2003: cannot connect (9 of 15).")
    (warning,) = log_of()(0.75, 0.75, 0.75, metric=metric)
    assert warning.endswith("go by accuracy_void_wrong.")
    assert (
        log_of()(0.04, 0.04, 0.04, metric=metric) == log_of(alarm_void=1)(1.0, 1.0, 1.0, metric=metric) == []
    )


def test_one_bad_batch_is_no_alarm(log_of) -> None:
    log = log_of()
    assert log(0.9, 0.9) == []  # fewer than the window
    assert log_of()(0.0, 0.0, 0.85, 0.0, 0.0) == []


def test_once_and_again_only_after_a_recovery(log_of) -> None:
    log = log_of()
    assert len(log(0.5, 0.5, 0.5)) == 1
    assert log(0.5, 0.5, 0.1, 0.1, 0.5, 0.5, 0.5) == []  # never fine three times in a row
    assert log(0.1, 0.1, 0.1) == []
    assert len(log(0.5, 0.5, 0.5)) == 1


def test_a_threshold_itself_is_fine_and_the_ends_never_warn(log_of) -> None:
    assert log_of()(0.3, 0.3, 0.3) == []
    assert log_of(alarm_invalid_actions=1)(1.0, 1.0, 1.0) == []
    assert log_of(alarm_distinct_sql=0)(0.0, 0.0, 0.0, metric="alarm/distinct_sql") == []
    assert log_of(alarm_entropy=0)(0.0, 0.0, 0.0, metric="entropy") == []


def test_steps_without_a_value_are_passed_over(log_of) -> None:
    """A step that reuses a generation logs no figure, and neither does an evaluation."""
    log = log_of()
    assert log(0.5, None, 0.5, None) == []
    assert len(log(0.5)) == 1


def test_only_the_main_process_speaks(log_of) -> None:
    log = log_of()
    log.state.is_world_process_zero = False
    assert log(0.5, 0.5, 0.5) == []


def resumed(log: Log, folder: Path, log_of) -> Log:
    """The same run from its checkpoint: its log and its states, written and read as the trainer does."""
    torch.save(log.callback.state_dict(), folder / "state.pt")
    log.state.save_to_json(str(folder / "trainer_state.json"))
    again = log_of()
    again.state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    again.state.is_world_process_zero = True
    again.callback.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    return again


def test_a_resumed_run_neither_repeats_nor_forgets(log_of, tmp_path) -> None:
    log = log_of()
    log(0.5, 0.5)
    log = resumed(log, tmp_path, log_of)
    assert len(log(0.5)) == 1  # the two values before the checkpoint count
    log = resumed(log, tmp_path, log_of)
    assert log(0.5) == []
    assert len(log(0.1, 0.1, 0.1, 0.5, 0.5, 0.5)) == 1


def test_a_run_warns_once_and_logs_every_figure(tiny_model, sqlite_database, demo_tasks, tmp_path, caplog):
    """A random model calls no tool: all its turns are invalid, at every step."""
    caplog.set_level(logging.WARNING, "trl_dbbench.training.alarms")
    settings = {
        "max_steps": 4,
        "alarm_window": 2,
        "alarm_entropy": 0,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    trainer = make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, **settings)
    trainer.train()

    (warning,) = [r.getMessage() for r in caplog.records if r.name == "trl_dbbench.training.alarms"]
    assert warning.startswith("alarm at step 2: alarm/invalid_actions is 1 on average over the last 2 logged")
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["alarm/invalid_actions"] for entry in steps] == [1.0] * 4
    assert [entry["alarm/groups_without_spread"] for entry in steps] == [0.0] * 4
    assert all("entropy" in entry and "alarm/answers_without_query" not in entry for entry in steps)
    assert trainer.state.log_history[-2]["eval_alarm/invalid_actions"] == 1.0


# --- settings and their documentation -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alarm_window": 0}, "alarm_window must be at least 1, is 0"),
        (
            {"alarm_errors": 30},
            r"alarm_errors must be a share from 0 to 1, is 30\. 1 disables the alarm",
        ),
        ({"alarm_distinct_sql": -1}, r"alarm_distinct_sql must be a share .* is -1\. 0 disables the alarm"),
        ({"alarm_entropy": -0.1}, r"alarm_entropy must be 0 or more, is -0.1\. 0 disables the alarm"),
    ],
)
def test_thresholds_that_cannot_be(settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        DBBenchGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_the_documentation_lists_every_alarm_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    for alarm in ALARMS:
        metric = re.sub("error/.*", "error/...", alarm.metric)
        default = DBBenchGRPOConfig.__dataclass_fields__[alarm.setting].default
        sign = "below" if alarm.below else "above"
        assert re.search(rf"\| `{metric}` \|.*\| {sign} `{alarm.setting}: {default}` \|", page)
