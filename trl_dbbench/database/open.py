"""Opening of the database that a run asks for, on every rank."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from trl_dbbench.database.base import DEFAULT_LIMITS, Database
from trl_dbbench.database.embedded.database import SQLiteDatabase
from trl_dbbench.database.sandbox import Limits
from trl_dbbench.database.server.connections import parse_url, redacted
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.docker import start_docker
from trl_dbbench.database.server.local import start_local
from trl_dbbench.database.server.ownership import new_run
from trl_dbbench.database.several import SeveralDatabases
from trl_dbbench.errors import ConfigError, DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import look_up
from trl_dbbench.utils.ranks import Ranks

logger = logging.getLogger("trl_dbbench.database")

DEFAULT_IMAGE = "mysql:8.4"
IMAGE_VARIABLE = "TRL_DBBENCH_DOCKER_IMAGE"
_URLS = ("mysql+pymysql://", "mysql://", "mariadb+pymysql://", "mariadb://")
_EXAMPLE = "mysql+pymysql://user:password@host:3306/"
_BETWEEN = re.compile(r"[\s,]+(?=\w[\w+.-]*://|(?:auto|docker|local|sqlite)\s*(?::\s*\d+\s*)?(?:[\s,]|$))")
"""Separator between databases in one string. It must not match a comma or a blank in a password."""
_COUNTED = re.compile(r"(docker|local)\s*:\s*(\d+)")
_OWN = re.compile(r"(?!.*://|(?:docker|local)\s*:).+[.:][A-Za-z_]\w*")
"""Path of a user's own class: `module.Class`, `module:Class` or `file.py:Class`."""

Spec = str | Sequence[Any] | Mapping[str, Any]
"""Name of a database, or names of several servers; see `open_database`."""


def open_database(
    spec: Spec = "auto",
    *,
    docker_image: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    patience: float = Database.patience,
    require_accounts: bool = False,
) -> AbstractContextManager[Database]:
    """Open a database for rollouts; on exit, remove everything that it made.

    `spec` is one of:

    - `"docker"`: MySQL in a container that only the Docker engine's machine can reach. Its image is
      `docker_image`, else the environment variable `TRL_DBBENCH_DOCKER_IMAGE`, else `mysql:8.4`;
    - `"local"`: a private `mysqld` or `mariadbd` from the PATH on a unix socket, which only this machine can
      reach;
    - `"sqlite"`: an embedded database that translates MySQL's dialect; each process has its own;
    - `"mysql+pymysql://user:password@host:port/"`: a running server, required for MySQL if ranks run on
      several machines;
    - `"auto"`: the first of docker, local and sqlite that works, or sqlite if ranks run on several machines.
      A log line says which;
    - `"my.module.Class"`, `"my.module:Class"` or `"my_file.py:Class"`: your own `Database`, made on each rank
      with `limits` as its only argument;
    - several servers of one product, over which the sandboxes are spread (`several.py`): a list of URLs, the
      same joined by commas or blanks, or `"local:3"` or `{"docker": 2}` to start several.

    With several processes under `accelerate`, every rank must call this function. The main rank starts the
    server and sends its URL to the others; at the end it waits for them before it stops the server.

    Args:
        limits: limits of each statement.
        patience: seconds to wait for a server that does not answer. A server that this process has started is
            restarted when it ends.
        require_accounts: refuse a server on which agents' statements would run under the given account,
            as it may not create others. SQLite has no accounts and needs none.

    Raises:
        DatabaseError: the database cannot be used; raised on all ranks if it happens on one.
    """
    named = databases_of(spec)
    if docker_image and not {"auto", "docker"}.intersection(named) and Ranks().is_main:
        logger.warning("docker_image %s is not used: no container is started.", docker_image)
    image = docker_image or os.environ.get(IMAGE_VARIABLE) or DEFAULT_IMAGE
    options = {"limits": limits, "patience": patience, "require_accounts": require_accounts}
    return _open(named, image, options)


def database_for(tasks: Iterable[Task], spec: Spec = "auto") -> Spec:
    """Return the database to open for these tasks: `spec`, with `auto` resolved if a task requires it.

    `auto` becomes `sqlite` if any task is in SQLite's dialect, which no server runs.
    """
    return "sqlite" if spec == "auto" and any(task.dialect == "sqlite" for task in tasks) else spec


def databases_of(spec: Spec) -> list[str]:
    """Return the databases that a spec names: a single one, or each server's URL, `"docker"` or `"local"`.

    Raises:
        DatabaseError: if the spec names no database, the same server twice, or several databases that are not
            all servers.
    """
    named = list(_named(spec))
    if not named:
        raise DatabaseError(
            f"database: {spec!r} names no server. Name at least one, such as local or {_EXAMPLE}."
        )
    if len(named) > 1:
        for each in named:
            if each in ("auto", "sqlite"):
                raise DatabaseError(
                    f"database: {each} cannot be one of several servers. Name URLs, docker or local, as in "
                    "[local, local], or that one alone."
                )
            _check_known(each)
        _check_not_twice(named)
    return named


def _named(spec: Spec) -> Iterator[str]:
    if isinstance(spec, Mapping):
        for name, number in spec.items():
            yield from _named(f"{name}:{number}")
    elif not isinstance(spec, str):
        for each in spec if isinstance(spec, Sequence) else [str(spec)]:
            yield from _named(each)
    else:
        parts = _BETWEEN.split(spec.strip(" ,\n"))
        for part in parts if len(parts) > 1 else [spec]:
            counted = _COUNTED.fullmatch(part.strip())
            yield from [counted[1]] * int(counted[2]) if counted else [part]


def _check_known(name: str) -> None:
    if name not in ("docker", "local") and not name.startswith(_URLS):
        raise DatabaseError(
            f'{redacted(name)!r} is not a database. Write "auto", "docker", "local", "sqlite" or a URL '
            f"such as {_EXAMPLE}; for several servers a list of URLs, or local:2; for a class of your own "
            "its dotted path, my_module.MyDatabase."
        )


def _check_not_twice(named: Sequence[str]) -> None:
    addresses = []
    for each in named:
        if each.startswith(_URLS):
            url = parse_url(each)
            address = (url.host, url.port or 3306, url.query.get("unix_socket"))
            if address in addresses:
                raise DatabaseError(
                    f"database: the server {redacted(each)} is named twice. Name each server once."
                )
            addresses.append(address)


@contextmanager
def _open(named: Sequence[str], docker_image: str, options: dict[str, Any]) -> Iterator[Database]:
    ranks = Ranks()
    hosts = ranks.hosts()
    options["ranks"] = ranks.count
    database: Database | None = None
    problem: str | None = None
    told: tuple[list[str], str] | None = None
    if ranks.is_main:
        run = new_run()
        try:
            database = _choose(named, docker_image, run, options, several_hosts=len(set(hosts)) > 1)
            told = (databases_of(database.url), run)
        except DatabaseError as error:
            problem = str(error)
    try:
        told, problem = ranks.from_main((told, problem))
        if database is None and told is not None:
            try:
                urls, run = told
                options["rank"] = ranks.number
                database = _together(urls, lambda url: _start(url, docker_image, run, options))
            except DatabaseError as error:
                problem = f"On rank {ranks.number}: {error}{_advice(named, hosts, ranks.number)}"
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


def _advice(named: Sequence[str], hosts: Sequence[str], rank: int) -> str:
    """Return advice for a rank that cannot reach the server started by the main process elsewhere."""
    started = next((each for each in named if each in ("docker", "local")), None)
    if started is None or hosts[rank] == hosts[0]:
        return ""
    return (
        f" This rank runs on {hosts[rank]}, and {started!r} starts a server for {hosts[0]} alone. Where "
        f"ranks run on several machines, name a server that all of them reach, such as {_EXAMPLE}, or take "
        "sqlite, of which each rank has its own."
    )


def _choose(
    named: Sequence[str], docker_image: str, run: str, options: dict[str, Any], several_hosts: bool
) -> Database:
    """Open the named databases on the main rank; closing the database stops a server started here."""

    def start(spec: str) -> Database:
        return _start(spec, docker_image, run, options)

    if list(named) != ["auto"]:
        database = _together(named, start)
        logger.info("Database: %s.", database.describe())
        return database
    why = "for want of Docker and of mysqld or mariadbd on the PATH"
    if several_hosts:
        why = (
            "as ranks run on several machines, where a server that one starts cannot be reached from the "
            "others (for MySQL, name the URL of a server)"
        )
    for name in () if several_hosts else ("docker", "local"):
        try:
            database = start(name)
        except DatabaseError as error:
            logger.debug('"auto" skips "%s": %s', name, error)
            continue
        logger.info('Database: "auto" chose "%s": %s.', name, database.describe())
        return database
    embedded = SQLiteDatabase(options["limits"])
    logger.info(
        'Database: "auto" chose "sqlite", %s: %s. %s', why, embedded.describe(), SQLiteDatabase.DIFFERENCES
    )
    return embedded


def _together(named: Sequence[str], open_one: Callable[[str], Database]) -> Database:
    """Open all named databases and return them as one."""
    with ExitStack() as stack:
        opened: list[Any] = []
        for each in named:
            try:
                opened.append(stack.enter_context(open_one(each)))
            except EnvironmentFault as fault:
                if not opened:
                    raise
                raise DatabaseError(
                    f"{redacted(each)}: {fault}. If another URL of the list leads to the same server, leave "
                    "one of them out."
                ) from None
        database = SeveralDatabases(opened) if len(opened) > 1 else opened[0]
        stack.pop_all()
    return database


def _start(spec: str, docker_image: str, run: str, options: dict[str, Any]) -> Database:
    if spec in ("docker", "local"):
        server = start_docker(docker_image) if spec == "docker" else start_local()
        try:
            return ServerDatabase(server.url, run=run, server=server, **options)
        except BaseException:
            server.stop()
            raise
    if spec == "sqlite":
        return SQLiteDatabase(options["limits"])
    if _OWN.fullmatch(spec):
        return _users(spec, options)
    _check_known(spec)
    return ServerDatabase(spec, run=run, **options)


def _users(path: str, options: dict[str, Any]) -> Database:
    """Return a database of a user's own class."""
    try:
        made: Any = look_up("database", path, {})
        database = made(limits=options["limits"])
    except ConfigError as error:
        raise DatabaseError(str(error)) from error
    except TypeError as error:
        raise DatabaseError(
            f"the database {path!r} cannot be made: {error}. It is called with limits=Limits(...), and needs "
            "the members of trl_dbbench.database.Database: derive it from that."
        ) from error
    if not isinstance(database, Database):
        raise DatabaseError(
            f"the database {path!r} gives a {type(database).__name__}. Derive your class from "
            "trl_dbbench.database.Database, with fresh_sandbox, describe, close and dialect."
        )
    if not hasattr(database, "dialect"):
        raise DatabaseError(
            f"the database {path!r} has no dialect. Set one in its class, such as "
            "trl_dbbench.database.dialect.MYSQL."
        )
    database.url, database.patience = path, options["patience"]
    return database
