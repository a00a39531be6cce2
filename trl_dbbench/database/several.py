"""Several servers as one database: each new sandbox goes to the server with the lowest load.

```
SeveralDatabases.sandbox(task) -> RetryingSandbox     survives the loss of a server
  └── _PlacedSandbox                                  counts towards its server's load
        └── ServerDatabase.fresh_sandbox(task)        holds the tables
```

- A server's load is its number of open sandboxes, divided by the number of statements that it executes at
  once. The next sandbox goes to the server with the lowest load; among nearly equal loads, to one that
  already has the task's pristine tables.
- A server that fails and does not answer is lost: it gets no new sandboxes, and its sandboxes are made again
  on the other servers, where their episodes' changes are repeated. A thread per lost server waits for it, and
  restarts it if it is our own. Episodes wait only if all servers are lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter

from trl_dbbench.database.base import Database
from trl_dbbench.database.sandbox import Limits, Loss, QueryResult, Sandbox, State
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Task

logger = logging.getLogger("trl_dbbench.database")

NEAR = 0.1
"""Largest difference between nearly equal loads, as a share of the mean load. Loads that differ by one
sandbox are nearly equal, too."""

REST_SECONDS = 5.0
"""Seconds for which a server that failed to make a sandbox gets no others, if other servers are available."""

RETURN_SECONDS = 1.0
"""Seconds between checks whether a lost server answers again."""

FIGURES_SECONDS = 600.0
"""Seconds between log lines about how the sandboxes are spread over the servers."""


@dataclass(eq=False)
class Place:
    """One of the servers, with its counts and its availability."""

    database: ServerDatabase
    name: str
    open: int = 0
    most: int = 0
    """Most sandboxes open at the same time."""
    made: int = 0
    losses: int = 0
    away: bool = False
    away_since: float = 0.0
    away_seconds: float = 0.0
    rests_until: float = 0.0
    asked: float = 0.0
    """Time of the last check whether the server is lost."""
    asking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def load(self) -> float:
        return self.open / self.database.statements_at_once

    def figures(self, now: float) -> str:
        away = self.away_seconds + (now - self.away_since if self.away else 0.0)
        lost = f", lost {self.losses} times, {away:.0f} s in all" if self.losses else ""
        return f"{self.made} sandboxes, {self.most} at a time at most, {self.open} now{lost}"


class SeveralDatabases(Database):
    """Database that spreads sandboxes over opened databases with equal limits; closing it closes them.

    Raises:
        DatabaseError: the databases are of different products.
    """

    def __init__(self, databases: Sequence[ServerDatabase]) -> None:
        first = databases[0]
        for other in databases:
            if other.dialect != first.dialect:
                raise DatabaseError(
                    f"database: several servers must be of one product, and these are {first.describe()} and "
                    f"{other.describe()}. Name only MySQL servers, or only MariaDB servers."
                )
        self.url = ",".join(each.url for each in databases)
        self.dialect, self.limits, self.patience = first.dialect, first.limits, first.patience
        self.statements_at_once = sum(each.statements_at_once for each in databases)
        self._places = [
            Place(database, f"server {number} of {len(databases)}, {database.describe()}")
            for number, database in enumerate(databases, 1)
        ]
        self._lock = threading.Lock()
        self._told = time.monotonic()

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return sum(place.database.restarts for place in self._places)

    @property
    def silent(self) -> bool:  # type: ignore[override]
        return all(place.away or place.database.silent for place in self._places)

    def describe(self) -> str:
        said = list(dict.fromkeys(place.database.describe() for place in self._places))
        return f"{len(self._places)} servers: {'; '.join(said)}"

    def fresh_sandbox(self, task: Task) -> Sandbox:
        self._tell(FIGURES_SECONDS)
        place = self._enter(task)
        try:
            sandbox = place.database.fresh_sandbox(task)
        except EnvironmentFault:
            place.rests_until = time.monotonic() + REST_SECONDS
            self.leave(place)
            self.failed(place)
            raise
        except BaseException:
            self.leave(place)
            raise
        return _PlacedSandbox(self, place, sandbox)

    def recover(self) -> bool:
        """Return whether any server is available; a thread per lost server waits for it."""
        return not all(place.away for place in self._places)

    def leave(self, place: Place) -> None:
        """Note that a sandbox on this server has ended."""
        with self._lock:
            place.open -= 1

    def failed(self, place: Place) -> None:
        """Note that a server has failed, and count it as lost if it does not answer."""
        failed = time.monotonic()
        with place.asking:
            # another thread may have checked meanwhile
            if self.closed or place.away or place.asked > failed:
                return
            answers = place.database.tenancy.answers()
            place.asked = time.monotonic()
            if answers:
                return
            place.database.lay_blame()  # otherwise the statement would be executed on the next server
            with self._lock:
                place.away = True
                place.away_since = place.asked
                place.losses += 1
                there = sum(not each.away for each in self._places)
        logger.warning(
            "Database %s, is lost; %d are there. Its %d sandboxes are made again elsewhere.",
            place.name,
            there,
            place.open,
        )
        threading.Thread(
            target=self._wait_for, args=(place,), name="dbbench-lost-server", daemon=True
        ).start()

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self._threads.shutdown(wait=False)
        self._tell()
        with ExitStack() as closing:  # all of them, even if one raises
            for place in self._places:
                closing.callback(place.database.close)

    def _enter(self, task: Task) -> Place:
        """Choose the server for a task's next sandbox, and count the sandbox there."""
        key = task.tables_key if task.is_question or task.source is not None else None
        having = [
            place for place in self._places if key is not None and place.database.tenancy.pristine.has(key)
        ]
        with self._lock:
            there = [place for place in self._places if not place.away]
            if not there:
                raise EnvironmentFault(f"none of the {len(self._places)} database servers answers")
            now = time.monotonic()
            fit = [each for each in there if each.rests_until <= now and not each.database.silent] or there
            mean = sum(each.load for each in fit) / len(fit)
            least = min(each.load for each in fit)
            near = [
                each
                for each in fit
                if each in having
                and each.load <= least + max(NEAR * mean, 1 / each.database.statements_at_once)
            ]
            place = min(near or fit, key=lambda each: (each.load, each.made))
            place.open += 1
            place.made += 1
            place.most = max(place.most, place.open)
        return place

    def _wait_for(self, place: Place) -> None:
        while not self.closed:
            try:
                if place.database.recover():
                    break
            except Exception:  # if this thread ended, the server's return would go unnoticed
                logger.debug("%s: recovering failed", place.name, exc_info=True)
            time.sleep(RETURN_SECONDS)
        with self._lock:
            seconds = time.monotonic() - place.away_since
            place.away_seconds += seconds
            place.rests_until = 0.0  # failures from before the outage no longer count
            place.away = False
        if not self.closed:
            logger.warning("Database %s, is there again after %.0f s.", place.name, seconds)

    def _tell(self, pause: float = 0.0) -> None:
        """Log how the sandboxes are spread, unless this was logged less than `pause` seconds ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._told < pause:
                return
            self._told = now
        for place in self._places:
            logger.info("Database %s: %s.", place.name, place.figures(now))


class _PlacedSandbox(Sandbox):
    """Sandbox on one of several servers, which counts towards its load and reports failures to it."""

    changed = property(attrgetter("_sandbox.changed"))
    reached = property(attrgetter("_sandbox.reached"))
    brought_down = property(attrgetter("_sandbox.brought_down"))

    def __init__(self, database: SeveralDatabases, place: Place, sandbox: Sandbox) -> None:
        self._database = database
        self._place = place
        self._sandbox = sandbox
        self._closed = False

    @property
    def lost(self) -> Loss | None:  # type: ignore[override]
        return "environment" if self._place.away else self._sandbox.lost

    def failing(self, since: float) -> str | None:
        return f"Database {self._place.name}, is lost" if self._place.away else self._sandbox.failing(since)

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        with self._watched():
            return self._sandbox.execute(sql, limits)

    def repeat(self, sql: str, seen: QueryResult) -> QueryResult:
        with self._watched():
            return self._sandbox.repeat(sql, seen)

    def state(self) -> State:
        with self._watched():
            return self._sandbox.state()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._database.leave(self._place)
        if self._place.away:  # do not wait for a server that stands still
            threading.Thread(target=self._sandbox.close, name="dbbench-closing", daemon=True).start()
        else:
            self._sandbox.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentFault:
            self._database.failed(self._place)
            raise
