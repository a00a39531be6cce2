"""Make a world's tasks and its model anew: `make tiny`, `make tiny-multi`, `make tiny-sql`.

    accelerate launch --config_file accelerate_configs/cpu.yaml benchmarks/worlds/make.py tiny

Writes runs/NAME_tasks.jsonl, trains runs/NAME_sft on demonstrations of them, and fills the world's folder in
recipes/. Further options replace keys of the world's YAML.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "recipes")]

import sft_dbbench
from worlds.habits import Habits, execute_actions, spoiled_gold_actions
from worlds.multi_teacher import multi_actions
from worlds.sql_teacher import sql_actions
from worlds.tiny_model import make_tiny_model

from trl_dbbench.cli.start import start
from trl_dbbench.data.demonstrations import Teacher
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import open_database
from trl_dbbench.episode.protocol import Answer, Operation, get_protocol
from trl_dbbench.tasks import Task, load_tasks

RUNS = Path("runs")
SEED = 1  # as in the YAMLs

TRAIN, TEST = 1_000, 200
"""Tasks that are shipped."""

TAUGHT = 2_000
"""Tasks whose demonstrations the tokenizer learns words from."""


@dataclass(frozen=True)
class World:
    """A tiny model to make: its tasks' level, how many demonstrations, the teacher's habits, its size."""

    name: str
    level: str
    demonstrations: int
    teacher: Callable[..., Any]
    habits: float
    system_prompt: str = "Work on the MySQL database."
    protocol: str = "text"
    hidden_size: int = 96
    num_layers: int = 3

    @property
    def folder(self) -> Path:
        return Path("recipes") / {"tiny": "tiny", "multi": "tiny_multi", "sql": "tiny_sql"}[self.name]

    def bound_teacher(self) -> Teacher:
        return partial(self.teacher, habits=Habits(self.habits, seed=SEED))


WORLDS = {
    world.name: world
    for world in (
        World("tiny", "worlds.tiny.level", 16_000, spoiled_gold_actions, 0.6, hidden_size=128, num_layers=4),
        World("multi", "worlds.multi.level", 5_000, multi_actions, 0.4),
        World("sql", "worlds.tiny_sql.level", 5_000, sql_actions, 0.6, "Answer with MySQL.", "text_sql"),
    )
}


def write_tasks(world: World) -> None:
    for path, count, seed, split in (
        (RUNS / f"{world.name}_tasks.jsonl", world.demonstrations, 1, "train"),
        (world.folder / "train.jsonl", TRAIN, 2, "train"),
        (world.folder / "test.jsonl", TEST, 1, "test"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        tasks = generate_tasks(count, seed, split=split, level=world.level, workers=2)
        path.write_text("".join(f"{task.to_json()}\n" for task in tasks), encoding="utf-8")


def texts_of(world: World, tasks: list[Task]) -> list[str]:
    """Return what the agent writes and reads."""
    protocol = get_protocol(world.protocol)
    texts = [m["content"] for task in tasks for m in protocol.messages(task, world.system_prompt)]
    for task in tasks:
        actions = [Operation(task.gold.sql or ""), Answer(str(list(task.gold.answer or [])))]
        texts += [str(protocol.write(action)) for action in actions]
    if world.teacher is spoiled_gold_actions:
        return texts
    teacher = world.bound_teacher()
    with open_database("sqlite") as database:
        for task in tasks[:TAUGHT]:
            taught = teacher(task, protocol, database)
            texts += [str(protocol.write(action)) for action in taught]
            texts += [protocol.observe(result) for result in execute_actions(database, task, taught)]
    return texts


def make_model(world: World, tasks: list[Task], folder: Path) -> Path:
    """Make the model of random weights that training starts from."""
    sizes = {"hidden_size": world.hidden_size, "num_layers": world.num_layers}
    return make_tiny_model(folder, texts_of(world, tasks), seed=SEED, **sizes)


def main(name: str, *options: str) -> None:
    world = WORLDS[name]
    write_tasks(world)
    make_model(world, load_tasks(RUNS / f"{name}_tasks.jsonl"), RUNS / f"{name}_random")
    sys.argv[1:] = ["--config", str(Path(__file__).with_name(f"sft_{name}.yaml")), *options]
    start(sft_dbbench.ARGUMENTS, partial(sft_dbbench.main, teacher=world.bound_teacher()))
    model = world.folder / "model"
    model.mkdir(exist_ok=True)
    for pattern in ("*.json", "*.jinja", "model.safetensors"):
        for file in (RUNS / f"{name}_sft").glob(pattern):
            shutil.copy(file, model)


if __name__ == "__main__":
    main(*sys.argv[1:])
