"""Databases that lie in files, and that many tasks share."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.table import Column, Table


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
        found = Path(path).expanduser().absolute()
        try:
            state = found.stat()
            now = _digest(str(found), state.st_mtime_ns, state.st_size)
        except OSError as error:
            raise TaskError(
                f"the database '{path}' cannot be read ({error.strerror or error}). Give the path of a "
                "SQLite file."
            ) from None
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
                yield connection
        except sqlite3.DatabaseError as error:
            raise TaskError(f"the database '{self.path}' cannot be read: {error}") from None


@lru_cache(maxsize=1024)
def _digest(path: str, changed: int, size: int) -> str:
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size:
        raise OSError("it has a '-wal' file: some program still writes to it, or was killed")
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


@lru_cache(maxsize=1024)
def _tables(source: Source) -> tuple[Table, ...]:
    with source.connect() as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
        )
        tables = []
        for (name,) in names.fetchall():
            if name.startswith("sqlite_"):
                continue
            columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall()
            tables.append(Table(name, tuple(Column(column, type) for column, type in columns)))
    if not tables:
        raise TaskError(f"the database '{source.path}' has no tables.")
    return tuple(tables)
