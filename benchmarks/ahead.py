"""What it brings to play the next batches while one is trained on, and whether the agent learns as well.

    python benchmarks/ahead.py [--steps 6] [--rounds 3] [--json FILE]
    python benchmarks/ahead.py --learn VLLM [--seeds 1 2 3] [--json FILE]

The first measures steps a minute with `rollouts_ahead` 0, 1 and 2, in alternating rounds: the quickstart's
model and batches, on a scripted server whose turns take time but no core of this machine. They take so long
that a rollout takes as long as an update. Prints the median and the quartiles of each, and the ratios.

The second trains the quickstart on a vLLM server (VLLM is the path of its program), with each seed as it is,
and with `rollouts_ahead: 1` and `rollout_correction: token_tis`. Prints the held-out accuracy before and
after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from transformers import TrainerCallback

from trl_dbbench.database import open_database

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]
from quickstart import describe, run
from training import RECIPES, quickstart_trainer, varied
from vllm_servers import EOS, FakeServer, RealServer, completion, running

TURNS, TOKENS = 3, 40
"""Of an episode, and of each turn."""

WAYS = (0, 1, 2)


class SlowServer(FakeServer):
    """A scripted server whose turns take `seconds`, however many are asked at a time."""

    seconds = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.interfere = self._wait

    def _wait(self, path: str, body: dict):
        if path != "/v1/completions" or body["top_k"] == 1:
            return NotImplemented
        time.sleep(self.seconds)
        ids = [11 + (body["seed"] + place) % 50 for place in range(TOKENS - 1)]
        return 200, completion((*ids, EOS), [-1.0] * TOKENS)


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


def seconds_a_step(server: SlowServer, folder: str, ahead: int, steps: int) -> float:
    """The median over the steps after the first."""
    with open_database("sqlite") as database:
        trainer = quickstart_trainer(
            database,
            Path(folder),
            lora=True,
            more_rewards=[varied],
            vllm_server_urls=[server.url],
            rollouts_ahead=ahead,
            protocol="tools",  # in which a turn without a call does not end the episode
            max_turns=TURNS,
            max_completion_length=1024,
            per_device_train_batch_size=64,
            num_generations=8,
            max_steps=steps,
            greedy_eval="off",
        )
        trainer.add_callback(clock := Clock())
        trainer.train()
        trainer.backend.close()
    return statistics.median(end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False))


def measure(steps: int, rounds: int, folder: str) -> dict[int, list[float]]:
    server = SlowServer()
    update = seconds_a_step(server, folder, 0, steps)
    server.seconds = update / TURNS
    print(f"a step without waiting for the server: {update:.2f} s; a turn then takes {server.seconds:.2f} s")
    found: dict[int, list[float]] = {ahead: [] for ahead in WAYS}
    for _ in range(rounds):
        for ahead in WAYS:
            found[ahead].append(60 / seconds_a_step(server, folder, ahead, steps))
    server.stop()
    return found


def learn(program: str, seeds: Sequence[int], folder: Path) -> list[dict]:
    # on a CPU, vLLM ends at a sampled row whose prompt it computes in parts
    whole = ("--max-num-batched-tokens", "16384")
    server = RealServer(program, str(RECIPES / "tiny/model"), folder / "vllm.log", "--max-loras", "2", *whole)
    runs = []
    with running(server):
        for seed in seeds:
            for name, options in {
                "as it is": ["--use_rollout_logprobs", "true"],
                "ahead": ["--rollouts_ahead", "1", "--rollout_correction", "token_tis"],
            }.items():
                urls = ["--vllm_server_urls", server.url, "--seed", str(seed), "--eval_steps", "20"]
                runs.append(run(f"{name}, seed {seed}", folder, *urls, *options))
                now = runs[-1]
                print(
                    f"{now['run']:<20} {describe(now['before'], now['tasks'])} -> "
                    f"{describe(now['after'], now['tasks'])}  {now['seconds']:.0f} s",
                    flush=True,
                )
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--learn", metavar="VLLM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.learn:
            figures: object = learn(arguments.learn, arguments.seeds, Path(folder))
        else:
            figures = found = measure(arguments.steps, arguments.rounds, folder)
            plain = statistics.median(found[0])
            for ahead, rates in found.items():
                low, middle, high = statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
                print(
                    f"rollouts_ahead {ahead}: {middle:5.1f} steps a minute [{low:.1f}, {high:.1f}], "
                    f"{middle / plain:.2f} times"
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
