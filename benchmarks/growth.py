"""How rollouts, training steps and tasks grow: seconds of a rollout against samples, turns and prompt length;
of a whole step against samples and prompt length, with shared prompts and without; load time and memory
against tasks.

    python benchmarks/growth.py [--size 40m] [--series turns] [--quick] [--json FILE]

The model has random parameters, a million unless --size says 40m; prompts, turns and observations are random
ids of fixed lengths, so that nothing but the numbers named differs. Each line gives the seconds and their
ratio to the first line's, beside the ratio of the work. Whole steps are those of `rollout.py`, each in a
process of its own: the median of two, after one that warms up.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import rollout as benchmark
import torch
from rollout import SHAPES, qwen2
from transformers import Qwen2ForCausalLM

from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.transformers.packed import packed
from trl_dbbench.episode.types import Request, Sampling

PROMPTS, TURN, OBSERVATION = 4, 40, 30
BASE = {"samples": 8, "turns": 3, "prompt": 400}
SERIES = {"samples": (4, 8, 16, 32, 64), "turns": (1, 2, 3, 4, 5, 6), "prompt": (100, 200, 400, 800, 1600)}
STEPS = {"samples": (2, 4, 8, 16, 32), "prompt": (200, 400, 800, 1600)}
TASKS = (100, 1_000, 10_000, 100_000)
ALL = [*SERIES, *(f"step-{name}" for name in STEPS), "tasks"]


def rollout(model: Qwen2ForCausalLM, samples: int, turns: int, prompt: int) -> float:
    rng = random.Random(0)

    def some(count: int) -> list[int]:
        return [rng.randrange(model.config.vocab_size) for _ in range(count)]

    prompts = [some(prompt) for _ in range(PROMPTS)]
    rows = {row: list(prompts[row // samples]) for row in range(PROMPTS * samples)}
    engine = TransformersEngine(model, [], 0)  # nothing ends a turn but its budget
    clock = time.perf_counter()
    with packed(model):  # as for the whole of a rollout
        for turn in range(turns):
            requests = [Request(tuple(ids), TURN, Sampling(seed=row), row, turn) for row, ids in rows.items()]
            for request, completion in zip(requests, engine.complete(requests), strict=True):
                rows[request.row] += completion.ids + some(OBSERVATION)
    return time.perf_counter() - clock


def whole_step(size: str, samples: int, prompt: int, shared_prefix: str) -> float:
    benchmark.SAMPLES, benchmark.PROMPT_TOKENS = samples, prompt
    return benchmark.measure(benchmark.ours, size, 2, "sqlite", shared_prefix=shared_prefix)["step"]


def whole_steps(name: str, values: Sequence[int], size: str) -> list[dict[str, float]]:
    """Seconds of a training step, its prompts computed once for all samples and once for each."""
    print(f"\n{'step, ' + name:>14}{'shared':>10}{'off':>10}{'times':>8}")
    figures = []
    for value in values:
        shape = {"samples": benchmark.SAMPLES, "prompt": benchmark.PROMPT_TOKENS} | {name: value}
        seconds = {}
        for sharing in ("auto", "off"):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                seconds[sharing] = pool.submit(whole_step, size, *shape.values(), sharing).result()
        figures.append({name: value, **seconds})
        times = seconds["off"] / seconds["auto"]
        print(f"{value:>14}{seconds['auto']:>10.2f}{seconds['off']:>10.2f}{times:>8.2f}", flush=True)
    return figures


def load(path: Path) -> dict[str, float]:
    """Seconds and MiB that loading the tasks takes, in a process of its own."""
    script = (
        "import json, re, sys, time; from pathlib import Path\n"
        "from trl_dbbench import load_tasks, to_dataset\n"
        "clock = time.perf_counter(); dataset = to_dataset(load_tasks(sys.argv[1]))\n"
        "seconds = time.perf_counter() - clock\n"
        # not getrusage: its peak begins with what the parent had at the fork
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "print(json.dumps({'tasks': len(dataset), 'seconds': seconds, 'MiB': peak / 1024}))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout.splitlines()[-1])


def tasks(sizes: Sequence[int], distinct: int) -> list[dict[str, float]]:
    """What loading so many tasks takes; `distinct` of them are repeated under other ids."""
    print(f"\n{'tasks':>8}{'seconds':>10}{'MiB':>8}")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        lines = [task.to_json() for task in generate_tasks(distinct, seed=1)]
        for size in sizes:
            path = Path(folder) / f"{size}.jsonl"
            with path.open("w", encoding="utf-8") as file:
                for number in range(size):
                    task = json.loads(lines[number % len(lines)]) | {"id": f"task-{number}"}
                    file.write(json.dumps(task, ensure_ascii=False) + "\n")
            figures.append(load(path))
            each = figures[-1]
            print(f"{each['tasks']:>8}{each['seconds']:>10.2f}{each['MiB']:>8.0f}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SHAPES), default="1m", help="parameters of the model")
    parser.add_argument("--series", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="one pass over a few points, 10,000 tasks at most"
    )
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else arguments.repeats

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(qwen2(SHAPES[arguments.size])).eval()
    figures: dict[str, list[dict[str, Any]]] = {}
    print(
        f"{arguments.size}, {platform.machine()}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}; base {BASE}"
    )
    rollout(model, **BASE)
    for name in (each for each in SERIES if each in arguments.series):
        values = SERIES[name][::2] if arguments.quick else SERIES[name]
        print(f"\n{name:>8}{'seconds':>10}{'ratio':>8}{'of work':>9}")
        figures[name] = []
        for value in values:
            seconds = statistics.median(rollout(model, **BASE | {name: value}) for _ in range(repeats))
            figures[name].append({name: value, "seconds": seconds})
            ratio = seconds / figures[name][0]["seconds"]
            print(f"{value:>8}{seconds:>10.2f}{ratio:>8.1f}{value / values[0]:>9.1f}", flush=True)

    for name, points in STEPS.items():
        if f"step-{name}" in arguments.series:
            points = points[::2] if arguments.quick else points
            figures[f"step-{name}"] = whole_steps(name, points, arguments.size)

    if "tasks" in arguments.series:
        figures["tasks"] = tasks(TASKS[:3], 1_000) if arguments.quick else tasks(TASKS, 10_000)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
