"""Databases that lie in files, and that many tasks share."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.table import Column, Table

MAX_CELL_BYTES = 1_000_000
"""Larger cells are not read for a prompt."""


@dataclass(frozen=True, slots=True)
class Source:
    """A SQLite file.

    `digest`, 16 hex digits, stands for all that is in it: a task whose database is another is another task.
    """

    path: str
    digest: str

    @classmethod
    def of(cls, path: str | Path, digest: str | None = None) -> Source:
        """The file at this path.

        Args:
            digest: what it was when the task was written; it must still be the same.

        Raises:
            TaskError: there is no such file, a program still writes to it, or it is another one by now.
        """
        try:
            found = Path(path).expanduser().absolute()
            state = found.stat()
            if not S_ISREG(state.st_mode):
                raise OSError("it is no file")
            now = _digest(str(found), state.st_mtime_ns, state.st_size)
            unfinished = _has_log(found)
        except (OSError, ValueError, RuntimeError) as error:  # no such user, or a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise TaskError(
                f"the database '{path}' cannot be read ({reason}). Give the path of a SQLite file."
            ) from None
        if unfinished:
            raise TaskError(
                f"the database '{path}' has changes that are not in it yet: its '-wal' or '-journal' file "
                "lies beside it. Close the program that writes to it, or open and close it with sqlite3."
            )
        if digest is not None and digest != now:
            raise TaskError(
                f"the database '{path}' is another one than when the task was written (digest {now}, then "
                f"{digest}). Bring the file back, or leave 'digest' out if the task fits it as it is now."
            )
        return cls(str(found), now)

    @property
    def uri(self) -> str:
        """For `sqlite3`: read only, and nobody else changes it."""
        return f"file:{quote(self.path)}?mode=ro&immutable=1"

    def tables(self) -> tuple[Table, ...]:
        """Its tables and views without their rows.

        Raises:
            TaskError: it is no SQLite database, or has no tables.
        """
        return _tables(self)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read.

        Raises:
            TaskError: it is no SQLite database.
        """
        try:
            with closing(sqlite3.connect(self.uri, uri=True)) as connection:
                connection.text_factory = lambda text: text.decode(errors="replace")
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
                yield connection
        except sqlite3.DatabaseError as error:
            raise TaskError(f"the database '{self.path}' cannot be read: {error}") from None


_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""With which SQLite's journal begins as long as it counts."""


def _has_log(path: Path) -> bool:
    """Whether a program writes to the database, or was killed while it did."""
    log, journal = Path(f"{path}-wal"), Path(f"{path}-journal")
    if log.exists() and log.stat().st_size:
        return True
    if not journal.exists():
        return False
    with journal.open("rb") as file:
        return file.read(len(_JOURNAL)) == _JOURNAL


@lru_cache(maxsize=1024)
def _digest(path: str, changed: int, size: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


@lru_cache(maxsize=1024)
def _tables(source: Source) -> tuple[Table, ...]:
    with source.connect() as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
        )
        tables = []
        # of a text index, which shows as a table itself
        shadows = connection.execute("SELECT name FROM pragma_table_list WHERE type = 'shadow'")
        inner = {name for (name,) in shadows}
        for (name,) in names.fetchall():
            if name.startswith("sqlite_") or name in inner:
                continue
            try:
                found = connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,))
                columns = found.fetchall()
            except sqlite3.OperationalError:  # a view of something that is not there
                continue
            tables.append(Table(name, tuple(Column(column, type) for column, type in columns)))
    if not tables:
        raise TaskError(f"the database '{source.path}' has no tables.")
    return tuple(tables)
