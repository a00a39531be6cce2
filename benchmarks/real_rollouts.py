"""What episodes cost on this machine, and real rollouts to hold the simulation to; see `scale.py`.

The rollouts are of the library's own player, vLLM engine and databases. Their vLLM servers are scripted, and
write token after token by a curve.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from http.server import ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

from sqlalchemy import create_engine
from transformers import AutoTokenizer

from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import open_database
from trl_dbbench.engines.vllm.engine import VLLMEngine
from trl_dbbench.engines.vllm.servers import VLLMServers
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, Operation, TextProtocol
from trl_dbbench.episode.types import Episode, Rules, Sampling
from trl_dbbench.tasks import Task

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]
from proxies import proxied
from sandbox import statements
from servers import elsewhere, local_server, pass_on
from simulation import GROUP, WAYS, Costs, Curve, Job, Play, Setup, Simulation, lent
from vllm_servers import FakeServer, completion

MODEL = Path(__file__).parents[1] / "recipes/tiny/model"
RULES = Rules(max_turns=4, max_turn_tokens=1024, max_completion_length=8192)

BLOCK = 16
"""Tokens of a block of vLLM's prefix cache."""

FEWEST = 24
"""`max_connections` of a server that lends one connection."""


class BatchingServer(FakeServer):
    """A scripted vLLM that writes token after token, a step of the curve for all sequences that run.

    Args:
        scripts: the ids of turns, by the seed of the episode and the turn's number.
    """

    def __init__(self, curve: Curve, scripts: Sequence[Sequence[Sequence[int]]]):
        self._curve, self._scripts = curve, scripts
        self._arrivals: Queue[tuple[list[Any], list[int], int]] = Queue()
        self._cached: set[int] = set()
        super().__init__()
        self.interfere = self._answer
        Thread(target=self._write, daemon=True).start()

    def _answer(self, path: str, body: dict) -> Any:
        if path != "/v1/completions" or body["top_k"] == 1:
            return NotImplemented
        seed, turn = divmod(body["seed"], 1_000_003)
        prompt, ids, done = body["prompt"], self._scripts[seed][turn], Event()
        self._arrivals.put(([len(ids), done], blocks_of(prompt), len(prompt)))
        done.wait()
        self._cached.update(blocks_of([*prompt, *ids]))
        return 200, completion(tuple(ids), [-1.0] * len(ids))

    def _write(self) -> None:
        running: list[list[Any]] = []
        now = 0.0
        while True:
            seconds = 0.0
            while len(running) < self._curve.sequences and not (running and self._arrivals.empty()):
                sequence, blocks, tokens = self._arrivals.get()
                if not running:
                    now = time.perf_counter()
                seconds += (
                    tokens - BLOCK * sum(each in self._cached for each in blocks)
                ) / self._curve.prefill
                self._cached.update(blocks)
                running.append(sequence)
            now += seconds + self._curve.a + self._curve.c * len(running)
            time.sleep(max(0.0, now - time.perf_counter()))
            for sequence in running:
                sequence[0] -= 1
                if not sequence[0]:
                    sequence[1].set()
            running = [sequence for sequence in running if sequence[0]]


def blocks_of(ids: Sequence[int]) -> list[int]:
    """What stands for each whole block and all before it, as vLLM's prefix cache names them."""
    names = [0]
    for begin in range(0, len(ids) - BLOCK + 1, BLOCK):
        names.append(hash((names[-1], *ids[begin : begin + BLOCK])))
    return names[1:]


def serve(curve: Curve, scripts: Sequence[Sequence[Sequence[int]]], told: Connection) -> None:
    ThreadingHTTPServer.request_queue_size = 1024  # all episodes ask at once
    told.send(BatchingServer(curve, scripts).url)
    Event().wait()


def tasks_of(way: str, number: int, seed: int) -> list[Task]:
    tasks = generate_tasks(4 * number + 32, seed=seed)
    return [task for task in tasks if task.is_question == (way == "reads")][:number]


# --- what an episode costs --------------------------------------------------------------------------------


class Meter:
    """Adds up, by stage: how often, seconds, core-seconds of this process and of the database's."""

    def __init__(self, process: int, packets: Callable[[], int] = lambda: 0):
        self._server_clock = (~process << 3) | 2  # Linux: the CPU clock of another process
        self._packets = packets
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)

    def _now(self) -> tuple[float, ...]:
        return (
            float(self._packets()),
            time.clock_gettime(self._server_clock),
            time.process_time(),
            time.perf_counter(),
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        before = self._now()
        yield
        for place, (then, now) in enumerate(zip(before, self._now(), strict=True)):
            self.totals[name][place] += now - then
        self.totals[name][4] += 1

    def job(self, name: str) -> Job:
        trips, server, client, seconds, times = self.totals[name]
        wait = max(0.0, seconds - server - client)
        return Job(trips / times, server / times, client / times, wait / times)


def play_stages(url: str, meter: Meter, tasks: Sequence[Task]) -> None:
    """Groups of episodes, one after another."""
    with open_database(url) as database:
        judge, protocol = Judge(database), TextProtocol()
        for number, task in enumerate([tasks[-1], *tasks]):
            for sample in range(GROUP):
                with meter.stage("opening" if sample else "making"):
                    sandbox = database.sandbox(task)
                for sql in statements(task):
                    with meter.stage("statement"):
                        sandbox.execute(sql, database.limits)  # executed, known or not
                with meter.stage("judging"):
                    judge(task, Answer("1"), sandbox, protocol.grader)
                with meter.stage("closing"):
                    sandbox.close()
            if not number:
                meter.totals.clear()  # connections and slots were made


def play_crowded(url: str, meter: Meter, tasks: Sequence[Task]) -> None:
    """Statements of two episodes by turns, on a server that lends one connection."""
    with open_database(url) as database:
        for task in tasks:
            with database.sandbox(task) as one, database.sandbox(task) as other:
                for sql, sandbox in itertools.product(statements(task), (one, other)):
                    with meter.stage("again"):
                        sandbox.execute(sql, database.limits)


def in_own_words(sql: str, sample: int) -> str:
    """A reading statement as no other sample of a group writes it, so that it is executed for each."""
    return f"{'(' * sample}{sql}{')' * sample}" if sql.startswith("SELECT") else sql


def measured_jobs(way: str) -> dict[str, Job]:
    """By stage. Packets are counted on a way through a proxy, and times taken on another without."""
    jobs: dict[str, Job] = {}
    for play, max_connections in ((play_stages, 151), (play_crowded, FEWEST)):
        with local_server(max_connections) as url:
            engine = create_engine(url)
            with engine.connect() as connection:
                pid_file = connection.exec_driver_sql("SELECT @@pid_file").scalar_one()
            engine.dispose()
            process = int(Path(pid_file).read_text())
            packets: list[None] = []
            with proxied(url) as (proxy, through):
                proxy.cut = lambda packet, packets=packets: bool(packets.append(None))
                counted = Meter(process, packets.__len__)
                play(through, counted, tasks_of(way, 4, seed=1))
            timed = Meter(process)
            play(url, timed, tasks_of(way, 16, seed=2))
            for stage in timed.totals:
                jobs[stage] = replace(timed.job(stage), trips=counted.job(stage).trips)
    more = zip(astuple(jobs["again"]), astuple(jobs["statement"]), strict=True)
    jobs["again"] = Job(*(max(0.0, crowded - alone) for crowded, alone in more))
    return jobs


def measure(rounds: int) -> Costs:
    """A turn's share of the trainer is what rollouts on a fast vLLM take beside their statements."""
    jobs = {way: measured_jobs(way) for way in WAYS}
    mine, found = jobs["reads"], []
    with playing(Case("", 32, curve=Curve(0.005, 0.0, 50_000.0)), rounds + 1) as (play, _):
        for step in range(rounds + 1):
            began = time.process_time()
            episodes = play(step)
            seconds = time.process_time() - began
            seconds -= sum(len(episode.statements) for episode in episodes) * mine["statement"].client
            seconds -= len(episodes) * sum(mine[each].client for each in ("opening", "judging", "closing"))
            found.append(seconds / sum(len(episode.turns) for episode in episodes))
    return Costs(jobs, statistics.median(found[1:]))


# --- against real rollouts --------------------------------------------------------------------------------


CHECKED_CURVE = Curve(a=0.008, c=0.00025, prefill=20_000.0, sequences=32)
CROWDED_CURVE = replace(CHECKED_CURVE, sequences=16)


@dataclass(frozen=True)
class Case:
    """`delay` is in seconds, of each packet to a database. `ways`: of the prompts, by turns."""

    name: str
    episodes: int
    vllm: int = 1
    databases: int = 1
    max_connections: int = 151
    delay: float = 0.0
    curve: Curve = CHECKED_CURVE
    ways: Sequence[str] = ("reads",)
    update: float = 0.0
    ahead: int = 0

    def setup(self, costs: Costs, trip: float) -> Setup:
        """`trip`: seconds of a round trip to a database, with the delay."""
        return Setup(
            self.curve,
            vllm=self.vllm,
            databases=self.databases,
            cores=2,
            database_trip=trip,
            turn_client=costs.turn_client,
            update=self.update,
            ahead=self.ahead,
            **lent(self.max_connections),
        )


CASES = [
    Case("vLLM queues", 48, curve=CROWDED_CURVE),
    Case("the same, two vLLM", 48, vllm=2, curve=CROWDED_CURVE),
    Case("few connections, 20 ms away", 48, vllm=2, max_connections=40, delay=0.02),
    Case("the same, two databases", 48, vllm=2, databases=2, max_connections=40, delay=0.02),
    Case("changes, 10 ms away", 32, vllm=2, delay=0.01, ways=["changes"]),
    Case("both, one rollout ahead", 32, delay=0.01, ways=WAYS, update=3.0, ahead=1),
]


@contextmanager
def playing(case: Case, steps: int) -> Iterator[tuple[Callable[[int], list[Episode]], float]]:
    """Real databases and scripted vLLM servers: what plays the episodes of a step, given its number, and the
    seconds of a round trip to a database."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    number = case.episodes // GROUP
    pools = [iter(tasks_of(way, steps * number, 7)) for way in case.ways]
    tasks = [next(pools[each % len(pools)]) for each in range(steps * number)]
    protocol = TextProtocol()

    def script(task: Task, sample: int) -> list[list[int]]:
        """Each sample begins its turns in its own way: what they share in the cache is the prompt."""
        asked = [in_own_words(sql, sample) for sql in statements(task)]
        texts = [protocol.write(action) for action in (*map(Operation, asked), Answer("1"))]
        words = [tokenizer(f"{sample} {text}", add_special_tokens=False).input_ids for text in texts]
        return [[*ids, tokenizer.eos_token_id] for ids in words]

    scripts = [script(task, sample) for task in tasks for sample in range(GROUP)]
    with ExitStack() as stack:
        vllm = [stack.enter_context(elsewhere(serve, case.curve, scripts)) for _ in range(case.vllm)]
        urls = []
        for _ in range(case.databases):
            url = stack.enter_context(local_server(case.max_connections))
            urls.append(stack.enter_context(elsewhere(pass_on, url, case.delay)) if case.delay else url)
        database = stack.enter_context(open_database(urls))
        player = Player.of(tokenizer, database, protocol=protocol, rules=RULES)
        servers = VLLMServers(vllm, sorted(player.chat.eos_token_ids))
        stack.callback(servers.close)
        servers.connect()

        def play(step: int) -> list[Episode]:
            starts = [
                player.start(tasks[prompt], Sampling(seed=GROUP * prompt + sample))
                for prompt in range(step * number, (step + 1) * number)
                for sample in range(GROUP)
            ]
            return player.play_all(starts, VLLMEngine(servers))

        yield play, round_trip(urls[0]) if case.delay else 0.0


def round_trip(url: str) -> float:
    engine = create_engine(url)
    times = []
    with engine.connect() as connection:
        for _ in range(30):
            began = time.perf_counter()
            connection.connection.driver_connection.ping()
            times.append(time.perf_counter() - began)
    engine.dispose()
    return statistics.median(times)


def real_steps(case: Case, steps: int) -> tuple[float, list[list[Episode]], float]:
    """Seconds of a step, the median after those that fill up; the episodes of all steps; seconds of a round
    trip to a database."""
    warm, ends = case.ahead + 1, []
    begun: list[Future[list[Episode]]] = []
    with ExitStack() as stack:
        play, trip = stack.enter_context(playing(case, warm + steps + case.ahead))
        threads = stack.enter_context(ThreadPoolExecutor(max(1, case.ahead)))
        for step in range(warm + steps):  # as `AheadGRPOTrainer` does
            if len(begun) == step:
                begun.append(threads.submit(play, step))
            begun[step].result()
            while len(begun) < step + 1 + case.ahead:
                begun.append(threads.submit(play, len(begun)))
            time.sleep(case.update)
            ends.append(time.perf_counter())
        episodes = [each.result() for each in begun]
    times = [end - begin for begin, end in itertools.pairwise(ends[warm - 1 :])]
    return statistics.median(times), episodes, trip


def plays_of(episodes: Sequence[Episode], costs: Costs) -> list[Play]:
    plays = []
    for number, episode in enumerate(episodes):
        before = [0, *(len(turn.observation_ids) for turn in episode.turns)]
        turns = [
            (len(turn.completion.ids), read + BLOCK // 2)
            for turn, read in zip(episode.turns, before, strict=False)
        ]
        way = "reads" if episode.task.is_question else "changes"
        plays.append(costs.play(way, turns, number // GROUP, len(episode.prompt_ids)))
    return plays


def check(costs: Costs, rounds: int) -> list[dict[str, Any]]:
    """Prints seconds of a step of each case, as measured and as predicted."""
    print(f"\n{'':<30}{'episodes':>9}{'measured':>10}{'predicted':>11}{'off by':>8}")
    found = []
    for case in CASES:
        measured, episodes, trip = real_steps(case, rounds)
        steps = [plays_of(each, costs) for each in episodes]
        outcome = Simulation(case.setup(costs, trip), lambda step, steps=steps: steps[step + 1]).run(rounds)
        off = outcome.step / measured - 1
        print(
            f"{case.name:<30}{case.episodes:>9}{measured:>8.2f} s{outcome.step:>9.2f} s{off:>+8.0%}",
            flush=True,
        )
        found.append(asdict(case) | {"round_trip": trip, "measured": measured} | asdict(outcome))
    return found
