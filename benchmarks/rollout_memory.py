"""Memory of a rollout, with more and with fewer episodes at a time.

    python benchmarks/rollout_memory.py MODEL [--bounds 4 16 64] [--prompts 32] [--samples 8] [--quick]

Prompts, turns and observations are random ids of fixed lengths, and nothing ends a turn but its length. Each
bound runs in a process of its own on the CPU. Prints the peak of the process above what it holds with the
model loaded and its weights laid out, beside what `engines/transformers/admission.py` computes, the seconds,
and whether the ids are those of the first bound. `--samples 1` gives every episode a prompt of its own, which
is then a copy in its row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import start_blocking_portal
from transformers import AutoModelForCausalLM

from trl_dbbench.engines.transformers.admission import Admission
from trl_dbbench.engines.transformers.engine import TransformersEngine
from trl_dbbench.engines.transformers.packed import packed
from trl_dbbench.episode.types import Request, Sampling

TURNS, OBSERVATION_TOKENS = 3, 60
QUICK = {"prompts": 4, "samples": 4, "prompt_tokens": 200, "turn_tokens": 4}


def status(name: str) -> int:
    """Bytes that Linux gives for this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


async def episode(
    engine: TransformersEngine, row: int, prompt: Sequence[int], words: int, turn_tokens: int
) -> list[int]:
    rng, ids = random.Random(row), list(prompt)
    limit = len(prompt) + TURNS * turn_tokens + (TURNS - 1) * OBSERVATION_TOKENS
    for turn in range(TURNS):
        request = Request(tuple(ids), turn_tokens, Sampling(seed=row), row, turn, limit)
        ids += (await engine.generate(request)).ids
        ids += [rng.randrange(words) for _ in range(OBSERVATION_TOKENS)]
    return ids


def measure(
    model: str, bound: int | None, prompts: int, samples: int, prompt_tokens: int, turn_tokens: int
) -> dict[str, Any]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    words, rng = network.config.vocab_size, random.Random(0)
    computed = [0.0]

    def note(self: Admission, waiting: Sequence[Request]) -> Any:
        rows = admit(self, waiting)
        computed.append(max(self._costs.together(self._held.values())))
        return rows

    admit, Admission.admit = Admission.admit, note  # type: ignore[method-assign]
    texts = [[rng.randrange(words) for _ in range(prompt_tokens)] for _ in range(prompts)]
    engine = TransformersEngine(network, [], 0, max_concurrent_episodes=bound)
    with packed(network), torch.no_grad():  # they take as much again as the weights, whatever is played
        network(torch.tensor([texts[0][:1]]))
        held = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    clock = time.perf_counter()
    with start_blocking_portal() as portal:
        loop = portal.call(asyncio.get_running_loop)
        episodes = [
            asyncio.run_coroutine_threadsafe(
                episode(engine, row, texts[row // samples], words, turn_tokens), loop
            )
            for row in range(prompts * samples)
        ]
        engine.serve(episodes)
        ids = [each.result() for each in episodes]
    return {
        "bound": bound,
        "held": held,
        "peak": status("VmHWM"),
        "computed": max(computed),
        "seconds": time.perf_counter() - clock,
        "ids": sha256(json.dumps(ids).encode()).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a folder or a hub id")
    parser.add_argument(
        "--bounds", type=int, nargs="+", default=[4, 16, 64], help="episodes at a time; 0: what fits"
    )
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8, help="episodes of a prompt")
    parser.add_argument("--prompt-tokens", type=int, default=2_000)
    parser.add_argument("--turn-tokens", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="16 episodes with prompts of 200 tokens")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = {name: getattr(arguments, name) for name in QUICK} if not arguments.quick else QUICK
    if arguments.alone:
        print(json.dumps(measure(arguments.model, arguments.bounds[0] or None, **shape)))
        return

    print(f"{'at a time':>10}{'peak':>8}{'above':>8}{'computed':>10}{'seconds':>9}  ids   (GB)")
    figures: list[dict[str, Any]] = []
    for bound in arguments.bounds:
        command = [sys.executable, __file__, arguments.model, "--alone", "--bounds", str(bound)]
        for name, value in shape.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures.append(each := json.loads(output.splitlines()[-1]))
        sizes = [each["peak"], each["peak"] - each["held"], each["computed"]]
        print(
            f"{bound or 'fitting':>10}{sizes[0] / 1e9:>8.2f}{sizes[1] / 1e9:>8.2f}{sizes[2] / 1e9:>10.2f}"
            f"{each['seconds']:>9.1f}  {'same' if each['ids'] == figures[0]['ids'] else 'others'}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
