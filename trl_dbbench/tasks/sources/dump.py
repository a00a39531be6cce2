"""A dump of MySQL's or MariaDB's, as mysqldump writes it, as the database of tasks.

A dump is data and not code: of its statements only those are executed that make tables, rows, keys and views,
and of these only forms that read and touch nothing else, since they run under an account that may do much.
Session settings are the loader's own. What else a dump has, such as routines, triggers, events, accounts and
rights, is left out with a note.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, pairwise
from pathlib import Path
from typing import ClassVar, NoReturn

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import Declared
from trl_dbbench.tasks.sources.base import (
    EXAMPLE_ROWS,
    Step,
    comment_on,
    descriptions,
    file_digest,
    in_order,
    lost_views,
    select_of,
    with_rows,
)
from trl_dbbench.tasks.sources.declaration import declaration, lines_of, not_made
from trl_dbbench.tasks.sources.dump_text import (
    Rows,
    Word,
    cells,
    joined,
    open_dump,
    read_dump,
    shown_name,
    words_of,
)
from trl_dbbench.tasks.table import Column, Table
from trl_dbbench.utils.lookup import unknown
from trl_dbbench.utils.sql import quote

_SILENT = ("SET", "LOCK", "UNLOCK", "START", "BEGIN", "COMMIT", "CHANGE")
"""Statements that leave nothing in tables. CHANGE MASTER says where the dump was taken."""

_CODE = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "TABLESPACE", "SERVER")

_ALTERED = ("ADD", "MODIFY")
_NEVER_ALTERED = frozenset(
    {"RENAME", "DISCARD", "IMPORT", "TABLESPACE", "EXCHANGE", "PARTITION", "DIRECTORY", "CONNECTION", "UNION"}
)

_NEVER_CALLED = (
    *("LOAD_FILE", "SLEEP", "BENCHMARK"),
    *("GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS", "IS_FREE_LOCK", "IS_USED_LOCK"),
)
"""Functions that a column's default could call when rows are put in."""

NAMES = re.compile(r"`(?:[^`]|``)+`|[^\s,()`]+")
"""Names in a list, as that of an INSERT."""

_UNICODE = ("utf8", "utf8mb3", "utf8mb4", "binary", "NULL")


def kind_of(words: Sequence[Word]) -> str:
    """Return what to do with a statement; in capitals, what it is that is left out."""
    upper = [word.upper for word in words]
    first, second, _, fourth = [*upper[:4], "", "", "", ""][:4]
    if first == "PRAGMA" or (first, second) == ("BEGIN", "TRANSACTION"):
        raise TaskError(
            f"it has '{joined(words[:4])}', as SQLite's dumps have, whose texts are written in another way "
            "than MySQL's; give the .sqlite file, or a dump of mysqldump."
        )
    if first in ("", *_SILENT):
        utc = any(each.strip("'\"") == "+00:00" for each in upper)  # phpMyAdmin writes double quotes
        return "zone" if "TIME_ZONE" in upper and utc else "nothing"
    if second in ("DATABASE", "SCHEMA"):
        return "nothing"
    if (first, second) == ("CREATE", "TABLE"):
        return "table"
    if first == "CREATE" and second in ("INDEX", "UNIQUE", "FULLTEXT", "SPATIAL"):
        return "CREATE INDEX"
    if first == "CREATE":
        made = next((each for each in upper[:20] if each in ("VIEW", *_CODE)), second)
        return "view" if made == "VIEW" else f"CREATE {made}"
    if (first, second) == ("ALTER", "TABLE"):
        if fourth in ("DISABLE", "ENABLE", "AUTO_INCREMENT"):
            return "nothing"
        if fourth not in _ALTERED or _names_a_database(upper) or _NEVER_ALTERED.intersection(upper):
            refuse(joined(words[:6]))
        _check_calls(words)
        return "alter"
    if first == "DROP" and second in ("TABLE", "VIEW"):
        if "." in upper:
            refuse(joined(words[:8]))
        return "drop"
    if first == "DROP":
        return "nothing"
    if first == "SELECT" and not {"FROM", "INTO"}.intersection(upper):
        return "nothing"  # what a script says as it goes, or the number of a sequence, which is left out
    if first == "TRUNCATE" and len(words) == 2 + (second == "TABLE"):
        return "empty"
    if (first, second) == ("DELETE", "FROM") and len(words) == 3:
        return "empty"
    if first in ("INSERT", "REPLACE", "UPDATE", "DELETE", "TRUNCATE", "LOAD", "SELECT"):
        refuse(joined(words[:6]))
    return f"{first} {second}".upper() if second.isalpha() else first.upper()


def _names_a_database(words: Sequence[str]) -> bool:
    """Return whether a point stands anywhere but in a number such as 4.99."""
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(word == "." and not (left.isdigit() and right.isdigit()) for left, word, right in around)


def named(words: Sequence[Word]) -> str:
    """The table, or the view, that a statement makes, alters or drops."""
    return next(
        (shown_name(word.text) for word in words[2:] if word.upper not in ("IF", "NOT", "EXISTS")), ""
    )


def code_made(words: Sequence[Word], kind: str = "FUNCTION") -> list[str]:
    """The name of the function, or of what else `kind` says, that a statement makes, if it makes one."""
    upper = [word.upper for word in words[:20]]
    if upper[:1] != ["CREATE"] or kind not in upper:
        return []
    behind = words[upper.index(kind) + 1 :]
    names = [word for word in behind[:6] if word.kind in ("word", "quoted")]
    qualified = behind[1:2] and behind[1].text == "."
    found = [shown_name(word.text) for word in names if word.upper not in ("IF", "NOT", "EXISTS")]
    return found[1:2] if qualified else found[:1]


def dropped(words: Sequence[Word]) -> list[str]:
    """The tables, or the views, that a statement drops."""
    no_name = ("IF", "EXISTS", "CASCADE", "RESTRICT")
    return [
        shown_name(word.text)
        for word in words[2:]
        if word.kind in ("word", "quoted") and word.upper not in no_name
    ]


def emptied(words: Sequence[Word]) -> str:
    """The table whose rows a statement deletes, as HeidiSQL and Adminer write before they put them in."""
    return shown_name(words[-1].text)


def table_made(words: Sequence[Word]) -> str:
    """CREATE TABLE with its columns, and of its options those that say how its texts and numbers are.

    Raises:
        TaskError: it names another database, has its rows from a query, or calls what reads files.
    """
    parts = list(words[2:])
    if [part.upper for part in parts[:3]] == ["IF", "NOT", "EXISTS"]:
        parts = parts[3:]
    if parts[:1] and parts[0].kind == "string":
        raise TaskError(
            f"the table {parts[0].text} is named in double quotes, as in dumps of SQLite, PostgreSQL and "
            "Oracle and not in MySQL's; give the .sqlite file, or each table as a CSV file with a header."
        )
    depth, end = 0, 0
    for place, part in enumerate(parts):
        depth += (part.text == "(") - (part.text == ")")
        if part.text == ")" and depth == 0:
            end = place
            break
    body, behind = _unversioned(parts[: end + 1]), [part.upper for part in parts[end + 1 :]]
    behind = behind[: next((place for place, word in enumerate(behind) if word == "PARTITION"), None)]
    if ("SYSTEM", "VERSIONING") in pairwise(behind):
        at = behind.index("SYSTEM") - 1
        behind = behind[:at] + behind[at + 3 :]
    elsewhere = any(
        part.upper == "REFERENCES" and each.text == "." for part, each in zip(body, body[2:], strict=False)
    )
    queried = {"SELECT", "AS", "TABLE", "VALUES", "WITH"}.intersection(behind) or "SELECT" in [
        part.upper for part in body
    ]
    if not end or body[1].text != "(" or elsewhere or queried:
        refuse(f"CREATE TABLE {joined(parts[:6])} ...")
    _check_calls(body)
    return f"CREATE TABLE {_in_lines(body)}{_options(behind)}"


def if_not_there(words: Sequence[Word]) -> bool:
    """Return whether CREATE TABLE does nothing where there is such a table."""
    return [word.upper for word in words[2:5]] == ["IF", "NOT", "EXISTS"]


def _unversioned(body: Sequence[Word]) -> list[Word]:
    """The columns and keys of a table without the history of its rows, as MariaDB keeps it.

    The columns of beginning and end that it names are plain ones then; of a period nothing stays.
    """
    kept: list[Word] = []
    place, depth = 0, 0
    while place < len(body):
        upper = [word.upper for word in body[place : place + 5]]
        depth += (body[place].text == "(") - (body[place].text == ")")
        if upper[:2] in (["WITH", "SYSTEM"], ["WITHOUT", "SYSTEM"]):
            place += 3
        elif upper[:4] == ["GENERATED", "ALWAYS", "AS", "ROW"]:
            place += 5
        elif upper[:2] == ["AS", "ROW"]:
            place += 3
        elif upper[:1] == ["SRID"] and body[place + 1].text.isdigit():  # unknown to MariaDB
            place += 2
        elif upper[:1] == ["COMPRESSED"] and kept[-1].text not in "(,":  # of a column; unknown to MySQL
            place += 1
        elif depth == 1 and upper[:2] == ["PERIOD", "FOR"]:
            while body[place].text != ")":
                place += 1
            place += 1
            if kept[-1].text == ",":
                kept.pop()
        else:
            kept.append(body[place])
            place += 1
    return kept


def _unqualified(words: Sequence[Word], database: str | None) -> list[Word]:
    """The words without the name of the database in use before a point, as MySQL Workbench writes it."""
    kept: list[Word] = []
    for word in words:
        if kept and kept[-1].text == "." and kept[:-1] and shown_name(kept[-2].text) == database:
            word = word._replace(spaced=kept[-2].spaced)
            del kept[-2:]
        kept.append(word)
    return kept


def altered(words: Sequence[Word]) -> Iterator[tuple[str, list[Word]]]:
    """The columns and keys that an ALTER TABLE adds or modifies, each after its ADD or MODIFY."""
    lines = lines_of([Word("sign", "(", False), *words[3:], Word("sign", ")", False)])
    for verb, *rest in filter(None, lines):
        line = [word for word in rest if word.upper != "COLUMN"]
        if verb.upper in _ALTERED and line:
            yield verb.upper, line


def columns_of(made: str) -> list[Declared]:
    """The columns of what `table_made` gives."""
    return list(declaration(words_of(made)).columns.values())


def _options(words: Sequence[str]) -> str:
    """Character set, collation and next number of a table, of all that stands behind its columns."""
    kept = []
    for place, word in enumerate(words):
        if word in ("AUTO_INCREMENT", "CHARSET", "COLLATE"):
            value = next((each for each in words[place + 1 : place + 3] if each != "="), "")
            if re.fullmatch(r"\w+", value):
                kept.append(f" {word}={value.lower()}")
    return "".join(kept)


def view_made(words: Sequence[Word]) -> tuple[str, list[str], str]:
    """A view's name, the columns that it names, and the statement that makes it.

    It reads with the rights of its reader, not with those of the account that makes it.
    """
    upper = [word.upper for word in words]
    place = upper.index("VIEW") + 1
    if upper[place : place + 3] == ["IF", "NOT", "EXISTS"]:
        place += 3
    if "AS" not in upper[place:] or "INTO" in upper or upper[place + 1] == ".":
        refuse(f"CREATE VIEW {joined(words[place : place + 4])} ...")
    name = shown_name(words[place].text)
    until = upper.index("AS", place)
    columns = [shown_name(word.text) for word in words[place + 1 : until] if word.kind in ("word", "quoted")]
    listed = f" ({', '.join(map(quote, columns))})" if columns else ""
    made = f"CREATE SQL SECURITY INVOKER VIEW {quote(name)}{listed} AS {joined(words[until + 1 :])}"
    return name, columns, made


def rows_put(rows: Rows, columns: Sequence[Declared]) -> Step:
    """
    Args:
        columns: of the table. MariaDB's dumps have values of the generated ones, which it does not take.
    """
    names, written = rows.columns, rows.rows
    if not names and any(column.generated for column in columns):
        kept = [not column.generated for column in columns]
        names = f"({', '.join(quote(column.name) for column in columns if not column.generated)})"
        written = [", ".join(compress(cells(row), kept)) for row in written]
    return Step(f"{rows.verb} INTO {rows.table} {names} VALUES ({'), ('.join(written)})")


def _in_lines(words: Sequence[Word]) -> str:
    """A table with each of its columns in a line."""
    text, depth, begins = "", 0, False
    for word in words:
        depth += (word.text == "(") - (word.text == ")")
        if begins:
            text += "\n  "
        elif word.text == ")" and depth == 0:
            text += "\n"
        elif word.spaced and text:
            text += " "
        text += word.text
        begins = depth == 1 and word.text in ("(", ",")
    return text


def _check_calls(words: Sequence[Word]) -> None:
    for word, after in pairwise(words):
        if after.text == "(" and shown_name(word.text).upper() in _NEVER_CALLED:
            refuse(f"{word.text}(")


_ORIGIN_CHARACTERS = 4096
"""Characters searched for another server's SQL; without semicolons a statement is the whole file."""


_ORIGINS = {
    "SQL Server": re.compile(
        r"\[ [A-Z]|\bDBO \.|\bIDENTITY \( \d|\bGO (?:ALTER|CREATE|DROP|INSERT|USE)\b"
        r"|\bSET (?:IDENTITY_INSERT|ANSI_NULLS|QUOTED_IDENTIFIER|NOCOUNT)\b"
    ),
    "PostgreSQL": re.compile(r"\b(?:PUBLIC|PG_CATALOG) \.|\bFROM STDIN\b"),
}
"""Words that only another server's scripts have, in capitals and a blank apart."""


def check_origin(statement: str) -> None:
    """Raise TaskError for a statement of another server's dumps, and for texts in another encoding."""
    words = words_of(statement[:_ORIGIN_CHARACTERS])
    bare = " ".join(word.upper if word.kind in ("word", "sign") else "'" for word in words)
    if (whose := next((name for name, form in _ORIGINS.items() if form.search(bare)), None)) is not None:
        raise TaskError(
            f"it is a script of {whose}, not a dump of MySQL or MariaDB. Export each of its tables as a CSV "
            "file with a header, and give those."
        )
    found = re.match(r"(?:/\*!\d+\s*)?SET\s+NAMES\s+'?(\w+)", statement, re.IGNORECASE)
    if found and found[1].lower() not in _UNICODE:
        raise TaskError(
            f"its texts are {found[1]}. Write it with --default-character-set=utf8mb4, mysqldump's default."
        )


def refuse(what: str) -> NoReturn:
    raise TaskError(
        f"it has '{what}', which is not executed. A dump may hold CREATE TABLE, INSERT of values, ALTER "
        "TABLE ... ADD and CREATE VIEW, all in the database in use; write it with mysqldump."
    )


DUMP_SUFFIXES = (".sql", ".sql.gz")

SESSION = "SET SESSION foreign_key_checks = 0, unique_checks = 0"

_USE = re.compile(r"USE\s+(`(?:[^`]|``)+`|\S+)$", re.IGNORECASE)
_SETTING = re.compile(r"(?:/\*!\d*\s*)?SET\b", re.IGNORECASE)
"""Begins a setting of the session, which holds for all databases that follow."""

_MAKES = re.compile(r"CREATE\s+(?!DATABASE|SCHEMA)", re.IGNORECASE)


@dataclass(eq=False)
class Dump:
    """The tables of one database of a dump; see `Kind`.

    Args:
        name: of the database, if there are several.
        whole: the whole dump, where this one has only some tables.
        only: the names of these.
        described_in: a folder with what their columns mean, see `descriptions`.
    """

    path: Path
    name: str | None
    whole: Dump | None = None
    only: Collection[str] = ()
    described_in: Path | None = None

    dialects: ClassVar[tuple[str, ...]] = ("mysql",)
    digest_of = staticmethod(file_digest)

    def tables(self, dialect: str | None = None) -> tuple[Table, ...]:
        tables = self._schema.tables
        known = [table.name for table in tables]
        if strange := sorted(set(self.only).difference(known)):
            raise TaskError(f"the dump '{self.path}': {unknown('table', strange[0], known)}.")
        lost = self._schema.lost([name for name in known if self._has(name)])
        return tuple(table for table in tables if self._has(table.name) and table.name not in lost)

    def described(self, dialect: str) -> str:
        told = {} if self.described_in is None else descriptions(self.described_in)
        return self._schema.described(self.tables(), told)

    def _has(self, table: str) -> bool:
        return not self.only or table in self.only

    def steps(self) -> Iterator[Step | str]:
        left_out: Counter[str] = Counter()
        functions: list[str] = []
        views: dict[str, str] = {}
        columns: dict[str, list[Declared]] = {}
        zone = False
        with self.errors():
            yield Step(SESSION)
            for statement in self.statements():
                if isinstance(statement, Rows):
                    yield rows_put(statement, columns.get(shown_name(statement.table), ()))
                    continue
                words, kind = statement, kind_of(statement)
                if kind in ("table", "alter") and not self._has(named(words)):
                    continue
                if kind == "table":
                    name = named(words)
                    if name in columns and if_not_there(words):
                        yield f"{name}: a second CREATE TABLE IF NOT EXISTS is skipped"
                        continue
                    made = table_made(words)
                    columns[name] = columns_of(made)
                    yield from (f"{name}: {lost}" for lost in not_made(words))
                    yield Step(made)
                elif kind == "alter":
                    yield Step(joined(words))
                elif kind == "empty" and self._has(name := emptied(words)):
                    yield Step(f"DELETE FROM {quote(name)}")
                elif kind == "drop":
                    for name in filter(self._has, dropped(words)):
                        views.pop(name, None)
                        if words[1].upper == "TABLE":  # views are made at the end
                            columns.pop(name, None)
                            yield Step(f"DROP TABLE IF EXISTS {quote(name)}")
                elif kind == "view":
                    name, _, made = view_made(words)
                    if self._has(name):
                        views[name] = made  # the first one only stands in for it until all tables are there
                elif kind == "zone" and not zone:
                    zone = True
                    yield Step("SET SESSION time_zone = '+00:00'")
                elif kind.isupper():
                    left_out[kind] += 1
                    functions += code_made(words)
            lost = lost_views(views, columns.keys() - views.keys(), functions)
            for name in in_order(views):
                if name in lost:
                    yield f"the view {name}, {lost[name]}"
                else:
                    yield Step(views[name], else_lost=f"the view {name}")
            for kind, count in left_out.items():
                yield f"{count} statements {kind}, which a dump cannot bring"

    @cached_property
    def _schema(self) -> _Schema:
        if self.whole is not None:
            return self.whole._schema
        schema = _Schema()
        with self.errors():
            for statement in self.statements(EXAMPLE_ROWS):
                if isinstance(statement, Rows):
                    schema.see_rows(statement)
                elif (kind := kind_of(statement)) == "table":
                    schema.see_table(table_made(statement), if_not_there(statement))
                elif kind == "view":
                    schema.see_view(*view_made(statement))
                elif kind == "alter":
                    schema.see_alter(statement)
                elif kind == "drop":
                    schema.see_drop(dropped(statement))
                elif kind == "empty":
                    schema.see_empty(emptied(statement))
                elif kind.isupper():
                    schema.functions += code_made(statement)
            if not schema.made:
                raise TaskError("it has no tables.")
        return schema

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A block whose errors name the dump."""
        try:
            yield
        except (OSError, TaskError) as error:
            raise TaskError(f"the dump '{self.path}' cannot be read: {error}") from None

    def statements(self, first_rows: int | None = None, strict: bool = True) -> Iterator[Rows | list[Word]]:
        """Yield the statements of the database by their words, and its rows; see `read_dump`.

        A dump without USE has one database. Names with the database in use lose that.

        Raises:
            OSError, TaskError: it cannot be read, or has several databases and no name was given.
        """
        current: str | None = None
        used: dict[str, None] = {}
        for statement in self._read(first_rows, strict):
            if isinstance(statement, str):
                check_origin(statement)
                if found := _USE.match(statement):
                    current = shown_name(found[1])
                    continue
            else:
                table = joined(_unqualified(words_of(statement.table), current))
                if "." in re.sub("`[^`]*`", "", table):
                    refuse(f"INSERT INTO {table}")
                statement = replace(statement, table=table)
            if isinstance(statement, Rows) or _MAKES.match(statement):
                if current is not None:
                    used[current] = None
                if self.name is None and len(used) > 1:
                    self._ask_for_a_name()
            setting = isinstance(statement, str) and _SETTING.match(statement)
            if setting or self.name in (None, current):
                yield statement if isinstance(statement, Rows) else _unqualified(words_of(statement), current)
        if self.name is not None and not used:
            raise TaskError(
                f"it is of one database and does not say its name; leave 'name' ({self.name}) out."
            )
        if self.name is not None and self.name not in used:
            raise TaskError(f"{unknown('database', self.name, list(used))}.")

    def _read(self, first_rows: int | None, strict: bool = True) -> Iterator[str | Rows]:
        with open_dump(self.path) as file:
            yield from read_dump(file, first_rows, self.only, strict)

    def _ask_for_a_name(self) -> NoReturn:
        statements = (each for each in self._read(1) if isinstance(each, str))
        names = dict.fromkeys(shown_name(found[1]) for found in map(_USE.match, statements) if found)
        raise TaskError(
            f"it has several databases; say which one with 'name': {', '.join(names)} (import: --database)."
        )


class _Schema:
    """A dump's tables as a prompt shows them."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        self._rows: dict[str, list[list[str]]] = {}
        self._columns: dict[str, tuple[Column, ...]] = {}
        self._dropped: dict[str, tuple[Column, ...]] = {}
        self.functions: list[str] = []
        """Functions that the dump has, which are left out."""

    def lost(self, names: Sequence[str]) -> dict[str, str]:
        """The views that no server can make where there is only what has these names; see `lost_views`."""
        views = {name: self.made[name] for name in names if self._is_view(name)}
        return lost_views(views, set(names) - views.keys(), self.functions)

    def _is_view(self, name: str) -> bool:
        return " VIEW " in self.made[name].partition("`")[0]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(Table(name, columns) for name, columns in self._columns.items())

    def described(self, tables: Sequence[Table], told: Mapping[str, Mapping[str, str]]) -> str:
        """These of its tables, with what `descriptions` tells of their columns."""
        parts, chosen = [], {table.name: table for table in tables}
        for name, made in self.made.items():
            if name in chosen:
                rows = (
                    None
                    if self._is_view(name)
                    else [list(map(_Written, row)) for row in self._rows.get(name, [])]
                )
                parts += [*comment_on(chosen[name], told), with_rows(made, name, rows)]
        return "\n".join(parts)

    def see_table(self, made: str, if_not_there: bool = False) -> None:
        name = shown_name(words_of(made)[2].text)
        if if_not_there and name in self.made:
            return
        self.made[name] = made
        self._columns[name] = tuple(Column(each.name, each.type) for each in columns_of(made))

    def see_view(self, name: str, columns: list[str], made: str) -> None:
        if not columns and (select := select_of(made)) is not None:
            columns = select.named_selects
        if columns and "*" not in columns:
            self._columns[name] = tuple(Column(column) for column in columns)
        elif name in self._dropped:  # a table that stood in for it
            self._columns.setdefault(name, self._dropped[name])
        if name in self._columns:
            self.made.pop(name, None)
            self.made[name] = made

    def see_drop(self, names: Sequence[str]) -> None:
        for name in names:
            if (columns := self._columns.pop(name, None)) is not None:
                self._dropped[name] = columns
            self.made.pop(name, None)
            self._rows.pop(name, None)

    def see_rows(self, rows: Rows) -> None:
        name = shown_name(rows.table)
        kept = self._rows.setdefault(name, [])
        listed = [shown_name(each).casefold() for each in NAMES.findall(rows.columns)]
        declared = [column.name.casefold() for column in self._columns.get(name, ())]
        for row in rows.rows[: EXAMPLE_ROWS - len(kept)]:
            written = cells(row)
            if listed and len(listed) == len(written):
                of_column = dict(zip(listed, written, strict=True))
                written = [of_column.get(column, "DEFAULT") for column in declared]
            kept.append(written)

    def see_empty(self, name: str) -> None:
        self._rows.pop(name, None)

    def see_alter(self, words: Sequence[Word]) -> None:
        """Keys, columns and AUTO_INCREMENT that are declared when the rows are there, as by phpMyAdmin."""
        name = named(words)
        if name not in self._columns or name not in self.made or self._is_view(name):
            return
        body, end, options = self.made[name].rpartition("\n)")
        first, *lines = body.split("\n")
        lines = [line.removesuffix(",") for line in lines]
        for verb, rest in altered(words):
            names = [shown_name(words_of(each)[0].text).casefold() for each in lines]
            if verb == "ADD":
                lines.append(f"  {joined(rest)}")
            elif (column := shown_name(rest[0].text).casefold()) in names:
                lines[names.index(column)] = f"  {joined(rest)}"
        self.see_table("\n".join([first, ",\n".join(lines)]) + end + options)


class _Written(str):
    """A cell that is shown as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
