"""Connections to a MySQL-family server through SQLAlchemy, and explanations of its errors."""

from __future__ import annotations

import configparser
import contextlib
import errno
import functools
import re
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pymysql.charset import charset_by_name
from pymysql.connections import Connection
from pymysql.converters import escape_item
from pymysql.cursors import Cursor
from pymysql.err import MySQLError, OperationalError
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.engine import Connection as SQLConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from trl_dbbench.database.error_numbers import LOST, TOO_LARGE, message
from trl_dbbench.database.server.tls import OPTIONS, tls_arguments
from trl_dbbench.errors import DatabaseError, EnvironmentFault, TaskError

CONNECT_SECONDS = 8
"""Seconds that a server may take to accept a connection."""

ADMIN_SECONDS = 60
"""Seconds that a server may take to answer one of our own statements."""

KILL_SECONDS = 2
"""Seconds that a server may take to accept a KILL."""

IDLE_SECONDS = 31_536_000
"""Seconds for which the server keeps our idle connections open. The model may write for longer than the
server's own `wait_timeout`."""

MAX_ROW_BYTES = 4 * 1024 * 1024

LARGE_ROW_CHARACTERS = 16 * 1024
"""Characters of a row's texts above which the row is checked against the server's packet limit."""

MAX_INSERT_BYTES = 256 * 1024
"""Largest INSERT of several rows, in bytes; a larger row is sent alone. Servers may refuse larger
statements."""

CONNECT_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses between tries to connect to a server with no connection left: it takes time to free them."""

_CHANGE_USER = 0x11
_RESET_CONNECTION = 0x1F
"""Protocol commands (COM_CHANGE_USER, COM_RESET_CONNECTION) for which PyMySQL has no methods."""

SPARE_FILES = 64
"""Files and sockets that the rest of the process may open in addition to all connections."""

# autocommit is set explicitly: with `autocommit = 0` configured, MySQL tells new connections that it is on
_SETTINGS = f"autocommit = 1, default_storage_engine = InnoDB, wait_timeout = {IDLE_SECONDS}"
_OUR_MODE = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'"

_AS_WRITTEN = (
    "sql_require_primary_key = OFF",
    "sql_generate_invisible_primary_key = OFF",
    "explicit_defaults_for_timestamp = ON",
    "innodb_strict_mode = OFF",  # strict mode refuses more than 197 TEXT columns
)
"""Session settings with which tables are made exactly as tasks define them."""

_TOO_MANY_CONNECTIONS = 1040
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_CONNECT_FAILURES = frozenset({2002, 2003, 2005, 2006, 2013, 1042, 1043, 1129, 1130})
_ACCOUNT_REFUSED = frozenset({1045, 1698})


_OPTIONS = OPTIONS | {
    *("user", "password", "passwd", "unix_socket", "bind_address", "read_default_file"),
    *("read_default_group", "program_name", "charset"),
}
"""Options that a database URL may have."""


def parse_url(url: str) -> URL:
    """Return the URL of one server, without the database that it may name.

    A user and password among the options are moved before the host: as options, they would also replace
    agents' accounts.

    Raises:
        DatabaseError: the text is not a valid database URL. The message contains no password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    # SQLAlchemy takes an unescaped @, and everything after the first of several URLs, as part of host or path
    if (
        parsed is None
        or not parsed.drivername.startswith(("mysql", "mariadb"))
        or set("@,/") & set(f"{parsed.host}{parsed.database}")
    ):
        raise DatabaseError(
            f"{redacted(url)!r} is not the URL of one MySQL or MariaDB server. Write "
            "mysql+pymysql://user:password@host:port/ (characters such as @ and / in the password as %40 and "
            "%2F)."
        ) from None
    if unknown := sorted(set(parsed.query) - _OPTIONS):
        raise DatabaseError(
            f"the database URL has the unknown option {unknown[0]!r}; allowed: "
            f"{', '.join(sorted(_OPTIONS))}. An encrypted connection that checks the server is "
            "?ssl_ca=ca.pem&ssl_verify_identity=true."
        )
    if repeated := [name for name, value in parsed.query.items() if not isinstance(value, str)]:
        raise DatabaseError(f"the database URL has the option {repeated[0]!r} twice. Give it once.")
    tls_arguments(parsed.query)
    if not (charset := str(parsed.query.get("charset", "utf8mb4"))).lower().startswith("utf8"):
        raise DatabaseError(
            f"the database URL's charset is {charset!r}; connections use utf8mb4, in which the server sends "
            "texts of every character set. Leave it out."
        )
    file = str(parsed.query.get("read_default_file", ""))
    if file and not Path(file).expanduser().is_file():
        raise DatabaseError(f"the database URL's read_default_file: there is no file '{file}'.")
    query: dict[str, Any] = dict(parsed.query)
    account = {"username": query.pop("user", None)}
    account["password"] = query.pop("passwd", query.pop("password", None))
    return parsed.set(drivername="mysql+pymysql", database="", query=query, **account)


def shown(url: URL) -> str:
    """Return the URL as text without passwords, including those among the options."""
    options = [option for option in url.query if "pass" in option]
    return url.difference_update_query(options).render_as_string(hide_password=True)


def redacted(text: str) -> str:
    """Return a text that was meant as a URL, without anything that may be a password."""
    return re.sub(r"\?.*", "?***", re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", text, flags=re.S), flags=re.S)


class _Answer(MysqlPacket):
    """Packet that marks its errors as sent by the server: a SIGNAL can have any number, even a client's."""

    __slots__ = ()
    _data: bytes

    def raise_for_error(self) -> None:
        try:
            super().raise_for_error()
        except MySQLError as error:
            code, *said = error.args
            error.args = (code & 0xFFFF, *said)  # PyMySQL reads numbers above 32,767 as negative
            error.from_server = True  # type: ignore[attr-defined]
            sent = re.match(rb"...#(.{5})", self._data, re.DOTALL)
            error.state = sent and sent[1].decode("latin-1")  # type: ignore[attr-defined]
            raise


class _Field(FieldDescriptorPacket, _Answer):
    """Column whose name may be in any character set, depending on the session's settings."""

    def __init__(self, data: bytes, encoding: str) -> None:
        try:
            super().__init__(data, encoding)
        except UnicodeDecodeError:
            super().__init__(data, "latin-1")


def _reader(encoding: str | None, converter: Callable[[Any], Any] | None) -> Callable[[bytes], Any] | None:
    """Return a function that reads a cell, or returns its bytes if they are not a value of the column's type.

    An agent can cause such bytes: a lone surrogate in a text, numbers in UTF-16, a VECTOR.
    """
    if encoding is None and converter is None:
        return None

    def read(sent: bytes) -> Any:
        try:
            value = sent if encoding is None else sent.decode(encoding)
            return value if converter is None else converter(value)
        except (ValueError, ArithmeticError):
            return sent

    return read


class BoundedConnection(Connection):
    """Connection that hangs up instead of reading a row beyond `MAX_ROW_BYTES`; servers send up to 1 GB.

    It can read cells and names with any bytes (`_reader`, `_Field`).
    """

    _sock: Any
    _result: Any
    _execute_command: Any
    _read_ok_packet: Any
    _process_auth: Any
    _auth_plugin_name: Any

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return super()._create_ssl_ctx(sslp) if sslp else _unverified()  # type: ignore[misc]

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        kind = _Field if packet_type is FieldDescriptorPacket else _Answer
        return super()._read_packet(kind)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        affected = super()._read_query_result(unbuffered)  # type: ignore[misc]
        if unbuffered and self._result.field_count:
            self._result.converters = [(None, _reader(*each)) for each in self._result.converters]
        return affected

    def _read_bytes(self, num_bytes: int) -> bytes:
        if num_bytes > MAX_ROW_BYTES:
            self._force_close()
            raise OperationalError(TOO_LARGE, "Got packet bigger than 'max_allowed_packet' bytes")
        return super()._read_bytes(num_bytes)  # type: ignore[misc]

    def _force_close(self) -> None:
        super()._force_close()  # type: ignore[misc]
        if self._result is not None:
            self._result.unbuffered_active = False  # otherwise its deletion would continue to read

    def drop_rest(self) -> None:
        """Read and discard the rest of the last statement's results; a procedure can return many."""
        while self._result is not None:
            if self._result.unbuffered_active:
                self._result._finish_unbuffered_query()
            if not self._result.has_next:
                return
            self.next_result(unbuffered=True)

    def reset(self) -> None:
        """End everything that statements have left in the session; `set_up` must follow.

        This ends its transaction, locks, variables, temporary tables and prepared statements.
        """
        self._execute_command(_RESET_CONNECTION, b"")
        self._read_ok_packet()

    def change_user(self, user: str, password: str, database: str) -> None:
        """Switch the session to another account and database, and end everything that `reset` ends.

        `set_up` must follow. It takes two round trips to the server; a new connection takes many times that.
        """
        self.user, self.password = user.encode(), password.encode("latin1")
        name = self.user + b"\0"
        plugin = str(self._auth_plugin_name or "").encode() + b"\0"
        charset: Any = charset_by_name(self.charset)
        # an empty answer to the connection's first challenge makes the server send a new one
        place = b"\0" + database.encode() + b"\0" + charset.id.to_bytes(2, "little")
        no_attributes = b"\0"
        self._execute_command(_CHANGE_USER, name + place + plugin + no_attributes)
        packet = self._read_packet()
        if packet.is_auth_switch_request():
            packet.read_uint8()
            self._process_auth(packet.read_string(), packet)

    def set_up(self) -> None:
        """Set the session's character set and its other settings, as on connecting."""
        with self.cursor() as cursor:
            cursor.execute(f"SET NAMES {self.charset}, {str(self.init_command).removeprefix('SET ')}")

    def hang_up(self) -> None:
        """End the wait for the server's answer; for calls from another thread."""
        with contextlib.suppress(OSError, TypeError):  # closed already
            # not SSLSocket's own method: it drops TLS, and the reader would continue with the ciphertext
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


@functools.cache
def _unverified() -> ssl.SSLContext:
    """Return the TLS context for URLs without TLS options, which does not verify certificates.

    Connections are encrypted if the server supports it. PyMySQL would make a context per connection and read
    the system's certificates, which takes 20 ms of processor time.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Cursor(Cursor):
    max_stmt_length = MAX_INSERT_BYTES


def check_packet(connection: SQLConnection, sql: str, rows: Iterable[Sequence[Any]], what: str) -> None:
    """Raise TaskError for a statement larger than the server accepts.

    The server would hang up on it, which looks like a failure.

    Args:
        rows: the rows that the statement inserts.
        what: the beginning of the error message, which says what cannot be done.
    """
    size = len(sql.encode()) + 1 if len(sql) > LARGE_ROW_CHARACTERS else 0
    for row in rows:
        texts = [cell for cell in row if isinstance(cell, str | bytes)]
        if sum(map(len, texts)) > LARGE_ROW_CHARACTERS:
            escaped = sum(len(escape_item(cell, "utf8mb4").encode()) for cell in texts)
            size = max(size, escaped + 32 * len(row) + len(sql))
    if not size:
        return
    packet = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar() or 0)
    if size > packet:
        raise TaskError(
            f"{what}: a row takes {size:,} bytes, the server takes up to {packet:,} (max_allowed_packet). "
            f"Give the URL of one that takes more; in {sql[:200]}"
        )


def make_engine(
    url: URL,
    read_seconds: float,
    *,
    connections: int = 4,
    patient: bool = False,
    ping: bool = True,
    init_command: str | None = None,
    **arguments: Any,
) -> Engine:
    """Return an engine with autocommit that sends statements verbatim: `%` and `:name` are plain text.

    Our own statements mean the same under any server settings: a row that does not fit its columns is an
    error, and a 0 stays 0 in an AUTO_INCREMENT column.

    Args:
        read_seconds: how long to wait for an answer, and for one of the `connections` to become free.
        patient: wait for a free connection without a limit.
        ping: check first whether the server has closed an idle connection.
        init_command: the SET SESSION statement of a single session, which has no pool and keeps the server's
            `sql_mode`.
        arguments: further arguments for PyMySQL.
    """
    pool: dict[str, Any] = {
        "pool_size": connections,
        "max_overflow": 0,
        "pool_timeout": None if patient else read_seconds,
        "pool_pre_ping": ping,
        "pool_recycle": 1800,
    }
    if init_command is not None:
        pool = {"poolclass": NullPool}
    engine = create_engine(
        url.difference_update_query(OPTIONS),
        isolation_level="AUTOCOMMIT",
        connect_args={
            "charset": "utf8mb4",
            "password": str(url.password or "").encode(),  # PyMySQL would send a text as latin-1
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": read_seconds,
            "write_timeout": read_seconds,
            "local_infile": False,
            "init_command": f"{init_command or _OUR_MODE}, {_SETTINGS}",
            "autocommit": None,  # set already
            "cursorclass": _Cursor,
            **tls_arguments(url.query),
            **arguments,
        },
        execution_options={"no_parameters": True},
        skip_autocommit_rollback=True,
        **pool,
    )
    event.listen(engine, "do_connect", lambda dialect, record, args, kwargs: _connect(*args, **kwargs))
    if init_command is None:
        event.listen(engine, "connect", _make_tables_as_written)
    else:
        event.listen(engine, "handle_error", _keep_connection)
    return engine


def _make_tables_as_written(connection: Any, record: Any) -> None:
    for setting in _AS_WRITTEN:
        # not every server has the setting, and the account may lack the right to change it
        with contextlib.suppress(MySQLError), connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {setting}")


def _keep_connection(context: Any) -> None:
    """Keep a connection on which the server has sent an error, even one to which an agent gave its number."""
    if is_from_server(context.original_exception):
        context.is_disconnect = False


def is_from_server(error: BaseException | None) -> bool:
    """Return whether the server itself sent this error, over a connection that worked."""
    return getattr(error, "from_server", False)


def _connect(*args: Any, **kwargs: Any) -> BoundedConnection:
    for pause in (*CONNECT_PAUSES_SECONDS, None):
        try:
            return BoundedConnection(*args, **kwargs)
        except OperationalError as error:
            if getattr(getattr(error, "original_exception", None), "errno", None) in _NO_DESCRIPTOR:
                raise DatabaseError(
                    f"No connection to the database, too many open files: {files_advice()}"
                ) from None
            if error.args[0] != _TOO_MANY_CONNECTIONS or pause is None:
                raise
        except (ValueError, RuntimeError, configparser.Error) as error:  # perhaps PyMySQL lacks a package
            raise DatabaseError(f"the database URL cannot be used: {str(error).splitlines()[0]}") from None
        time.sleep(pause)
    raise AssertionError


def hang_up(connection: SQLConnection | None) -> None:
    """End a connection at once; `close` alone would first read the rest of an interrupted result."""
    with contextlib.suppress(SQLAlchemyError):
        if connection is not None:
            connection.invalidate()
            connection.close()


def connections_for_files() -> int:
    """Return how many connections this process may open within its limit on open files."""
    if (allowed := _allowed_files()) == resource.RLIM_INFINITY:
        return sys.maxsize
    return allowed - sum(1 for _ in Path("/dev/fd").iterdir()) - SPARE_FILES


def files_advice() -> str:
    """Return advice about a limit on open files that leaves too few connections."""
    return (
        f"this process may have {_allowed_files()} files open, connections included. Raise that before you "
        "start it (`ulimit -n 4096`), or play fewer episodes at once."
    )


def _allowed_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def text_of(value: Any) -> str:
    """Return a catalog value as text; some versions of MySQL give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def error_code(error: SQLAlchemyError) -> int:
    """Return the server's or PyMySQL's error number; 0 for SQLAlchemy's own error about a lost connection."""
    arguments: tuple[Any, ...] = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0


def error_text(error: Exception) -> str:
    """Return an error's text; for a server's error, its message without SQLAlchemy's additions."""
    if not isinstance(error, DBAPIError):
        return str(error)
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    if len(arguments) > 1 and isinstance(arguments[0], int):
        return message(arguments[0], str(arguments[1]), getattr(error.orig, "state", None))
    return str(error.orig)


def as_fault(error: SQLAlchemyError, *, down: bool = False) -> EnvironmentFault:
    """Return an error of the database as an EnvironmentFault.

    Args:
        down: one of our own statements or connections failed, so no agent can be at fault.
    """
    code, text = error_code(error), error_text(error)
    if code == 0:  # PyMySQL's own number for a connection that it found closed; no server sends it
        code, text = LOST, message(LOST, "Lost connection to MySQL server during query")
    return EnvironmentFault(text, observation=text, error_code=code, down=down)


def connect_advice(error: SQLAlchemyError) -> str:
    """Return why a server cannot be connected to, and what to do about it."""
    code = error_code(error)
    if code in _ACCOUNT_REFUSED:
        return (
            f"the server refuses this account ({error_text(error)}). Correct the user or the password in the "
            "URL."
        )
    if code in _CONNECT_FAILURES or code == 0:
        return (
            f"no MySQL server answers there within {CONNECT_SECONDS} s ({error_text(error)}). Check that it "
            'runs, and the host, the port and the firewall; or open "auto", "docker", "local" or "sqlite" '
            "instead."
        )
    return f"the server refuses the connection: {error_text(error)}"
