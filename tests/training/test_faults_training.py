"""Training over failures of the database server: no step is lost, and no failure becomes a reward."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import torch
from databases import kill_server
from required import LONG
from training import episodes_in, quickstart_trainer
from transformers import TrainerCallback

from trl_dbbench import ExecutionReward, open_database
from trl_dbbench.database.server.start import Server
from trl_dbbench.errors import DatabaseError
from trl_dbbench.runs.replay import replay


class Killing(TrainerCallback):
    """Kills the server some moment after each of these steps has begun; it is back after so many seconds."""

    def __init__(self, server: Server, steps: dict[int, float]):
        self.server, self.steps, self.kills = server, steps, 0
        self.moments = random.Random(5)

    def on_step_begin(self, args, state, control, **kwargs):
        if (away := self.steps.pop(state.global_step, None)) is not None:
            threading.Thread(target=self.kill, args=(self.moments.uniform(0, 0.4), away)).start()

    def kill(self, wait: float, away: float) -> None:
        time.sleep(wait)
        kill_server(self.server)
        self.kills += 1
        time.sleep(away)
        self.server.restart()


@pytest.mark.parametrize(
    ("steps", "kills"),
    [
        pytest.param(5, {1: 0, 3: 3}, marks=pytest.mark.short),
        pytest.param(12, {2: 0, 5: 10, 9: 0}, marks=pytest.mark.slow),
        pytest.param(30, {2: 0, 7: 0, 12: 30, 18: 0, 24: 0}, marks=LONG),
    ],
    ids=["killed twice", "killed three times", "killed five times"],
)
def test_the_server_is_killed_and_once_stays_away(
    steps: int, kills: dict[int, float], server: Server, tmp_path: Path
) -> None:
    killing = Killing(server, dict(kills))
    with open_database(server.url) as database:
        trainer = quickstart_trainer(database, tmp_path, max_steps=steps)
        trainer.add_callback(killing)
        trainer.train()
    assert (trainer.state.global_step, killing.kills) == (steps, len(kills))

    episodes = episodes_in(tmp_path)
    assert len(episodes) == steps * (8 + 2), "sampled and greedy, none lost"
    assert sum(episode["retries"] for episode in episodes) > 0
    for episode in episodes:
        faulty = episode["status"] == "environment_fault"
        assert faulty == (episode["fault"] is not None)
        if faulty:
            assert episode["rewards"].get("outcome") is None and not episode["right"]
    assert sum(entry.get("database/retries", 0) for entry in trainer.state.log_history) > 0

    with open_database(server.url) as database:
        replayed = list(replay(tmp_path, database, progress=False))
    assert [str(each) for each in replayed if each.differences] == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["rollout", "rewards"])
def test_a_database_that_stays_away_ends_the_run_with_a_checkpoint(
    phase: str, server: Server, tmp_path: Path
) -> None:
    """Resumed, it ends where an unbroken run ends: nothing was learned from the step that it cut off."""

    class Gone(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2 and phase == "rollout":
                kill_server(server)

    def gone(episode, trainer_state, **kwargs):
        if trainer_state.global_step == 2 and phase == "rewards" and server.alive():
            kill_server(server)
        return [0.0] * len(episode)

    def still(episode, **kwargs):
        return [0.0] * len(episode)

    with open_database(server.url) as database:
        unbroken = quickstart_trainer(
            database, tmp_path / "unbroken", max_steps=4, more_rewards=[still, ExecutionReward(database)]
        )
        unbroken.train()

    run = tmp_path / "run"
    with open_database(server.url, patience=1.0) as database:
        trainer = quickstart_trainer(
            database,
            run,
            max_steps=4,
            save_strategy="steps",
            save_steps=100,
            more_rewards=[gone, ExecutionReward(database)],
        )
        trainer.add_callback(Gone())
        with pytest.raises(
            DatabaseError,
            match=r"waited for, by database_patience, and is still away\. Step 2 is saved in .*run",
        ):
            trainer.train()
    assert {episode["step"] for episode in episodes_in(run)} == {0, 1}

    server.restart()
    with open_database(server.url) as database:
        trainer = quickstart_trainer(
            database, run, max_steps=4, more_rewards=[still, ExecutionReward(database)]
        )
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    resumed = trainer.model.state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in unbroken.model.state_dict().items())
