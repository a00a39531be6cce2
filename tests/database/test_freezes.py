"""A server or a network that stands still for seconds, and goes on: no episode is worse for it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from databases import LIMITS, opened, rows_of, table, task
from proxies import Proxy, proxied
from required import LONG
from training import episodes_in, quickstart_trainer

from trl_dbbench import ExecutionReward
from trl_dbbench.database import Database, QueryResult, open_database
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.pulse import PULSE_SECONDS
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 2))
QUESTION = dataclasses.replace(task(MEDALS), gold=Gold(answer=((2,),)))
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 3"))

READS = [
    "SELECT SUM(gold) FROM medals",
    "SELECT nation FROM medals WHERE gold > 1",
    "SELECT COUNT(*) FROM medals",
]
WRITES = [
    "INSERT INTO medals VALUES ('Togo', 9)",
    "UPDATE medals SET gold = gold + 1",
    "SELECT SUM(gold) FROM medals",
    "DELETE FROM medals WHERE nation = 'Chad'",
    "INSERT INTO medals SELECT nation, gold * 10 FROM medals",
    "SELECT SLEEP(0.3), COUNT(*) FROM medals",
]

Freeze = Callable[[], contextlib.AbstractContextManager]


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def paused(port: int) -> Iterator[None]:
    import docker

    client = docker.from_env()
    (container,) = [each for each in client.containers.list() if f"'{port}'" in str(each.ports)]
    with contextlib.suppress(docker.errors.APIError):  # a busy machine may take too long to freeze it
        container.pause()
    try:
        yield
    finally:
        with contextlib.suppress(docker.errors.APIError):
            container.unpause()
        client.close()


@contextmanager
def held(proxy: Proxy) -> Iterator[None]:
    proxy.hold()
    try:
        yield
    finally:
        proxy.release()


@pytest.fixture(params=["mariadb-stopped", "mariadb-held", "mysql-paused", "mysql-held"])
def frozen(request: pytest.FixtureRequest) -> Iterator[tuple[Database, Freeze]]:
    """A database, and what makes its server or the way there stand still for as long as a block lasts."""
    product, way = request.param.split("-")
    with opened("local" if product == "mariadb" else "docker") as own:
        assert isinstance(own, ServerDatabase)
        if way == "held":
            with proxied(own.url) as (proxy, url), open_database(url, limits=LIMITS) as database:
                yield database, lambda: held(proxy)
        elif way == "paused":
            port = own._url.port
            assert port is not None
            yield own, lambda: paused(port)
        else:
            folder = Path(str(own._url.query["unix_socket"])).parent
            number = int((folder / "pid").read_text())
            yield own, lambda: stopped(number)


def episode(database: Database, statements: list[str]) -> tuple[list[QueryResult], dict[str, list[tuple]]]:
    with database.sandbox(QUESTION if statements is READS else CHANGE) as sandbox:
        # with limits, so that each is executed though its result is known
        results = [
            dataclasses.replace(sandbox.execute(sql, database.limits), seconds=0) for sql in statements
        ]
        return results, {name: sorted(rows) for name, rows in rows_of(sandbox).items()}


@pytest.mark.slow
def test_no_freeze_is_blamed_on_an_episode(frozen: tuple[Database, Freeze]) -> None:
    """Five freezes of one to four times the statements' time limit, under twelve episodes at a time."""
    database, freeze = frozen
    undisturbed = {id(statements): episode(database, statements) for statements in (READS, WRITES)}
    moments, faults, over = random.Random(3), 0, False

    def play(statements: list[str]) -> int:
        played = 0
        while not over:
            try:
                assert episode(database, statements) == undisturbed[id(statements)]
                played += 1
            except EnvironmentFault:
                nonlocal faults
                faults += 1
        return played

    with ThreadPoolExecutor(12) as pool:
        playing = [pool.submit(play, READS if number % 3 else WRITES) for number in range(12)]
        try:
            for _ in range(5):
                time.sleep(moments.uniform(0.2, 1.0))
                with freeze():
                    time.sleep(moments.uniform(1.0, 4.0) * LIMITS.seconds)
            time.sleep(1)
        finally:
            over = True
        played = sum(each.result() for each in playing)
    assert played >= 12 and faults == 0


def test_a_change_is_made_once(frozen: tuple[Database, Freeze]) -> None:
    """The server, or its answer, is away just when the statement is sent."""
    database, freeze = frozen
    with database.sandbox(CHANGE) as sandbox, ThreadPoolExecutor(1) as pool:
        sandbox.execute("UPDATE medals SET gold = gold + 1")
        with freeze():
            insert = pool.submit(sandbox.execute, "INSERT INTO medals VALUES ('Togo', 9)")
            time.sleep(3 * LIMITS.seconds)
        result = insert.result()
        assert (result.error, result.affected) == (None, 1)
        assert sorted(sandbox.state()["medals"].rows) == [("Chad", 2), ("Peru", 3), ("Togo", 9)]


def test_a_statement_that_takes_too_long_is_stopped_after_a_freeze(frozen: tuple[Database, Freeze]) -> None:
    """It has its time; the freeze is not a part of that."""
    database, freeze = frozen
    with database.sandbox(QUESTION) as sandbox, ThreadPoolExecutor(1) as pool:
        sandbox.execute("SELECT 1")
        slow = pool.submit(sandbox.execute, "SELECT SLEEP(60) FROM medals")
        time.sleep(0.3)
        with freeze():
            time.sleep(2 * LIMITS.seconds)
        result = slow.result()
        assert (result.limit, result.error_code) == ("time", 3024)
        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(2,)]


@pytest.mark.parametrize("after", [0.1, 1.5])
def test_a_statement_that_is_slow_just_after_a_freeze_is_run_again(
    frozen: tuple[Database, Freeze], after: float
) -> None:
    """The server has much to catch up on then. Here the statement itself is slow for its first half second."""
    database, freeze = frozen
    with database.sandbox(QUESTION) as sandbox:
        sandbox.execute("SELECT 1")
        with freeze():
            time.sleep(LIMITS.seconds)
        time.sleep(after * LIMITS.seconds)
        until = time.time() + 0.5
        sql = f"SELECT SLEEP(IF(UNIX_TIMESTAMP(NOW(6)) < {until:f}, 30, 0)), COUNT(*) FROM medals"
        assert sandbox.execute(sql).rows == [(0, 2)]


def test_the_pulse_tells_how_long_a_server_stood_still(frozen: tuple[Database, Freeze]) -> None:
    database, freeze = frozen
    assert isinstance(database, ServerDatabase)
    pulse = database.tenancy.pulse
    time.sleep(0.5)
    start = time.monotonic()
    with freeze():
        time.sleep(2)
        assert pulse.stood_still(start) > 1
    silent = 0.0
    while silent != (silent := pulse.stood_still(start)) or silent < 1.5:
        time.sleep(2 * PULSE_SECONDS)  # until it answers again, or this test's time is over


def frozen_now_and_then(freeze: Freeze, longest: float, over: threading.Event) -> list[float]:
    """Freezes of one second to `longest`, at random moments, until `over`. Returns how long each was."""
    moments, lengths = random.Random(11), []
    while not over.wait(moments.uniform(0.5, 4.0)):
        lengths.append(moments.uniform(1.0, longest))
        with freeze():
            time.sleep(lengths[-1])
    return lengths


@pytest.mark.parametrize(
    ("steps", "longest"),
    [
        pytest.param(4, 3.0, id="4 steps", marks=pytest.mark.slow),
        pytest.param(30, 30.0, id="30 steps", marks=LONG),
    ],
)
def test_a_training_with_freezes_is_one_without(
    steps: int, longest: float, frozen: tuple[Database, Freeze], tmp_path: Path
) -> None:
    """Every observation, reward and state, or else the environment has failed; so the weights are the same, too."""
    database, freeze = frozen

    def train(name: str) -> list[dict]:
        rewards = [ExecutionReward(database)]
        quickstart_trainer(database, tmp_path / name, max_steps=steps, more_rewards=rewards).train()
        return [without_times(episode) for episode in episodes_in(tmp_path / name)]

    undisturbed = train("undisturbed")
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        freezing = pool.submit(frozen_now_and_then, freeze, longest, over)
        try:
            disturbed = train("disturbed")
        finally:
            over.set()
        lengths = freezing.result()
    retries = sum(episode["retries"] for episode in disturbed)
    failed = [episode for episode in disturbed if episode["status"] == "environment_fault"]
    print(f"{len(lengths)} freezes, {sum(lengths):.0f} s; {retries} retries, {len(failed)} faults")
    assert len(disturbed) == len(undisturbed) == steps * (8 + 2)
    # a failed episode leaves its update, after which the two are no longer alike
    until = min((episode["step"] for episode in failed), default=steps)
    for one, other in zip(disturbed, undisturbed, strict=True):
        if one["step"] <= until and one not in failed:
            assert {**one, "retries": 0} == other
    assert len(failed) < 0.02 * len(disturbed)


def without_times(record: dict) -> dict:
    """An episode's record without what differs from run to run on one machine."""
    turns = [{k: v for k, v in turn.items() if "seconds" not in k} for turn in record["turns"]]
    return {**{k: v for k, v in record.items() if "seconds" not in k}, "turns": turns}
