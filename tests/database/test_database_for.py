"""Tasks of SQLite's dialect are played on SQLite by every command, and start no server for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_evaluation import QUESTION, written

from trl_dbbench import DatabaseArguments, to_dataset
from trl_dbbench.database import database_for, open_database
from trl_dbbench.episode.dataset import tasks_to_check
from trl_dbbench.episode.types import Episode, Sampling, Status
from trl_dbbench.errors import DatabaseError
from trl_dbbench.runs.records import episode_record

NATIVE = replace(QUESTION, dialect="sqlite")


@pytest.mark.parametrize(
    ("tasks", "given", "played_on"),
    [
        ([NATIVE], "auto", "sqlite"),
        ([QUESTION, NATIVE], "auto", "sqlite"),  # no server could play the second
        ([QUESTION], "auto", "auto"),
        ([], "auto", "auto"),
        ([NATIVE], "docker", "docker"),  # which says itself that it has not their dialect
        ([QUESTION], "sqlite", "sqlite"),
    ],
)
def test_the_rule(tasks: list, given: str, played_on: str) -> None:
    assert database_for(tasks, given) == played_on


def test_an_image_that_nothing_starts_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for image in (None, "mysql:8.0"):
        with open_database("sqlite", docker_image=image):
            pass
    (said,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert said == "docker_image mysql:8.0 is not used: no container is started."


def test_a_training_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes hand over the rows of their datasets; here the SQLite task is in the held-out one."""
    monkeypatch.setattr("trl_dbbench.cli.arguments.open_database", lambda spec, **options: spec)
    rows = tasks_to_check(to_dataset([QUESTION] * 3), to_dataset([NATIVE]))
    assert DatabaseArguments().open(rows) == "sqlite"
    assert DatabaseArguments().open(tasks_to_check(to_dataset([QUESTION]), None)) == "auto"
    assert DatabaseArguments("local").open([NATIVE]) == "local"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The databases that the commands ask for. None is opened: the commands end there."""
    specs: list[str] = []

    def refuse(spec: str, **options: Any) -> None:
        specs.append(spec)
        raise DatabaseError("not now")

    for module in ("tasks", "serve", "models", "runs"):
        monkeypatch.setattr(f"trl_dbbench.cli.{module}.open_database", refuse)
    return specs


def run_of(folder: Path, task: Any) -> Path:
    """A run's folder as an earlier version left it: without run.json, which would say what it was played on."""
    folder.mkdir()
    record = episode_record(Episode(task, [], Sampling(), status=Status.ENVIRONMENT_FAULT), "train", 0)
    (folder / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    written(folder / "tasks.jsonl", task)
    return folder


@pytest.mark.parametrize(("task", "database"), [(NATIVE, "sqlite"), (QUESTION, "auto")])
@pytest.mark.parametrize(
    "name", ["validate", "scores", "audit", "serve", "replay", "eval", "sample", "endpoint"]
)
def test_every_command_has_it(
    name: str,
    task: Any,
    database: str,
    command: Callable,
    asked: list[str],
    tiny_model: str,
    tmp_path: Path,
) -> None:
    tasks = written(tmp_path / "t.jsonl", task)
    (tmp_path / "p.json").write_text('{"dear": "SELECT name FROM fruits WHERE price > 2"}')
    as_played = ["--protocol", "text", "--max-turns", "3", "--observation-characters", "800"]
    plays = ["--model", tiny_model, "--tasks", tasks]
    words = {
        "validate": ["validate", tasks],
        "scores": ["scores", tasks, tmp_path / "p.json"],
        "audit": ["audit", tasks, "--database", "auto"],
        "serve": ["serve", "--mcp", tasks],
        "replay": ["replay", run_of(tmp_path / "run", task), *as_played],
        "eval": ["eval", *plays],
        "sample": ["sample", *plays, "--n", "1", "--out", tmp_path / "sampled"],
        "endpoint": ["eval", "--endpoint", "http://127.0.0.1:9", "--model", "m", "--tasks", tasks],
    }[name]
    assert command(*words)[0] == "error: not now"
    assert asked == [database]
