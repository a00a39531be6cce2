"""`eval --resume`: an evaluation that was stopped goes on, and nothing is played twice."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_endpoints import HANG, LOOK, RIGHT, WRONG, Api, api, refused, said, turn_of
from test_evaluation import QUESTION, written
from test_judging import record
from worlds.tiny_model import make_tiny_model

from trl_dbbench.data.sample import asked_of
from trl_dbbench.episode.player import Player
from trl_dbbench.errors import StorageError
from trl_dbbench.runs.journal import Journal
from trl_dbbench.runs.trained import DEFAULTS, Trained

__all__ = ["api"]

TASKS = [replace(QUESTION, id=f"t{n}", question=f"What costs more than 2? ({n})") for n in range(6)]


def questions(api: Api) -> list[str]:
    """The tasks of first turns, in the order in which they came."""
    return [body["messages"][1]["content"] for body in api.bodies if not turn_of(body)]


@pytest.fixture
def arguments(api: Api, tmp_path: Path) -> list[Any]:
    tasks = written(tmp_path / "tasks.jsonl", *TASKS)
    where = ["--endpoint", api.url, "--model", "m", "--database", "sqlite", "--concurrency", "1"]
    return ["eval", *where, "--tasks", tasks, "--json", tmp_path / "e.json"]


def test_an_evaluation_that_an_endpoint_ended_goes_on(
    api: Api, command: Callable, arguments: list, tmp_path: Path
) -> None:
    api.answer = lambda body, number: (
        refused(401, "no credit") if number >= 7 else said(RIGHT if turn_of(body) else LOOK)
    )
    code, _ = command(*arguments)
    assert "no credit" in code and "4 of 6 tasks were played" in code
    partial = tmp_path / "e.json.partial"
    assert len(partial.read_text().splitlines()) == 1 + 4, "what was asked for, and an episode a line"

    assert "holds 3 episodes of an evaluation that was stopped. Add --resume" in command(*arguments)[0]
    assert (
        "was begun with other settings: max_turns 3"
        in (command(*arguments, "--resume", "--max-turns", "5")[0])
    )
    assert (
        "was begun with other settings: chat_template_kwargs {}"
        in (command(*arguments, "--resume", "--chat-template-kwargs", '{"enable_thinking": false}')[0])
    )

    first = questions(api)
    api.answer = lambda body, number: said(RIGHT if turn_of(body) else LOOK)
    code, out = command(*arguments, "--resume")
    assert code == 0
    assert Counter(questions(api)[len(first) :]).total() == 3, "the episode that failed, and the two others"
    assert "overall           6/6" in out
    saved = json.loads((tmp_path / "e.json").read_text())
    assert [each["task_id"] for each in saved["episodes"]] == [task.id for task in TASKS]
    assert (saved["planned"], saved["stopped"]) == (6, None)
    assert saved["requests"] == len(api.bodies)
    assert saved["tokens"]["written"] == 7 * (len(api.bodies) - 1), (
        "what was paid for, the failed episode too"
    )
    assert not partial.exists()
    assert "is whole, nothing is left to play" in command(*arguments, "--resume")[0]


def test_ctrl_c_before_the_first_episode_leaves_no_file(
    api: Api, command: Callable, arguments: list, tmp_path: Path
) -> None:
    def interrupt(body: dict, number: int) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return HANG

    api.answer = interrupt
    html = tmp_path / "e.html"
    code, _ = command(*arguments, "--html", html)
    assert code == "error: interrupted. 0 of 6 tasks were played."
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]

    api.answer = lambda body, number: said(RIGHT)
    code, out = command(*arguments, "--resume")
    assert (code, "6/6" in out) == (0, True)

    whole = (tmp_path / "e.json").read_text()
    api.answer = interrupt
    command(*arguments)
    assert (tmp_path / "e.json").read_text() == whole, "an older evaluation is not replaced by nothing"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.json", '{"planned": 6, "stopped": "interrupted", "episodes": []}'),
        ("e.json.partial", '{"asked": {"a'),
    ],
    ids=["as earlier versions wrote it, without a journal", "a journal whose first line was cut"],
)
def test_a_file_of_a_stopped_evaluation_without_episodes(
    api: Api, command: Callable, arguments: list, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    api.answer = lambda body, number: said(RIGHT)
    assert command(*arguments, "--resume")[0] == 0
    assert len(json.loads((tmp_path / "e.json").read_text())["episodes"]) == 6


def test_episodes_that_failed_are_nothing_to_lose(api: Api, command: Callable, arguments: list) -> None:
    """After a wrong key, the same command plays all."""
    api.answer = lambda body, number: refused(401, "Incorrect API key")
    assert "Set OPENAI_API_KEY" in command(*arguments)[0]
    api.answer = lambda body, number: said(RIGHT if turn_of(body) else LOOK)
    code, out = command(*arguments)
    assert code == 0 and "overall           6/6" in out


def test_one_evaluation_at_a_time_goes_on(
    api: Api, command: Callable, arguments: list, tmp_path: Path
) -> None:
    """Two would write the same episodes twice, and the first to end would remove the file of the other."""
    api.answer = lambda body, number: refused(401, "no credit") if number >= 4 else said(RIGHT)
    command(*arguments)
    partial = tmp_path / "e.json.partial"
    before = partial.read_bytes()
    asked = len(api.bodies)
    with partial.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for more in ((), ("--resume",)):
            assert "another evaluation writes" in command(*arguments, *more)[0]
        partial.write_text("")  # the other has only begun
        assert "another evaluation writes" in command(*arguments)[0]
        partial.write_bytes(before)
    assert (partial.read_bytes(), len(api.bodies)) == (before, asked), "nothing was played"
    api.answer = lambda body, number: said(RIGHT)
    assert command(*arguments, "--resume")[0] == 0


def test_a_full_disk_is_one_line(
    api: Api, command: Callable, arguments: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    api.answer = lambda body, number: said(RIGHT)
    with monkeypatch.context() as patch:
        patch.setattr("trl_dbbench.runs.journal.os.fsync", full)
        code, _ = command(*arguments)
    assert re.match(r"error: no space is left for .*e.json.partial: .* again with --resume\.$", code)
    assert command(*arguments, "--resume")[0] == 0


class FullDisk(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_though_the_file_cannot_be_closed(tmp_path: Path) -> None:
    """Closing the file tries once more to write what is left in Python's buffer."""
    journal = Journal(tmp_path / "e.json.partial")
    journal._begun, journal._file = True, io.TextIOWrapper(io.BufferedWriter(FullDisk()))
    with pytest.raises(StorageError, match=r"no space is left .* again with --resume\.$"), closing(journal):
        journal.add("greedy", [(0, record(0, True))])
    assert journal.done("greedy") == {}  # what is not written is not said to be kept


def test_a_damaged_file_is_not_replaced(api: Api, command: Callable, arguments: list, tmp_path: Path) -> None:
    """A crash of the machine, or a bad disk, leaves bytes that are no text."""
    api.answer = lambda body, number: refused(401, "no credit") if number >= 4 else said(RIGHT)
    command(*arguments)
    partial = tmp_path / "e.json.partial"
    partial.write_bytes(partial.read_bytes().replace(b"answered", b"answ\xff\xfeed", 1))
    code, _ = command(*arguments)
    assert "episodes of an evaluation that was stopped. Add --resume" in code
    code, _ = command(*arguments, "--resume")
    assert "cannot be read" in code and "Remove it, and the evaluation starts anew." in code


def test_what_is_void_at_the_end_is_played_again(
    api: Api, command: Callable, arguments: list, tmp_path: Path
) -> None:
    """A server refuses one request. The others are paid for, and need not be again."""
    answer = lambda body, number: refused(400, "a bad day") if number == 2 else said(RIGHT)  # noqa: E731
    api.answer = answer
    partial = tmp_path / "e.json.partial"
    assert command(*arguments)[0] == 0 and partial.exists()
    said_no = command(*arguments, "--resume", "--database", "auto")[0]
    assert 'was begun with other settings: database "sqlite"' in said_no
    asked = len(api.bodies)
    api.answer = lambda body, number: said(RIGHT)
    code, out = command(*arguments, "--resume")
    assert code == 0 and "overall           6/6" in out
    assert len(api.bodies) == asked + 1 and not partial.exists()

    api.bodies.clear()
    api.answer = answer
    command(*arguments)
    api.answer = lambda body, number: said(RIGHT)
    code, out = command(*arguments)
    assert code == 0 and "overall           6/6" in out, "without --resume all is played anew"
    assert not partial.exists()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout"])
def test_a_stream_keeps_nothing(
    api: Api, command: Callable, arguments: list, tmp_path: Path, device: str
) -> None:
    api.answer = lambda body, number: said(RIGHT)
    assert command(*arguments[:-1], device)[0] == 0
    assert not Path(f"{device}.partial").exists()
    assert "keeps nothing to go on with" in command(*arguments[:-1], device, "--resume")[0]


def test_samples_of_an_endpoint(api: Api, command: Callable, arguments: list, tmp_path: Path) -> None:
    """Two samples a task: one right, one wrong, so that pass@1 is a half and pass@2 is all."""

    def answer(body: dict, number: int) -> Any:
        if body["temperature"] == 0:
            return said(RIGHT)
        return said(RIGHT if number % 2 else WRONG)

    api.answer = answer
    code, out = command(*arguments, "--samples", "2", "--temperature", "0.8", "--seed", "3")
    assert code == 0
    assert len(api.bodies) == 6 + 6 * 2
    drawn = [body for body in api.bodies if body["temperature"] == 0.8]
    assert len({body["seed"] for body in drawn}) == 12, "each draws from random numbers of its own"
    assert "pass@1" in out and "50.0 %" in out and "pass@2" in out and "100.0 %" in out
    saved = json.loads((tmp_path / "e.json").read_text())
    assert len(saved["samples"]) == 12
    assert saved["sampling"]["n"] == 2


def test_samples_go_on_too(api: Api, command: Callable, arguments: list, tmp_path: Path) -> None:
    api.answer = lambda body, number: refused(401, "no credit") if number == 10 else said(RIGHT)
    more = ["--samples", "2", "--seed", "3"]
    assert "no credit" in command(*arguments, *more)[0]
    assert "was begun with other settings: n" in command(*arguments, "--resume")[0], (
        "samples are not left out"
    )
    api.answer = lambda body, number: said(RIGHT)
    assert command(*arguments, *more, "--resume")[0] == 0
    seeds = [body.get("seed") for body in api.bodies]
    assert len(seeds) == 18 + 1
    assert len(json.loads((tmp_path / "e.json").read_text())["samples"]) == 12


def test_resume_needs_a_file(command: Callable, arguments: list) -> None:
    without = arguments[: arguments.index("--json")]
    assert command(*without, "--resume")[0].startswith("error: --resume needs --json")


@pytest.mark.parametrize(
    "other",
    [{"harness": "mine.py:run"}, {"history": "template"}, {"compaction_tokens": 900}, {"few_shot_seed": 1}],
)
def test_what_plays_otherwise_does_not_go_on(other: dict[str, Any]) -> None:
    def asked(**settings: Any) -> dict[str, Any]:
        return asked_of(TASKS, None, Trained("model", None, replace(DEFAULTS, **settings)))

    assert asked() == asked() != asked(**other)


def test_a_memory_is_the_same_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(memory: str) -> dict[str, Any]:
        return asked_of(TASKS, None, Trained("model", None, replace(DEFAULTS, few_shot_memory=memory)))

    monkeypatch.chdir(tmp_path)
    Path("memory.jsonl").touch()
    here = asked("memory.jsonl")
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    assert asked("../memory.jsonl") == here


def test_an_evaluation_of_a_local_model_goes_on(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    make_tiny_model(model, [task.prompt() for task in TASKS], hidden_size=16, num_layers=1, num_heads=2)
    tasks = written(tmp_path / "tasks.jsonl", *TASKS)
    options = ["--model", model, "--tasks", tasks, "--database", "sqlite", "--batch-size", "2", "--seed", "1"]
    options += ["--samples", "2", "--max-turn-tokens", "8"]
    whole, stopped = tmp_path / "whole.json", tmp_path / "stopped.json"
    assert command("eval", *options, "--json", whole)[0] == 0

    batches, play_all = 0, Player.play_all

    def stopped_in_the_fifth(self: Player, starts: Any, engine: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 5:
            raise KeyboardInterrupt
        return play_all(self, starts, engine)

    monkeypatch.setattr(Player, "play_all", stopped_in_the_fifth)
    assert command("eval", *options, "--json", stopped)[0] != 0
    assert len(Path(f"{stopped}.partial").read_text().splitlines()) == 1 + 4 * 2
    assert command("eval", *options, "--json", stopped, "--resume")[0] == 0
    assert batches == 5 + 5, "of nine batches, four were played before"
    one, other = (json.loads(path.read_text()) for path in (whole, stopped))

    def told(saved: dict) -> list:
        records = [*saved["episodes"], *saved["samples"]]
        return [(each["task_id"], [turn["text"] for turn in each["turns"]]) for each in records]

    assert told(one) == told(other), "as if it had not been stopped"
    assert one["figures"] == other["figures"]
