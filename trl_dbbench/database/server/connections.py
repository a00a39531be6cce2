"""Connections to a MySQL-family server through SQLAlchemy, and its errors in words."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from pymysql.connections import Connection
from pymysql.err import OperationalError
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from trl_dbbench.database.faults import ENVIRONMENT_FAULTS, TOO_LARGE, message
from trl_dbbench.errors import DatabaseError, EnvironmentFault

CONNECT_SECONDS = 8
ADMIN_SECONDS = 60
KILL_SECONDS = 2
PACKET_BYTES = 4 * 1024 * 1024
PAUSES_FOR_A_CONNECTION = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between tries where a server has no connection left: it frees those that hung up only after a while."""
_TOO_MANY = 1040
_CONNECT_FAILURES = frozenset({2002, 2003, 2005, 2006, 2013, 1042, 1043, 1129, 1130})


def parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseError(
            f"{url!r} is not a database URL. Write mysql+pymysql://user:password@host:port/ (characters such as @ "
            "and / in the password as %40 and %2F)."
        ) from None
    return parsed.set(drivername="mysql+pymysql", database=None)


class BoundedConnection(Connection):
    """A connection that hangs up before it reads a row of more than `PACKET_BYTES`; servers send up to 1 GB."""

    _sock: Any
    _result: Any

    def _read_bytes(self, num_bytes: int) -> bytes:
        if num_bytes > PACKET_BYTES:
            self._force_close()
            raise OperationalError(TOO_LARGE, "Got packet bigger than 'max_allowed_packet' bytes")
        return super()._read_bytes(num_bytes)  # type: ignore[misc]

    def _force_close(self) -> None:
        super()._force_close()  # type: ignore[misc]
        if self._result is not None:
            self._result.unbuffered_active = False  # or it would read on when it is deleted

    def drop_rest(self) -> None:
        """Reads and drops what is left of the last statement's results, of which a procedure can have many."""
        while self._result is not None:
            if self._result.unbuffered_active:
                self._result._finish_unbuffered_query()
            if not self._result.has_next:
                return
            self.next_result(unbuffered=True)

    def hang_up(self) -> None:
        """Ends, from another thread, the wait for the server's answer."""
        with contextlib.suppress(OSError, AttributeError):  # closed already
            self._sock.shutdown(socket.SHUT_RDWR)


def engine(url: URL, read_seconds: float, *, most: int = 4, **arguments: Any) -> Engine:
    """Connections with autocommit, whose statements are sent as they are: `%` and `:name` mean nothing.

    Args:
        read_seconds: how long to wait for an answer, and for one of the `most` connections.
    """
    arguments = {
        "charset": "utf8mb4",
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": read_seconds,
        "write_timeout": read_seconds,
        "local_infile": False,
        **arguments,
    }
    pool: dict[str, Any] = {
        "pool_size": most,
        "max_overflow": 0,
        "pool_timeout": read_seconds,
        "pool_pre_ping": True,
        "pool_recycle": 1800,
    }
    if "init_command" in arguments:  # an agent's: its slot is the pool
        pool = {"poolclass": NullPool}
    made = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        connect_args=arguments,
        execution_options={"no_parameters": True},
        **pool,
    )
    event.listen(made, "do_connect", lambda dialect, record, args, kwargs: _connect(*args, **kwargs))
    return made


def _connect(*args: Any, **kwargs: Any) -> BoundedConnection:
    for pause in PAUSES_FOR_A_CONNECTION:
        try:
            return BoundedConnection(*args, **kwargs)
        except OperationalError as error:
            if error.args[0] != _TOO_MANY:
                raise
        time.sleep(pause)
    return BoundedConnection(*args, **kwargs)


def error_code(error: SQLAlchemyError) -> int:
    """The server's or PyMySQL's number; 0 for what SQLAlchemy says of a connection that was lost."""
    arguments: tuple[Any, ...] = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0


def error_text(error: SQLAlchemyError) -> str:
    """The server's own words, without SQLAlchemy's frame."""
    if not isinstance(error, DBAPIError):
        return str(error)
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    if len(arguments) > 1 and isinstance(arguments[0], int):
        return message(arguments[0], str(arguments[1]))
    return str(error.orig)


def fault(error: SQLAlchemyError) -> EnvironmentFault:
    code, text = error_code(error), error_text(error)
    meaning = ENVIRONMENT_FAULTS.get(code, "the database failed")
    return EnvironmentFault(f"{meaning[0].upper()}{meaning[1:]}: {text}", observation=text)


def connect_advice(error: DBAPIError) -> str:
    code = error_code(error)
    if code == 1045 or code == 1698:
        return f"the server refuses this account ({error_text(error)}). Correct the user or the password in the URL."
    if code in _CONNECT_FAILURES or code == 0:
        return (
            f"no MySQL server answers there within {CONNECT_SECONDS} s ({error_text(error)}). Check that it runs, and the "
            'host, the port and the firewall; or open "auto", "docker", "local" or "sqlite" instead.'
        )
    return f"the server refuses the connection: {error_text(error)}"
