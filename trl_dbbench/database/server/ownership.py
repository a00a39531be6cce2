"""A run's databases and accounts on a server, named after the run, and its lock.

They are called `dbb_<run>_r<rank>_s<slot>`, or `..._t<number>` for a task's pristine tables. While a run
lives, it holds the named lock `dbb_<run>_r<rank>` on a connection of its own. The server frees the lock no
matter how the run ends, so the next run on the server can recognize what a killed run has left: databases and
accounts whose lock is free.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from dataclasses import dataclass

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from trl_dbbench.database.dialect import ServerDialect
from trl_dbbench.database.server.connections import error_code, text_of
from trl_dbbench.errors import EnvironmentFault

logger = logging.getLogger("trl_dbbench.database")

DROP_SECONDS = 5
"""Seconds that dropping a database waits for a statement or transaction that holds one of its tables."""

CLOSE_SECONDS = 10
SWEEP_SECONDS = 2
"""Seconds that dropping all of a run's databases waits for such: at the run's end, and when another opens."""

_DATABASE_READ_ONLY = 3989
"""MySQL's error number for a database that an agent made read-only (ALTER DATABASE ... READ ONLY = 1)."""

_OWNED = re.compile(r"(dbb_[0-9a-f]{8}_r\d{1,5})_[st]\d{1,9}")
# without EVENT: an event runs outside of any turn and without a time limit
_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE TEMPORARY TABLES, "
    "LOCK TABLES, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, TRIGGER"
)
_EACH_KIND = "aA1-"
"""One character of each kind that servers' password policies require; no policy checks positions."""

_HOSTS = ("%", "localhost")  # the server prefers an anonymous account at localhost to a named one at '%'


def new_run() -> str:
    """Return 8 random hexadecimal digits as the name of a run."""
    return secrets.token_hex(4)


@dataclass(frozen=True)
class Account:
    """Account under which an agent's statements run."""

    name: str
    password: str


def hold_lock(keeper: Connection, owner: str) -> int:
    """Take the run's lock, which is held while `keeper` is open; return the connection's number."""
    if keeper.exec_driver_sql("SELECT GET_LOCK(%s, 0)", (owner,)).scalar() != 1:
        raise EnvironmentFault("The server has not yet ended the run's old connections")
    return int(keeper.exec_driver_sql("SELECT CONNECTION_ID()").scalar() or 0)


def holder(connection: Connection, owner: str) -> int | None:
    """Return the number of the connection that holds the run's lock; `None` after a restart of the server."""
    number = connection.exec_driver_sql("SELECT IS_USED_LOCK(%s)", (owner,)).scalar()
    return None if number is None else int(number)


def killed(admin: Connection) -> list[int]:
    """Return the numbers of killed connections that still exist.

    The list is queried in ASCII, with `?` for other characters, because it truncates statements, possibly
    inside a character. MySQL 9's `information_schema.PROCESSLIST` fails altogether while any statement
    contains a four-byte character (error 3854).
    """
    admin.exec_driver_sql("SET character_set_results = ascii")
    try:
        rows = admin.exec_driver_sql("SHOW PROCESSLIST").all()
    finally:  # the connection goes back to a pool
        admin.exec_driver_sql("SET character_set_results = utf8mb4")
    return [int(number) for number, _, _, _, command, *_ in rows if command == "Killed"]


def create_account(admin: Connection, name: str) -> Account:
    """Create an account with all rights except EVENT in the database of the same name, and none elsewhere."""
    return _create(admin, name, _RIGHTS, name if names_are_literal(admin) else name.replace("_", r"\_"))


def names_are_literal(admin: Connection) -> bool:
    """Return whether GRANT takes a database's name literally, not as a pattern, because of
    `partial_revokes`."""
    found = admin.exec_driver_sql("SHOW VARIABLES LIKE 'partial_revokes'").first()
    return found is not None and found[1] == "ON"


def create_reader(admin: Connection, name: str, owner: str) -> Account:
    """Create an account that may only SELECT in the owner's pristine databases.

    This does not work where `names_are_literal`.
    """
    return _create(admin, name, "SELECT", f"{owner}_t".replace("_", r"\_") + "%%")


def _create(admin: Connection, name: str, rights: str, databases: str) -> Account:
    account = Account(name, secrets.token_urlsafe(18) + _EACH_KIND)
    users = ", ".join(f"'{name}'@'{host}'" for host in _HOSTS)
    identified = ", ".join(f"'{name}'@'{host}' IDENTIFIED BY '{account.password}'" for host in _HOSTS)
    admin.exec_driver_sql(f"CREATE USER {identified}")
    admin.exec_driver_sql(f"GRANT {rights} ON `{databases}`.* TO {users}")
    return account


def drop_account(admin: Connection, name: str) -> None:
    """Drop the account if it exists."""
    users = ", ".join(f"'{name}'@'{host}'" for host in _HOSTS)
    admin.exec_driver_sql(f"DROP USER IF EXISTS {users}")


def drop_database(connection: Connection, name: str, seconds: float = DROP_SECONDS) -> None:
    """Drop the database if it exists.

    Raises:
        DBAPIError: it cannot be dropped, for example because a transaction held one of its tables for
            `seconds`.
    """
    wait = max(1, round(seconds))
    connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {wait}, innodb_lock_wait_timeout = {wait}")
    try:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS `{name}`")
    except DBAPIError as error:
        if error_code(error) != _DATABASE_READ_ONLY:
            raise
        connection.exec_driver_sql(f"ALTER DATABASE `{name}` READ ONLY = 0")
        connection.exec_driver_sql(f"DROP DATABASE `{name}`")


def prepared_transactions(connection: Connection, dialect: ServerDialect) -> list[str]:
    """Return the names of the server's prepared XA transactions, as XA ROLLBACK takes them."""
    found = []
    for form, length, _, data in connection.exec_driver_sql(dialect.list_prepared):
        name = text_of(data)
        if name.startswith("0x"):
            middle = 2 + 2 * length
            name = f"X'{name[2:middle]}', X'{name[middle:]}', {form}"
        found.append(name)
    return found


def roll_back_prepared(connection: Connection, dialect: ServerDialect, *, only_own: bool = False) -> None:
    """Roll back prepared XA transactions, which outlive their connections and lock their tables forever.

    Args:
        only_own: roll back only those that this connection prepared. The server does not say whose one is,
            so a BEGIN precedes each rollback: it fails in a session that has prepared a transaction, and in
            any other it prevents the rollback of somebody else's. By default all of the server's are rolled
            back; on a server that we started, they are all agents'.
    """
    with contextlib.suppress(Exception):  # in an agent's session, names may not even be text
        for name in prepared_transactions(connection, dialect):
            for sql in [*(["BEGIN"] if only_own else []), f"XA ROLLBACK {name}"]:
                with contextlib.suppress(DBAPIError):
                    connection.exec_driver_sql(sql)


def remove_owned(admin: Connection, owner: str, *, accounts: bool, seconds: float = CLOSE_SECONDS) -> None:
    """Drop every database that `owner` made, by its name, and its accounts as far as they are visible.

    Databases that cannot be dropped within `seconds` are named in a warning and left for a later run.

    Raises:
        DBAPIError: the connection is lost.
    """
    deadline = time.monotonic() + seconds
    names = _accounts(admin) if accounts else []
    for name in _databases(admin):
        if _owner(name) == owner:
            try:
                drop_database(admin, name, deadline - time.monotonic())
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                logger.warning(
                    "The database %s cannot be dropped now (%s). A later run tries again. If that does not "
                    "help, look for a transaction that holds it: SHOW PROCESSLIST, XA RECOVER.",
                    name,
                    error.orig,
                )
    for name in names:
        if _owner(name) == owner:
            drop_account(admin, name)


def sweep(admin: Connection, *, accounts: bool) -> None:
    """Remove databases and accounts that killed runs have left."""
    names = _databases(admin) + (_accounts(admin) if accounts else [])
    for owner in sorted({found for name in names if (found := _owner(name))}):
        if admin.exec_driver_sql("SELECT IS_FREE_LOCK(%s)", (owner,)).scalar() == 1:
            logger.info("Removing what the run %s left behind.", owner)
            remove_owned(admin, owner, accounts=accounts, seconds=SWEEP_SECONDS)


def _owner(name: str) -> str | None:
    match = _OWNED.fullmatch(name)
    return match[1] if match else None


def _databases(admin: Connection) -> list[str]:
    return [str(row[0]) for row in admin.exec_driver_sql(r"SHOW DATABASES LIKE 'dbb\_%'")]


def _accounts(admin: Connection) -> list[str]:
    query = r"SELECT DISTINCT User FROM mysql.user WHERE User LIKE 'dbb\_%'"
    try:
        return [text_of(name) for (name,) in admin.exec_driver_sql(query)]
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return _databases(admin)  # not allowed to read mysql.user; an account has the name of its database
