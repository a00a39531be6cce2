"""`max_concurrent_episodes`: a step's episodes are the same however many play at a time."""

from __future__ import annotations

import pytest
from training import episodes_in, quickstart_trainer

from trl_dbbench.engines.transformers.engine import TransformersEngine


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dynamic_sampling": True},
        {"advantage": "vine", "advantage_args": {"continuations": 2}},
    ],
    ids=["plain", "further-rounds", "continuations"],
)
def test_the_bound_changes_no_episode(settings, sqlite_database, tmp_path, monkeypatch):
    batches, complete = [], TransformersEngine.complete

    def noted(self, requests, *args):
        batches.append(len(requests))
        return complete(self, requests, *args)

    monkeypatch.setattr(TransformersEngine, "complete", noted)
    played = {}
    for most in (4, 64):
        batches.clear()
        folder = tmp_path / str(most)
        trainer = quickstart_trainer(
            sqlite_database,
            folder,
            max_concurrent_episodes=most,
            max_steps=1,
            save_strategy="no",
            **settings,
        )
        trainer.train()
        assert max(batches) == 4 if most == 4 else max(batches) >= 10, "8 samples and 2 greedy runs"
        played[most] = [
            (each["task_id"], each["phase"], each["status"], each["rewards"], texts(each))
            for each in episodes_in(folder)
        ]
    assert played[4] == played[64]


def texts(episode: dict) -> list[tuple]:
    return [(turn["text"], turn["tokens"], turn.get("value")) for turn in episode["turns"]]
