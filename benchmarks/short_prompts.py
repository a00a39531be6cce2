"""Rollouts of the tiny worlds, whose prompts are short: read together by their rows, and copied to each.

    python benchmarks/short_prompts.py [--worlds quickstart multi sql] [--rounds 6]

Plays 288 episodes a round as the recipes do: eight prompts at a time, eight samples and a greedy run of each.
Both ways alternate. Prints the CPU seconds of the engine's thread, which neighbours disturb less
than the time that passes; how many times as fast reading together is, the median of the rounds; and how many
episodes differ: the two ways round differently, and a random number may fall on the border of two tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dbbench import load_tasks, open_database
from trl_dbbench.database import Database
from trl_dbbench.engines.transformers import engine
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.types import Rules, Sampling

RECIPES = Path(__file__).parent.parent / "recipes"
BATCHES, PROMPTS, SAMPLES = 4, 8, 8
WAYS = {"copied": 10**9, "together": engine.SHARE_PREFIX_MIN_TOKENS}
Played = tuple[float, list[list[int]]]


def rollouts(world: str, database: Database) -> Callable[[], Played]:
    """Plays a round of a recipe's episodes: the CPU seconds, and what was written."""
    recipe = yaml.safe_load((RECIPES / f"{world}.yaml").read_text())
    folder = RECIPES / recipe["model_name_or_path"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    adapter = LoraConfig(r=recipe["lora_r"], target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), adapter)
    limits = (recipe[name] for name in ("max_turns", "max_turn_tokens", "max_completion_length"))
    player = Player.of(
        tokenizer,
        database,
        protocol=recipe["protocol"],
        grader=recipe.get("grader"),
        rules=Rules(*limits),
    )
    samplings = [Sampling(seed=seed) for seed in range(SAMPLES)] + [Sampling(greedy=True)]
    starts = [
        player.start(task, sampling, recipe["system_prompt"])
        for task in load_tasks(RECIPES / recipe["tasks"])[: BATCHES * PROMPTS]
        for sampling in samplings
    ]
    size = PROMPTS * len(samplings)

    def play() -> Played:
        seconds, written = 0.0, []
        for first in range(0, len(starts), size):
            policy = engine.TransformersEngine(
                model, sorted(player.chat.eos_token_ids), tokenizer.pad_token_id
            )
            clock = time.thread_time()
            episodes = player.play_all(starts[first : first + size], policy)
            seconds += time.thread_time() - clock
            written += [episode.completion_ids for episode in episodes]
        return seconds, written

    return play


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    worlds = ("quickstart", "multi", "sql")
    parser.add_argument("--worlds", nargs="+", choices=worlds, default=list(worlds))
    parser.add_argument("--rounds", type=int, default=6, help="after one that warms up")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # what other threads do would not be counted
    with open_database("sqlite") as database:
        for world in arguments.worlds:
            play = rollouts(world, database)
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            written = {}
            for number in range(arguments.rounds + 1):
                for way in WAYS if number % 2 else reversed(WAYS):
                    engine.SHARE_PREFIX_MIN_TOKENS = WAYS[way]
                    spent, written[way] = play()
                    seconds[way] += [spent] if number else []
            differ = sum(one != other for one, other in zip(*written.values(), strict=True))
            ratio = statistics.median(
                copied / together for copied, together in zip(*seconds.values(), strict=True)
            )
            shown = ", ".join(f"{way} {statistics.median(each):.2f} s" for way, each in seconds.items())
            print(f"{world}: {shown}; {ratio:.2f} times as fast, {differ} episodes differ", flush=True)


if __name__ == "__main__":
    main()
