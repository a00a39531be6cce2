"""Rejection sampling: what is kept of a task's episodes, how it goes on after a kill, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import RULES, BrokenDatabase, ScriptedEngine, play_script
from launching import ROOT
from saved_runs import FORGOT_WHERE, LOOK, answer, count_task, delete_task, save_run, sql
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from trl_dbbench.data.sample import Sampled, _begun, check_not_held_out, sample_into
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.plan import Plan
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Completion, Request
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.report.curves import whole_evaluations
from trl_dbbench.evaluation.report.run import read_run
from trl_dbbench.runs.conversations import prompt_messages, saved_episodes
from trl_dbbench.runs.few_shot import good_episodes
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.runs.trained import DEFAULTS, Trained, held_out_tasks
from trl_dbbench.tasks import load_tasks
from trl_dbbench.utils.files import write_json

MODEL = ROOT / "recipes" / "tiny" / "model"
TASKS = ROOT / "recipes" / "tiny" / "train.jsonl"

# as the quickstart plays
LIMITS = ["--max-turn-tokens", "48", "--max-completion-length", "128"]
PROMPT = ["--system-prompt", "Work on the MySQL database."]
HERE = ["--model", MODEL, "--database", "sqlite", "--dtype", "float32", *LIMITS, *PROMPT]


class Killed(BaseException):
    """Nobody catches it."""


class Scripted:
    """A backend whose model says what stands in the script: `turns[row][turn]`."""

    contexts = ()
    collective = False

    def __init__(self, tokenizer: PreTrainedTokenizerBase, turns: dict[int, list[str]]):
        self._engine = ScriptedEngine(tokenizer, turns)

    @contextmanager
    def engine(self) -> Iterator[ScriptedEngine]:
        yield self._engine

    def close(self) -> None:
        pass


def sample_script(
    out: Path,
    database: Database,
    tokenizer: PreTrainedTokenizerBase,
    turns: list[list[str]],
    *,
    tasks: int = 1,
    **plan: Any,
) -> tuple[Sampled, list[dict]]:
    """Samples tasks, for each of which the agent says these turns; what it counts and keeps."""
    player = Player.of(tokenizer, database, rules=RULES)
    script = dict(enumerate(turns * tasks))
    sampled = sample_into(
        out,
        [count_task(2 + number) for number in range(tasks)],
        Plan(n=len(turns), **plan),
        Trained("scripted", None, DEFAULTS),
        player,
        Scripted(tokenizer, script),
        progress=False,
    )
    return sampled, kept_in(out)


def kept_in(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


# two of three orders were late
RIGHT = [LOOK, answer("[(2,)]")]
THINKS = [f"The late ones.\n{LOOK}", answer("[(2,)]")]
OTHER_WAY = [LOOK.replace("COUNT(*)", "SUM(late)"), answer("[(2,)]")]
WRONG = [FORGOT_WHERE, answer("[(3,)]")]


def test_right_episodes_are_kept_once(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The one that thinks first does the same as the first one; the one that adds up does not."""
    turns = [RIGHT, WRONG, THINKS, OTHER_WAY]
    sampled, kept = sample_script(tmp_path, sqlite_database, tokenizer, turns)
    assert [[turn["text"] for turn in episode["turns"]] for episode in kept] == [RIGHT, OTHER_WAY]
    assert [episode["phase"] for episode in kept] == ["train", "train"]
    assert (sampled.played, sampled.kept, sampled.repeated, sampled.kept_tasks) == (4, 2, 1, 1)
    assert sampled.counts["overall"] == [3, 4]
    lines = str(sampled).splitlines()
    assert lines[0].split() == ["right", "3/4", "=", "75.0", "%", "[30.1,", "95.4]"]
    assert lines[1].split() == ["status/answered", "100.0", "%"]
    count = sum(
        len(tokenizer(turn, add_special_tokens=False)["input_ids"]) + 1 for row in turns for turn in row
    )
    assert lines[2].split(maxsplit=1) == ["generated", f"{count} tokens in 4 episodes"]


def test_earlier_episodes_in_the_prompts(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The folder tells the prompt: ids as they were played are those of the messages that are exported."""
    memory, other, asked = tmp_path / "memory.jsonl", delete_task(1), count_task(2)
    turns = [sql("DELETE FROM fruits WHERE name = 'apple'"), answer("deleted")]
    good_episodes([play_script(other, turns, tokenizer, sqlite_database)]).write(memory)
    player = Player.of(tokenizer, sqlite_database, rules=RULES)
    settings = replace(DEFAULTS, few_shot=1, few_shot_memory=str(memory))
    out, backend = tmp_path / "out", Scripted(tokenizer, {0: RIGHT})
    sample_into(
        *(out, [asked], Plan(n=1), Trained("scripted", None, settings), player, backend), progress=False
    )
    (kept,) = kept_in(out)
    ((record, task),) = saved_episodes(out, [])
    prompt = prompt_messages(record, task, RunSettings.read(out))
    assert [message["content"] for message in prompt[1:]] == [
        *(other.prompt(), turns[0], "[]", turns[1]),
        asked.prompt(),
    ]
    assert kept["prompt_ids"] == player.chat.prompt_ids(prompt)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"keep": "all"}, [RIGHT, WRONG, OTHER_WAY]),
        ({"max_per_task": 1}, [RIGHT]),
        ({"keep": "all", "max_per_task": 2}, [RIGHT, WRONG]),
    ],
)
def test_what_is_kept_can_be_chosen(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase, plan: dict, expected: list
) -> None:
    _, kept = sample_script(tmp_path, sqlite_database, tokenizer, [RIGHT, WRONG, THINKS, OTHER_WAY], **plan)
    assert [[turn["text"] for turn in episode["turns"]] for episode in kept] == expected


def test_an_episode_token_by_token(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Ids and log-probabilities are those of the engine, the end of a turn among them."""
    _, (episode,) = sample_script(tmp_path, sqlite_database, tokenizer, [RIGHT])
    first, last = episode["turns"]
    assert tokenizer.decode(episode["prompt_ids"]).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(first["ids"]) == f"{LOOK}<|im_end|>"
    assert first["logprobs"] == [-(k + 1) / 1000 for k in range(len(first["ids"]))]
    assert tokenizer.decode(first["observation_ids"]) == (
        "\n<|im_start|>user\n[(2,)]<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(last["ids"]) == "Action: Answer\nFinal Answer: [(2,)]<|im_end|>"
    assert last["observation_ids"] == []


def test_log_probabilities_that_are_not_known_are_null(
    tmp_path: Path,
    sqlite_database: Database,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a vLLM server that gives those of another temperature."""
    generate = ScriptedEngine.generate

    async def without(self: ScriptedEngine, request: Request) -> Completion:
        ids = (await generate(self, request)).ids
        return Completion(ids, [math.nan] * len(ids))

    monkeypatch.setattr(ScriptedEngine, "generate", without)
    _, (episode,) = sample_script(tmp_path, sqlite_database, tokenizer, [RIGHT])
    assert [turn["logprobs"] for turn in episode["turns"]] == [None, None]
    assert tokenizer.decode(episode["turns"][0]["ids"]) == f"{LOOK}<|im_end|>"


def test_an_answer_without_an_end_is_right_but_not_kept(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A model that learns from it would not learn to end its turn."""
    length = len(tokenizer(RIGHT[1], add_special_tokens=False)["input_ids"])
    rules = replace(RULES, max_turn_tokens=length)
    player = Player.of(tokenizer, sqlite_database, rules=rules)
    sampled = sample_into(
        *(tmp_path, [count_task(2)], Plan(n=1), Trained("scripted", None, DEFAULTS)),
        *(player, Scripted(tokenizer, {0: [RIGHT[1]]})),
        progress=False,
    )
    assert (sampled.counts["overall"], sampled.kept, kept_in(tmp_path)) == ([1, 1], 0, [])


def test_a_damaged_line_is_named_before_the_sampling_goes_on(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    player = Player.of(tokenizer, sqlite_database, rules=RULES)
    begun = (tmp_path, [count_task(2)], Plan(n=1), Trained("scripted", None, DEFAULTS), player)
    sample_into(*begun, Scripted(tokenizer, {0: RIGHT}), progress=False)
    log = tmp_path / "episodes.jsonl"
    log.write_bytes(log.read_bytes().replace(b"answered", b"answ\xff\xfeed", 1))
    with pytest.raises(ConfigError, match=r"episodes\.jsonl', line 1 is damaged .* new folder by --out"):
        sample_into(*begun, Scripted(tokenizer, {0: RIGHT}), progress=False)


def test_a_prompt_that_does_not_fit_leaves_no_begun_sampling(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Otherwise the folder would refuse the settings with which it does fit."""
    player = Player.of(tokenizer, sqlite_database, rules=replace(RULES, context=20))
    with pytest.raises(ConfigError, match="the prompt of task"):
        sample_into(
            *(tmp_path, [count_task(2)], Plan(n=1), Trained("scripted", None, DEFAULTS)),
            *(player, Scripted(tokenizer, {0: RIGHT})),
            progress=False,
        )
    assert not (tmp_path / "sample.json").exists()


def test_an_environment_that_fails_says_nothing(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    database = BrokenDatabase(at_start=False)
    player = Player.of(tokenizer, database, rules=RULES)
    player = replace(player, judge=Judge(database))
    sampled = sample_into(
        *(tmp_path, [count_task(2)], Plan(n=1, keep="all"), Trained("scripted", None, DEFAULTS)),
        *(player, Scripted(tokenizer, {0: RIGHT})),
        progress=False,
    )
    assert sampled.statuses == {"environment_fault": 1}
    assert kept_in(tmp_path) == []
    said = "0/0 = none judged (1 void, 0.0 % with those counted wrong)"
    assert str(sampled).startswith(f"right                     {said}\n")


def test_void_episodes_are_counted_beside_the_right_ones(tmp_path: Path) -> None:
    """5 of 20 are right and 15 void, of which some were played before the sampling went on."""
    right = {"status": "answered", "right": True, "operation": "SELECT", "skills": [], "turns": []}
    void = right | {"status": "environment_fault", "right": False}
    sampled = Sampled({}, 20)
    sampled.add([*[right] * 2, *[void] * 8])  # type: ignore[list-item]
    sampled = Sampled(**json.loads(json.dumps(asdict(sampled))))
    sampled.add([*[right] * 3, *[void] * 7])  # type: ignore[list-item]
    assert (sampled.counts["overall"], sampled.void["overall"], sampled.played) == ([5, 5], 15, 20)
    said = "5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)"
    assert str(sampled).splitlines()[0] == f"right                     {said}"


# --- the command, with a model that writes SQL --------------------------------------------------------


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    path.write_text("".join(TASKS.read_text().splitlines(keepends=True)[:8]))
    return path


def without_times(out: Path) -> list[dict]:
    episodes = kept_in(out)
    for episode in episodes:
        for turn in episode["turns"]:
            del turn["seconds"], turn["sql_seconds"]
    return episodes


def progress_of(out: Path) -> dict:
    progress = json.loads((out / "sample.json").read_text())
    del progress["bytes"]  # the digits of seconds
    return progress


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tasks: Path) -> Path:
    """What the command leaves that nobody stopped: four episodes of each of eight tasks."""
    from trl_dbbench.cli import app

    out = tmp_path_factory.mktemp("samples") / "whole"
    options = ["--tasks", tasks, "--out", out, "--n", "4", "--temperature", "0.8", "--batch-size", "8"]
    app(["sample", *map(str, [*HERE, *options])], standalone_mode=False)
    return out


def test_log_probabilities_are_the_models(whole: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    episode = max(kept_in(whole), key=lambda each: len(each["turns"]))
    ids, expected, said = list(episode["prompt_ids"]), [], []
    for turn in episode["turns"]:
        with torch.no_grad():
            logits = model(torch.tensor([ids + turn["ids"]])).logits[0].float()
        first = len(ids) - 1
        of_turn = (logits[first : first + len(turn["ids"])] / 0.8).log_softmax(-1)
        expected += of_turn.gather(1, torch.tensor(turn["ids"])[:, None])[:, 0].tolist()
        said += turn["logprobs"]
        ids += turn["ids"] + turn["observation_ids"]
    assert len(episode["turns"]) == 2
    assert said == pytest.approx(expected, abs=1e-4)


def test_the_same_whatever_the_batch_size(
    whole: Path, tasks: Path, command: Callable, tmp_path: Path
) -> None:
    options = ["--tasks", tasks, "--n", "4", "--temperature", "0.8", "--batch-size", "5"]
    code, out = command("sample", *HERE, *options, "--out", tmp_path / "other")
    assert code in (0, None)
    assert [e["turns"][0]["ids"] for e in kept_in(tmp_path / "other")] == [
        e["turns"][0]["ids"] for e in kept_in(whole)
    ]
    progress = json.loads((whole / "sample.json").read_text())
    right, played = progress["counts"]["overall"]
    assert played == 32 and 0 < right < 32
    note, counted, *_ = out.splitlines()
    assert note == "note: no task is known to be held out; --eval-tasks names some, which are then refused."
    assert counted.split()[:2] == ["right", f"{right}/32"]
    assert out.splitlines()[-1] == f"The episodes are in {tmp_path / 'other'}."
    assert 0 < progress["kept"] == len(kept_in(whole)) < right
    assert all(episode["right"] for episode in kept_in(whole))


def test_a_killed_one_goes_on_where_it_stopped(
    whole: Path, tasks: Path, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*HERE, "--tasks", tasks, "--n", "4", "--temperature", "0.8", "--batch-size", "8"]
    options += ["--out", tmp_path / "out"]
    played, play_all = [], Player.play_all

    def until_the_third(self: Player, starts: list, engine: Any) -> list:
        if len(played) == 2:
            raise Killed
        played.append(len(starts))
        return play_all(self, starts, engine)

    with monkeypatch.context() as patch:
        patch.setattr(Player, "play_all", until_the_third)
        with pytest.raises(Killed):
            command("sample", *options)
    with (tmp_path / "out" / "episodes.jsonl").open("a") as file:
        file.write('{"phase": "train", "st')  # what the batch that was killed had begun to write

    with monkeypatch.context() as patch:
        patch.setattr(
            Player,
            "play_all",
            lambda self, starts, engine: played.append(len(starts)) or play_all(self, starts, engine),
        )
        code, _ = command("sample", *options)
        assert code in (0, None)
        assert played == [8, 8, 8, 8]
        command("sample", *options)
        assert played == [8, 8, 8, 8], "nothing is left to be played"
    assert without_times(tmp_path / "out") == without_times(whole)
    assert progress_of(tmp_path / "out") == progress_of(whole)


@pytest.mark.slow
def test_other_weights_are_another_sampling(
    whole: Path, tasks: Path, command: Callable, tmp_path: Path
) -> None:
    """As after another round of training into the same folder."""
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(MODEL, model)
    options = ["--model", model, "--tasks", tasks, "--out", out, "--n", "1", "--temperature", "0.8"]
    options += ["--max-turns", "1", "--max-turn-tokens", "4"]
    assert command("sample", *options)[0] in (0, None)
    assert command("sample", *options)[0] in (0, None)
    with contextlib.chdir(tmp_path):  # the same model by another path
        assert command("sample", options[0], "model", *options[2:])[0] in (0, None)
    os.utime(model / "model.safetensors", (0, 0))
    code, _ = command("sample", *options)
    assert str(code).startswith(f"error: '{out}' was begun with other settings: weights ")


def test_a_sampling_that_has_played_nothing_may_get_other_settings(tmp_path: Path) -> None:
    """As a harness that is spelled right now."""
    for played in (0, 1):
        write_json(tmp_path / "sample.json", asdict(Sampled({"harness": "pyhton agent.py"}, 4, played)))
        with (
            nullcontext() if not played else pytest.raises(ConfigError, match="was begun with other settings")
        ):
            assert _begun(tmp_path, {"harness": "python agent.py"}, 8).episodes == 8


def test_other_settings_are_another_sampling(whole: Path, tasks: Path, command: Callable) -> None:
    options = ["--tasks", tasks, "--out", whole, "--n", "5", "--temperature", "0.8"]
    code, _ = command("sample", *HERE, *options)
    assert code == (
        f"error: '{whole}' was begun with other settings: n 4. Give these to go on there, or name a new folder "
        "by --out."
    )


def test_a_folder_of_something_else_is_left_alone(tasks: Path, command: Callable, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, _ = command("sample", *HERE, "--tasks", tasks, "--out", tmp_path)
    assert code == f"error: '{tmp_path}' holds something else. Name a new folder by --out."


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--n", "0"], "n must be at least 1, is 0."),
        (["--keep", "good"], "unknown keep 'good'; allowed: right, all."),
        (
            ["--temperature", "0"],
            "temperature must be above 0, is 0.0. Training and samples need episodes that",
        ),
        (["--temperature", "inf"], "temperature must be a finite number, is inf."),
        (["--top-p", "1.5"], "top_p must be above 0 and at most 1, is 1.5."),
        (["--max-per-task", "0"], "max_per_task must be at least 1, is 0."),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, is -1."),
    ],
)
def test_what_cannot_be_sampled(
    tasks: Path, command: Callable, tmp_path: Path, option: list[str], message: str
) -> None:
    code, _ = command("sample", *HERE, "--tasks", tasks, "--out", tmp_path / "out", *option)
    assert str(code).startswith(f"error: {message}")
    assert not (tmp_path / "out").exists()


# --- evaluation tasks -----------------------------------------------------------------------------------


def test_tasks_to_evaluate_on_are_refused(tasks: Path, command: Callable, tmp_path: Path) -> None:
    """Also under another id, and with other labels."""
    renamed = tmp_path / "eval.jsonl"
    renamed.write_text(replace(load_tasks(tasks)[3], id="mine", skills=(), max_turns=9).to_json())
    options = ["--tasks", tasks, "--eval-tasks", renamed, "--out", tmp_path / "out"]
    code, _ = command("sample", *HERE, *options)
    assert code == (
        f"error: 1 of 8 tasks are also in --eval-tasks: {load_tasks(tasks)[3].id}. What is sampled is trained on, "
        "and their evaluation would tell nothing: take them out of --tasks."
    )


def test_a_runs_held_out_tasks_are_refused(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    run = save_run(tmp_path, sqlite_database, tokenizer, [(count_task(2), RIGHT)], "eval")
    save_run(tmp_path, sqlite_database, tokenizer, [(count_task(3), WRONG)], "train")
    check_not_held_out([count_task(3), count_task(4)], run, [])
    with pytest.raises(ConfigError, match=r"^1 of 2 tasks are also in the held-out tasks of '.*': late-2\. "):
        check_not_held_out([count_task(2), count_task(3)], run, [])


def test_held_out_tasks_that_changed_on_the_way(
    tmp_path: Path, sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    """All are refused; the last ones are what `eval` plays, as the report shows them."""
    for number in (2, 3):
        save_run(tmp_path, sqlite_database, tokenizer, [(count_task(number), RIGHT)], "eval")
    log = tmp_path / "episodes.jsonl"
    first, second = map(json.loads, log.read_text().splitlines())
    log.write_text(f"{json.dumps(first)}\n{json.dumps(second | {'step': 4})}\n")
    for number in (2, 3):
        with pytest.raises(ConfigError, match=f"also in the held-out tasks of '.*': late-{number}"):
            check_not_held_out([count_task(number)], tmp_path, [])
    assert [task.id for task in held_out_tasks(tmp_path)] == ["late-3"]
    assert [*whole_evaluations(read_run(tmp_path))] == [4]


# --- what other commands make of it ---------------------------------------------------------------------


def test_replay_and_report_read_it(whole: Path, command: Callable, tmp_path: Path) -> None:
    count = len(kept_in(whole))
    code, out = command("replay", whole)
    assert code == 0
    assert f"{count} of {count} episodes came out equal, 0 differ." in out
    code, out = command("report", whole, "--no-figures", "--out", tmp_path / "page.html")
    assert code in (0, None)
    assert f"{count} episodes" in out


def test_the_folder_says_how_it_was_played(whole: Path) -> None:
    settings = RunSettings.read(whole)
    assert settings.model == str(MODEL)
    assert (settings.system_prompt, settings.protocol) == ("Work on the MySQL database.", "text")
    assert (settings.max_turn_tokens, settings.max_completion_length) == (48, 128)
    assert AutoTokenizer.from_pretrained(settings.model).chat_template
