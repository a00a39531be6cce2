"""A slot: an account, a database of the same name with a task's tables, and perhaps a connection.

The tables of an episode that only changed rows are kept for the next episode of a task that has the same: to
give them their rows again costs a tenth of making and dropping them. Nothing that the next episode sees tells
that somebody had them before:

- Only tables are kept of which rows are all that a change of rows leaves (`is_of_rows`), after few changes.
- Statements that read or change rows, or name columns, see nothing else of a table. Before the first one that
  may show its size, its age or estimates, kept tables are made anew, and such tables are not kept any more.
- A slot in which anything else ran (DDL, SET, BEGIN, what cannot be told) is thrown away.
"""

from __future__ import annotations

import re

from sqlalchemy.engine import Connection

from trl_dbbench.database.sandbox import Loss, QueryResult
from trl_dbbench.database.server.ownership import Account
from trl_dbbench.database.server.pristine import fill, fill_rows
from trl_dbbench.database.server.session import Session
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.model import TablesKey
from trl_dbbench.utils.sql import quote

MAX_ROWS = 1_000
MAX_SECONDS = 0.2
"""Tables are kept that have so many rows at most, if an episode changed no more and took no longer for it."""

LOCK_SECONDS = 5
"""How long a table is waited for that somebody else holds."""

_PLAIN_WORDS = {
    *("NOT", "NULL", "DEFAULT", "PRIMARY", "UNIQUE", "KEY"),
    *("UNSIGNED", "SIGNED", "ZEROFILL", "PRECISION", "VARYING"),
}
"""Those of a column's type, beside its name, that let rows be all there is to it."""

_IN_QUOTES_OR_PARENTHESES = re.compile(r"'[^']*'|\([^()']*(?:'[^']*'[^()']*)*\)")


def is_of_rows(tables: tuple[Table, ...]) -> bool:
    """Whether all that an episode can change in the tables is seen in their rows, and these are few.

    Not so where the server counts on (AUTO_INCREMENT) or keeps old rows (MariaDB's WITH SYSTEM VERSIONING).
    """
    types = {column.type.upper() for table in tables for column in table.columns}
    few = sum(len(table.rows) for table in tables) <= MAX_ROWS
    return few and all(map(_is_plain, types))


def _is_plain(type: str) -> bool:
    first, *more = re.findall(r"[A-Z_]\w*", _IN_QUOTES_OR_PARENTHESES.sub(" ", type)) or [""]
    return first != "SERIAL" and _PLAIN_WORDS.issuperset(more)


class Slot:
    """An account, a database, perhaps a connection, and what is known of the agent that has them.

    `plain`: all its statements leave nothing behind but rows in the tables. `stateless`: none of them left
    anything in the session. `full`: its tables have grown as large as they may.
    """

    def __init__(self, name: str, account: Account | None) -> None:
        self.name = name
        self.account = account
        self.session: Session | None = None
        self.plain = True
        self.stateless = True
        self.full = False
        self.busy = False
        self.used = 0
        self.tables: tuple[Table, ...] | None = None
        """`None` if the database may not exist, or may hold anything."""
        self.key: TablesKey | None = None
        """Of the tables, if they can be kept."""
        self.kept = False
        """An earlier episode has had the tables as they are."""
        self.changed: set[str] = set()
        """Names of the tables whose rows may be others than the task's."""
        self.failed = False
        """The server failed during a statement: nobody knows what the statement did."""
        self.interrupted = False
        """A statement was stopped at a limit, perhaps in a transaction: nobody knows what it left."""
        self._cut_off = False
        self._rows_changed = 0
        self._seconds = 0.0

    @property
    def lost(self) -> Loss | None:
        """Whose doing it is that the agent's changes are gone, or cannot be told from others."""
        if self.failed:
            return "environment"
        session = self.session  # which may become another slot's at any time
        broken = session is not None and session.broken is not None
        # a connection that became another slot's is no failure that would let the agent out of its episode
        return "agent" if self._cut_off or self.interrupted or (broken and not self.stateless) else None

    @property
    def can_keep(self) -> bool:
        """Whether the next episode with these tables may have them."""
        return self.key is not None and self._rows_changed <= MAX_ROWS and self._seconds <= MAX_SECONDS

    def hang_up(self) -> None:
        if self.session is not None:
            self._cut_off = self._cut_off or not self.stateless
            self.session.disconnect()
            self.session = None

    def changes(self, sql: str) -> None:
        """Notes that a statement which may change rows is about to run."""
        text = sql.lower()
        names = {table.name for table in self.tables or ()}
        self.changed |= {name for name in names if _perhaps_named(name, text)} or names

    def has_changed(self, result: QueryResult) -> None:
        """Notes what came of it."""
        self._rows_changed += max(result.affected or 0, 0)
        self._seconds += result.seconds

    def make(self, maker: Connection, key: TablesKey, tables: tuple[Table, ...]) -> None:
        """Makes the tables, and before the first ones the database."""
        if self.tables is None:
            maker.exec_driver_sql(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
        else:
            self.empty(maker)
        self.tables = None
        for table in tables:
            fill(maker, table, self.name)
        self.tables = tables
        self.key = key if is_of_rows(tables) else None

    def restore(self, maker: Connection) -> None:
        """Gives the tables that an earlier episode has changed their rows again."""
        for table in self.tables or ():
            if table.name not in self.changed:
                continue
            maker.exec_driver_sql(f"DELETE FROM `{self.name}`.{quote(table.name)}")
            fill_rows(maker, table, self.name)
        self._forget_changes()
        self.kept = True

    def make_anew(self, maker: Connection) -> None:
        """Makes new tables with the same rows of those that an earlier episode had."""
        maker.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
        for table in self.tables or ():
            if table.name in self.changed:  # by this episode
                maker.exec_driver_sql(f"ALTER TABLE `{self.name}`.{quote(table.name)} FORCE")
            else:
                maker.exec_driver_sql(f"DROP TABLE `{self.name}`.{quote(table.name)}")
                fill(maker, table, self.name)
        self.kept = False

    def empty(self, maker: Connection) -> None:
        """Drops the tables, after an episode that cannot have made any others."""
        if self.tables:
            names = ", ".join(f"`{self.name}`.{quote(table.name)}" for table in self.tables)
            self.tables = None
            maker.exec_driver_sql(f"DROP TABLE {names}")
        self.tables, self.key, self.kept = (), None, False
        self._forget_changes()

    def _forget_changes(self) -> None:
        self.changed.clear()
        self._rows_changed, self._seconds = 0, 0.0


def _perhaps_named(name: str, text: str) -> bool:
    """Whether a table may be named in a text of lower case; in doubt, yes."""
    return name.lower() in text or "`" in name or not name.isascii()
