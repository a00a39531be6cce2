"""Databases that lie beside the tasks, and that many tasks share."""

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
    """A database in a SQLite file, in a folder of CSV or parquet files, or in a dump of MySQL's.

    `digest`, 16 hex digits, stands for all that is in it: a task whose database is another is another task.
    `name` names the database, where a dump has several. Of a dump there may be `only` tables of these
    names; `descriptions` is the path of a folder of CSV files that say what their columns mean.
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
        """The database at this path.

        Args:
            digest: what it was when the task was written; it must still be the same.
            name, only, descriptions: of a dump; see the class. A SQLite file has descriptions beside it.

        Raises:
            TaskError: there is none, a program still writes to it, or it is another one by now.
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
        """The database that a task's entry names."""
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
        """As a task's entry names it; `from_entry` gives an equal one back."""
        more = {"name": self.name, "only": [*self.only], "descriptions": self.descriptions}
        return {"path": self.path, "digest": self.digest, **{key: more[key] for key in more if more[key]}}

    @property
    def opened(self) -> SQLiteFile | Dump:
        """Return what can be asked of it, remembered from task to task."""
        return _opened(self)

    @property
    def file(self) -> SQLiteFile:
        """The database as a SQLite file; TaskError if it is a dump of MySQL's."""
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
    whole = replace(source, only=(), descriptions=None).opened  # which is read once for all of its parts
    assert isinstance(whole, Dump)
    described_in = None if source.descriptions is None else Path(source.descriptions)
    return Dump(path, source.name, whole, source.only, described_in)


def described(tables: tuple[Table, ...], source: Source | None, dialect: str) -> str:
    """CREATE TABLE of each, and its first rows in a comment."""
    if source is not None:
        return source.described(dialect)
    parts = []
    for table in tables:
        columns = ",\n".join(f"  {quote(column.name)} {column.type}" for column in table.columns)
        parts.append(with_rows(f"CREATE TABLE {quote(table.name)} (\n{columns}\n)", table.name, table.rows))
    return "\n".join(parts)
