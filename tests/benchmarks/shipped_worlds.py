"""What is shipped of the worlds for tiny models: their tasks, and how much of them their models do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dbbench.database import open_database
from trl_dbbench.engines.policy import Policy
from trl_dbbench.engines.transformers.backend import TransformersBackend
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Rules, Sampling
from trl_dbbench.evaluation.evaluate import evaluate
from trl_dbbench.tasks import Task, load_tasks


def check_shipped(world: Path, kinds: Sequence[str]) -> list[Task]:
    """A small world has as many of each kind, 1,000 to train on and 200 others held out; returns the latter."""
    assert sum(path.stat().st_size for path in world.rglob("*") if path.is_file()) < 5_000_000
    train, test = load_tasks(world / "train.jsonl"), load_tasks(world / "test.jsonl")
    assert Counter(task.skills[0] for task in train) == dict.fromkeys(kinds, 1000 // len(kinds))
    assert Counter(task.skills[0] for task in test) == dict.fromkeys(kinds, 200 // len(kinds))
    assert not {task.question for task in train} & {task.question for task in test}
    return test


def check_model_is_partly_right(world: Path, system: str, rules: Rules, protocol: str = "text") -> None:
    """At most half of the held-out tasks are done greedily, and samples of one prompt differ."""
    policy = Policy(
        AutoModelForCausalLM.from_pretrained(world / "model").float(),
        AutoTokenizer.from_pretrained(world / "model"),
    )
    tasks = load_tasks(world / "test.jsonl")
    with open_database("sqlite") as database:
        player = Player.of(
            policy.tokenizer, database, protocol=protocol, eos_token_ids=policy.eos_token_ids, rules=rules
        )
        backend = TransformersBackend(policy)
        accuracy = evaluate(
            tasks, player, backend, system_prompt=system, batch_size=100, progress=False
        ).accuracy
        starts = [player.start(task, Sampling(seed=seed), system) for task in tasks[:24] for seed in range(8)]
        with backend.engine() as engine:
            right = [episode.right for episode in player.play_all(starts, engine)]
    assert 0.25 <= accuracy.metrics()["accuracy"] <= 0.5
    mixed = [0 < sum(right[first : first + 8]) < 8 for first in range(0, len(right), 8)]
    assert sum(mixed) > len(mixed) / 4
