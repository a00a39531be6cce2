"""Several servers as one database: who gets which episode, and what becomes of the episodes of a lost server."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pymysql
import pytest
from databases import DOCKER_IMAGE, connect_arguments, kill_server, owned, rows_of, table, task
from proxies import proxied
from required import lacking
from sqlalchemy import make_url
from waiting import wait_until

from trl_dbbench.cli.arguments import DatabaseArguments
from trl_dbbench.cli.start import RecipeParser
from trl_dbbench.database import Database, Limits, QueryResult, open_database
from trl_dbbench.database.open import databases_of
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.local import start_local
from trl_dbbench.database.server.start import Server
from trl_dbbench.database.several import Place, SeveralDatabases
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Gold, Task

DEMO_TASKS = Path(__file__).parents[2] / "recipes" / "demo_tasks.jsonl"
LIMITS = Limits(seconds=20.0)
"""Hundreds of threads on a busy machine make any statement slow."""

WITHIN = 0.2
"""So far apart may the servers' sandboxes be, as a share of their mean."""


def numbered(number: int) -> Task:
    """A question about tables that no other number has."""
    return task(table("medals", "nation TEXT, gold INT", ("Chad", number), ("Peru", 2)))


def changing(question: Task) -> Task:
    return dataclasses.replace(question, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 3"))


QUESTIONS = [numbered(number) for number in range(12)]
TASKS = [*QUESTIONS, *map(changing, QUESTIONS[:4])]
READS = ["SELECT * FROM medals", "SELECT SUM(gold) FROM medals", "SELECT medal FROM medals"]
WRITES = [
    "UPDATE medals SET gold = gold + 1",
    "INSERT INTO medals VALUES ('Togo', 9)",
    "SELECT * FROM medals",
    "DELETE FROM medals WHERE nation = 'Peru'",
]


def play(
    database: Database, task: Task, pause: float = 0.0
) -> tuple[list[QueryResult], dict[str, list[tuple]]]:
    """What an episode reads, and the rows that it leaves."""
    with database.sandbox(task) as sandbox:
        results = []
        for sql in READS if task.is_question else WRITES:
            # with limits, so that each is executed though its result is known
            results.append(dataclasses.replace(sandbox.execute(sql, database.limits), seconds=0))
            time.sleep(pause)
        return results, rows_of(sandbox)


def places(database: Database) -> list[Place]:
    assert isinstance(database, SeveralDatabases)
    return database._places


def made(database: Database) -> list[int]:
    return [place.made for place in places(database)]


def evenly(numbers: list[int]) -> bool:
    return max(numbers) - min(numbers) <= WITHIN * sum(numbers) / len(numbers)


@contextmanager
def servers(count: int) -> Iterator[list[Server]]:
    """Private servers that are the test's: none of them is started again unless the test does it."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            try:
                started.append(start_local())
            except DatabaseError as error:
                lacking("local", f"no 'local' database here: {error}")
            stack.callback(started[-1].stop)
        yield started


@pytest.fixture(scope="module")
def three() -> Iterator[Database]:
    with servers(3) as started, open_database([each.url for each in started], limits=LIMITS) as database:
        yield database


# --- what names them --------------------------------------------------------------------------------------

ONE, TWO = "mysql://me:secret@db1:3306/", "mariadb://me:secret@db2/"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("auto", ["auto"]),
        (["sqlite"], ["sqlite"]),
        ({"local": 1}, ["local"]),
        ({"docker": 2}, ["docker", "docker"]),
        ("local:2", ["local", "local"]),
        ("local: 2", ["local", "local"]),
        (["local", "local"], ["local", "local"]),
        ([ONE, TWO], [ONE, TWO]),
        (f"{ONE},{TWO}", [ONE, TWO]),
        (f"{ONE}, {TWO}\n", [ONE, TWO]),
        ([f"{ONE} {TWO}", "docker"], [ONE, TWO, "docker"]),
        ("mysql://me:a,b@db1/", ["mysql://me:a,b@db1/"]),
        ("mysql://me:a, local@db1/", ["mysql://me:a, local@db1/"]),
    ],
)
def test_one_name_or_several(spec: object, named: list[str]) -> None:
    assert databases_of(spec) == named  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([], r"database: \[\] names no server. Name at least one"),
        ({"local": 0}, "names no server"),
        ([ONE, ONE], r"the server mysql://\*\*\*@db1:3306/ is named twice. Name each server once."),
        (["mysql://me:secret@db1/a", "mysql+pymysql://you:secret@db1:3306"], "is named twice"),
        (["sqlite", "local"], "sqlite cannot be one of several servers. Name URLs, docker or local"),
        (f"auto,{ONE}", "auto cannot be one of several servers"),
        ({"local": "two"}, "'local:two' is not a database. Write .*local:2"),
        (["local", "oracle"], "'oracle' is not a database"),
        (["mysql://me:secret@nowhere.invalid/", TWO], "nowhere.invalid/: no MySQL server answers there"),
        (7, "'7' is not a database"),
    ],
)
def test_a_bad_list_is_one_line(spec: object, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(DatabaseError, match=said) as caught,
        open_database(spec),  # type: ignore[arg-type]
    ):
        pass
    assert "\n" not in str(caught.value) and "secret" not in f"{caught.value} {caplog.text}"


@pytest.mark.parametrize(
    ("yaml", "options", "named"),
    [
        ("", [], ["auto"]),
        ("database: sqlite", [], ["sqlite"]),
        ("database: {local: 2}", [], ["local", "local"]),
        ("database: local:2", [], ["local", "local"]),
        (f"database: ['{ONE}', '{TWO}']", [], [ONE, TWO]),
        (f"database:\n- {ONE}\n- {TWO}", [], [ONE, TWO]),
        ("database: sqlite", ["--database", "local:2"], ["local", "local"]),
        ("database: sqlite", ["--database", ONE, TWO], [ONE, TWO]),
        ("database: sqlite", ["--database", f"{ONE},{TWO}"], [ONE, TWO]),
    ],
)
def test_a_yaml_and_a_command_line_name_them(
    yaml: str, options: list[str], named: list[str], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(f"{yaml}\nrequire_accounts: false\n")
    parser = RecipeParser([DatabaseArguments])
    (given,) = parser.parse_args_and_config(["--config", str(tmp_path / "recipe.yaml"), *options])
    assert databases_of(given.database) == named


def test_they_are_of_one_product(three: Database, docker_database: Database) -> None:
    with (
        pytest.raises(DatabaseError, match=r"of one product, and these are MariaDB .* and MySQL") as caught,
        open_database([three.url.split(",")[0], docker_database.url]),
    ):
        pass
    password = make_url(docker_database.url).password
    assert password and password not in str(caught.value) and "\n" not in str(caught.value)


def test_two_urls_of_one_server(three: Database) -> None:
    url = three.url.split(",")[0]
    with (
        proxied(url) as (_, through),
        pytest.raises(DatabaseError, match="If another URL of the list leads to the same server"),
        open_database([url, through]),
    ):
        pass


def test_one_entry_is_the_database_itself(three: Database) -> None:
    with open_database([three.url.split(",")[0]]) as database:
        assert isinstance(database, ServerDatabase)


# --- who gets which episode -------------------------------------------------------------------------------


def test_the_load_is_spread(three: Database) -> None:
    """All kinds of tasks, 256 at a time."""
    before = made(three)
    with ThreadPoolExecutor(64) as pool:
        sandboxes = list(pool.map(three.sandbox, itertools.islice(itertools.cycle(TASKS), 256)))
        assert evenly([place.open for place in places(three)])
        assert sum(place.open for place in places(three)) == 256
        list(pool.map(lambda sandbox: sandbox.close(), sandboxes))
    assert [place.open for place in places(three)] == [0, 0, 0]
    assert evenly([now - then for now, then in zip(made(three), before, strict=True)])


def test_a_weak_server_gets_less(three: Database) -> None:
    weak, strong, _ = three.url.split(",")
    with pymysql.connect(**connect_arguments(weak)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 150")
        with open_database([weak, strong], limits=LIMITS) as database, ExitStack() as stack:
            few, many = (place.database.statements_at_once for place in places(database))
            for _ in range(3 * (few + many)):
                stack.enter_context(database.sandbox(QUESTIONS[0]))
            assert few < many and database.statements_at_once == few + many
            assert [place.open for place in places(database)] == pytest.approx(
                [3 * few, 3 * many], rel=WITHIN
            )
        cursor.execute("SET GLOBAL max_connections = 1000")


def test_a_task_goes_where_its_tables_are(three: Database) -> None:
    """Groups of eight, one after the other, beside other episodes: each task's tables are made once."""

    def pristine() -> int:
        return sum("_t" in name for url in three.url.split(",") for name in owned(url))

    with ExitStack() as others:
        for number in range(90):
            others.enter_context(three.sandbox(changing(numbered(100 + number % 3))))
        before = pristine()
        for number in range(10):
            with ExitStack() as group:
                for _ in range(8):
                    group.enter_context(three.sandbox(numbered(200 + number)))
                assert evenly([place.open for place in places(three)])
        assert pristine() - before <= 20, "of ten tasks on three servers"


def test_another_process_shares_them(three: Database) -> None:
    with open_database(three.url, limits=LIMITS) as again:
        assert again.url == three.url and again.describe() == three.describe()
        assert play(again, TASKS[0]) == play(three, TASKS[0])


# --- when one is lost -------------------------------------------------------------------------------------


class Episodes:
    """Episodes by many threads until `stop`, all compared with undisturbed ones."""

    def __init__(self, database: Database, undisturbed: list, at_a_time: int, pause: float = 0.02) -> None:
        self.database, self.undisturbed, self.pause = database, undisturbed, pause
        self.over, self.played, self.wrong, self.faults = False, 0, [], []  # type: ignore[var-annotated]
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pool = ThreadPoolExecutor(at_a_time)
        self._futures = [self._pool.submit(self._run) for _ in range(at_a_time)]

    def _run(self) -> None:
        while not self.over:
            number = next(self._numbers) % len(TASKS)
            try:
                found = play(self.database, TASKS[number], self.pause)
            except EnvironmentFault as fault:
                self.faults.append(str(fault))
                continue
            with self._lock:
                self.played += 1
                if found != self.undisturbed[number]:
                    self.wrong.append((number, found))

    def more(self, number: int) -> None:
        """Waits until so many more have been played."""
        goal = self.played + number
        wait_until(lambda: self.played >= goal or bool(self.faults or self.wrong), f"{number} episodes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.over = True
        self._pool.shutdown()
        if kind is None:
            assert [future.exception() for future in self._futures if future.exception()] == []
        assert (self.faults, self.wrong) == ([], [])


@pytest.mark.slow
def test_a_server_is_killed_under_256_episodes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trl_dbbench.database")
    with servers(3) as started:
        with open_database(started[0].url, limits=LIMITS) as alone:
            undisturbed = [play(alone, each) for each in TASKS]
        with open_database([each.url for each in started], limits=LIMITS) as database:
            first, lost, third = places(database)
            with Episodes(database, undisturbed, 256) as episodes:
                episodes.more(128)
                assert evenly([place.open for place in places(database)])
                kill_server(started[1])
                wait_until(lambda: lost.away, "the loss")
                wait_until(lambda: lost.open == 0, "that none of its episodes waits for it")
                episodes.more(128)
                assert lost.away and lost.open == 0
                assert evenly([first.open, third.open])
                then = lost.made
                started[1].restart()
                wait_until(lambda: not lost.away, "the return")
                wait_until(lambda: evenly([place.open for place in places(database)]), "an even load")
                assert lost.made > then + 50
            assert (lost.losses, first.losses, third.losses, database.restarts) == (1, 0, 0, 1)
            assert database.gave_up is None
    text = "\n".join(caplog.messages)
    assert "server 2 of 3, " in text and ", is lost; 2 are there" in text and ", is there again after" in text
    (figures,) = [line for line in caplog.messages if "server 2 of 3" in line and "lost 1 times" in line]
    assert f": {lost.made} sandboxes, {lost.most} at a time at most, 0 now" in figures


@pytest.mark.parametrize("kind", ["local", pytest.param("docker", marks=pytest.mark.slow)])
def test_our_own_server_is_started_again(kind: str, request: pytest.FixtureRequest) -> None:
    """While it is, its episodes go on elsewhere."""
    one = request.getfixturevalue(f"{kind}_database")  # skips where this machine has none
    undisturbed = [play(one, each) for each in TASKS]
    with open_database({kind: 2}, docker_image=DOCKER_IMAGE, limits=LIMITS) as database:
        lost = places(database)[1]
        server = lost.database._server
        assert server is not None
        with Episodes(database, undisturbed, 24) as episodes:
            episodes.more(24)
            if kind == "local":
                kill_server(server)
            else:
                server.kill()
            wait_until(lambda: database.restarts == 1 and not lost.away, "the return")
            then = lost.made
            episodes.more(48)
            assert lost.made > then


@pytest.mark.slow
def test_all_are_lost() -> None:
    """Episodes wait for the first that returns, but not for ever."""
    with ExitStack() as stack:
        started = stack.enter_context(servers(2))
        urls = [each.url for each in started]
        database = stack.enter_context(open_database(urls, limits=LIMITS))
        sandbox = stack.enter_context(database.sandbox(TASKS[-1]))
        assert sandbox.execute("UPDATE medals SET gold = 5").affected == 2
        hasty = stack.enter_context(open_database(urls, limits=LIMITS, patience=3.0))
        given_up = stack.enter_context(hasty.sandbox(TASKS[0]))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for each in started:
            kill_server(each)
        with pytest.raises(EnvironmentFault, match="none of the 2 database servers answers; waited for 3 s"):
            given_up.execute(READS[0])
        assert hasty.gave_up is not None and database.gave_up is None
        waiting = pool.submit(sandbox.execute, "SELECT SUM(gold) FROM medals")
        wait_until(lambda: all(place.away for place in places(database)), "the loss of both")
        assert not waiting.done()
        started[1].restart()
        assert waiting.result(timeout=60).rows == [(10,)]
        assert [place.away for place in places(database)] == [True, False]
        assert sandbox.retries > 0


def test_a_server_that_stands_still_gets_no_new_episodes(three: Database) -> None:
    one, two, _ = three.url.split(",")
    with proxied(one) as (proxy, through), open_database([through, two], limits=LIMITS) as database:
        still, other = places(database)
        assert play(database, TASKS[0]) and play(database, TASKS[1])
        proxy.hold()
        try:
            wait_until(lambda: still.database.silent, "the silence")
            then = still.made
            for each in TASKS:
                assert play(database, each) == play(three, each)
            assert still.made == then
        finally:
            proxy.release()
        wait_until(lambda: not still.database.silent, "an answer")
        with ExitStack() as stack:
            for each in TASKS:
                stack.enter_context(database.sandbox(each))
            assert still.losses == 0 and evenly([still.open, other.open])


def test_a_statement_that_ends_its_connection_is_the_agents(three: Database) -> None:
    """As on one server: the servers answer others all the while, so none of them is lost."""
    ends = "KILL CONNECTION_ID()"
    with open_database(three.url.split(",")[0], limits=LIMITS) as one, one.sandbox(TASKS[-1]) as sandbox:
        said = sandbox.execute(ends).error
    with three.sandbox(TASKS[-1]) as sandbox:
        assert sandbox.execute(ends).error == said
        assert sandbox.execute(READS[0]).rows
    assert not any(place.away for place in places(three))


# --- what is said of them ---------------------------------------------------------------------------------


def test_passwords_are_not_shown(
    three: Database, caplog: pytest.LogCaptureFixture, command: Callable
) -> None:
    caplog.set_level(logging.DEBUG, "trl_dbbench")
    urls = []
    with ExitStack() as proxies:
        for url in three.url.split(",")[:2]:
            with pymysql.connect(**connect_arguments(url)) as admin, admin.cursor() as cursor:
                cursor.execute("CREATE OR REPLACE USER me IDENTIFIED BY 'secret'")
                cursor.execute("GRANT ALL ON *.* TO me WITH GRANT OPTION")
            _, through = proxies.enter_context(proxied(url))
            urls.append(through.replace("root@", "me:secret@"))
        with open_database(urls, limits=LIMITS) as database:
            assert play(database, TASKS[0])
            text = database.describe()
    code, out = command("validate", DEMO_TASKS, "--database", ",".join(urls))  # nobody listens there now
    assert "me:***@127.0.0.1" in text and "me:***@127.0.0.1" in str(code)
    assert "secret" not in f"{text} {code} {out} {caplog.text}"


@pytest.mark.slow
def test_commands_take_lists(three: Database, command: Callable) -> None:
    code, out = command("validate", DEMO_TASKS, "--database", three.url)
    assert code in (0, None), out
