"""Databases in files, which many tasks can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.fields import check_known, optional, required
from trl_dbbench.tasks.sources.base import with_rows
from trl_dbbench.tasks.sources.dump import DUMP_SUFFIXES, Dump
from trl_dbbench.tasks.sources.folder import Folder
from trl_dbbench.tasks.sources.sqlite_file import SQLiteFile
from trl_dbbench.tasks.table import Table
from trl_dbbench.utils.sql import quote


@dataclass(frozen=True, slots=True)
class Source:
    """A database in a SQLite file, in a folder of CSV or parquet files, or in a MySQL or MariaDB dump.

    `digest`, 16 hex digits, is a hash of its contents: tasks on different contents are different tasks. For
    dumps, `name` selects one of several databases, `only` lists the tables to use (default: all), and
    `descriptions` is a folder of CSV files that describe columns.
    """

    path: str
    digest: str
    name: str | None = None
    only: tuple[str, ...] = ()
    descriptions: str | None = None

    @classmethod
    def of(
        cls,
        path: str | Path,
        digest: str | None = None,
        name: str | None = None,
        only: Sequence[str] = (),
        descriptions: str | Path | None = None,
    ) -> Source:
        """Return the database at this path.

        Args:
            digest: the digest when the task was written. The database must still have it.
            name, only, descriptions: for dumps; see the class. A SQLite file has its descriptions beside it.

        Raises:
            TaskError: it does not exist, a program still writes to it, or its digest differs.
        """
        try:
            found = Path(path).expanduser().absolute()
            kind = _kind_at(found)
            now = kind.digest_of(found)
            where = None if descriptions is None else str(Path(descriptions).expanduser().absolute())
        except (OSError, ValueError, RuntimeError) as error:  # no such user, or a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise TaskError(
                f"the database '{path}' cannot be read ({reason}). Give the path of a SQLite file, of a dump "
                "of MySQL's (.sql), or of a folder of CSV or parquet files."
            ) from None
        of_dump = {"name": name, "only": only, "descriptions": descriptions}
        if kind is not Dump and (given := next((key for key in of_dump if of_dump[key]), None)):
            raise TaskError(
                f"the database '{path}' is not a dump of MySQL's: leave '{given}' out, which is for one."
            )
        if digest is not None and digest != now:
            raise TaskError(
                f"the database '{path}' is another one than when the task was written (digest {now}, then "
                f"{digest}). Bring the file back, or leave 'digest' out if the task fits it as it is now."
            )
        return cls(str(found), now, name, tuple(only), where)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Source:
        """Return the database that a task's entry names."""
        check_known(entry, ("path", "digest", "name", "only", "descriptions"), "field of a database")
        only = optional(entry, "only", list) or ()
        if not all(isinstance(name, str) for name in only):
            raise TaskError(f"'only' must be a list of the names of tables, is {only!r}")
        return cls.of(
            required(entry, "path", str),
            optional(entry, "digest", str),
            optional(entry, "name", str),
            only,
            optional(entry, "descriptions", str),
        )

    def to_entry(self) -> dict[str, Any]:
        """Return the fields by which a task's entry names it. `from_entry` returns an equal source."""
        more = {"name": self.name, "only": [*self.only], "descriptions": self.descriptions}
        return {"path": self.path, "digest": self.digest, **{key: more[key] for key in more if more[key]}}

    @property
    def opened(self) -> SQLiteFile | Dump:
        """Return the opened database, which is cached across tasks."""
        return _opened(self)

    @property
    def file(self) -> SQLiteFile:
        """Return the database as a SQLite file; raise TaskError if it is a dump."""
        opened = self.opened
        if not isinstance(opened, SQLiteFile):
            raise TaskError(
                f"the database '{self.path}' is a dump of MySQL's, which SQLite does not read. Set database: "
                "docker, local, or the URL of a server."
            )
        return opened

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        """See `SQLiteFile.tables`."""
        return self.opened.tables(dialect)

    @lru_cache(maxsize=1024)  # noqa: B019 - the same few sources come from task to task
    def described(self, dialect: str) -> str:
        """See `SQLiteFile.described`."""
        return self.opened.described(dialect)


def _kind_at(path: Path) -> type[SQLiteFile] | type[Dump]:
    if path.is_dir():
        return Folder
    return Dump if path.name.lower().endswith(DUMP_SUFFIXES) else SQLiteFile


@lru_cache(maxsize=1024)
def _opened(source: Source) -> SQLiteFile | Dump:
    path = Path(source.path)
    kind = _kind_at(path)
    if kind is not Dump:
        return kind(path, source.digest)
    if not source.only and source.descriptions is None:
        return Dump(path, source.name)
    whole = replace(source, only=(), descriptions=None).opened  # read once for all selections of tables
    assert isinstance(whole, Dump)
    described_in = None if source.descriptions is None else Path(source.descriptions)
    return Dump(path, source.name, whole, source.only, described_in)


def described(tables: tuple[Table, ...], source: Source | None, dialect: str) -> str:
    """Return the CREATE TABLE of each table, with its first rows in a comment."""
    if source is not None:
        return source.described(dialect)
    parts = []
    for table in tables:
        columns = ",\n".join(f"  {quote(column.name)} {column.type}" for column in table.columns)
        parts.append(with_rows(f"CREATE TABLE {quote(table.name)} (\n{columns}\n)", table.name, table.rows))
    return "\n".join(parts)
