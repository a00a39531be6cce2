"""Tables that are there already, wherever they lie: on a server, in CSV files, SQLite files or dumps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trl_dbbench.data.generate.usable import usable
from trl_dbbench.database.server.tables import DEFAULT_SAMPLE, read_tables
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Source, Table
from trl_dbbench.tasks.csv_tables import CSV_SUFFIXES, FROM_FILE, CsvOptions, read_csv_tables
from trl_dbbench.tasks.sources.dump import DUMP_SUFFIXES, Dump
from trl_dbbench.tasks.sources.dump_tables import dump_tables
from trl_dbbench.tasks.sources.folder import table_files
from trl_dbbench.tasks.sources.parquet import parquet_table
from trl_dbbench.tasks.sources.sqlite_file import SQLiteFile, sqlite_tables
from trl_dbbench.tasks.table import check_new_names
from trl_dbbench.utils.lookup import unknown


@dataclass
class Imported:
    """Tables, and what of the originals they do not hold or was read otherwise than it is written."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def described(self) -> list[str]:
        """A line for each table: its columns and their types."""
        return [
            f"{table.name}, {len(table.rows):,} rows: "
            + ", ".join(f"{column.name} {column.type}" for column in table.columns)
            for table in self.tables
        ]


def import_from(
    sources: Sequence[str],
    database: str | None = None,
    names: Sequence[str] | None = None,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    csv: CsvOptions = FROM_FILE,
) -> Imported:
    """The tables of a server, of CSV files, or of SQLite files and dumps.

    Args:
        sources: the URL of one server, or paths.
        database: of the server, or of a dump that has several.
        names: only these tables.
        sample: most rows of a table.
        csv: how CSV files are read.

    Raises:
        ConfigError, TaskError, DatabaseError: they cannot be read; the message says why.
    """
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    servers = [source for source in sources if "://" in source]
    if servers and len(sources) > 1:
        raise ConfigError("give the URL of one server, or files, not both.")
    found = Imported()
    if servers:
        read = read_tables(servers[0], database, names, sample, seed)
        found.tables, found.notes = read.tables, read.notes
    else:
        _read_files([Path(source) for source in sources], database, names, sample, seed, csv, found)
    if len({table.name.casefold() for table in found.tables}) < len(found.tables):
        raise ConfigError("two of the tables have one name; rename a file, or choose with --tables.")
    found.tables, notes = usable(found.tables)
    found.notes += notes
    if not found.tables:
        raise ConfigError("no table is left: " + "; ".join(found.notes))
    return found


def _read_files(
    paths: Sequence[Path],
    database: str | None,
    names: Sequence[str] | None,
    sample: int,
    seed: int,
    csv: CsvOptions,
    found: Imported,
) -> None:
    paths = [file for path in paths for file in (table_files(path) if path.is_dir() else [path])]
    tables = [path for path in paths if path.suffix.lower() in CSV_SUFFIXES]
    parquets = [path for path in paths if path.suffix.lower() == ".parquet"]
    databases = [path for path in paths if path not in (*tables, *parquets)]
    if (database is not None or names is not None) and not databases:
        raise ConfigError(
            "--database and --tables are for a server or a dump; of CSV and parquet files each is a table."
        )
    if csv != FROM_FILE and not tables:
        raise ConfigError(
            "--delimiter, --encoding and --type are for CSV files; the others say it themselves."
        )
    if tables:
        for table in read_csv_tables(tables, csv, found.notes.append).values():
            check_new_names(table)
            found.tables.append(_sampled(table, sample, seed, found.notes))
    for path in parquets:
        found.tables.append(_sampled(parquet_table(path, found.notes.append), sample, seed, found.notes))
    there: list[str] = []
    for path in databases:
        _check_known(path)
        kind = Source.of(path, name=database if path.name.lower().endswith(DUMP_SUFFIXES) else None).opened
        if isinstance(kind, Dump):
            read, notes = dump_tables(kind, sample, seed, names)
        elif isinstance(kind, SQLiteFile):
            read, notes = sqlite_tables(kind, sample, seed, names)
        else:
            raise TaskError(f"'{path}' is read neither as a SQLite file nor as a dump.")
        if names:
            there += [table.name for table in kind.tables()]
        found.tables += read
        found.notes += notes
    if missing := [name for name in names or () if name not in there]:
        raise ConfigError(unknown(f"table of {', '.join(map(str, databases))}", missing[0], there))


def _check_known(path: Path) -> None:
    """Raises TaskError for a file that is nothing that tables are read from, such as a workbook."""
    if not path.is_file() or path.name.lower().endswith(DUMP_SUFFIXES):
        return
    with path.open("rb") as file:
        begins = file.read(len(_SQLITE))
    if begins and begins != _SQLITE:
        raise TaskError(
            f"'{path}' is no SQLite file. Tables are read from CSV files (.csv, .tsv), parquet files, SQLite "
            "files and dumps (.sql, .sql.gz); save it as one of these."
        )


_SQLITE = b"SQLite format 3\0"


def _sampled(table: Table, sample: int, seed: int, notes: list[str]) -> Table:
    if len(table.rows) <= sample:
        return table
    notes.append(f"{table.name}: {sample} of its {len(table.rows):,} rows are taken (--sample)")
    chosen = sorted(random.Random(seed).sample(range(len(table.rows)), sample))
    return replace(table, rows=tuple(table.rows[row] for row in chosen))
