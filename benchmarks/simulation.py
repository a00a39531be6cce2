"""A training step as a discrete-event simulation (SimPy): trainer ranks, vLLM servers, database servers.

```
rank      a core, threads for statements   play an episode: a turn, a statement, a turn, ..., the judgement
vLLM      a step of decoding takes         a prompt's episodes stay on one server, and the first of them has
          a + c * b seconds for b turns    the prompt read
database  cores, connections               an episode stays on the server with the fewest open episodes
step      the episodes of all ranks, then the update; with `ahead` the next rollouts go on meanwhile
```

What is left out: servers that fail, the memory of caches, the spread of a statement's time, and the core that
an update takes from a rank's rollout.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path

import simpy

from trl_dbbench.database.base import Database
from trl_dbbench.database.server.slots import CONNECTIONS_PER_STATEMENT
from trl_dbbench.database.server.sources import LOADERS
from trl_dbbench.database.server.tenancy import (
    ADMIN_CONNECTIONS,
    KILL_CONNECTIONS,
    MIN_CONNECTIONS,
    OBSERVERS,
    SPARE_READERS,
)

Events = Iterator[simpy.Event]

GROUP = 8
"""Episodes of a prompt."""

WAYS = ("reads", "changes")
STAGES = ("making", "opening", "statement", "judging", "closing", "again")


@dataclass(frozen=True)
class Job:
    """Work on a database, for which a thread of the rank waits.

    `trips`: round trips to the server. `server`, `client`: core-seconds of the database and of the rank's
    process. `wait`: seconds in which neither computes, without the network's.
    """

    trips: float = 0.0
    server: float = 0.0
    client: float = 0.0
    wait: float = 0.0

    def __add__(self, other: Job) -> Job:
        return Job(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Turn:
    """`prefill`: tokens to be read before `tokens` are written. `statement`: what follows, if any."""

    tokens: int
    prefill: int = 0
    statement: Job | None = None


@dataclass(frozen=True)
class Play:
    """What an episode will do.

    `prompt`: its number in the step, and `prompt_tokens` its length. `reads`: whether it only reads, on
    connections that episodes share. `making`: replaces `opening` for the first of the prompt's readings on a
    database, for which the others wait. `again`: what a statement costs more where more episodes are open
    than a server lends connections.
    """

    turns: Sequence[Turn]
    prompt: int = 0
    prompt_tokens: int = 0
    making: Job = Job()
    opening: Job = Job()
    judging: Job = Job()
    closing: Job = Job()
    again: Job = Job()
    reads: bool = True


@dataclass(frozen=True)
class Costs:
    """Jobs on the database by way and stage; the trainer's core-seconds for a turn without its statement."""

    jobs: dict[str, dict[str, Job]]
    turn_client: float

    @classmethod
    def read(cls, path: Path) -> Costs:
        try:
            found = json.loads(path.read_text())
            jobs = {way: {stage: Job(**found["jobs"][way][stage]) for stage in STAGES} for way in WAYS}
            return cls(jobs, found["turn_client"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(
                f"--costs {path} is not a file of costs ({error!r}). Write one with --measure --json FILE."
            ) from None

    def play(self, way: str, turns: Sequence[tuple[int, int]], prompt: int, prompt_tokens: int) -> Play:
        """An episode of turns of (tokens, tokens to read before), the last of which answers."""
        jobs = self.jobs[way]
        asked = [Turn(*turn, statement=jobs["statement"]) for turn in turns[:-1]]
        around = {stage: jobs[stage] for stage in STAGES if stage != "statement"}
        return Play([*asked, Turn(*turns[-1])], prompt, prompt_tokens, reads=way == "reads", **around)

    def __str__(self) -> str:
        lines = [f"{'':<22}{'round trips':>12}{'ms':>9}{'core-ms database':>19}{'core-ms trainer':>18}"]
        for way, stage in itertools.product(WAYS, STAGES):
            job = self.jobs[way][stage]
            times = 1000 * (job.server + job.client + job.wait), 1000 * job.server, 1000 * job.client
            lines.append(
                f"{way:<9}{stage:<13}{job.trips:>12.1f}{times[0]:>9.2f}{times[1]:>19.2f}{times[2]:>18.2f}"
            )
        lines.append(f"a turn, without its statement{'':<33}{1000 * self.turn_client:>18.2f}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Curve:
    """A vLLM server: a decoding step of b sequences takes `a + c * b` seconds, reading takes 1 / `prefill`
    seconds a token, and at most `sequences` run at a time."""

    a: float
    c: float
    prefill: float
    sequences: int = 256

    def work(self, prefill: int, tokens: int) -> float:
        """Seconds that these take of a server whose batch is full: what it can do at best."""
        return prefill / self.prefill + tokens * (self.a + self.c * self.sequences) / self.sequences


@dataclass(frozen=True)
class Setup:
    """What plays and trains. Times are in seconds.

    Args:
        cores: of each database server.
        statements, slots: what it lends each rank: statements at once, and connections for episodes that
            change something; see `lent`.
        database_trip, vllm_trip: a round trip on the network.
        turn_client: core-seconds of the rank's process for a turn, without its statement.
        update: after a step's episodes.
        ahead: `rollouts_ahead`.
    """

    curve: Curve
    ranks: int = 1
    vllm: int = 1
    databases: int = 1
    cores: int = 8
    statements: int = Database.statements_at_once
    slots: int = CONNECTIONS_PER_STATEMENT * Database.statements_at_once
    database_trip: float = 0.0
    vllm_trip: float = 0.0
    turn_client: float = 0.0
    update: float = 0.0
    ahead: int = 0


@dataclass(frozen=True)
class Outcome:
    """`step` and `rollout` in seconds, means; `busy`: the share of each part's capacity that is used while
    episodes are played, from 0 to 1."""

    step: float
    rollout: float
    busy: dict[str, float]


def lent(max_connections: int, ranks: int = 1) -> dict[str, int]:
    """`statements` and `slots` of a `Setup`: as `Tenancy` and `Slots` reckon them, where each rank has the
    connection of its lock already, and nobody else has any."""
    share = int(0.9 * (max_connections - ranks) / ranks) - ADMIN_CONNECTIONS - KILL_CONNECTIONS - OBSERVERS
    share = max(share - LOADERS, MIN_CONNECTIONS)
    statements = max(1, min(Database.statements_at_once, share // 3))
    slots = min(share - statements - SPARE_READERS, CONNECTIONS_PER_STATEMENT * statements)
    return {"statements": statements, "slots": max(1, slots)}


class ModelServer:
    """A vLLM server with continuous batching. Prompts are read first, one after another, while what runs
    stands still; in between all running sequences advance alike."""

    def __init__(self, env: simpy.Environment, curve: Curve):
        self._env, self._curve = env, curve
        self._waiting: deque[tuple[int, int, simpy.Event]] = deque()
        self._running: list[tuple[float, int, simpy.Event]] = []  # a heap, by the tokens at which each ends
        self._tokens = 0.0  # that a sequence would have which had run from the beginning
        self._arrival = env.event()
        self._read: set[tuple[int, int]] = set()
        self.work = 0.0
        env.process(self._run())

    def complete(self, step: int, play: Play, turn: Turn) -> simpy.Event:
        """An event for the end of the turn."""
        prefill = turn.prefill
        if (step, play.prompt) not in self._read:
            self._read.add((step, play.prompt))
            prefill += play.prompt_tokens
        self.work += self._curve.work(prefill, turn.tokens)
        done = self._env.event()
        self._waiting.append((prefill, turn.tokens, done))
        if not self._arrival.triggered:
            self._arrival.succeed()
        return done

    def _run(self) -> Events:
        numbers = itertools.count()
        while True:
            if self._waiting and len(self._running) < self._curve.sequences:
                prefill, tokens, done = self._waiting.popleft()
                yield self._env.timeout(prefill / self._curve.prefill)
                heapq.heappush(self._running, (self._tokens + tokens, next(numbers), done))
                continue
            self._arrival = self._env.event()
            if not self._running:
                yield self._arrival
                continue
            seconds = self._curve.a + self._curve.c * len(self._running)  # for a token of each
            began = self._env.now
            yield self._arrival | self._env.timeout(max(0.0, self._running[0][0] - self._tokens) * seconds)
            self._tokens += (self._env.now - began) / seconds
            while self._running and self._running[0][0] <= self._tokens + 1e-6:
                heapq.heappop(self._running)[2].succeed()


class Rank:
    """A trainer's process: `core`, `threads` for statements, and what each database lends it."""

    def __init__(self, env: simpy.Environment, setup: Setup):
        places = range(setup.databases)
        self.core = simpy.Resource(env)
        self.threads = simpy.Resource(env, setup.statements * setup.databases)
        self.readers = [simpy.Resource(env, setup.statements + SPARE_READERS) for _ in places]
        self.observers = [simpy.Resource(env, OBSERVERS) for _ in places]
        self._lent = {True: setup.statements + SPARE_READERS, False: setup.slots}
        self._open = [{True: 0, False: 0} for _ in places]
        self._made = [0] * setup.databases
        self.tables: dict[tuple[int, int, int], simpy.Event] = {}
        """Those that readings share, by step, prompt and database."""

    def enter(self, reads: bool) -> int:
        """The database of the next episode, which is counted there; see `SeveralDatabases`."""
        place = min(
            range(len(self._open)), key=lambda each: (sum(self._open[each].values()), self._made[each])
        )
        self._open[place][reads] += 1
        self._made[place] += 1
        return place

    def leave(self, place: int, reads: bool) -> None:
        self._open[place][reads] -= 1

    def crowded(self, place: int, reads: bool) -> bool:
        """Whether episodes take connections from one another."""
        return self._open[place][reads] > self._lent[reads]


class Simulation:
    """Steps of training.

    Args:
        plays: the episodes of all ranks in a step, given its number; neighbours go to the same rank.
    """

    def __init__(self, setup: Setup, plays: Callable[[int], Sequence[Play]]):
        self.env = simpy.Environment()
        self._setup, self._plays = setup, plays
        self._ranks = [Rank(self.env, setup) for _ in range(setup.ranks)]
        self._vllm = [ModelServer(self.env, setup.curve) for _ in range(setup.vllm)]
        self._cores = [simpy.Resource(self.env, setup.cores) for _ in range(setup.databases)]
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._rollouts: list[tuple[float, float]] = []

    def run(self, steps: int = 1) -> Outcome:
        """Simulates so many steps, and with `ahead` as many before them as it takes to fill up."""
        warm, ends = self._setup.ahead, [0.0]
        self.env.run(self.env.process(self._train(steps + warm, ends)))
        setup, playing, last = self._setup, 0.0, 0.0
        for begin, end in sorted(self._rollouts):
            playing += max(0.0, end - max(begin, last))
            last = max(last, end)
        capacity = {
            "trainer": setup.ranks,
            "vLLM": setup.vllm,
            "database": setup.databases * setup.cores,
            "statements": setup.ranks * setup.databases * setup.statements,
        }
        self._busy["vLLM"] = sum(server.work for server in self._vllm)
        return Outcome(
            (ends[-1] - ends[warm]) / steps,
            sum(end - begin for begin, end in self._rollouts) / len(self._rollouts),
            {part: self._busy[part] / (number * playing or 1.0) for part, number in capacity.items()},
        )

    def _train(self, steps: int, ends: list[float]) -> Events:
        numbers, under_way = itertools.count(), deque[simpy.Process]()
        for _ in range(steps):
            if not under_way:
                under_way.append(self.env.process(self._rollout(next(numbers))))
            yield under_way.popleft()
            while len(under_way) < self._setup.ahead:
                under_way.append(self.env.process(self._rollout(next(numbers))))
            yield self.env.timeout(self._setup.update)
            ends.append(self.env.now)

    def _rollout(self, step: int) -> Events:
        began, plays, ranks = self.env.now, self._plays(step), len(self._ranks)
        homes: list[dict[int, int]] = [{} for _ in self._ranks]
        episodes = [
            self.env.process(self._episode(step, play, number * ranks // len(plays), homes))
            for number, play in enumerate(plays)
        ]
        yield self.env.all_of(episodes)
        self._rollouts.append((began, self.env.now))

    def _episode(self, step: int, play: Play, number: int, homes: list[dict[int, int]]) -> Events:
        rank = self._ranks[number]
        server = self._vllm[self._home(number, play.prompt, homes[number])]
        place = rank.enter(play.reads)
        reader = rank.readers[place] if play.reads else None
        opening = self.env.process(self._open(rank, place, step, play))
        for turn in play.turns:
            yield from self._compute(rank.core, "trainer", self._setup.turn_client)
            yield self.env.timeout(self._setup.vllm_trip)
            yield server.complete(step, play, turn)
            if turn.statement is not None:
                yield opening
                more = play.again if rank.crowded(place, play.reads) else Job()
                yield from self._job(rank, place, turn.statement + more, reader)
        yield opening
        yield from self._job(rank, place, play.judging, None if play.reads else rank.observers[place])
        rank.leave(place, play.reads)
        yield from self._job(rank, place, play.closing)

    def _home(self, rank: int, prompt: int, homes: dict[int, int]) -> int:
        """The vLLM server of a prompt: that with the fewest of this rank's prompts; see `VLLMEngine`."""
        if prompt not in homes:
            prompts, number = Counter(homes.values()), len(self._vllm)
            first = rank * number // len(self._ranks)
            homes[prompt] = min(
                ((first + each) % number for each in range(number)), key=lambda each: prompts[each]
            )
        return homes[prompt]

    def _open(self, rank: Rank, place: int, step: int, play: Play) -> Events:
        made = rank.tables.get((step, play.prompt, place)) if play.reads else None
        if made is not None or not play.reads:
            yield from self._job(rank, place, play.opening, after=made)
            return
        made = rank.tables[step, play.prompt, place] = self.env.event()
        yield from self._job(rank, place, play.making)
        made.succeed()

    def _job(
        self,
        rank: Rank,
        place: int,
        job: Job,
        connections: simpy.Resource | None = None,
        after: simpy.Event | None = None,
    ) -> Events:
        """Work on a database, in a thread, which may wait for one of `connections`, or for `after`."""
        with rank.threads.request() as thread:
            yield thread
            began = self.env.now
            if after is not None:
                yield after
            with connections.request() if connections is not None else nullcontext() as connection:
                if connection is not None:
                    yield connection
                yield from self._compute(rank.core, "trainer", job.client)
                yield self.env.timeout(job.trips * self._setup.database_trip + job.wait)
                yield from self._compute(self._cores[place], "database", job.server)
            self._busy["statements"] += self.env.now - began

    def _compute(self, core: simpy.Resource, part: str, seconds: float) -> Events:
        if seconds:
            with core.request() as turn:
                yield turn
                yield self.env.timeout(seconds)
            self._busy[part] += seconds
