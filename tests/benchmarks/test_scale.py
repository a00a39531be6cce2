"""The simulation of a training step, on cases that can be worked out by hand. Seconds are simulated ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import scale
from simulation import STAGES, WAYS, Costs, Curve, Job, Outcome, Play, Setup, Simulation, Turn, lent

CURVE = Curve(a=0.01, c=0.0, prefill=1000.0)
"""A token takes 10 ms, however many sequences run; a token that is read 1 ms."""


def run(setup: Setup, *plays: Play, steps: int = 1) -> Outcome:
    return Simulation(setup, lambda step: plays).run(steps)


def seconds(setup: Setup, *plays: Play, steps: int = 1) -> float:
    return run(setup, *plays, steps=steps).step


def test_an_episode_alone_takes_the_sum_of_its_parts() -> None:
    statement = Job(trips=2, server=0.05, client=0.01, wait=0.04)
    play = Play((Turn(20, 5, statement), Turn(30)), prompt_tokens=100)
    setup = Setup(CURVE, database_trip=0.1, vllm_trip=0.02, turn_client=0.003, update=1.0)
    turns = 2 * (0.003 + 0.02) + 0.105 + (20 + 30) * 0.01
    database = 0.01 + 2 * 0.1 + 0.04 + 0.05
    outcome = run(setup, play)
    assert outcome.rollout == pytest.approx(turns + database)
    assert outcome.step == pytest.approx(turns + database + 1.0)


def test_the_tables_are_made_while_the_first_turn_is_written() -> None:
    play = Play((Turn(20, statement=Job(wait=0.1)),), opening=Job(wait=0.5), reads=False)
    assert seconds(Setup(CURVE), play) == pytest.approx(0.5 + 0.1)


def test_the_tables_of_readings_are_made_once_for_a_prompt_and_its_other_episodes_wait() -> None:
    """One makes them in 0.5 s, the other needs 0.1 s after that; changes have tables of their own."""
    same = [Play((Turn(10, statement=Job(wait=0.2)),), making=Job(wait=0.5), opening=Job(wait=0.1))] * 2
    assert seconds(Setup(CURVE), *same) == pytest.approx(0.5 + 0.1 + 0.2)
    assert seconds(Setup(CURVE, statements=1), *same) == pytest.approx(0.5 + 0.1 + 0.2 + 0.2)
    assert seconds(Setup(CURVE, databases=2), *same) == pytest.approx(0.5 + 0.2)
    own = [replace(play, reads=False) for play in same]
    assert seconds(Setup(CURVE), *own) == pytest.approx(0.1 + 0.2)


def test_an_episode_is_judged_and_closed_after_its_last_turn() -> None:
    assert seconds(
        Setup(CURVE), Play((Turn(20),), judging=Job(wait=0.3), closing=Job(wait=0.1))
    ) == pytest.approx(0.6)


def test_two_episodes_on_a_server_that_takes_one_follow_each_other() -> None:
    one_at_a_time = Curve(0.01, 0.0, 1000.0, sequences=1)
    assert seconds(Setup(one_at_a_time), *[Play((Turn(50),))] * 2) == pytest.approx(1.0)
    assert seconds(Setup(CURVE), *[Play((Turn(50),))] * 2) == pytest.approx(0.5)


def test_sequences_slow_each_other_down_as_long_as_they_run_together() -> None:
    """For 10 tokens both run, at 10 + 2 * 5 ms; then one has 30 more, at 15 ms."""
    curve = Curve(0.01, 0.005, 1000.0)
    assert seconds(Setup(curve), Play((Turn(10),)), Play((Turn(40),))) == pytest.approx(
        10 * 0.02 + 30 * 0.015
    )


def test_a_prompt_is_read_once_for_its_episodes_on_a_server() -> None:
    same = [Play((Turn(10),), prompt=0, prompt_tokens=100)] * 2
    other = [Play((Turn(10),), prompt=prompt, prompt_tokens=100) for prompt in range(2)]
    assert seconds(Setup(CURVE), *same) == pytest.approx(0.1 + 0.1)
    assert seconds(Setup(CURVE), *other) == pytest.approx(0.2 + 0.1)
    assert seconds(Setup(CURVE, vllm=2), *other) == pytest.approx(0.1 + 0.1)


def test_a_second_vllm_server_does_not_help_the_episodes_of_one_prompt() -> None:
    one_at_a_time = Curve(0.01, 0.0, 1000.0, sequences=1)
    same = [Play((Turn(50),))] * 2
    other = [Play((Turn(50),), prompt=prompt) for prompt in range(2)]
    assert seconds(Setup(one_at_a_time, vllm=2), *same) == pytest.approx(1.0)
    assert seconds(Setup(one_at_a_time, vllm=2), *other) == pytest.approx(0.5)
    assert seconds(Setup(one_at_a_time, vllm=2, ranks=2), *same) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        (Setup(CURVE, statements=1), 0.1 + 4 * 0.5),
        (Setup(CURVE, statements=4), 0.1 + 0.5),
        (Setup(CURVE, statements=1, databases=2), 0.1 + 2 * 0.5),
        (Setup(CURVE, statements=1, ranks=2), 0.1 + 2 * 0.5),
    ],
    ids=["one statement at a time", "four", "one on each of two servers", "one of each of two ranks"],
)
def test_statements_wait_for_one_another(setup: Setup, expected: float) -> None:
    play = Play((Turn(10, statement=Job(wait=0.5)),))
    assert seconds(setup, *[play] * 4) == pytest.approx(expected)


def test_a_databases_cores_are_shared_by_all_ranks_statements() -> None:
    play = Play((Turn(10, statement=Job(server=0.5)),))
    outcome = run(Setup(CURVE, ranks=2, cores=1), *[play] * 4)
    assert outcome.rollout == pytest.approx(0.1 + 4 * 0.5)
    assert outcome.busy["database"] == pytest.approx(2.0 / 2.1)


def test_the_core_of_a_rank_does_one_thing_at_a_time() -> None:
    """The turns begin one after another; the last one's tokens end the rollout."""
    outcome = run(Setup(CURVE, turn_client=0.1), *[Play((Turn(10),))] * 4)
    assert outcome.rollout == pytest.approx(4 * 0.1 + 0.1)
    assert outcome.busy["trainer"] == pytest.approx(0.4 / 0.5)
    assert seconds(Setup(CURVE, turn_client=0.1, ranks=4), *[Play((Turn(10),))] * 4) == pytest.approx(0.2)


@pytest.mark.parametrize(("update", "longer"), [(0.2, 0.5), (0.9, 0.9)])
def test_a_rollout_ahead_takes_the_longer_of_rollout_and_update(update: float, longer: float) -> None:
    play = Play((Turn(50),))
    assert seconds(Setup(CURVE, update=update), play, steps=4) == pytest.approx(0.5 + update)
    assert seconds(Setup(CURVE, update=update, ahead=1), play, steps=4) == pytest.approx(longer)


def test_two_rollouts_ahead_halve_what_rollouts_take_that_only_wait() -> None:
    play = Play((Turn(50),))
    assert seconds(Setup(CURVE, update=0.01, ahead=2), play, steps=20) == pytest.approx(0.25, rel=0.1)


def test_episodes_that_take_connections_from_one_another_pay_for_it() -> None:
    play = Play((Turn(10, statement=Job(wait=0.5)),), again=Job(wait=0.2), reads=False)
    assert seconds(Setup(CURVE, slots=2), *[play] * 2) == pytest.approx(0.1 + 0.5)
    assert seconds(Setup(CURVE, slots=2), *[play] * 3) == pytest.approx(0.1 + 0.5 + 0.2)


def test_four_states_are_read_at_a_time() -> None:
    changes = Play((Turn(10),), judging=Job(wait=0.5), reads=False)
    assert seconds(Setup(CURVE), *[changes] * 8) == pytest.approx(0.1 + 2 * 0.5)


@pytest.mark.parametrize(
    ("max_connections", "ranks", "statements", "slots"),
    [(24, 1, 1, 1), (40, 1, 5, 8), (60, 1, 11, 20), (100, 1, 23, 44), (151, 1, 32, 81), (151, 4, 4, 7)],
)
def test_the_connections_that_a_server_lends(
    max_connections: int, ranks: int, statements: int, slots: int
) -> None:
    assert lent(max_connections, ranks) == {"statements": statements, "slots": slots}


# --- what an episode costs ----------------------------------------------------------------------------


def test_the_costs_that_come_with_the_benchmark_are_of_readings_and_changes() -> None:
    costs = Costs.read(ROOT / "benchmarks/results/scale_costs.json")
    play = costs.play("changes", [(20, 0), (30, 5)], prompt=3, prompt_tokens=100)
    assert [turn.statement for turn in play.turns] == [costs.jobs["changes"]["statement"], None]
    assert (play.prompt, play.prompt_tokens, play.reads) == (3, 100, False)


@pytest.mark.parametrize("text", [None, "no JSON", '{"jobs": {"reads": {}}, "turn_client": 0.1}'])
def test_a_file_without_costs_is_told_how_to_write_one(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "costs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        SystemExit, match=r"--costs .*costs\.json is not a file of costs .*--measure --json FILE"
    ):
        Costs.read(file)


def test_a_number_that_is_too_small_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scale.py", "--ranks", "0"])
    with pytest.raises(SystemExit):
        scale.main()
    assert "argument --ranks: 0 is too small; give at least 1" in capsys.readouterr().err


def test_the_table_names_the_part_that_is_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "EPISODES", (64,))
    monkeypatch.setattr(scale, "VLLM", (1, 8))
    costs = Costs({way: dict.fromkeys(STAGES, Job()) for way in WAYS}, turn_client=0.0)
    setup = Setup(Curve(0.01, 0.0, 1e6, sequences=4))
    one, eight = scale.print_table(setup, 0.0, scale.Work(2, 50, 100, 20), costs)[:: len(scale.DATABASES)]
    assert one["busy"]["vLLM"] > 0.9 and one["step"] > 4 * eight["step"]
    assert " vLLM" in capsys.readouterr().out.splitlines()[2]
