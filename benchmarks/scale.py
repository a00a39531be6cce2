"""How far a training scales, on paper: what an episode costs here, and what follows for many servers.

    python benchmarks/scale.py [--ranks 8] [--cores 8] [--update 0.1] [--ahead 0] [--costs FILE]
    python benchmarks/scale.py --measure [--json FILE]
    python benchmarks/scale.py --check [--rounds 3] [--json FILE]

The first prints a table from a simulation (`simulation.py`): from 8 to 1,000 episodes at once, on 1 to 64
vLLM servers and 1 to 8 database servers, the seconds of a step, how busy each part is, and the busiest. It
takes what an episode costs from `--costs`, which `--measure --json` has written, and how fast vLLM is and how
long turns are from its options.

`--measure` plays episodes on a private database server: round trips, seconds, core-seconds of both sides. It
needs Linux. `--check` compares the simulation, with costs measured just before, with real rollouts of the
library's own player, vLLM engine and databases; their vLLM servers are scripted, and write token after token
by a curve. Nothing is fitted to these rollouts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
from simulation import GROUP, WAYS, Costs, Curve, Play, Setup, Simulation, lent

COSTS = Path(__file__).parent / "results/scale_costs.json"

EPISODES, VLLM, DATABASES = (8, 32, 128, 512, 1000), (1, 4, 16, 64), (1, 2, 4, 8)
PARTS = ("trainer", "vLLM", "database", "statements")
BUSY = 0.5
"""Below this share of its capacity, no part holds the others up: episodes wait for their own turns."""


@dataclass(frozen=True)
class Work:
    """What episodes are like: how many turns, and tokens of each part; of a turn, the mean."""

    turns: int
    tokens: int
    prompt: int
    observation: int

    def plays(self, costs: Costs, episodes: int, step: int) -> list[Play]:
        """Half of the prompts ask for a change. Turns' lengths are drawn, most of them near the mean."""
        draw = random.Random(step)

        def play(number: int) -> Play:
            lengths = [max(1, round(draw.gammavariate(4, self.tokens / 4))) for _ in range(self.turns)]
            read = [0] + [self.observation] * (self.turns - 1)
            prompt = number // GROUP
            return costs.play(WAYS[prompt % 2], list(zip(lengths, read, strict=True)), prompt, self.prompt)

        return [play(number) for number in range(episodes)]


def print_table(setup: Setup, update: float, work: Work, costs: Costs) -> list[dict[str, Any]]:
    print(f"{'':>15}seconds of a step, by databases{'':>4}busy, with one database")
    print(
        f"{'episodes':>8}{'vLLM':>6}",
        *(f"{each:>7}" for each in DATABASES),
        *(f"{each:>10}" for each in PARTS),
    )
    found = []
    for episodes, vllm in itertools.product(EPISODES, VLLM):
        outcomes = []
        for databases in DATABASES:
            this = replace(setup, vllm=vllm, databases=databases, update=update * episodes / setup.ranks)
            simulation = Simulation(this, lambda step, number=episodes: work.plays(costs, number, step))
            outcomes.append(simulation.run(1 if not setup.ahead else 3))
            found.append({"episodes": episodes, "vllm": vllm, "databases": databases} | asdict(outcomes[-1]))
        busy = outcomes[0].busy
        # threads for statements are busy too while they wait for another part, so they come last
        most = next(part for part in PARTS if busy[part] >= 0.9 * max(busy.values()))
        print(
            f"{episodes:>8}{vllm:>6}",
            *(f"{outcome.step:>7.1f}" for outcome in outcomes),
            *(f"{busy[part]:>10.0%}" for part in PARTS),
            f"  {most if busy[most] >= BUSY else '-'}",
            flush=True,
        )
    return found


OPTIONS: list[tuple[str, float, float, str]] = [  # name, default, least, meaning
    ("ranks", 8, 1, "processes that train"),
    ("cores", 8, 1, "of each database server"),
    ("max-connections", 1000, 1, "of each database server"),
    ("trip", 0.0005, 0, "seconds of a round trip on the network"),
    ("update", 0.1, 0, "seconds of an update for each episode of a rank"),
    ("ahead", 0, 0, "rollouts_ahead"),
    ("turns", 4, 1, "of an episode; the last one answers"),
    ("tokens", 150, 1, "of a turn, on average"),
    ("prompt", 1000, 0, "tokens of a prompt"),
    ("observation", 100, 0, "tokens of an observation"),
    ("sequences", 256, 1, "that a vLLM server runs at a time"),
    ("decoding", 0.008, 1e-6, "seconds that vLLM takes for a token of each of them"),
    ("sequence", 0.00003, 0, "seconds longer for each sequence"),
    ("prefill", 20_000.0, 1, "prompt tokens that a vLLM server reads in a second"),
]


def at_least(least: float, kind: type) -> Callable[[str], float]:
    def read(text: str) -> float:
        if (value := kind(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is too small; give at least {least:g}")
        return value

    read.__name__ = kind.__name__  # in argparse's message about what is no number
    return read


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rounds", type=at_least(1, int), default=3, help="of --measure and --check")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    parser.add_argument("--costs", type=Path, default=COSTS, help="what --measure --json has written")
    for name, default, least, text in OPTIONS:
        kind = at_least(least, type(default))
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{text} ({default:g})")
    given = parser.parse_args()
    logging.getLogger("trl_dbbench").setLevel(logging.ERROR)  # few connections are warned of
    figures: Any
    if given.measure or given.check:
        import real_rollouts  # which needs torch and transformers, and seconds

        costs = real_rollouts.measure(given.rounds)
        print(costs, flush=True)
        figures = real_rollouts.check(costs, given.rounds) if given.check else asdict(costs)
    else:
        costs = Costs.read(given.costs)
        setup = Setup(
            Curve(given.decoding, given.sequence, given.prefill, given.sequences),
            given.ranks,
            cores=given.cores,
            database_trip=given.trip,
            vllm_trip=given.trip,
            turn_client=costs.turn_client,
            ahead=given.ahead,
            **lent(given.max_connections, given.ranks),
        )
        work = Work(given.turns, given.tokens, given.prompt, given.observation)
        figures = print_table(setup, given.update, work, costs)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
