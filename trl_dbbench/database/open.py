"""Opens the database that a run asks for, on every rank."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from trl_dbbench.database.base import Database
from trl_dbbench.database.sandbox import Limits
from trl_dbbench.database.server.connections import redacted
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.docker import start_docker
from trl_dbbench.database.server.local import start_local
from trl_dbbench.database.server.ownership import new_run
from trl_dbbench.database.server.start import Server
from trl_dbbench.database.sqlite.database import SQLiteDatabase
from trl_dbbench.errors import DatabaseError
from trl_dbbench.ranks import Ranks

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
    """Opens a database for rollouts, and removes everything that it made at the end.

    `spec` is one of:

    - `"docker"`: MySQL in a container of `docker_image`, which only this machine can reach. Without a
      `docker_image`, the one named by the environment variable `TRL_DBBENCH_DOCKER_IMAGE`, else `mysql:8.4`;
    - `"local"`: a private `mysqld` or `mariadbd` from the PATH on a unix socket, which only this machine can
      reach;
    - `"sqlite"`: embedded, with MySQL's dialect translated; each process has its own;
    - `"mysql+pymysql://user:password@host:port/"`: a running server, needed by ranks on several machines;
    - `"auto"`: the first of docker, local and sqlite that works. One line of the log says which.

    Under `accelerate` with several processes every rank must call this: the main one starts the server and
    tells the others its URL; at the end it waits for them before it stops the server.

    Args:
        limits: what a statement may take.
        patience: seconds to wait for a server that does not answer. If this process has started the server,
            it starts it again when it ends.
        require_accounts: refuse a server on which the agents' statements would run under the given account
            because that may not create others. SQLite has no accounts and needs none.

    Raises:
        DatabaseError: the database cannot be used; raised on all ranks if one of them meets it.
    """
    image = docker_image or os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    return _open(spec, image, {"limits": limits, "patience": patience, "require_accounts": require_accounts})


@contextmanager
def _open(spec: str, docker_image: str, options: dict[str, Any]) -> Iterator[Database]:
    ranks = Ranks()
    options["ranks"] = ranks.count
    database: Database | None = None
    problem: str | None = None
    told: tuple[str, str] | None = None
    if ranks.is_main:
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
        problem = next((each for each in ranks.gather(problem) if each is not None), None)
        if problem is not None or database is None:
            raise DatabaseError(problem or "The main process opened no database.")
        yield database
        if not ranks.is_main:
            database.close()  # before the main process stops the server
        ranks.wait()
    finally:
        if database is not None:
            database.close()


def _choose(spec: str, docker_image: str, run: str, options: dict[str, Any]) -> Database:
    """Opens what `spec` names. A server that this starts is stopped with the database."""
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
        database = ServerDatabase(spec, run=run, **options)
    else:
        raise DatabaseError(
            f'{redacted(spec)!r} is no database. Write "auto", "docker", "local", "sqlite" or a URL such as '
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
            logger.debug('"auto" skips "%s": %s', name, error)
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


def _own(server: Server, run: str, options: dict[str, Any]) -> ServerDatabase:
    try:
        return ServerDatabase(server.url, run=run, server=server, **options)
    except BaseException:
        server.stop()
        raise


def _join(url: str, run: str, rank: int, options: dict[str, Any]) -> Database:
    """Opens, on another rank, what the main process has opened."""
    if url == "sqlite":
        return SQLiteDatabase(options["limits"])
    return ServerDatabase(url, run=run, rank=rank, **options)
