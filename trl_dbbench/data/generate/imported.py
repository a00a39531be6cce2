"""Import tables from a server, or from CSV, parquet and SQLite files and dumps."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trl_dbbench.data.generate.checks import PATIENT
from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.tables import DEFAULT_SAMPLE, read_tables
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Cell, Column, Gold, Source, Table, Task
from trl_dbbench.tasks.column_types import text_type
from trl_dbbench.tasks.csv_tables import CSV_SUFFIXES, FROM_FILE, CsvOptions, read_csv_tables, remedy_for
from trl_dbbench.tasks.model import check_table
from trl_dbbench.tasks.parts import by_table
from trl_dbbench.tasks.sources.conversion import too_wide
from trl_dbbench.tasks.sources.dump import DUMP_SUFFIXES, Dump, dump_tables
from trl_dbbench.tasks.sources.folder import table_files
from trl_dbbench.tasks.sources.parquet import parquet_table
from trl_dbbench.tasks.sources.sqlite_file import sqlite_tables
from trl_dbbench.tasks.table import check_new_names
from trl_dbbench.utils.lookup import unknown

MAX_REASON = 160
"""Largest length, in characters, of a reason in a note."""

_LIST = re.compile(r"^(ENUM|SET)\s*\((?:[^'()]|'[^']*')*\)", re.IGNORECASE)
"""An ENUM or SET type, whose listed values may contain parentheses."""


def usable(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Return the tables in a form that a database can create, and notes on what is left out or changed."""
    kept, notes = [], list[str]()
    with open_database("sqlite", limits=PATIENT) as database:
        for table in tables:
            try:
                check_new_names(replace(table, columns=()))
            except TaskError as error:
                notes.append(f"{table.name}: left out, {error}")
                continue
            table = _in_a_row(table, notes)
            if (problem := _problem(database, table)) is None:
                kept.append(table)
                continue
            columns = [_usable_column(database, table, place, notes) for place in range(len(table.columns))]
            places = [place for place, column in enumerate(columns) if column is not None]
            rest = replace(
                table,
                columns=tuple(column for column in columns if column is not None),
                rows=tuple(tuple(row[place] for place in places) for row in table.rows),
            )
            if places and (problem := _problem(database, rest)) is None:
                kept.append(rest)
            else:
                notes.append(f"{table.name}: left out, {problem}")
    return kept, notes


def _in_a_row(table: Table, notes: list[str]) -> Table:
    """Return the table with text types for columns that are too long for a row in utf8mb4.

    Servers with a single-byte character set allow longer ones.
    """
    columns = list(table.columns)
    keyed = [place for place, column in enumerate(columns) if re.search("PRIMARY KEY|UNIQUE", column.type)]
    for place in too_wide([column.type for column in columns], keyed):
        column = columns[place]
        type_ = text_type(max((len(str(row[place]).encode()) for row in table.rows), default=0))
        null = "" if column.nullable else " NOT NULL"
        columns[place] = replace(column, type=f"{type_}{null}")
        notes.append(f"{table.name}.{column.name}: {column.type} becomes {type_}, as a row would be too long")
    return replace(table, columns=tuple(columns))


def _usable_column(database: Database, table: Table, place: int, notes: list[str]) -> Column | None:
    """Return the column in the first of its `_forms` that a database can create; `None` if there is none."""
    column = table.columns[place]
    rows = tuple((row[place],) for row in table.rows)
    first = None
    for type_, lost in _forms(column.type):
        problem = _problem(database, Table(table.name, (replace(column, type=type_),), rows))
        if problem is None:
            if lost:
                notes.append(f"{table.name}.{column.name}: its {lost} ({first})")
            return replace(column, type=type_)
        first = first or problem
    notes.append(f"{table.name}.{column.name}: left out, {first}")
    return None


def _forms(type_: str) -> Iterator[tuple[str, str]]:
    """Yield the type as it is, then without its key, default, precision or list; each with what is lost."""
    yield type_, ""
    without_default = re.sub(r" DEFAULT '[^']*'", "", type_)
    without_key = re.sub(r" (PRIMARY KEY|UNIQUE)", "", type_)
    if without_key != type_:
        yield without_key.replace(" AUTO_INCREMENT", ""), "key is not held"
    if without_default != type_:
        yield without_default, "default is not held"
    if timed := re.match(r"(?:DATETIME|TIMESTAMP)\(\d\)", type_):
        of_text = re.sub(r" (PRIMARY KEY|UNIQUE)", "", without_default)
        yield of_text.replace(timed[0], "TEXT", 1), f"type {timed[0]} becomes TEXT"
    without_list = _LIST.sub("TEXT", without_default)
    if without_list != without_default:
        yield without_list, "list of values is not held"


def _problem(database: Database, table: Table) -> str | None:
    """Return the reason why a database cannot create the table; `None` if it can."""
    task = Task("", "?", (table,), "SELECT", Gold(answer=((1,),)))
    for place, column in enumerate(table.columns):
        if (strange := _not_listed(column.type, [row[place] for row in table.rows])) is not None:
            return f"it holds {strange!r}, which is outside its list"
    try:
        check_table(table)
        check_new_names(table)
        with database.sandbox(task):
            return None
    except TaskError as error:
        return str(error).partition("its tables cannot be made: ")[2][:MAX_REASON] or str(error)[:MAX_REASON]
    except ArithmeticError:
        return "it has numbers of more digits than the embedded database holds"


def _not_listed(type_: str, cells: Sequence[Cell]) -> str | None:
    """Return a cell that its ENUM or SET does not list: servers refuse these, but old MySQL data has some."""
    found = _LIST.match(type_)
    if found is None:
        return None
    several = found[1].upper() == "SET"
    members = {each.casefold() for each in re.findall(r"'([^']*)'", found[0])}
    for cell in cells:
        parts = str(cell).split(",") if several else [str(cell)]
        if cell is None or (several and cell == ""):
            continue
        if not members.issuperset(part.casefold() for part in parts):
            return str(cell)
    return None


@dataclass
class Imported:
    """Imported tables, and notes on what was left out or changed."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def described(self) -> list[str]:
        """Return a line for each table: its number of rows, its columns and their types."""
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
    """Read the tables of a server, given by its URL, or of files.

    Args:
        database: the database on the server, or in a dump that has several.
        names: read only these tables.
        sample: largest number of rows read from a table.

    Raises:
        ConfigError, TaskError, DatabaseError: if they cannot be read; the message says why.
    """
    if sample < 1:
        raise ConfigError(f"the sample is {sample} rows; it must be at least 1.")
    servers = [source for source in sources if "://" in source]
    if servers and len(sources) > 1:
        raise ConfigError("give the URL of one server, or files, not both.")
    if servers and csv != FROM_FILE:
        raise ConfigError("--delimiter, --encoding and --type are for CSV files; a server says it itself.")
    if servers:
        read = read_tables(servers[0], database, names, sample, seed)
        tables, notes = read.tables, read.notes
    else:
        tables, notes = _read_files(list(map(Path, sources)), database, names, sample, seed, csv)
    if len({table.name.casefold() for table in tables}) < len(tables):
        raise ConfigError("two of the tables have one name; rename a file, or choose with --tables.")
    kept, changes = usable(tables)
    if not kept:
        raise ConfigError("no table is left: " + ("; ".join([*notes, *changes]) or "there was none."))
    return Imported(kept, [*notes, *changes])


def _read_files(
    paths: Sequence[Path],
    database: str | None,
    names: Sequence[str] | None,
    sample: int,
    seed: int,
    csv: CsvOptions,
) -> tuple[list[Table], list[str]]:
    paths = [file for path in paths for file in (table_files(path) if path.is_dir() else [path])]
    texts = [path for path in paths if path.suffix.lower() in CSV_SUFFIXES]
    parquets = [path for path in paths if path.suffix.lower() == ".parquet"]
    databases = [path for path in paths if path not in (*texts, *parquets)]
    if (database is not None or names is not None) and not databases:
        raise ConfigError(
            "--database and --tables are for a server or a dump; of CSV and parquet files each is a table."
        )
    if database is not None and not any(path.name.lower().endswith(DUMP_SUFFIXES) for path in databases):
        raise ConfigError("--database is for a server or a dump; an SQLite file is one database.")
    if csv != FROM_FILE and not texts:
        raise ConfigError(
            "--delimiter, --encoding and --type are for CSV files; the others say it themselves."
        )
    notes: list[str] = []
    read = list(read_csv_tables(texts, csv, notes.append).values()) if texts else []
    for table in read:
        check_new_names(table)
    read += [parquet_table(parts, notes.append) for parts in by_table(parquets)]
    tables = [_sampled(table, sample, seed, notes) for table in read]
    there: list[str] = []
    for path in databases:
        _check_known(path)
        source = Source.of(path, name=database if path.name.lower().endswith(DUMP_SUFFIXES) else None)
        if isinstance(dump := source.opened, Dump):
            drawn, lost = dump_tables(dump, sample, seed, names)
        else:
            drawn, lost = sqlite_tables(source.file, sample, seed, names)
        if names:
            there += [table.name for table in source.tables()]
        tables += drawn
        notes += lost
    if missing := [name for name in names or () if name not in there]:
        raise ConfigError(unknown(f"table of {', '.join(map(str, databases))}", missing[0], there))
    return tables, notes


def _check_known(path: Path) -> None:
    """Raise TaskError for a file that is neither a dump nor an SQLite file, such as a workbook."""
    if not path.is_file() or path.name.lower().endswith(DUMP_SUFFIXES):
        return
    with path.open("rb") as file:
        begins = file.read(len(_SQLITE))
    if begins and begins != _SQLITE:
        remedy = remedy_for(path) or "Save it as one of these."
        raise TaskError(
            f"'{path}' is not an SQLite file. Tables are read from CSV files (.csv, .tsv), parquet files, "
            f"SQLite files and dumps (.sql, .sql.gz). {remedy}"
        )


_SQLITE = b"SQLite format 3\0"


def _sampled(table: Table, sample: int, seed: int, notes: list[str]) -> Table:
    if len(table.rows) <= sample:
        return table
    notes.append(f"{table.name}: {sample} of its {len(table.rows):,} rows are taken (--sample)")
    chosen = sorted(random.Random(seed).sample(range(len(table.rows)), sample))
    return replace(table, rows=tuple(table.rows[row] for row in chosen))
