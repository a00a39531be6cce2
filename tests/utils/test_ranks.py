"""Two ranks: what happens to one never hangs the other. What they do is in two_ranks.py."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import two_ranks as two_ranks_module
from accelerate import DistributedType
from launching import SHARDED, TWO_CPUS, TWO_RANKS, fork_ranks, launch_ranks, seen
from safetensors.torch import load_file
from training import SPLIT_ESTIMATORS, episodes_in, estimator_settings, make_trainer
from two_ranks import TASKS

from trl_dbbench.engines.policy import forward_is_collective


@pytest.fixture(scope="module")
def two_ranks(tiny_model, tmp_path_factory) -> Path:
    """What two ranks, each with the whole model, saw of several troubles in a row."""
    scenarios = (
        "refuses,one_group,shares_prompts,in_parts,stays_away,opening_fails,opening_fails_elsewhere,"
        "sees_another_checkpoint,reward_fails,engine_fails,episode_fails"
    )
    return play_on_two(scenarios, tiny_model, tmp_path_factory.mktemp("two_ranks"))


@pytest.fixture(scope="module")
def two_ranks_in_order(tiny_model, tmp_path_factory) -> Path:
    """Runs of two ranks that tests compare with runs of one."""
    folder = tmp_path_factory.mktemp("two_ranks_in_order")
    return play_on_two("estimators,ppo,ppo_model,prime", tiny_model, folder)


def play_on_two(scenarios: str, model: str, folder: Path) -> Path:
    status, output = fork_ranks(TWO_RANKS, scenarios, model, folder)
    assert status == 0, output
    return folder


# --- one rank's database fails --------------------------------------------------------------------


@pytest.mark.slow
def test_one_ranks_database_refuses_and_both_end_the_step(two_ranks):
    first, second = seen(two_ranks, "refuses")

    assert (first["steps"], second["steps"]) == (2, 2)
    assert first["finite"]
    assert first["moved"], "rank 0's episodes are trained"
    assert first["weights"] == second["weights"]
    for step in (0, 1):
        played = [
            e for e in episodes_in(two_ranks / "refuses") if e["phase"] == "train" and e["step"] == step
        ]
        assert [e["status"] for e in played] == ["turn_limit"] * 4 + ["environment_fault"] * 4
        assert [e["rewards"]["outcome"] for e in played] == [-0.8] * 4 + [None] * 4
        assert [e["rewards"]["varied"] is None for e in played] == [False] * 4 + [True] * 4
        assert [e["advantage"] == 0 for e in played[4:]] == [True] * 4


def test_the_metrics_count_all_ranks(two_ranks):
    for logged in (rank["logged"] for rank in seen(two_ranks, "refuses")):
        assert logged["status/environment_fault"] == 0.5
        assert logged["status/turn_limit"] == 0.5
        assert logged["rewards/outcome/mean"] == pytest.approx(-0.8)


def test_a_database_that_stays_away_from_one_rank_ends_all(two_ranks):
    for rank in seen(two_ranks, "stays_away"):
        assert rank["error"].startswith("DatabaseError: 2003: cannot connect. The database was waited for")
    assert (two_ranks / "stays_away" / "checkpoint-0").is_dir()


def test_a_database_that_one_rank_cannot_open_ends_all(two_ranks):
    assert seen(two_ranks, "opening_fails") == [{"error": "On rank 1: no route to host"}] * 2


def test_a_server_of_one_machine_is_refused_on_all_with_what_to_name_instead(two_ranks):
    for rank in seen(two_ranks, "opening_fails_elsewhere"):
        assert rank["error"].startswith(
            "DatabaseError: On rank 1: 2003: cannot connect. This rank runs on beta, and"
        )
        assert "'local' starts a server for alpha alone" in rank["error"]
        assert "mysql+pymysql://" in rank["error"]


def test_machines_that_see_other_checkpoints_do_not_go_on(two_ranks):
    for rank in seen(two_ranks, "sees_another_checkpoint"):
        assert rank["error"].startswith("ConfigError: resume_from_checkpoint: rank 0 sees checkpoint-3 in ")
        assert "and rank 1 on beta none. output_dir must be one folder" in rank["error"]


# --- a group over both ranks ----------------------------------------------------------------------


def test_advantages_of_a_group_over_both_ranks(two_ranks):
    """Each rank trains its own two episodes on what the group of all four gives them; the log has all four."""
    played = [e for e in episodes_in(two_ranks / "one_group") if e["phase"] == "train"]
    rewards = [e["rewards"]["varied"] for e in played]
    assert len(rewards) == 4 and len(set(rewards)) > 1
    trained = [row for rank in seen(two_ranks, "one_group") for row in rank["trained"]]
    for episode, reward, tokens in zip(played, rewards, trained, strict=True):
        centred = reward - sum(rewards) / 4
        expected = [centred * (number + 1) for number in range(len(episode["turns"]))]
        assert [turn.get("advantage", 0.0) for turn in episode["turns"]] == pytest.approx(expected, abs=1e-4)
        assert tokens == pytest.approx(sorted(filter(None, expected)), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "beside"), [("ppo", "critic"), ("ppo_model", "critic"), ("prime", "prime")]
)
def test_two_ranks_train_as_one_with_the_double_batch(
    two_ranks_in_order, tiny_model, tmp_path, scenario, beside
):
    """PPO and PRIME: the same advantages, and the same weights of the policy and of what learns beside it."""
    first, second = seen(two_ranks_in_order, scenario)
    for part in ("policy", beside):
        assert first[part] == second[part], "the ranks agree to the bit"
    alone = getattr(two_ranks_module, scenario)(tiny_model, tmp_path, 0)
    for step, rows in enumerate(alone["advantages"]):
        both = [*first["advantages"][step], *second["advantages"][step]]
        # each rank shuffles its own rows, and pads them to its own longest
        compared = [sorted([value for value in row if value] for row in each) for each in (both, rows)]
        assert any(compared[1])
        for row, expected in zip(*compared, strict=True):
            assert row == pytest.approx(expected, abs=1e-3)
    for part in ("policy", beside):
        for name, weight in alone[part].items():
            torch.testing.assert_close(
                torch.tensor(first[part][name]), torch.tensor(weight), rtol=0.05, atol=2e-4
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT_ESTIMATORS)
def test_two_ranks_are_given_what_one_with_the_double_batch_is(
    two_ranks_in_order, tiny_model, sqlite_database, tmp_path, name
):
    """By turn, in both of two steps: the second one's baseline is of the first."""
    make_trainer(tiny_model, sqlite_database, TASKS, tmp_path, **estimator_settings(name, rows=12)).train()
    alone = [e for e in episodes_in(tmp_path) if e["phase"] == "train"]
    split = [e for e in episodes_in(two_ranks_in_order / "estimators" / name) if e["phase"] == "train"]
    assert len(alone) == 24 and any(e["advantage"] for e in alone)
    for one, other in zip(alone, split, strict=True):
        assert other["rewards"] == one["rewards"], "the same episodes"
        assert other["advantage"] == pytest.approx(one["advantage"], abs=1e-5)
        assert [turn.get("advantage") for turn in other["turns"]] == [
            pytest.approx(turn["advantage"], abs=1e-5) if "advantage" in turn else None
            for turn in one["turns"]
        ]


# --- an exception on one rank ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "failing", "error"),
    [
        ("reward_fails", 1, "KeyError: 'no such column'"),
        ("engine_fails", 0, "MemoryError: 16 GiB"),
        ("episode_fails", 1, "ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_an_exception_ends_all_ranks_and_all_say_why(two_ranks, scenario, failing, error):
    errors = [rank["error"] for rank in seen(two_ranks, scenario)]
    assert errors[failing] == error
    by = "; raised by the reward function 'picky'" if scenario == "reward_fails" else ""
    assert errors[1 - failing] == (
        f"RankError: rank {failing} failed, and all ranks end with it. Its error: {error}{by}"
    )


def test_the_step_that_fails_is_the_first_not_done(two_ranks):
    assert [rank["steps"] for rank in seen(two_ranks, "reward_fails")] == [1, 1]


@pytest.mark.slow
def test_a_crash_elsewhere_ends_all_and_the_server(tiny_model, local_database, tmp_path, monkeypatch):
    """Rank 0 waits for rank 1 in a collective and owns the server; the launcher ends it."""
    with tempfile.TemporaryDirectory(prefix="ranks") as temporary:  # a socket's path must be short
        monkeypatch.setenv("TMPDIR", temporary)
        status, output = launch_ranks(TWO_CPUS, "crash", tiny_model, tmp_path)

        assert status != 0
        assert "RuntimeError: a bug outside of the rollout" in output
        deadline = time.monotonic() + 10
        while (left := left_in(temporary)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []


def left_in(temporary: str) -> list[str]:
    """Folders and processes of a private server."""
    servers = subprocess.run(["pgrep", "-f", f"datadir={temporary}"], capture_output=True, text=True)
    return [*map(str, Path(temporary).glob("dbb*")), *servers.stdout.split()]


def test_two_ranks_compute_each_prompt_once(two_ranks):
    check_shared(*seen(two_ranks, "shares_prompts"))


def check_shared(*ranks: dict) -> None:
    """Two steps, each with the reference's and the policy's forward pass, end with the usual weights."""
    for rank in ranks:
        assert (rank["auto"]["forwards"], rank["off"]["forwards"]) == (4, 0)
        assert rank["auto"]["norms"] == pytest.approx(rank["off"]["norms"], rel=1e-5)


def test_micro_batches_in_parts(two_ranks):
    check_divided(*seen(two_ranks, "in_parts"))


def check_divided(*ranks: dict) -> None:
    """Each of four micro-batches has four passes on both ranks, though two rows of rank 0 would fit into one."""
    for rank in ranks:
        assert (len(rank["whole"]["passes"]), len(rank["divided"]["passes"])) == (4, 16)
        assert max(rank["divided"]["passes"]) <= 1150
        assert rank["divided"]["norms"] == pytest.approx(rank["whole"]["norms"], rel=1e-5)
        assert rank["divided"]["logged"] == pytest.approx(rank["whole"]["logged"], rel=1e-4)
    assert ranks[0]["divided"]["norms"]


# --- ranks that share the weights -----------------------------------------------------------------


@pytest.mark.slow
def test_fsdp2_trains_with_one_turn_here_and_three_there(tiny_model, tmp_path):
    """Every layer's forward is a collective, for which both ranks must be at the same token."""
    status, output = launch_ranks(SHARDED, "sharded,shares_prompts,in_parts", tiny_model, tmp_path)

    assert status == 0, output
    first, second = seen(tmp_path, "sharded")
    assert first["sharded"]
    assert second["sharded"]
    assert first["steps"] == second["steps"] == 2
    turns = [(e["step"], e["phase"], len(e["turns"])) for e in episodes_in(tmp_path / "sharded")]
    for step in (0, 1):
        assert [t for s, phase, t in turns if (s, phase) == (step, "greedy")] == [1, 3]
        assert [t for s, phase, t in turns if (s, phase) == (step, "train")] == [1] * 4 + [3] * 4
    # two held-out tasks fill half a batch; rank 1 plays them again, to keep step, and that does not count
    assert [t for s, phase, t in turns if phase == "eval"] == [1, 1] * 2

    saved = load_file(tmp_path / "sharded" / "adapter_model.safetensors")
    assert {name: float(weight.double().sum()) for name, weight in saved.items()} == {
        name.replace(".default", ""): weight for name, weight in first["weights"].items()
    }
    assert max(float(weight.abs().max()) for name, weight in saved.items() if "lora_B" in name) > 0
    assert (tmp_path / "sharded" / "checkpoint-1" / "optimizer.bin").exists()
    check_shared(*seen(tmp_path, "shares_prompts"))
    check_divided(*seen(tmp_path, "in_parts"))


@pytest.mark.parametrize(
    ("kind", "zero_stage", "ranks", "collective"),
    [
        (DistributedType.FSDP, None, 2, True),
        (DistributedType.FSDP, None, 1, False),
        (DistributedType.DEEPSPEED, 3, 2, True),
        (DistributedType.DEEPSPEED, 2, 2, False),
        (DistributedType.MULTI_GPU, None, 2, False),
    ],
)
def test_where_a_forward_is_a_collective(kind, zero_stage, ranks, collective):
    plugin = None if zero_stage is None else SimpleNamespace(zero_stage=zero_stage)
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=plugin), distributed_type=kind, num_processes=ranks
    )
    assert forward_is_collective(accelerator) == collective
