"""A MySQL server for the episodes' databases, for programs that use a MySQL client such as SQLAlchemy.

Statements go to the episode's sandbox like those of `/sql`, whatever database this is on: limits, records and
judging are the same. Statements that the client sends by itself, such as `SET NAMES` or `COMMIT`, are
answered here and change nothing: each statement takes effect at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from mysql_mimic import IdentityProvider, MysqlServer, NativePasswordAuthPlugin, ResultColumn, User
from mysql_mimic import Session as Connected
from mysql_mimic.errors import ErrorCode, MysqlError
from mysql_mimic.results import infer_type
from mysql_mimic.types import ColumnType

from trl_dbbench.grading.states import without_dates
from trl_dbbench.harness.session import Failed, Refused, Session

DATABASE = "dbbench"
"""Name of the database in the URL."""

USER_CHARACTERS = 16
"""Number of a key's first characters that are the user's name."""

ACCESS_DENIED, LIMIT_REACHED, SHUTDOWN = 1045, 1226, 1053
"""MySQL's numbers for the errors that are raised here."""

_OF_THE_CLIENT = re.compile(
    r"(?>\s+|/\*(?!!).*?\*/)*+"
    r"(?:SET\s+(?!@\w)|SELECT\s+(?:@@|VERSION\s*\(|DATABASE\s*\(|CONNECTION_ID\s*\()(?!.*\bFROM\b)|USE\s"
    r"|COMMIT\b|ROLLBACK\b|BEGIN\b|START\s+TRANSACTION\b"
    r"|SHOW\s+(?:SESSION\s+|GLOBAL\s+)?(?:VARIABLES|WARNINGS)\b)[^;]*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
"""One statement that a client sends by itself, possibly after a comment, as Java's driver does."""

_VARIABLE = re.compile(r"@@(?:(?:session|global|local)\.)?(\w+)", re.IGNORECASE)

_NUMBER = re.compile(r"^\d+ \(\w+\): ")


class Databases:
    """The server. An episode's key is its password, and the key's first characters are its user's name."""

    def __init__(self, sessions: Mapping[str, Session]):
        self._server = MysqlServer(lambda: _Connection(sessions), identity_provider=_Users(sessions))
        self._port = 0

    async def start(self) -> None:
        await self._server.start_server(host="127.0.0.1", port=0)
        self._port = self._server.sockets()[0].getsockname()[1]

    def url(self, key: str) -> str:
        """Return the URL of an episode's database, as SQLAlchemy reads it."""
        return f"mysql+pymysql://{key[:USER_CHARACTERS]}:{key}@127.0.0.1:{self._port}/{DATABASE}"

    def close(self) -> None:
        self._server.close()


def _key_of(sessions: Mapping[str, Session], user: str | None) -> str | None:
    return next((key for key in sessions if user and key[:USER_CHARACTERS] == user), None)


class _Users(IdentityProvider):
    def __init__(self, sessions: Mapping[str, Session]):
        self._sessions = sessions

    async def get_user(self, username: str) -> User | None:
        key = _key_of(self._sessions, username)
        if key is None:
            return None
        password = NativePasswordAuthPlugin.create_auth_string(key)
        return User(username, auth_string=password, auth_plugin=NativePasswordAuthPlugin.name)


class _Connection(Connected):
    """A client's connection."""

    def __init__(self, sessions: Mapping[str, Session]):
        super().__init__()
        self._sessions = sessions

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> Any:
        session = self._sessions.get(_key_of(self._sessions, self.username) or "")
        if session is None:
            raise _error("the episode is over", ACCESS_DENIED)
        if _OF_THE_CLIENT.fullmatch(sql) and all(name in self.variables for name in _VARIABLE.findall(sql)):
            try:
                return await super().handle_query(sql, attrs)
            except MysqlError as error:
                if error.code != ErrorCode.UNKNOWN_SYSTEM_VARIABLE:
                    raise  # the database may know the variable
        try:
            result, _ = await session.execute(sql)
        except Refused as refused:
            raise _error(str(refused), LIMIT_REACHED) from None
        except Failed as failed:
            raise _error(str(failed), SHUTDOWN) from None
        if result.error is not None:
            raise _error(_NUMBER.sub("", result.error), result.error_code or 0)
        if result.limit is not None:
            told = f"the result is longer than a statement's may be: its limit of {result.limit} was met"
            raise _error(f"{told}; ask for less of it, as by LIMIT", LIMIT_REACHED)
        return ([], []) if result.rows is None else (result.rows, _columns(result.rows, result.columns or ()))


def _columns(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> list[ResultColumn]:
    """Return the columns, each with a type that fits all of its cells.

    mysql_mimic itself would send a DECIMAL as text, and refuses two columns with the same name.
    """
    columns = []
    for place, name in enumerate(names):
        cells = {type(row[place]): row[place] for row in rows if row[place] is not None}
        encoder = _as_mysql if timedelta in cells else None
        columns.append(ResultColumn(name, _type_of(cells), text_encoder=encoder))
    return columns


def _type_of(cells: Mapping[type, Any]) -> ColumnType:
    """Return a column's type: the widest one for numbers of several types, text for other mixtures."""
    if len(cells) == 1 and Decimal not in cells:
        return infer_type(*cells.values())
    if cells and cells.keys() <= {int, float, Decimal}:
        return ColumnType.DOUBLE if float in cells else ColumnType.NEWDECIMAL
    return ColumnType.BLOB if bytes in cells else ColumnType.VARCHAR


def _as_mysql(column: ResultColumn, cell: Any) -> bytes:
    return str(*without_dates((cell,))).encode()


def _error(text: str, code: int) -> MysqlError:
    made: Any = MysqlError  # its annotation allows a few numbers, but any can be sent
    return made(text, code)
