"""Replay: a saved run comes out equal where it was made, and whatever does not is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import RULES, BrokenDatabase, play_script
from training import make_trainer
from transformers import PreTrainedTokenizerBase

from trl_dbbench import (
    DBBenchGRPOConfig,
    DBBenchGRPOTrainer,
    ExecutionReward,
    OutcomeReward,
    format_reward,
    load_tasks,
    to_dataset,
)
from trl_dbbench.database import Database, Limits
from trl_dbbench.episode.types import Episode, Rules, Sampling, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.registry import describe_reward, load_reward_functions
from trl_dbbench.runs.differences import Replayed, Summary
from trl_dbbench.runs.records import episode_record
from trl_dbbench.runs.replay import replay
from trl_dbbench.runs.settings import RunSettings
from trl_dbbench.tasks import Column, Gold, Table, Task
from trl_dbbench.training.callbacks import EpisodeLogCallback

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "tiny"

FRUITS = Table(
    "fruits",
    (Column("name", "VARCHAR(20)"), Column("price", "DECIMAL(10,2)")),
    (("apple", "1.00"), ("pear", "2.50"), ("plum", "4.00")),
)
PRICES = Task(
    "prices",
    "What costs more than 2?",
    (FRUITS,),
    "SELECT",
    Gold(answer=(("pear",), ("plum",)), sql="SELECT name FROM fruits WHERE price > 2"),
)
DROP = Task(
    "drop", "Drop the apple.", (FRUITS,), "DELETE", Gold(sql="DELETE FROM fruits WHERE name = 'apple'")
)


def sql(statement: str) -> str:
    return f"Action: Operation\n```sql\n{statement}\n```"


RIGHT = "Action: Answer\nFinal Answer: [('pear',), ('plum',)]"
DONE = "Action: Answer\nFinal Answer: done"
LOOK = sql("SELECT name FROM fruits WHERE price > 2")
HALF = sql("SELECT price / 2, AVG(price) FROM fruits GROUP BY price")
SAVED_IN = "episodes.jsonl"

# what each episode of the scripted run is, and what the greedy_then_grpo preset gives for it
SCRIPTS: list[tuple[Task, list[str], float]] = [
    (PRICES, [LOOK, RIGHT], 1.0),
    (PRICES, [HALF, "Action: Answer\nFinal Answer: none"], -1.0),
    (DROP, [sql("DELETE FROM fruits WHERE price = 1"), DONE], 1.0),
    (DROP, [sql("DELETE FROM fruits WHERE price > 1"), sql("SELEC 1"), DONE], -1.0),
    (PRICES, [LOOK, LOOK, LOOK], -0.8),
    (PRICES, [LOOK, "I give up."], -0.2),
]


def save(folder: Path, database: Database, episodes: Sequence[Episode], **settings: Any) -> Path:
    """A run's folder with these sampled episodes of step 0, rewarded by outcome, execution and format."""
    functions = load_reward_functions(["outcome", "execution", "format"], database=database)
    names = ["outcome", "execution", "format_reward"]
    for function, name in zip(functions, names, strict=True):
        for episode, value in zip(episodes, function(episode=episodes), strict=True):
            episode.rewards[name] = value
    made = RunSettings(
        **{"protocol": "text", "observation_characters": 800, "max_turns": RULES.max_turns} | settings,
        max_completion_length=RULES.max_completion_length,
        database=database.describe(),
        dialect=database.dialect.name,
        limits=database.limits,
        rewards={name: describe_reward(function) for name, function in zip(names, functions, strict=True)},
    )
    lines = [episode_record(episode, "train", 0) for episode in episodes]
    EpisodeLogCallback(folder, made).write(lines, [episode.task.to_json() for episode in episodes])
    return folder


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase) -> Callable[..., Episode]:
    def one(task: Task, turns: Sequence[str], database: Database, **more: Any) -> Episode:
        return play_script(task, turns, tokenizer, database, **more)

    return one


@pytest.fixture
def run(tmp_path: Path, sqlite_database: Database, play: Callable) -> Path:
    """The scripted run, made on SQLite."""
    episodes = [play(task, turns, sqlite_database) for task, turns, _ in SCRIPTS]
    return save(tmp_path / "run", sqlite_database, episodes)


def again(run: Path, database: Database, **options: Any) -> list[Replayed]:
    return list(replay(run, database, progress=False, **options))


def differences(replayed: Sequence[Replayed]) -> list[tuple[int, int, str]]:
    """(line, turn, what) of each."""
    return [(each.line, d.turn, d.what) for each in replayed for d in each.differences]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def change(run: Path, line: int, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits a line of the saved episodes; lines count from 1."""
    lines = lines_of(run / SAVED_IN)
    edit(lines[line - 1])
    (run / SAVED_IN).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")


# --- equal ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trained_run_comes_out_equal_where_it_was_made(tmp_path: Path, database: Database) -> None:
    """The quickstart's model on SQLite, MariaDB and MySQL: greedy, sampled and held-out episodes."""
    trainer = DBBenchGRPOTrainer(
        model=str(TINY / "model"),
        reward_funcs=[OutcomeReward(), ExecutionReward(database), format_reward],
        args=DBBenchGRPOConfig(
            output_dir=str(tmp_path),
            max_turn_tokens=48,
            max_completion_length=50,  # some run out
            per_device_train_batch_size=8,
            num_generations=4,
            max_steps=2,
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=to_dataset(
            load_tasks(TINY / "train.jsonl")[:30], "text", "Work on the MySQL database."
        ),
        eval_dataset=to_dataset(load_tasks(TINY / "test.jsonl")[:4], "text", "Work on the MySQL database."),
        database=database,
    )
    trainer.train()

    notes: list[str] = []
    replayed = again(tmp_path, database, notes=notes)
    assert notes == []
    assert [str(each) for each in replayed if each.differences] == []
    phases = ["greedy"] * 2 + ["train"] * 8
    assert [each.saved["phase"] for each in replayed] == phases * 2 + ["eval"] * 4
    assert {each.saved["status"] for each in replayed} >= {"answered", "out_of_tokens"}
    assert sum(len(each.episode.statements) for each in replayed if each.episode) > 20, "nothing was executed"
    rewards = [each.episode.rewards for each in replayed if each.episode and each.saved["phase"] == "train"]
    assert all(set(of) == {"outcome", "execution", "format_reward"} for of in rewards)


def test_each_way_an_episode_can_go_comes_out_equal(run: Path, sqlite_database: Database) -> None:
    replayed = again(run, sqlite_database)
    assert differences(replayed) == []
    assert [each.episode.rewards["outcome"] for each in replayed if each.episode] == [
        value for _, _, value in SCRIPTS
    ]
    summary = Summary()
    for each in replayed:
        summary.add(each)
    assert str(summary) == "6 of 6 episodes came out equal, 0 differ."


def test_a_tools_run(tmp_path: Path, sqlite_database: Database, play: Callable) -> None:
    """Invalid turns go on there, and an answer has several values, which only its text says."""
    query = '{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}'
    answer = '{"name": "commit_final_answer", "arguments": {"answers": ["pear", "plum"]}}'
    episode = play(PRICES, ["hm", query, answer], sqlite_database, protocol="tools")
    assert episode.right
    save(tmp_path, sqlite_database, [episode], protocol="tools")
    assert differences(again(tmp_path, sqlite_database)) == []


@pytest.mark.parametrize(("where", "turns"), [("turn 1", 1), ("observation", 1), ("turn 2", 2)])
def test_running_out_of_tokens(
    where: str, turns: int, tmp_path: Path, sqlite_database: Database, play: Callable
) -> None:
    """Within the first turn; before its observation; within the second one, a right answer but for its end."""
    whole = play(PRICES, [LOOK, RIGHT], sqlite_database)
    first = len(whole.turns[0].completion.ids)
    tokens = {"turn 1": 10, "observation": first + 5, "turn 2": len(whole.completion_ids) - 1}[where]
    rules = Rules(max_turns=3, max_turn_tokens=512, max_completion_length=tokens)
    episode = play(PRICES, [LOOK, RIGHT], sqlite_database, rules=rules)
    assert (str(episode.status), len(episode.turns)) == ("out_of_tokens", turns)
    run = save(tmp_path, sqlite_database, [episode])
    settings = replace(RunSettings.read(run), max_completion_length=tokens)
    (replayed,) = again(run, sqlite_database, settings=settings)
    assert replayed.differences == []
    assert replayed.episode is not None
    # ids are not saved; stand-ins keep the lengths
    assert len(replayed.episode.completion_ids) == len(episode.completion_ids)
    assert replayed.episode.mask == episode.mask


def test_running_out_of_tokens_after_a_summary(
    tmp_path: Path, sqlite_database: Database, play: Callable
) -> None:
    """`compaction: summary`: what the agent wrote to sum up counts too."""
    whole = play(PRICES, [LOOK, RIGHT], sqlite_database)
    rules = Rules(max_turns=3, max_turn_tokens=512, max_completion_length=len(whole.completion_ids) - 1)
    run = save(tmp_path, sqlite_database, [play(PRICES, [LOOK, RIGHT], sqlite_database, rules=rules)])
    record = json.loads((run / "episodes.jsonl").read_text())
    summary = record["turns"][0] | {"action": "reply", "text": "So far: ...", "tokens": 9}
    summary |= {"observation": None, "observation_tokens": 0}
    record["turns"].insert(1, summary)
    (run / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    most = rules.max_completion_length + summary["tokens"]
    (replayed,) = again(
        run, sqlite_database, settings=replace(RunSettings.read(run), max_completion_length=most)
    )
    assert replayed.differences == []


def test_an_episode_without_room_for_a_turn_is_not_refused(
    tmp_path: Path, sqlite_database: Database, play: Callable
) -> None:
    """An endpoint may say of the first prompt that it is too long. There is nothing to play again."""
    empty = Episode(PRICES, [], Sampling(), status=Status.OUT_OF_TOKENS)
    run = save(tmp_path, sqlite_database, [empty, play(PRICES, [LOOK, RIGHT], sqlite_database)])
    notes: list[str] = []
    unplayed, played = again(run, sqlite_database, notes=notes)
    assert (unplayed.episode, unplayed.differences, played.differences, notes) == (None, [], [], [])


def test_episodes_whose_environment_failed_are_left_out_and_counted(
    tmp_path: Path, sqlite_database: Database, play: Callable
) -> None:
    fault = play(PRICES, [LOOK, RIGHT], BrokenDatabase(at_start=False))
    save(tmp_path, sqlite_database, [fault, play(PRICES, [LOOK, RIGHT], sqlite_database)])
    summary = Summary()
    for each in again(tmp_path, sqlite_database):
        summary.add(each)
    assert str(summary).splitlines() == [
        "1 of 1 episodes came out equal, 0 differ.",
        "1 were not played: in the run their environment had failed, they had ended the database server, or "
        "their program had done nothing.",
    ]


def test_tasks_of_one_id_are_told_apart(tmp_path: Path, sqlite_database: Database, play: Callable) -> None:
    """Training and held-out files may use the same ids, and a question may be asked of two tables."""
    other = replace(PRICES, tables=(replace(FRUITS, rows=(("kiwi", "9.00"),)),))
    run = save(
        tmp_path, sqlite_database, [play(task, [LOOK, RIGHT], sqlite_database) for task in (PRICES, other)]
    )
    assert [line["turns"][0]["observation"] for line in lines_of(run / SAVED_IN)] == [
        "[('pear',), ('plum',)]",
        "[('kiwi',)]",
    ]
    assert differences(again(run, sqlite_database)) == []

    (run / "tasks.jsonl").write_text(PRICES.to_json() + "\n")
    assert differences(again(run, sqlite_database)) == [(2, 0, "task")]


def test_a_log_of_before_error_numbers_were_kept(run: Path, sqlite_database: Database) -> None:
    assert [turn["error_code"] for turn in lines_of(run / SAVED_IN)[3]["turns"]] == [None, 1064, None]
    for number in range(1, len(SCRIPTS) + 1):
        change(run, number, lambda line: [turn.pop("error_code") for turn in line["turns"]])
    assert differences(again(run, sqlite_database)) == []


# --- not equal ------------------------------------------------------------------------------------


def set_turn(number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line["turns"][number - 1].update(values)


@pytest.mark.parametrize(
    ("line", "edit", "found"),
    [
        (
            1,
            set_turn(1, observation="[('pear',)]"),
            "turn 1, observation: was \"[('pear',)]\", is \"[('pear',), (",
        ),
        (1, set_turn(1, sql="SELECT 2"), 'turn 1, sql: was "SELECT 2", is "SELECT name FROM fruits'),
        (
            1,
            set_turn(2, answer="[('fig',)]"),
            "turn 2, answer: was \"[('fig',)]\", is \"[('pear',), ('plum',)]\"",
        ),
        (1, lambda line: line.update(right=False), "right: was false, is true"),
        (1, lambda line: line["rewards"].update(outcome=-1.0), "reward outcome: was -1.0, is 1.0"),
        (2, lambda line: line["rewards"].update(execution=1.0), "reward execution: was 1.0, is 0.0"),
        (
            6,
            lambda line: line["rewards"].update(format_reward=None),
            "reward format_reward: was null, is 0.5",
        ),
        (3, lambda line: line["verdict"].update(state="0" * 16), 'state: was "0000000000000000", is "'),
        (5, lambda line: line.update(status="answered"), 'status: was "answered", is "turn_limit"'),
        (5, lambda line: line.update(status="out_of_tokens"), 'status: was "out_of_tokens", is "turn_limit"'),
        (1, lambda line: line.update(status="out_of_tokens"), 'status: was "out_of_tokens", is "answered"'),
        (1, lambda line: line["turns"].pop(), 'status: was "answered", is "out_of_tokens"'),
        (5, lambda line: line["turns"].append(line["turns"][0]), "turns: was 4, is 3"),
        (1, lambda line: line.update(task_digest="0" * 16), 'task: was "prices", is "not in tasks.jsonl"'),
    ],
)
def test_what_was_tampered_with_is_named(
    line: int,
    edit: Callable[[dict[str, Any]], None],
    found: str,
    run: Path,
    sqlite_database: Database,
) -> None:
    change(run, line, edit)
    differing = [each for each in again(run, sqlite_database) if each.differs]
    assert [each.line for each in differing] == [line]
    where, *what = str(differing[0]).splitlines()
    assert where == f"line {line}: step 0, sampled, task {SCRIPTS[line - 1][0].id}"
    assert any(each.startswith(f"  {found}") for each in what), what


def test_sql_that_was_changed_where_the_agent_wrote_it_leaves_other_tables(
    run: Path, sqlite_database: Database
) -> None:
    """Drops the pear instead of the apple."""
    change(run, 3, set_turn(1, text=sql("DELETE FROM fruits WHERE price = 2.5")))
    assert differences(again(run, sqlite_database)) == [
        (3, 1, "sql"),
        (3, 0, "right"),
        (3, 0, "state"),
        (3, 0, "reward outcome"),
        (3, 0, "reward execution"),
    ]


def test_another_engine_computes_other_decimals(
    run: Path, server_database: Database, sqlite_database: Database, command: Callable
) -> None:
    """SQLite has 0.5 and 1.0 where MySQL has Decimal('0.500000') and Decimal('1.000000')."""
    replayed = again(run, server_database)
    assert (2, 1, "observation") in differences(replayed)
    assert {each.line for each in replayed if each.differs} <= {2, 4}, "4 is an error message of the server"

    code, out = command("replay", run, "--database", server_database.url)
    assert code == 1
    assert f"replayed on {server_database.describe().split(',')[0]}" in out
    assert 'line 2: step 0, sampled, task prices\n  turn 1, observation: was "[(0.5, 1.0)' in out
    assert re.search(r"[45] of 6 episodes came out equal, [12] differ.\n  observation: [12]\n", out)


def test_a_database_that_fails_now_is_a_difference(run: Path) -> None:
    replayed = again(run, BrokenDatabase(at_start=True))
    assert [str(each.differences[0]) for each in replayed[:1]] == [
        'status: was "answered", is "environment_fault: 2003: cannot connect; waited for 0 s"'
    ]


def test_a_file_gets_no_progress_bar(run: Path, sqlite_database: Database, capsys: Any) -> None:
    assert len([*replay(run, sqlite_database)]) == 6
    assert capsys.readouterr().err == ""


def test_what_may_differ_for_no_fault_is_shown_and_not_counted(
    run: Path, sqlite_database: Database, play: Callable, command: Callable, tmp_path: Path
) -> None:
    """A statement that met the time limit on a busy machine, and everything after it; chance."""
    late = {"limit": "time", "observation": "3024 (HY000): Query execution was interrupted, ..."}
    change(run, 3, lambda line: set_turn(1, **late)(line) or line["verdict"].update(state="?"))
    code, out = command("replay", run)
    assert code == 0
    reason = "(the statement of turn 1 hit the time limit in one of the two runs)"
    assert '  state: was "?", is "' in out
    assert out.count(reason) == 2
    assert "5 of 6 episodes came out equal, 0 differ.\n1 differ for no fault" in out

    change(run, 3, lambda line: line.update(status="turn_limit"))  # no time limit explains that
    assert [each.line for each in again(run, sqlite_database) if each.differs] == [3]

    chance = play(DROP, [sql("UPDATE fruits SET price = 9 * RAND()"), DONE], sqlite_database)
    save(tmp_path / "chance", sqlite_database, [chance])
    (replayed,) = again(tmp_path / "chance", sqlite_database)
    assert [(d.what, d.excuse) for d in replayed.differences] == [
        ("state", "the SQL of turn 1 asks for the time, chance or the server itself")
    ]
    assert not replayed.differs


# --- other rewards --------------------------------------------------------------------------------


def test_void_episodes_stand_beside_the_mean_rewards(run: Path, command: Callable) -> None:
    """One of six was void in the run, so it has no reward and is not replayed."""
    void = {"status": "environment_fault", "fault": "2003: cannot connect", "right": False, "verdict": None}
    change(run, 1, lambda line: line.update(**void, rewards={"outcome": None, "execution": None}))
    code, out = command("replay", run, "--outcome-preset", "reinforce")
    assert code == 0
    assert re.search(
        r"mean outcome, sampled: was \S+ of 5 episodes \(1 void\), is \S+ of 5 episodes \(1 void\)\n", out
    )
    assert "1 were not played: in the run their environment had failed" in out


def test_an_old_run_under_another_preset(run: Path, tmp_path: Path, command: Callable) -> None:
    """reinforce: right 1, wrong -0.1, turn limit -0.3, invalid -0.1."""
    change(run, 1, lambda line: line["rewards"].update(outcome=0.25, execution=0.0))
    code, out = command("replay", run, "--outcome-preset", "reinforce", "--out", tmp_path / "new.jsonl")
    assert code == 1, "execution is the run's and was tampered with; outcome is another now"
    assert "mean outcome, sampled: was -0.2917 of 6 episodes, is 0.2333 of 6 episodes\n" in out
    assert "5 of 6 episodes came out equal, 1 differ.\n  reward execution: 1\n" in out

    lines = lines_of(tmp_path / "new.jsonl")
    assert [line["rewards"]["outcome"] for line in lines] == [1.0, -0.1, 1.0, -0.1, -0.3, -0.1]
    assert [line["saved_rewards"]["outcome"] for line in lines] == [0.25, -1.0, 1.0, -1.0, -0.8, -0.2]
    assert {line["advantage"] for line in lines} == {None}
    assert [line["turns"] for line in lines] == [line["turns"] for line in lines_of(run / SAVED_IN)]


def test_an_old_run_under_functions_of_ones_own(
    run: Path, tmp_path: Path, command: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_replay_rewards.py").write_text(
        "def short(episode, **kwargs):\n"
        "    return [-0.1 * len(e.turns) for e in episode]\n"
        "def tokens(episode, **kwargs):\n"
        "    return [float(len(e.completion_ids) > 0) for e in episode]\n"
        "def ids(completion_ids, **kwargs):\n"
        "    return [0.0 for ids in completion_ids]\n"
    )
    monkeypatch.chdir(tmp_path)
    funcs = "my_replay_rewards.short,my_replay_rewards.tokens,outcome"
    code, _ = command("replay", run, "--reward-funcs", funcs, "--out", "new.jsonl")
    assert code == 0
    assert [line["rewards"] for line in lines_of(tmp_path / "new.jsonl")] == [
        {"short": pytest.approx(-0.1 * len(turns)), "tokens": 1.0, "outcome": value}
        for _, turns, value in SCRIPTS
    ]
    code, _ = command("replay", run, "--reward-funcs", "my_replay_rewards.ids", "--out", "none.jsonl")
    assert str(code).startswith(
        "error: the reward function 'ids' fails on saved episodes, which have no token ids"
    )
    assert not (tmp_path / "none.jsonl").exists()


def test_step_rewards_are_the_new_ones(
    run: Path, tmp_path: Path, command: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own, which other functions gave, are not those of the turns any more."""
    change(run, 2, lambda line: line["turns"][0].update(rewards={"old": 1.0}, advantage=0.5))
    (tmp_path / "my_steps.py").write_text(
        "def places(episode, **kwargs):\n    return [[float(n) for n in range(len(e.turns))] for e in episode]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert command("replay", run, "--reward-funcs", "my_steps.places", "--out", "new.jsonl")[0] == 0
    lines = lines_of(tmp_path / "new.jsonl")
    assert [[turn["rewards"] for turn in line["turns"]] for line in lines] == [
        [{"places": float(n)} for n in range(len(turns))] for _, turns, _ in SCRIPTS
    ]
    assert not any("advantage" in turn for line in lines for turn in line["turns"])


def test_a_runs_own_function_that_needs_the_ids_is_told_and_not_checked(
    tiny_model: str, sqlite_database: Database, demo_tasks: list[Task], tmp_path: Path
) -> None:
    """`training.varied` takes completion_ids; OutcomeReward beside it is checked."""
    make_trainer(tiny_model, sqlite_database, demo_tasks[:4], tmp_path, max_steps=1).train()
    notes: list[str] = []
    replayed = again(tmp_path, sqlite_database, notes=notes)
    assert differences(replayed) == []
    (note,) = notes
    assert note.startswith("The reward varied is not checked: it fails on saved episodes")
    assert [list(each.episode.rewards) for each in replayed if each.episode] == [[]] + [["outcome"]] * 4


# --- half a run, and bad input --------------------------------------------------------------------


def test_damaged_lines_are_noted_and_the_rest_is_played(run: Path, sqlite_database: Database) -> None:
    whole = (run / SAVED_IN).read_bytes().splitlines(keepends=True)
    no_text = json.loads(whole[0])
    del no_text["turns"][0]["text"]
    (run / SAVED_IN).write_bytes(
        whole[0] + b"\xff not JSON\n" + json.dumps(no_text).encode() + b"\n\n" + whole[1] + whole[2][:100]
    )
    with (run / "tasks.jsonl").open("a") as tasks:
        tasks.write('{"id": 1')
    notes: list[str] = []
    assert [(each.line, each.differs) for each in again(run, sqlite_database, notes=notes)] == [
        (1, False),
        (5, False),
    ]
    assert re.fullmatch(r"tasks.jsonl has lines that were left out: line \d+ \(not JSON \(.*\)\)\.", notes[0])
    assert (
        notes[1] == "episodes.jsonl ends in the middle of line 6: the run was stopped there, or still runs."
    )
    assert re.match(
        r"episodes.jsonl has lines that were left out: line 2 \(.*\), line 3 \(a turn without usable 'text'",
        notes[2],
    )


def test_only_a_phase_or_some_steps(run: Path, sqlite_database: Database) -> None:
    for number in range(1, 7):
        change(run, number, lambda line, n=number: line.update(step=n, phase="eval" if n > 4 else "train"))
    assert [each.line for each in again(run, sqlite_database, phase="eval")] == [5, 6]
    assert [each.line for each in again(run, sqlite_database, steps=(2, 5))] == [2, 3, 4]
    assert [each.line for each in again(run, sqlite_database, phase="train", steps=(4, 9))] == [4]


def test_a_run_of_an_earlier_version_takes_its_settings_from_options(run: Path, command: Callable) -> None:
    (run / "run.json").unlink()
    code, _ = command("replay", run, "--database", "sqlite", "--max-turns", "3")
    assert re.match(
        r"error: '.*run.json' is not there, .* Say how the run's episodes were played, as in --protocol text .*; "
        r"missing: --protocol, --observation-characters\.",
        str(code),
    )
    options = ("--protocol", "text", "--max-turns", "3", "--observation-characters", "800")
    code, out = command("replay", run, "--database", "sqlite", *options)
    assert code == 0
    assert "note: The run does not say how it was rewarded: rewards are not checked.\n6 of 6 episodes" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--reward-funcs", "luck"],
            "error: unknown reward function 'luck'; allowed: outcome, answer_seen, efficiency",
        ),
        (
            ["--outcome-preset", "kind"],
            "error: unknown outcome_preset 'kind'; allowed: greedy_then_grpo, reinforce.",
        ),
        (["--protocol", "morse"], "error: unknown protocol 'morse'; allowed: text, tools"),
        (["--phase", "test"], "error: unknown phase 'test'; allowed: eval, greedy, train."),
        (["--steps", "3"], "error: --steps 3 must be two numbers with a colon between, as in 100:200."),
        (["--steps", "7:9"], r"error: '.*' has no such episode to play again\."),
        (["--out", "no/folder/x.jsonl"], "error: 'no/folder/x.jsonl' cannot be written"),
        (["--database", "oracle"], "error: 'oracle' is not a database"),
    ],
)
def test_bad_options_end_in_one_clear_error(
    options: list[str], message: str, run: Path, command: Callable
) -> None:
    assert re.match(message, str(command("replay", run, *options)[0]))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("", "error: '.*gone' has no episodes.jsonl. Give the output_dir of a training run, a folder."),
        ("episodes.jsonl", "error: '.*run' has no episodes.jsonl"),
        ("tasks.jsonl", "error: '.*run' has no tasks.jsonl"),
    ],
)
def test_what_is_no_run(missing: str, message: str, run: Path, command: Callable) -> None:
    if missing:
        (run / missing).unlink()
    assert re.match(message, str(command("replay", run if missing else run / "gone")[0]))


def test_a_run_says_how_it_was_played(tmp_path: Path) -> None:
    settings = RunSettings(
        "tools", 0, 5, 512, None, "SQLite", "sqlite", Limits(1.5, 10, 100), {"short": None}
    )
    settings.write(tmp_path)
    for name in ("episodes.jsonl", "tasks.jsonl"):
        (tmp_path / name).touch()
    assert RunSettings.read(tmp_path) == settings
    assert RunSettings.read(tmp_path, max_turns=2, protocol=None) == replace(settings, max_turns=2)
    (tmp_path / "run.json").write_text('{"protocol": ')
    with pytest.raises(ConfigError, match=r"run\.json' cannot be read: "):
        RunSettings.read(tmp_path)
