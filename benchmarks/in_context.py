"""A tiny model that can use examples: `python benchmarks/in_context.py [--out FOLDER]`.

Trains the model of `recipes/sql.yaml` further, on demonstrations whose prompts show 0 to 4 right episodes of
other tasks before the question: half of them those most like the task, half of them any. Where one of them is
of the task's kind (the same skills), the teacher does it right; else its habits spoil it as they did before.
So what the model is shown says how to answer.

Writes the model, and `memory.jsonl`: the right episodes that were shown, for `few_shot_memory`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
from worlds.habits import Habits
from worlds.sql_teacher import sql_actions

from trl_dbbench.data.demonstrations import UNLIMITED, Script, demonstrate, to_sft_dataset
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import Database, open_database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.types import Episode, Sampling, Start
from trl_dbbench.runs.few_shot import Memory, Shots, good_episodes
from trl_dbbench.tasks import Task

MODEL = Path(__file__).parents[1] / "recipes" / "tiny_sql" / "model"
SYSTEM_PROMPT = "Answer with MySQL."
LEVEL = "worlds.tiny_sql.level"
SHOWN, DEMONSTRATED, SEED = 1_000, 5_000, 21
"""Tasks that are examples, and that are demonstrated with them, of the level's training half."""
MOST_SHOTS = 4
RIGHT, SPOILED = Habits(0.0), Habits(0.6, seed=1)
"""The second is the teacher's of the model that is trained further (`worlds/make.py`)."""


def with_shots(tasks: Sequence[Task], memory: Memory, chat: ChatFormat, database: Database) -> list[Episode]:
    """Play each task after 0 to 4 examples, right where one of them is of the task's kind."""
    player = Player(chat, database, Judge(database), UNLIMITED)
    rng = random.Random(SEED)
    ways = {
        (by, number): Shots(player, memory, number, by, seed=SEED)
        for by in ("bm25", "random")
        for number in range(1, MOST_SHOTS + 1)
    }
    kinds = {example.id: example.query.skills for example in memory}
    starts, scripts = [], []
    for round, task in enumerate(tasks):
        prompt: list[dict[str, Any]] = chat.protocol.messages(task, SYSTEM_PROMPT)
        shown: list[str] = []
        if number := rng.randint(0, MOST_SHOTS):
            [(prompt, shown)] = ways[rng.choice(["bm25", "random"]), number].show([task], [prompt], round)
        taught = any(kinds[each] == frozenset(task.skills) for each in shown)
        actions = sql_actions(task, chat.protocol, database, RIGHT if taught else SPOILED)
        starts.append(Start(task, chat.prompt_ids(prompt), Sampling(), shots=shown, messages=prompt))
        scripts.append([chat.turn_ids(action) for action in actions])
    return player.play_all(starts, Script(scripts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/in_context"))
    parser.add_argument("--steps", type=int, default=1_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tasks = generate_tasks(SHOWN + DEMONSTRATED, SEED, level=LEVEL, workers=2)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    chat = ChatFormat(tokenizer, get_protocol("text_sql"), [tokenizer.eos_token_id])
    with open_database("sqlite") as database:
        right = partial(sql_actions, habits=RIGHT)
        shown = demonstrate(tasks[:SHOWN], chat, database, system_prompt=SYSTEM_PROMPT, teacher=right)
        memory = good_episodes(shown)
        memory.write(given.out / "memory.jsonl")
        episodes = with_shots(tasks[SHOWN:], memory, chat, database)
    print(f"{len(episodes)} demonstrations, {sum(each.right for each in episodes)} of them right", flush=True)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(given.out / "sft"),
            max_steps=given.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            warmup_steps=40,
            adam_beta2=0.98,
            max_length=1024,
            train_sampling_strategy="group_by_length",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            seed=SEED,
        ),
        train_dataset=to_sft_dataset(episodes),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
