"""Judging a model by several samples of each task: the estimators, the figures, and `trl-dbbench eval --samples`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import BrokenDatabase, play_script
from hypothesis import given
from hypothesis import strategies as st
from saved_runs import FORGOT_WHERE, LOOK, answer, count_task, delete_task, sql
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from trl_dbbench.database import Database
from trl_dbbench.evaluation.compare.arms import (
    Arm,
    Sampling,
    best_of,
    majority,
    mcnemar,
    paired_interval,
    pass_at_k,
    result_of,
)
from trl_dbbench.evaluation.compare.figures import figures_of
from trl_dbbench.grading.states import rows_digest
from trl_dbbench.runs.records import EpisodeRecord, episode_record
from trl_dbbench.tasks import Gold, Task, load_tasks

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "tiny"

AS_THE_QUICKSTART = (
    *("--system-prompt", "Work on the MySQL database.", "--database", "sqlite"),
    *("--max-turn-tokens", "48", "--max-completion-length", "128"),
)


def record(task: Any, right: bool, result: str | None = "", **more: Any) -> EpisodeRecord:
    """An episode of one answer; `result` is that answer, `None` for an episode that ended without one."""
    turn = {"text": "...", "action": "answer", "answer": result, "observation": None, "tokens": 5}
    if result is None:
        turn = {
            "text": "hm",
            "action": "invalid",
            "reason": "no 'Action: ...'",
            "observation": None,
            "tokens": 1,
        }
    known = {
        **{"phase": "eval", "step": 0, "task_id": f"task-{task}", "task_digest": f"d{task}", "question": "?"},
        **{"operation": "SELECT", "skills": ["select"], "greedy": False, "verdict": {"right": right}},
        **{"status": "answered" if result is not None else "invalid_action", "right": right, "rewards": {}},
        **{"turns": [turn], "prompt_tokens": 30, "fault": None, "retries": 0},
    }
    return {**known, **more}  # type: ignore[return-value]


# --- estimators -----------------------------------------------------------------------------------------


def test_pass_at_k_by_hand() -> None:
    """Five samples, two of them right: of the 10 pairs, 3 have none of the two; of the 10 triples, 1."""
    assert [pass_at_k(5, 2, k) for k in (1, 2, 3, 4, 5)] == [2 / 5, 7 / 10, 9 / 10, 1.0, 1.0]
    assert [pass_at_k(4, 0, k) for k in (1, 2, 4)] == [0, 0, 0]
    assert pass_at_k(200, 1, 100) == 0.5
    for n, right, k in ((3, 1, 4), (3, 4, 1), (3, 1, 0)):
        with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated"):
            pass_at_k(n, right, k)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_right_one(rights: list[bool], data: Any) -> None:
    k = data.draw(st.integers(1, len(rights)))
    choices = [any(chosen) for chosen in combinations(rights, k)]
    assert pass_at_k(len(rights), sum(rights), k) == pytest.approx(Fraction(sum(choices), len(choices)))


def test_the_largest_group_is_the_majority() -> None:
    assert majority([(3, True), (3, True), (4, False)]) == 1
    assert majority([(3, True), (4, False), (4, False)]) == 0
    assert majority([(3, True), (4, False), (5, False)]) == pytest.approx(1 / 3)  # a draw among three
    assert majority([(3, True), (None, False), (None, False)]) == 1  # who came to nothing has no vote
    assert majority([(None, False)]) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
def test_best_of_n_by_an_oracle_is_never_below_pass_at_1(samples: list[tuple[int, bool]]) -> None:
    """An oracle scores right episodes higher than wrong ones. Whatever else it likes, it finds one if there is one."""
    chosen = best_of([(10.0 * right + likes, right) for likes, right in samples])
    rights = [right for _, right in samples]
    assert chosen == float(any(rights)) == pass_at_k(len(rights), sum(rights), len(rights))
    assert chosen >= pass_at_k(len(rights), sum(rights), 1)


def test_best_of_n_by_a_reward_that_knows_nothing_is_pass_at_1() -> None:
    assert best_of([(0.5, True), (0.5, False), (0.5, False)]) == pytest.approx(1 / 3)
    assert best_of([(0.9, False), (0.5, True)]) == 0


# W. J. Dixon and A. M. Mood, "The statistical sign test", JASA 41 (1946), table 1: of n signs, the largest number of
# the rarer one that is significant, two-sided, at 5 % and at 1 %. McNemar's exact test is the sign test of the tasks
# that flipped.
SIGN_TEST = {
    **{6: (0, None), 8: (0, 0), 9: (1, 0), 10: (1, 0), 12: (2, 1), 15: (3, 2), 17: (4, 2), 20: (5, 3)},
    **{25: (7, 5), 30: (9, 7), 40: (13, 11), 50: (17, 15), 75: (28, 25), 90: (35, 32)},
}


@pytest.mark.parametrize(("n", "critical"), SIGN_TEST.items())
def test_mcnemar_against_the_table_of_the_sign_test(n: int, critical: tuple[int, int | None]) -> None:
    for level, largest in zip((0.05, 0.01), critical, strict=True):
        significant = [losses for losses in range(n // 2 + 1) if mcnemar(n - losses, losses) <= level]
        assert significant == list(range(0 if largest is None else largest + 1))


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 5) == 1
    assert mcnemar(6, 0) == mcnemar(0, 6) == 2 / 64
    assert mcnemar(9, 1) == 2 * (1 + 10) / 1024
    assert 0 < mcnemar(1000, 0) < 1e-300


def test_the_bootstrap_of_a_mean_of_differences() -> None:
    differences = [1.0] * 30 + [0.0] * 60 + [-1.0] * 10
    low, high = paired_interval(differences)
    # by the normal approximation 0.2 +- 1.96 * sqrt(0.36 / 100)
    assert (low, high) == pytest.approx((0.2 - 0.1176, 0.2 + 0.1176), abs=0.011)
    assert paired_interval(differences) == (low, high)
    assert paired_interval([0.0] * 50) == (0.0, 0.0)


# --- figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[(3,)]", "[( 3.0, )]", True),
        ("[('a', 1)]", '[["a", 1]]', True),
        ("[(3,)]", "[(4,)]", False),
        ("about  three", "about three", True),
        ("about three", "about four", False),
        ("[(3,)", "[(3,)]", False),
    ],
)
def test_which_answers_are_the_same(one: str, other: str, same: bool) -> None:
    assert (result_of(record(1, True, one)) == result_of(record(1, True, other))) is same


def test_an_empty_answer_stands_for_the_last_statement() -> None:
    one, other, again = (
        record(1, True, "") | {"turns": [{"sql": sql}, {"answer": ""}]}
        for sql in ("SELECT 1", "SELECT 2", "SELECT 1")
    )
    assert result_of(one) == result_of(again) != result_of(other)


def test_changes_are_the_same_if_they_leave_the_same_tables(
    sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    drop = delete_task(1)
    by_name, by_price, all_of_them, none = (
        episode_record(
            play_script(drop, [sql(statement), answer("done")], tokenizer, sqlite_database), "eval", 0
        )
        for statement in (
            *("DELETE FROM fruits WHERE name = 'apple'", "DELETE FROM fruits WHERE price < 2"),
            *("DELETE FROM fruits", "SELECT 1"),
        )
    )
    assert [e["right"] for e in (by_name, by_price, all_of_them, none)] == [True, True, False, False]
    assert result_of(by_name) == result_of(by_price)
    assert len({result_of(e) for e in (by_price, all_of_them, none)}) == 3


@pytest.fixture
def answer_in_sql(
    sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> Callable[[Task, str], EpisodeRecord]:
    """A function that plays a task with one turn, whose answer is a statement."""

    def play(task: Task, statement: str) -> EpisodeRecord:
        turns = [f"Action: Answer\nFinal Answer:\n```sql\n{statement}\n```"]
        return episode_record(
            play_script(task, turns, tokenizer, sqlite_database, protocol="text_sql"), "eval", 0
        )

    return play


def test_answers_in_sql_vote_by_their_rows(answer_in_sql: Callable[[Task, str], EpisodeRecord]) -> None:
    """Two of five samples give the right rows with different SQL; the others are wrong in three ways."""
    samples = [
        answer_in_sql(count_task(3), statement)
        for statement in (
            *("SELECT COUNT(*) FROM orders WHERE late = 1", "SELECT SUM(late) FROM orders"),
            *("SELECT COUNT(*) FROM orders", "SELECT id FROM orders", "SELECT COUNT(* FROM orders"),
        )
    ]
    assert [each["right"] for each in samples] == [True, True, False, False, False]
    count, total, all_of_them, ids, fails = map(result_of, samples)
    assert count == total and len({count, all_of_them, ids, fails}) == 4
    assert fails == ("text", "SELECT COUNT(* FROM orders")
    figures = figures_of(Arm("m", samples[:1], samples, Sampling(5, 1.0)))
    assert figures.shares["overall"]["majority@5"].rate == 1.0


def test_the_order_of_rows_counts_in_a_vote_if_the_gold_sorts(
    answer_in_sql: Callable[[Task, str], EpisodeRecord],
) -> None:
    """`strict` asks for the order of a gold that sorts."""
    up, down = "SELECT id FROM orders ORDER BY id", "SELECT id FROM orders ORDER BY id DESC"
    for gold, alike in ((up, False), ("SELECT id FROM orders", True)):
        task = replace(count_task(3), gold=Gold(sql=gold), grader="strict")
        one, other = (answer_in_sql(task, statement) for statement in (up, down))
        assert (one["right"], other["right"]) == (True, alike)
        assert (result_of(one) == result_of(other)) is alike


def test_order_and_repetition_of_rows_count_where_asked() -> None:
    once, twice, turned = [(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (1, "a")], [(2.0, "b"), (1, "a")]
    assert rows_digest(once) == rows_digest(turned) != rows_digest(twice)
    assert rows_digest(once, ordered=True) != rows_digest(turned, ordered=True)
    assert rows_digest(once, repeated=False) == rows_digest(twice, repeated=False)
    assert rows_digest([(1,)]) != rows_digest([("1",)]) and rows_digest([(None,)]) != rows_digest([])


def test_figures_by_hand() -> None:
    """Two tasks, four samples of each: `3 3 4 -` where 3 is right, and `5 6 - -` where 6 is right."""
    samples = [
        *(record(1, True, "3", rewards={"rm": 0.9}), record(1, True, "3", rewards={"rm": 0.1})),
        *(record(1, False, "4", rewards={"rm": 0.5}), record(1, False, None, rewards={"rm": 0.0})),
        *(record(2, False, "5", rewards={"rm": 0.7}), record(2, True, "6", rewards={"rm": 0.7})),
        *(record(2, False, None, rewards={"rm": 0.2}), record(2, False, None, rewards={"rm": None})),
    ]
    arm = Arm("m", [record(1, True, "3"), record(2, False, "5")], samples, Sampling(4, 1.0, scorer="rm"))
    figures = figures_of(arm)
    assert {measure: share.rate for measure, share in figures.shares["overall"].items()} == {
        "greedy": 0.5,
        "pass@1": (2 / 4 + 1 / 4) / 2,
        "pass@2": (5 / 6 + 3 / 6) / 2,
        "pass@4": 1.0,
        "majority@4": (1 + 0.5) / 2,
        "best-of-4": (1 + 0.5) / 2,  # two samples of the second task have the highest score
    }
    assert list(figures.shares) == ["overall", "operation/SELECT", "skill/select"]
    of = figures.episodes
    assert [of[name] for name in ("episodes", "faults", "turns", "tokens")] == [8, 0, 1.0, (5 * 5 + 3) / 8]
    assert (of["readable"], of["unreadable"]) == (5 / 8, {"no 'Action: ...'": 3 / 8})
    assert of["statuses"] == {"answered": 5 / 8, "invalid_action": 3 / 8}
    reward = of["rewards"]["rm"]
    assert (reward["min"], reward["median"], reward["max"]) == (0.0, 0.5, 0.9)
    assert reward["mean"] == pytest.approx(3.1 / 7) and reward["at_lowest"] == 1 / 7
    assert reward["std"] == pytest.approx(0.3457, abs=1e-4)


def test_statements_that_several_samples_share_are_distinct_once(
    sqlite_database: Database, tokenizer: PreTrainedTokenizerBase
) -> None:
    scripts = [[LOOK, answer("[(1,)]")], [LOOK, LOOK, answer("[(1,)]")], [FORGOT_WHERE, answer("[(2,)]")]]
    episodes = [play_script(count_task(1), turns, tokenizer, sqlite_database) for turns in scripts]
    of = figures_of(Arm("m", [episode_record(e, "eval", 0) for e in episodes])).episodes
    assert (of["statements"], of["distinct_statements"]) == (4, 2)
    assert of["turns"] == 7 / 3


def test_a_fault_is_no_sample(tokenizer: PreTrainedTokenizerBase) -> None:
    fault = play_script(count_task(1), [LOOK, answer("[(1,)]")], tokenizer, BrokenDatabase(at_start=True))
    failed = episode_record(fault, "eval", 0) | {"task_digest": "d1"}
    arm = Arm(
        "m",
        [record(1, True, "3")],
        [record(1, True, "3"), record(1, False, "4"), failed, failed],  # type: ignore[list-item]
        Sampling(4, 1.0),
    )
    shares = figures_of(arm).shares["overall"]
    assert shares["pass@1"].rate == 0.5 and shares["pass@2"].rate == 1
    assert shares["pass@4"].judged == 0  # two sound samples say nothing of four
    assert (shares["pass@1"].void_wrong, shares["pass@2"].void_wrong) == (1 / 4, 1 / 2)
    assert figures_of(arm).episodes["faults"] == 2


def test_void_samples_stand_beside_every_measure() -> None:
    """20 samples of a task: 5 are right, and the others void. Nothing else is said of its greedy episode."""
    void = record(1, False, None, status="environment_fault", fault="2003: cannot connect")
    samples = [*(record(1, True, "3", rewards={"rm": 0.5}) for _ in range(5)), *[void] * 15]
    arm = Arm("m", [void], samples, Sampling(20, 1.0, scorer="rm"))
    figures = figures_of(arm)
    said = {measure: str(share) for measure, share in figures.shares["skill/select"].items()}
    assert said["greedy"] == "none judged (1 void, 0.0 % with those counted wrong)"
    assert said["pass@1"] == "100.0 % [20.7, 100.0] (15 void, 25.0 % with those counted wrong)"
    assert said["pass@8"] == "none judged (15 void, 94.9 % with those counted wrong)"
    assert said["majority@20"] == "100.0 % [20.7, 100.0] (15 void, 100.0 % with those counted wrong)"
    assert figures.to_dict()["shares"]["overall"]["pass@1"] == {
        **{"rate": 1.0, "low": pytest.approx(0.207, abs=1e-3), "high": 1.0, "tasks": 1},
        **{"void": 15, "void_wrong": 0.25},
    }
    assert ("void, most often", "2003: cannot connect (15 of 15)") in figures.rows()

    (of_void_only,) = (
        figures_of(Arm("m", [], [void] * 2, Sampling(2, 1.0, scorer="rm"))).shares["overall"]["best-of-2"],
    )
    assert (of_void_only.judged, of_void_only.void_wrong) == (0, 0.0)


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eval_with_samples(command: Callable, tmp_path: Path) -> None:
    """The tiny model on 12 tasks, four samples each, the best chosen by the execution of their SQL."""
    options = ("--limit", "12", "--samples", "4", "--temperature", "1.0", "--reward-model", "execution")
    files = ("--json", tmp_path / "e.json", "--html", tmp_path / "e.html")
    code, out = command(
        *("eval", "--model", TINY / "model", "--tasks", TINY / "test.jsonl"),
        *AS_THE_QUICKSTART,
        *options,
        *files,
    )
    assert code == 0, code
    said = json.loads((tmp_path / "e.json").read_text())
    tasks = load_tasks(TINY / "test.jsonl")[:12]
    assert [e["task_id"] for e in said["episodes"]] == [task.id for task in tasks]
    assert [e["task_id"] for e in said["samples"]] == [task.id for task in tasks for _ in range(4)]
    assert not any(e["greedy"] for e in said["samples"])
    assert len({e["seed"] for e in said["samples"]}) == 48
    assert said["sampling"] == {
        **{"n": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0, "scorer": "execution"}
    }

    # the figures are those of the samples that the file holds
    rights = [[e["right"] for e in said["samples"] if e["task_id"] == task.id] for task in tasks]
    overall = said["figures"]["shares"]["overall"]
    assert overall["pass@1"]["rate"] == pytest.approx(sum(map(sum, rights)) / 48)
    assert overall["pass@4"]["rate"] == pytest.approx(sum(map(any, rights)) / 12)
    assert overall["pass@1"]["rate"] <= overall["pass@2"]["rate"] <= overall["pass@4"]["rate"]
    # executing the gold is an oracle where the agent answers with what it saw
    assert overall["pass@1"]["rate"] <= overall["best-of-4"]["rate"] <= overall["pass@4"]["rate"]
    assert set(said["figures"]["episodes"]["rewards"]) == {"outcome", "execution"}

    lines = {" ".join(line.split()[:1]): line for line in out.splitlines()}
    assert lines["majority@4"].split()[1] == f"{100 * overall['majority@4']['rate']:.1f}"
    assert "4 samples a task, temperature 1, seed 0, the best by execution" in out
    page = (tmp_path / "e.html").read_text()
    assert "majority@4" in page and page.count("<script") == 1 and tasks[0].question in page

    # another batch size draws the same samples
    again = tmp_path / "again.json"
    few = ("--limit", "3", "--samples", "4", "--batch-size", "2", "--json", again)
    command("eval", "--model", TINY / "model", "--tasks", TINY / "test.jsonl", *AS_THE_QUICKSTART, *few)
    texts = [
        [[turn["text"] for turn in e["turns"]] for e in read["samples"][:12]]
        for read in (said, json.loads(again.read_text()))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--temperature", "0.7"),
            "--temperature has no effect: say by --samples how many samples are to be drawn.",
        ),
        (("--reward-model", "format"), "--reward-model has no effect: say by --samples"),
        (("--samples", "4", "--temperature", "0"), "temperature must be above 0"),
        (("--samples", "4", "--reward-model", "nonsense"), "unknown reward function 'nonsense'"),
        (("--html", "nowhere/page.html"), "'nowhere/page.html' cannot be written"),
    ],
)
def test_what_eval_refuses(command: Callable, options: tuple[str, ...], message: str) -> None:
    code, out = command(
        *("eval", "--model", TINY / "model", "--tasks", TINY / "test.jsonl"), *AS_THE_QUICKSTART, *options
    )
    assert message in str(code) and "\n" not in str(code)
    assert "overall" not in out


def scorer(kind: str, folder: Path) -> Path:
    """A reward model with the tiny model's body: a classifier with a random head, or one that answers by tokens."""
    shutil.copytree(TINY / "model", folder)
    if kind == "prm":
        (folder / "prm.json").write_text(
            '{"placeholder_token": "<|endoftext|>", "reward_tokens": ["a", "b"]}'
        )
        return folder
    torch.manual_seed(3)
    classifier = AutoModelForSequenceClassification.from_pretrained(TINY / "model", num_labels=1)
    classifier.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "prm"])
def test_a_reward_model_chooses_among_samples(command: Callable, tmp_path: Path, kind: str) -> None:
    """Also where prompts show earlier episodes, which it reads as well."""
    lines = (TINY / "test.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tasks.jsonl").write_text("".join(lines[:4]))
    code, _ = command(
        *("sample", "--model", TINY / "model", "--tasks", tmp_path / "tasks.jsonl", *AS_THE_QUICKSTART),
        *("--n", "4", "--out", tmp_path / "memory"),
    )
    assert code in (0, None)
    name = f"{kind}:{scorer(kind, tmp_path / 'judge')}"
    code, _ = command(
        *("eval", "--model", TINY / "model", "--tasks", tmp_path / "tasks.jsonl", *AS_THE_QUICKSTART),
        *("--few-shot", "1", "--few-shot-memory", tmp_path / "memory"),
        *("--samples", "3", "--temperature", "1.3", "--reward-model", name, "--json", tmp_path / "e.json"),
    )
    assert code == 0, code
    said = json.loads((tmp_path / "e.json").read_text())
    assert any(e["shots"] for e in said["samples"])
    assert said["sampling"]["scorer"] == "judge"
    best = []
    for episode in said["episodes"]:
        drawn = [e for e in said["samples"] if e["task_id"] == episode["task_id"]]
        scores = [e["rewards"]["judge"] for e in drawn]
        if kind == "prm":  # its record is the sum over turns, as in training
            steps = [[turn["rewards"]["judge"] for turn in e["turns"]] for e in drawn]
            assert scores == pytest.approx([sum(each) for each in steps])
            scores = [min(each) for each in steps]
        assert len(set(scores)) > 1
        best.append(drawn[scores.index(max(scores))]["right"])
    assert said["figures"]["shares"]["overall"]["best-of-3"]["rate"] == pytest.approx(sum(best) / 4)


def test_a_process_reward_model_scores_by_its_lowest_step() -> None:
    def steps(*values: float) -> dict[str, Any]:
        turn = {"text": "...", "action": "answer", "answer": "3", "observation": None, "tokens": 5}
        return {
            "turns": [{**turn, "rewards": {"prm": value}} for value in values],
            "rewards": {"prm": sum(values)},
        }

    samples = [record(1, False, "3", **steps(0.9, 0.9, 0.1)), record(1, True, "3", **steps(0.6, 0.6))]
    arm = Arm("m", [record(1, True, "3")], samples, Sampling(2, 1.0, scorer="prm"))
    assert arm.values()["best-of-2"] == {"d1": 1.0}
