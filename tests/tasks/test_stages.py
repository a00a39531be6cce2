"""Which tasks come in which stage of a stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from databases import table, task

from trl_dbbench import ConfigError, Task
from trl_dbbench.tasks import Gold, Source
from trl_dbbench.tasks.stages import Stage, kind_of, plan_stages, shared_with_training


def of(*skills: str, operation: str = "SELECT", tables: str = "medals", question: str = "Which?") -> Task:
    return replace(
        task(table(tables, "nation TEXT", ("Chad",))),
        operation=operation,
        skills=skills,
        question=question,
        gold=Gold(answer=(("Chad",),)),
    )


PLAIN = of("select")
WHERE = of("select", "where_single_condition")
ORDERED = of("select", "where_single_condition", "order_by_single_column")
CHANGED = of("update", "where_single_condition", operation="UPDATE", tables="cups")
TASKS = [ORDERED, PLAIN, CHANGED, WHERE, PLAIN]


def stages(*args, **options) -> dict[str, tuple[int, ...]]:
    return {stage.name: stage.rows for stage in plan_stages(*args, **options).stages}


def test_a_task_comes_when_the_last_of_its_skills_does():
    assert stages(TASKS, "skills") == {
        "select": (1, 4),
        "where_single_condition": (2, 3),  # `update` comes before it
        "order_by_single_column": (0,),
    }


def test_databases_of_one_dump_are_told_apart():
    """BIRD has all of its databases for MySQL in one dump."""
    pets, towns = (Source("/dev.sql", "0" * 16, only=only) for only in (("pets", "owners"), ("towns",)))
    tasks = [replace(PLAIN, source=source) for source in (pets, towns, pets)]
    assert stages(tasks, "databases") == {"owners+pets": (0, 2), "towns": (1,)}
    shops = [replace(PLAIN, source=Source("/shops.sql", "0" * 16, name=name)) for name in ("north", "south")]
    assert stages(shops, "databases") == {"north": (0,), "south": (1,)}


def test_a_list_says_which_skills_and_in_which_order():
    assert stages(TASKS, ["where_single_condition", "select"]) == {
        "where_single_condition": (2,),
        "select": (0, 1, 3, 4),
    }
    assert plan_stages(TASKS, ["update", "select"]).left_out == 0
    assert plan_stages(TASKS, ["update", "order_by_single_column"]).left_out == 3


def test_by_operation_database_and_file():
    assert stages(TASKS, "operations") == {"SELECT": (0, 1, 3, 4), "UPDATE": (2,)}
    assert stages(TASKS, ["UPDATE", "SELECT"]) == {"UPDATE": (2,), "SELECT": (0, 1, 3, 4)}
    assert stages(TASKS, "databases") == {"medals": (0, 1, 3, 4), "cups": (2,)}
    assert stages(TASKS, ["file"], size=2) == stages(TASKS, "file", size=2)  # as the command line gives it
    assert stages(TASKS, "file", size=2) == {
        "tasks 1 to 2": (0, 1),
        "tasks 3 to 4": (2, 3),
        "tasks 5 to 5": (4,),
    }


def test_easy_to_hard_is_by_the_number_of_skills():
    """select's tasks have one, those of WHERE two, the ordered one three."""
    assert list(stages(TASKS, "skills", order="difficulty")) == [
        "select",
        "where_single_condition",
        "order_by_single_column",
    ]


def test_a_seed_draws_the_order_of_the_same_stages():
    drawn = [stages(TASKS, "skills", order="random", seed=seed) for seed in range(9)]
    assert all(each == drawn[0] for each in drawn)  # as dictionaries, whatever their order
    assert len({tuple(each) for each in drawn}) > 1
    once, again = (plan_stages(TASKS, "skills", order="random", seed=3) for _ in range(2))
    assert once == again
    assert {once.groups[once.group_of(each)] for each in (PLAIN, WHERE, ORDERED)} == {*drawn[0]}


def test_mixed_is_one_stage_and_keeps_the_groups_to_measure_in():
    mixed = plan_stages(TASKS, "skills", order="mixed")
    assert mixed.stages == (Stage("all", (0, 1, 2, 3, 4)),)
    assert mixed.groups == plan_stages(TASKS, "skills").groups


def test_held_out_tasks_belong_to_the_stage_that_they_would_be_trained_in():
    planned = plan_stages(TASKS, "skills")
    assert [planned.group_of(each) for each in TASKS] == [2, 0, 1, 1, 0]
    assert planned.group_of(of("insert", operation="INSERT")) is None


def test_shared_tables_and_questions_are_found():
    other = of("select", question="Another?", tables="cups")
    assert shared_with_training([PLAIN], [other]) == []
    assert shared_with_training([PLAIN], [of("select", question="  which? ", tables="cups")])
    assert shared_with_training([PLAIN], [of("select", question="Another?")])  # the same table
    assert shared_with_training([PLAIN], [of("select", question="Another?")], tables=False) == []


@pytest.mark.parametrize(
    "stream, message",
    [
        ("skill", r"unknown stream 'skill'; .*nearest: skills"),
        (["select", "selct"], r"unknown stage of stream 'selct'; .*nearest: select"),
        (["select", "UPDATE"], r"select, UPDATE are skills and operations"),
        (["select", "select"], r"stream names 'select' twice"),
        ([], r"stream is empty"),
    ],
)
def test_names_that_are_not_known(stream, message):
    with pytest.raises(ConfigError, match=message):
        kind_of(stream)


def test_a_stage_without_tasks_says_why():
    with pytest.raises(
        ConfigError, match=r"no training task belongs to 'update'.*the tasks have select, update"
    ):
        plan_stages(TASKS, ["update", "where_single_condition"])
    with pytest.raises(ConfigError, match="make 1 stages by operations; at least 2 are needed"):
        plan_stages([PLAIN, WHERE], "operations")
    with pytest.raises(ConfigError, match="one stage of 5 tasks, as stage_tasks is 5"):
        plan_stages(TASKS, "file", size=5)
