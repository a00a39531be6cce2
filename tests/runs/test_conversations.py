"""Conversations out of a run's folder: as the policy read them, as pairs, and with a label for each turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import play_script
from saved_runs import FORGOT_WHERE, LOOK, answer, count_scripts, count_task, save_episodes, save_run, sql

from trl_dbbench.data.reward_data import Rows
from trl_dbbench.episode.protocol import COMMIT_FINAL_ANSWER, EXECUTE_SQL
from trl_dbbench.rewards.steps import executes
from trl_dbbench.runs.conversations import (
    completion_messages,
    preference_pairs,
    prompt_messages,
    saved_episodes,
    step_labels,
    template_columns,
)
from trl_dbbench.runs.few_shot import good_episodes
from trl_dbbench.runs.settings import RunSettings


@pytest.fixture
def run(tmp_path, sqlite_database, tokenizer) -> Path:
    return save_run(tmp_path / "run", sqlite_database, tokenizer, count_scripts([2, 3]))


def test_a_conversation_is_what_the_policy_read(run, tokenizer, sqlite_database):
    """Message by message, and rendered by the policy's template token by token."""
    settings = RunSettings.read(run)
    record, task = next(saved_episodes(run, []))
    messages = prompt_messages(record, task, settings) + completion_messages(record, settings)
    assert messages == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": task.prompt()},
        {"role": "assistant", "content": LOOK},
        {"role": "user", "content": "[(2,)]"},
        {"role": "assistant", "content": answer("[(2,)]")},
    ]
    played = play_script(task, [LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == tokenizer.decode(played.prompt_ids + played.completion_ids) + "\n"
    assert completion_messages(record, settings) == played.messages()


def test_earlier_episodes_stand_in_the_prompt(tmp_path, tokenizer, sqlite_database):
    """A prompt with an earlier episode and one without are two prompts: pairs are of one of them."""
    two, three = count_task(2), count_task(3)
    scripts = [
        (three, [LOOK, answer("[(3,)]")]),
        (two, [LOOK, answer("[(2,)]")]),
        (two, [FORGOT_WHERE, answer("[(3,)]")]),
        (two, ["I give up."]),
    ]
    earlier, *played = (play_script(*script, tokenizer, sqlite_database) for script in scripts)
    (example,) = good_episodes([earlier])
    played[0].shots = played[1].shots = [example.id]
    run = save_episodes(tmp_path, sqlite_database, played)
    settings, notes = RunSettings.read(run), []
    assert [record["turns"][0]["text"] for record, _ in saved_episodes(run, notes)] == ["I give up."]
    assert notes == [f"{run}: 2 episodes left out: what the prompt showed is not in shots.jsonl."]
    (run / "shots.jsonl").write_text(f"\0\0\0\n{example.line}\n")  # a crash of the machine leaves zeros
    (right, task), _, (bare, _) = saved_episodes(run, [])
    assert prompt_messages(right, task, settings) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": three.prompt()},
        {"role": "assistant", "content": LOOK},
        {"role": "user", "content": "[(3,)]"},
        {"role": "assistant", "content": answer("[(3,)]")},
        {"role": "user", "content": two.prompt()},
    ]
    assert [message["role"] for message in prompt_messages(bare, task, settings)] == ["system", "user"]
    (pair,) = preference_pairs(saved_episodes(run, []), settings)
    assert pair["prompt"] == prompt_messages(right, task, settings)
    assert pair["rejected"][-1]["content"] == answer("[(3,)]")


def test_an_observation_that_nobody_read_is_left_out(tmp_path, tokenizer, sqlite_database):
    """The third statement hits the turn limit: its rows are in the log, but no turn followed them."""
    run = save_run(tmp_path, sqlite_database, tokenizer, [(count_task(2), [LOOK, LOOK, LOOK])])
    record, _ = next(saved_episodes(run, []))
    assert record["turns"][2]["observation"] == "[(2,)]"
    roles = [message["role"] for message in completion_messages(record, RunSettings.read(run))]
    assert roles == ["assistant", "user", "assistant", "user", "assistant"]


def test_tools_come_with_the_rows(tmp_path, tokenizer, sqlite_database):
    call = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>'
    task = count_task(2)
    run = save_run(tmp_path, sqlite_database, tokenizer, [(task, [call] * 3)], protocol="tools")
    settings = RunSettings.read(run)
    record, _ = next(saved_episodes(run, []))
    assert [m["role"] for m in completion_messages(record, settings)][1] == "tool"
    assert json.loads(template_columns(settings)["tools"]) == [EXECUTE_SQL, COMMIT_FINAL_ANSWER]


def test_pairs_are_of_one_task_right_over_wrong(tmp_path, sqlite_database, tokenizer):
    two, three = count_task(2), count_task(3)
    scripts = [
        (two, [LOOK, answer("[(2,)]")]),
        (two, [LOOK, answer("[(2,)]")]),  # the same words again
        (two, [FORGOT_WHERE, answer("[(3,)]")]),
        (two, ["I give up."]),
        (three, [LOOK, answer("[(3,)]")]),  # nothing wrong to set it against
    ]
    run = save_run(tmp_path, sqlite_database, tokenizer, scripts)
    pairs = preference_pairs(saved_episodes(run, []), RunSettings.read(run))
    settings = RunSettings.read(run)
    record, _ = next(saved_episodes(run, []))
    assert [
        (pair["task_id"], pair["chosen"][-1]["content"], pair["rejected"][-1]["content"]) for pair in pairs
    ] == [
        ("late-2", answer("[(2,)]"), answer("[(3,)]")),
        ("late-2", answer("[(2,)]"), "I give up."),
    ]
    assert all(pair["prompt"] == prompt_messages(record, two, settings) for pair in pairs)


def test_few_pairs_are_drawn_alike_each_time(tmp_path, sqlite_database, tokenizer):
    wrong = [(count_task(2), [answer(f"[({n},)]")]) for n in range(3, 12)]
    run = save_run(tmp_path, sqlite_database, tokenizer, [*wrong, (count_task(2), [answer("[(2,)]")])])
    settings = RunSettings.read(run)
    draws = [preference_pairs(saved_episodes(run, []), settings, per_task=3, seed=s) for s in (0, 0, 1)]
    assert len(draws[0]) == 3
    assert draws[0] == draws[1] != draws[2]


def test_held_out_episodes_and_faults_are_no_data(tmp_path, sqlite_database, tokenizer):
    failed = play_script(count_task(2), [LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    failed.fail("2013: lost connection")
    run = save_episodes(tmp_path, sqlite_database, [failed])
    notes: list[str] = []
    assert list(saved_episodes(run, notes)) == []
    assert notes == [f"{run}: 1 episode left out: void, as the environment had failed."]
    save_run(run, sqlite_database, tokenizer, [(count_task(3), [LOOK, answer("[(3,)]")])], phase="eval")
    assert list(saved_episodes(run, [])) == []
    assert [record["task_id"] for record, _ in saved_episodes(run, [], phases=("eval",))] == ["late-3"]


def test_labels_by_outcome_and_by_a_recorded_step_reward(tmp_path, sqlite_database, tokenizer):
    task = count_task(2)
    episode = play_script(task, [sql("SELEC 1"), LOOK, answer("[(2,)]")], tokenizer, sqlite_database)
    for turn, value in zip(episode.turns, executes([episode])[0], strict=True):
        turn.rewards |= {} if value is None else {"executes": value}  # as the trainer notes them
    run = save_episodes(tmp_path, sqlite_database, [episode])
    record, _ = next(saved_episodes(run, []))
    assert step_labels(record) == [True, True, True]
    assert step_labels(record, "executes") == [None, True, True], "the answer has no value, but the outcome"
    record["turns"][0]["rewards"]["executes"] = -1.0
    record["turns"][2]["rewards"] = {"executes": -0.5}
    assert step_labels(record, "executes") == [False, True, False]
    assert step_labels(record, "state_progress") is None, (
        "a greedy episode, or a task that it says nothing of"
    )


def test_no_task_is_on_both_sides():
    rows = [(f"task-{n % 10}", {"ids": [n % 10, n]}) for n in range(50)]
    halves = Rows.of(rows, 0.3, seed=0)
    assert len(halves.train) == 35 and len(halves.held_out) == 15
    assert {row["ids"][0] for row in halves.train}.isdisjoint({row["ids"][0] for row in halves.held_out})
    assert halves.tasks == [f"task-{row['ids'][0]}" for row in halves.held_out]
    assert Rows.of(rows, 0.3, seed=0) == halves
    assert Rows.of(rows[:1], 0.5, seed=0).held_out == [], "of a single task nothing can be held out"
    assert Rows.of(rows, 0.0, seed=0).held_out == Rows.of([], 0.5, seed=0).train == []
