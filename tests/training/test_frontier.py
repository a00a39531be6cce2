"""Tasks at the frontier: what is expected of a task, and which are drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from databases import table, task
from training import episodes_in, quickstart_trainer

from trl_dbbench import Task, to_dataset
from trl_dbbench.episode.dataset import to_fresh_dataset
from trl_dbbench.tasks import Gold
from trl_dbbench.training.frontier import FRESH_CANDIDATES, HALF_LIFE, Frontier, Names


def of(name: str, *skills: str, tables: str = "medals") -> Task:
    """A task with these skills, over a table of this name."""
    return replace(
        task(table(tables, "nation TEXT", ("Chad",))), id=name, skills=skills, gold=Gold(answer=(("Chad",),))
    )


def samples(played: Task, right: int, wrong: int) -> list[dict]:
    record = {"task_digest": played.digest, "status": "answered"}
    return [{**record, "right": number < right} for number in range(right + wrong)]


def drawn(frontier: Frontier, number: int, seed: int = 0) -> list[int]:
    rows = frontier.further(np.random.default_rng(seed))
    return [next(rows) for _ in range(number)]


def played(frontier: Frontier, *episodes: list[dict]) -> dict[str, list[float]]:
    """Records a rollout in which all these tasks had been drawn."""
    drawn(frontier, 200)
    return frontier.record([episode for each in episodes for episode in each])


# --- what is expected -----------------------------------------------------------------------------

EASY, HARD, MIXED = (
    of("easy", "select"),
    of("hard", "select", "limit_only"),
    of("mixed", "update", tables="cups"),
)


@pytest.fixture
def frontier() -> Frontier:
    return Frontier(to_dataset([EASY, HARD, MIXED]))


def test_nothing_is_known_at_first(frontier):
    assert [frontier.expected(Names.of(each.to_json())) for each in (EASY, HARD, MIXED)] == [0.5, 0.5, 0.5]


def test_a_tasks_own_samples_count_on_top_of_those_of_tasks_like_it(frontier):
    """Eight samples, all right: the task's kind and its tables have 9 / 10; so Beta(0.9 * 2 + 8, 0.1 * 2)."""
    played(frontier, samples(EASY, 8, 0))
    assert frontier.expected(Names.of(EASY.to_json())) == pytest.approx(9.8 / 10)
    assert frontier.expected(Names.of(HARD.to_json())) == pytest.approx(
        0.9
    )  # of another kind, over the same tables


def test_the_mean_of_kind_and_tables(frontier):
    """`select, limit_only` is solved once in eight, 2 / 10; over `medals` nine of sixteen samples are right."""
    played(frontier, samples(EASY, 8, 0), samples(HARD, 1, 7))
    over_medals = of("unseen", "limit_only", "select")
    assert frontier.expected(Names.of(over_medals.to_json())) == pytest.approx((2 / 10 + 10 / 18) / 2)
    elsewhere = of("unseen", "limit_only", "select", tables="lakes")
    assert frontier.expected(Names.of(elsewhere.to_json())) == pytest.approx(2 / 10)


def test_where_neither_was_played_the_hardest_skill_decides(frontier):
    played(frontier, samples(EASY, 8, 0), samples(HARD, 1, 7))
    new = of("unseen", "select", "limit_only", "column_alias", tables="lakes")
    assert frontier.expected(Names.of(new.to_json())) == pytest.approx(2 / 10)


def test_what_is_old_counts_less(frontier):
    played(frontier, samples(EASY, 8, 0))
    for _ in range(HALF_LIFE):
        frontier.record([])
    # 4 of 4 by now; its kind and tables have 5 / 6
    assert frontier.expected(Names.of(EASY.to_json())) == pytest.approx((2 * 5 / 6 + 4) / (2 + 4))


def test_an_episode_whose_environment_failed_says_nothing(frontier):
    failed = [{**each, "status": "environment_fault"} for each in samples(EASY, 0, 8)]
    played(frontier, failed)
    assert frontier.expected(Names.of(EASY.to_json())) == 0.5


# --- what is drawn --------------------------------------------------------------------------------


def world() -> list[Task]:
    """Ten kinds of tasks, ten tasks each, over tables of their own."""
    skills = "select insert delete update limit_only column_alias table_alias subquery_single subquery_nested"
    kinds = [*skills.split(), "group_by_single_column"]
    return [of(f"{kind}-{number}", kind, tables=kind) for kind in kinds for number in range(10)]


def taught(
    frontier: Frontier, tasks: list[Task], accuracy: dict[str, float], rollouts: int, seed: int
) -> Counter:
    """The kinds that were drawn, each sample right with its kind's accuracy."""
    random, kinds = np.random.default_rng(seed), Counter[str]()
    for rollout in range(rollouts):
        rows = drawn(frontier, 8, seed=1000 * seed + rollout)
        chosen = [tasks[row] for row in rows]
        kinds.update(each.skills[0] for each in chosen)
        rights = [(each, int(random.binomial(8, accuracy[each.skills[0]]))) for each in chosen]
        frontier.record([e for each, right in rights for e in samples(each, right, 8 - right)])
    return kinds


@pytest.mark.parametrize("seed", range(3))
def test_most_draws_are_of_what_is_neither_too_easy_nor_too_hard(seed):
    """Two kinds of ten are solved now and then; the others always or never. No kind is given up."""
    tasks = world()
    kinds = [*dict.fromkeys(each.skills[0] for each in tasks)]
    accuracy = {kind: (0.0, 0.4, 1.0, 1.0, 0.0)[number % 5] for number, kind in enumerate(kinds)}
    found = taught(Frontier(to_dataset(tasks)), tasks, accuracy, rollouts=40, seed=seed)
    middle = sum(found[kind] for kind in kinds if accuracy[kind] == 0.4)
    assert middle / sum(found.values()) > 0.5  # 0.2 at random
    assert all(found[kind] >= 3 for kind in kinds)


def test_what_was_too_hard_comes_back_when_it_no_longer_is():
    tasks = world()
    kinds = [*dict.fromkeys(each.skills[0] for each in tasks)]
    frontier, first = Frontier(to_dataset(tasks)), kinds[0]
    before = taught(frontier, tasks, {kind: 0.0 if kind == first else 1.0 for kind in kinds}, 30, seed=1)
    after = taught(frontier, tasks, {kind: 0.5 if kind == first else 1.0 for kind in kinds}, 60, seed=2)
    assert after[first] / sum(after.values()) > 2 * before[first] / sum(before.values())


def test_the_same_generator_and_counts_draw_the_same(frontier):
    played(frontier, samples(EASY, 8, 0), samples(HARD, 1, 7))
    other = Frontier(to_dataset([EASY, HARD, MIXED]))
    other.load_state_dict(frontier.state_dict())
    assert drawn(other, 50, seed=4) == drawn(frontier, 50, seed=4)


def test_what_is_logged(frontier):
    logged = played(frontier, samples(EASY, 8, 0))
    assert logged == {"frontier/expected": [0.5] * 3, "frontier/known": [0.0] * 3}
    again = played(frontier, samples(EASY, 8, 0))
    assert sorted(again["frontier/known"]) == [0.0, 0.0, 1.0]


def test_a_file_of_few_tasks_fills_the_batch(sqlite_database, demo_tasks, tmp_path):
    """Two prompts a batch, and one task, twice: it is played twice."""
    dataset = to_dataset([demo_tasks[0], demo_tasks[0]])
    settings = {"task_sampling": "frontier", "max_steps": 1}
    quickstart_trainer(sqlite_database, tmp_path, dataset=dataset, **settings).train()
    assert len([e for e in episodes_in(tmp_path) if e["phase"] == "train"]) == 8


def test_counts_that_are_old_are_dropped(frontier):
    played(frontier, samples(EASY, 8, 0))
    assert len(frontier.state_dict()["counts"]) == 5  # the task, its kind, tables, operation and skill
    for _ in range(8 * HALF_LIFE):
        frontier.record([])
    assert frontier.state_dict()["counts"] == {}


def test_fresh_tasks_are_made_when_they_are_drawn():
    made: list[int] = []

    def fresh(draw: int) -> Task:
        made.append(draw)
        return of(f"draw-{draw}", "select")

    drawn(Frontier(to_fresh_dataset(fresh)), 4)
    assert 0 < len(made) <= 4 * FRESH_CANDIDATES


def test_a_run(sqlite_database, tmp_path):
    trainer = quickstart_trainer(sqlite_database, tmp_path, task_sampling="frontier", max_steps=3)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "frontier/expected" in entry]
    assert logged[0]["frontier/expected"] == 0.5
    assert len(logged) == 3
