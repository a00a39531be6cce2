"""Opens the database that a run asks for, on every rank."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from trl_dbbench.database.base import Database
from trl_dbbench.database.sandbox import Limits
from trl_dbbench.database.server.accounts import new_run
from trl_dbbench.database.server.database import MySQLDatabase
from trl_dbbench.database.server.start import Server, start_docker, start_local
from trl_dbbench.database.sqlite.database import SQLiteDatabase
from trl_dbbench.errors import DatabaseError

logger = logging.getLogger("trl_dbbench.database")

DEFAULT_LIMITS = Limits()
DEFAULT_IMAGE = "mysql:8.4"
IMAGE_VARIABLE = "TRL_DBBENCH_DOCKER_IMAGE"
_URLS = ("mysql+pymysql://", "mysql://", "mariadb+pymysql://", "mariadb://")


def open_database(
    spec: str = "auto",
    *,
    docker_image: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    patience: float = Database.patience,
    require_accounts: bool = False,
) -> AbstractContextManager[Database]:
    """Open a database for rollouts, and remove whatever it made at the end.

    `spec` is one of:

    - `"docker"`: MySQL in a container of `docker_image`, reached from this machine only. Without one, the image
      that the environment names in `TRL_DBBENCH_DOCKER_IMAGE` is taken, else `mysql:8.4`;
    - `"local"`: a private `mysqld` or `mariadbd` from the PATH on a unix socket, reached from this machine only;
    - `"sqlite"`: embedded, MySQL's dialect translated; each process has its own;
    - `"mysql+pymysql://user:password@host:port/"`: a running server, which ranks on several machines need;
    - `"auto"`: the first of docker, local and sqlite that works. One line of the log says which.

    Under `accelerate` with several processes every rank must call this: the main one starts the server and tells
    the others its URL; at the end it waits for them before it stops the server.

    Args:
        limits: what a statement may take.
        patience: seconds that a server which does not answer is waited for. One that this process has started is
            started again when it ends.
        require_accounts: refuse a server on which the agents' statements would run under the given account, for
            want of the right to make accounts. SQLite has none and needs none.

    Raises:
        DatabaseError: the database cannot be used; on every rank if on one.
    """
    image = docker_image or os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    return _open(spec, image, {"limits": limits, "patience": patience, "require_accounts": require_accounts})


@contextmanager
def _open(spec: str, docker_image: str, options: dict[str, Any]) -> Iterator[Database]:
    ranks = _Ranks()
    options["ranks"] = ranks.count
    database: Database | None = None
    problem: str | None = None
    told: tuple[str, str] | None = None
    if ranks.main:
        run = new_run()
        try:
            database = _choose(spec, docker_image, run, options)
            told = (database.url, run)
        except DatabaseError as error:
            problem = str(error)
    try:
        told, problem = ranks.from_main((told, problem))
        if database is None and told is not None:
            try:
                url, run = told
                database = _join(url, run, ranks.number, options)
            except DatabaseError as error:
                problem = f"On rank {ranks.number}: {error}"
        problem = ranks.first(problem)
        if problem is not None or database is None:
            raise DatabaseError(problem or "The main process opened no database.")
        yield database
        if not ranks.main:
            database.close()  # before the main process stops the server
        ranks.wait()
    finally:
        if database is not None:
            database.close()


def _choose(spec: str, docker_image: str, run: str, options: dict[str, Any]) -> Database:
    """Open what `spec` names; a server that this starts is the database's to stop."""
    if spec == "auto":
        return _first_that_works(docker_image, run, options)
    database: Database
    if spec == "docker":
        database = _own(start_docker(docker_image), run, options)
    elif spec == "local":
        database = _own(start_local(), run, options)
    elif spec == "sqlite":
        database = SQLiteDatabase(options["limits"])
    elif spec.startswith(_URLS):
        database = MySQLDatabase(spec, run=run, **options)
    else:
        raise DatabaseError(
            f'{spec!r} is no database. Write "auto", "docker", "local", "sqlite" or a URL such as '
            "mysql+pymysql://user:password@host:3306/."
        )
    logger.info("Database: %s.", database.describe())
    return database


def _first_that_works(docker_image: str, run: str, options: dict[str, Any]) -> Database:
    starts: list[tuple[str, Callable[[], Server]]] = [
        ("docker", lambda: start_docker(docker_image)),
        ("local", start_local),
    ]
    for name, start in starts:
        try:
            database = _own(start(), run, options)
        except DatabaseError as error:
            logger.debug('"auto" passes over "%s": %s', name, error)
            continue
        logger.info('Database: "auto" chose "%s": %s.', name, database.describe())
        return database
    embedded = SQLiteDatabase(options["limits"])
    logger.info(
        'Database: "auto" chose "sqlite", for want of Docker and of mysqld or mariadbd on the PATH: %s. %s',
        embedded.describe(),
        SQLiteDatabase.DIFFERENCES,
    )
    return embedded


def _own(server: Server, run: str, options: dict[str, Any]) -> MySQLDatabase:
    try:
        return MySQLDatabase(server.url, run=run, server=server, **options)
    except BaseException:
        server.stop()
        raise


def _join(url: str, run: str, rank: int, options: dict[str, Any]) -> Database:
    """What the main process has opened, from another rank."""
    if url == "sqlite":
        return SQLiteDatabase(options["limits"])
    return MySQLDatabase(url, run=run, rank=rank, **options)


class _Ranks:
    """The processes of a training run, or this one alone if accelerate has not been set up for several."""

    def __init__(self) -> None:
        self._state: Any = None
        self.number, self.count, self.main = 0, 1, True
        module = sys.modules.get("accelerate.state")  # not imported: not set up, and slow to import
        if module is not None and module.PartialState._shared_state:
            state = module.PartialState()
            if state.num_processes > 1:
                self._state = state
                self.number, self.count, self.main = (
                    state.process_index,
                    state.num_processes,
                    state.is_main_process,
                )

    def from_main(self, value: Any) -> Any:
        """The main process's value, on all."""
        if self._state is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def first(self, problem: str | None) -> str | None:
        """The first rank's problem, on all; `None` if none has one."""
        if self._state is None:
            return problem
        from accelerate.utils import gather_object

        return next((each for each in gather_object([problem]) if each is not None), None)

    def wait(self) -> None:
        """Until all are here. Not called when one failed: the others might never come."""
        if self._state is not None:
            self._state.wait_for_everyone()
