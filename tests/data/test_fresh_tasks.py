"""Tasks that are made at every draw: `tasks: generate://...`."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import adapter_of, episodes_in, equal, kill, quickstart_trainer

from trl_dbbench.cli.arguments import TaskArguments
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.data.generate.fresh import FreshTasks
from trl_dbbench.database import Database
from trl_dbbench.episode.dataset import task_in
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task
from trl_dbbench.training.config import DBBenchGRPOConfig
from trl_dbbench.training.samplers import task_order


def of(url: str, *draws: int) -> list[Task]:
    fresh = FreshTasks.of(url)
    return [fresh.task(draw) for draw in draws]


def test_a_task_is_a_function_of_settings_and_draw(sqlite_database: Database) -> None:
    tasks = of("generate://full?seed=3", *range(25))
    assert of("generate://full?seed=3", 24, 7) == [tasks[24], tasks[7]]
    assert of("generate://full?seed=4", 7)[0].question != tasks[7].question
    assert len({task.digest for task in tasks}) == 25
    assert {skill for task in tasks[:22] for skill in task.skills} == set(
        FreshTasks.of("generate://full").request.plans()
    )
    assert [each.problem for each in validate(tasks, sqlite_database) if each.problem] == []


def test_settings_are_those_of_generate() -> None:
    tasks = of("generate://full?skills=limit_only,delete&single_skill=true", *range(6))
    assert tasks == of("generate://full?skills=limit_only, delete,&single_skill=true", *range(6))
    assert [("limit_only" in task.skills) + ("delete" in task.skills) for task in tasks] == [1] * 6
    assert {len(task.skills) for task in of("generate://worlds.tiny.level?max_skills=2", *range(8))} <= {1, 2}


def test_their_prompts_show_the_schema_that_is_asked_for() -> None:
    for schema, shows in (("full", True), (None, False)):
        train, _ = TaskArguments(tasks="generate://full", schema=schema).datasets("text")
        assert ("CREATE TABLE" in train[0]["prompt"][-1]["content"]) is shows
        assert task_in(train[0]["task"]).schema == (schema or "names")


def test_a_level_of_ones_own_may_lie_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("levels").mkdir()
    Path("levels/mine.py").write_text(
        "from trl_dbbench.data.generate import find_level\n\ndef level():\n    return find_level('plain')\n"
    )
    assert [task.question for task in of("generate://levels/mine.py:level", 0)] == [
        task.question for task in of("generate://plain", 0)
    ]


@pytest.mark.slow
def test_no_table_and_no_question_of_the_test_split_is_drawn() -> None:
    held_out = generate_tasks(150, level="worlds.tiny.level", split="test")
    drawn = of("generate://worlds.tiny.level", *range(300))
    for what in (lambda task: task.tables, lambda task: task.question):
        assert set(map(what, held_out)).isdisjoint(map(what, drawn))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "generate://ful",
            "unknown level 'ful'; allowed: full, plain, relational, or the dotted path of your own, such as my_module.my_name or my_file.py:my_name. Nearest: full",
        ),
        ("generate://full?sed=1", "unknown setting 'sed'; allowed: seed, .*; nearest: seed"),
        ("generate://full?seed=one", "seed cannot be 'one'"),
        ("generate://full?skills=limit", "unknown skill 'limit'"),
    ],
)
def test_urls_of_nothing(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FreshTasks.of(url)


def test_a_split_of_no_held_out_tasks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"eval_tasks_split: test .* set eval_tasks: me/tasks, too"):
        TaskArguments("me/tasks", tasks_split="train", eval_tasks_split="test")


def test_what_needs_an_end_refuses_them(tmp_path: Path) -> None:
    arguments = TaskArguments("generate://worlds.tiny.level")
    with pytest.raises(ConfigError, match="has no end, and only a training by reward can use it"):
        arguments.load()
    with pytest.raises(ConfigError, match=r"tasks_split: generate://full has no splits\. Leave it out\."):
        TaskArguments("generate://full", tasks_split="train").datasets("text")
    train, held_out = arguments.datasets("text")
    assert held_out is None
    with pytest.raises(ConfigError, match="say with max_steps when the training ends"):
        task_order(train, DBBenchGRPOConfig(str(tmp_path), use_cpu=True, bf16=False))
    args = DBBenchGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, max_steps=3, task_sampling="skill")
    with pytest.raises(ConfigError, match="gives each skill in turn by itself"):
        task_order(train, args)


@pytest.mark.slow
def test_a_resumed_training_draws_the_same_tasks(tmp_path: Path, sqlite_database: Database) -> None:
    train, _ = TaskArguments(
        "generate://worlds.tiny.level?seed=5", system_prompt="Work on the MySQL database."
    ).datasets("text")

    def trainer(folder: str, **settings):
        return quickstart_trainer(
            *(sqlite_database, tmp_path / folder),
            **{
                "max_steps": 4,
                "save_strategy": "steps",
                "save_steps": 2,
                "lora": True,
                "dataset": train,
                **settings,
            },
        )

    whole = trainer("whole")
    whole.train()
    broken = trainer("broken")
    kill(broken, at=3)
    again = trainer("broken")
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-2"))
    assert equal(adapter_of(whole), adapter_of(again))
    drawn = [[e["task_digest"] for e in episodes_in(tmp_path / folder)] for folder in ("whole", "broken")]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 8  # two prompts a step
