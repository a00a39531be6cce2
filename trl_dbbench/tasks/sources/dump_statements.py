"""Interpret the statements of a dump, and decide which of them are executed.

A dump is data, not code. Only statements that make tables, rows, keys and views are executed, and only in
forms that read and change nothing else, since the account that executes them has many rights. The loader sets
the session itself. Anything else in a dump, such as routines, triggers, events, accounts and grants, is left
out with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, pairwise, takewhile
from typing import NoReturn

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import Declared
from trl_dbbench.tasks.sources.base import SYSTEM, Step
from trl_dbbench.tasks.sources.declaration import is_column, lines_of, of_lines
from trl_dbbench.tasks.sources.dump_text import Rows, Word, bare_text, cells, joined, shown_name
from trl_dbbench.utils.sql import quote

_SILENT = ("LOCK", "UNLOCK", "START", "BEGIN", "COMMIT", "CHANGE")
"""First words of statements that do not affect tables. CHANGE MASTER records where the dump was taken."""

_CODE = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "TABLESPACE", "SERVER")

_ALTERED = ("ADD", "MODIFY")
_NOT_CARRIED_OUT = ("DROP", "CHANGE", "RENAME", "ALTER")
_NEVER_ALTERED = frozenset(
    {"RENAME", "DISCARD", "IMPORT", "TABLESPACE", "EXCHANGE", "PARTITION", "DIRECTORY", "CONNECTION", "UNION"}
)

_NEVER_CALLED = (
    *("LOAD_FILE", "SLEEP", "BENCHMARK"),
    *("GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS", "IS_FREE_LOCK", "IS_USED_LOCK"),
)
"""Functions that are refused, as a column's default could call them when rows are inserted."""

NAMES = re.compile(r"`(?:[^`]|``)+`|[^\s,()`]+")
"""Names in a list, such as the columns of an INSERT."""

_UNICODE = ("utf8", "utf8mb3", "utf8mb4", "binary", "NULL")


def kind_of(words: Sequence[Word]) -> str:
    """Return the kind of a statement in lower case; in upper case, the kind of a statement to leave out.

    Raises TaskError for a statement that is refused.
    """
    upper = [word.upper for word in words]
    first, second, _, fourth = [*upper[:4], "", "", "", ""][:4]
    if first == "PRAGMA" or (first, second) == ("BEGIN", "TRANSACTION"):
        raise TaskError(
            f"it has '{joined(words[:4])}', as SQLite's dumps have, whose texts are written in another way "
            "than MySQL's; give the .sqlite file, or a dump of mysqldump."
        )
    if first == "SET":
        return "settings"
    if first in ("", *_SILENT):
        return "nothing"
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
        for part in _alterations(words)[1:]:
            if part[0].upper in _NOT_CARRIED_OUT:
                refuse(f"{joined(words[:3])} ... {joined(part[:3])}")
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
    if first == "SELECT" and "INTO" not in upper:
        return "nothing"  # a script's messages, or a sequence's number
    if first == "TRUNCATE" and len(words) == 2 + (second == "TABLE"):
        return "empty"
    if (first, second) == ("DELETE", "FROM") and len(words) == 3:
        return "empty"
    if first in ("INSERT", "REPLACE", "UPDATE", "DELETE", "TRUNCATE", "LOAD", "SELECT"):
        refuse(joined(words[:6]))
    return f"{first} {second}".upper() if second.isalpha() else first.upper()


def settings(words: Sequence[Word]) -> tuple[bool, bool]:
    """Return whether a SET sets the mode NO_AUTO_VALUE_ON_ZERO, and whether it sets the time zone to UTC."""
    upper = [word.upper for word in words]
    utc = any(each.strip("'\"") == "+00:00" for each in upper)  # phpMyAdmin writes double quotes
    return any("NO_AUTO_VALUE_ON_ZERO" in each.upper() for each in upper), "TIME_ZONE" in upper and utc


def _names_a_database(words: Sequence[str]) -> bool:
    """Return whether there is a point outside numbers such as 4.99."""
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(word == "." and not (left.isdigit() and right.isdigit()) for left, word, right in around)


def names(words: Sequence[Word]) -> list[str]:
    """Return the names in a statement, beginning with the tables or views that it makes, alters, empties or
    drops."""
    no_names = ("IF", "NOT", "EXISTS", "CASCADE", "RESTRICT")
    behind = words[2:] or words[1:]  # TRUNCATE t
    return [
        shown_name(word.text)
        for word in behind
        if word.kind in ("word", "quoted") and word.upper not in no_names
    ]


def named(words: Sequence[Word]) -> str:
    """Return the first of `names`, or an empty text."""
    return next(iter(names(words)), "")


def code_made(words: Sequence[Word], kind: str) -> str:
    """Return the name of the function, trigger, or other `kind` that a statement makes; empty without one."""
    upper = [word.upper for word in words[:20]]
    place = upper.index(kind) if upper[:1] == ["CREATE"] and kind in upper else None
    return "" if place is None else named(words[place - 1 : place + 6])


@dataclass
class Create:
    """A CREATE TABLE: its quoted name, its lines (columns and keys), and the options that are kept."""

    name: str
    lines: list[list[Word]]
    options: str

    @property
    def sql(self) -> str:
        lines = ",\n  ".join(map(joined, self.lines))
        return f"CREATE TABLE {self.name} (\n  {lines}\n){self.options}"

    @cached_property
    def columns(self) -> list[Declared]:
        """The columns that the statement declares."""
        return list(of_lines(self.lines).columns.values())


def table_made(words: Sequence[Word]) -> Create:
    """Parse a CREATE TABLE, keeping columns, keys, and the options that `_options` returns.

    Raises TaskError if it names another database, takes rows from a query, or calls one of `_NEVER_CALLED`.
    """
    parts = words[5:] if if_not_there(words) else words[2:]
    if parts[:1] and parts[0].kind == "string":
        raise TaskError(
            f"the table {parts[0].text} is named in double quotes, as in dumps of SQLite, PostgreSQL and "
            "Oracle and not in MySQL's; give the .sqlite file, or each table as a CSV file with a header."
        )
    depths = accumulate((part.text == "(") - (part.text == ")") for part in parts)
    end = next((place for place, depth in enumerate(depths) if depth == 0 and parts[place].text == ")"), 0)
    body, behind = parts[: end + 1], [part.upper for part in parts[end + 1 :]]
    behind = behind[: next((place for place, word in enumerate(behind) if word == "PARTITION"), None)]
    elsewhere = any(
        part.upper == "REFERENCES" and each.text == "." for part, each in zip(body, body[2:], strict=False)
    )
    queried = {"SELECT", "AS", "TABLE", "VALUES"}.intersection(behind)
    queried |= {"SELECT"}.intersection(part.upper for part in body)
    if not end or body[1].text != "(" or elsewhere or queried:
        refuse(f"CREATE TABLE {joined(parts[:6])} ...")
    _check_calls(body)
    lines = [_on_any_server(line) for line in filter(None, lines_of(body)) if not _says_nothing(line)]
    return Create(parts[0].text, lines, _options(behind))


def _says_nothing(line: Sequence[Word]) -> bool:
    """Return whether a line has no effect here: a PERIOD of system versioning, or a CHECK that is not
    enforced."""
    unchecked = [word.upper for word in line[-2:]] == ["NOT", "ENFORCED"]
    return not is_column(line) and (unchecked or line[0].upper == "PERIOD")


def if_not_there(words: Sequence[Word]) -> bool:
    """Return whether a CREATE TABLE has IF NOT EXISTS."""
    return [word.upper for word in words[2:5]] == ["IF", "NOT", "EXISTS"]


_NOT_MADE = (
    *(("WITH", "SYSTEM", "VERSIONING"), ("WITHOUT", "SYSTEM", "VERSIONING")),
    *(("GENERATED", "ALWAYS", "AS", "ROW", each) for each in ("START", "END")),
    *(("AS", "ROW", each) for each in ("START", "END")),
    *(("SRID", "NUMBER"), ("COMPRESSED",), ("VISIBLE",), ("PERSISTENT",)),
)
"""Words removed from CREATE TABLE: MariaDB's system versioning, and words that only one server knows."""


def _on_any_server(line: Sequence[Word]) -> list[Word]:
    """Return a line of CREATE TABLE without the words in `_NOT_MADE`."""
    kept: list[Word] = []
    place = 0
    while place < len(line):
        upper = tuple("NUMBER" if word.text.isdigit() else word.upper for word in line[place : place + 5])
        size = next((len(each) for each in _NOT_MADE if upper[: len(each)] == each), 0)
        if not size or not kept or kept[-1].text in ("(", ","):  # in the last cases it is a name
            kept.append(line[place])
            size = 1
        place += size
    return kept


_BEFORE_TABLES = ("", "FROM", "JOIN", "TABLE", "INTO", "VIEW", "EXISTS", "REFERENCES")


def unqualified(words: Sequence[Word], database: str | None, is_table: bool = False) -> list[Word]:
    """Return the words without the current database's name in qualified names, as in MySQL Workbench's dumps.

    If a table has the same name as the database (`is_table`), the name stays before a column.
    """
    kept: list[Word] = []
    for word, after in zip(words, [*words[1:], None], strict=False):
        if kept and kept[-1].text == "." and kept[:-1] and shown_name(kept[-2].text) == database:
            before = kept[-3].upper if kept[2:] else ""
            if not is_table or before in _BEFORE_TABLES or (after is not None and after.text == "."):
                word = word._replace(spaced=kept[-2].spaced)
                del kept[-2:]
        kept.append(word)
    return kept


def database_named(words: Sequence[Word]) -> str | None:
    """Return the database in a statement's or table's qualified name, as DataGrip writes it without USE."""
    before = (word for word, sign in pairwise(words[:7]) if sign.text == "." and word.kind != "sign")
    found = next((shown_name(word.text) for word in before), None)
    return None if found is None or found.lower() in SYSTEM else found


def _alterations(words: Sequence[Word]) -> list[list[Word]]:
    """Return the comma-separated parts of an ALTER TABLE. Each begins with its verb, such as ADD."""
    return [*filter(None, lines_of([Word("sign", "(", False), *words[3:], Word("sign", ")", False)]))]


def without_what_is_there(words: Sequence[Word], lines: Iterable[Sequence[Word]]) -> list[Word]:
    """Return an ALTER TABLE without IF NOT EXISTS, which only MariaDB knows.

    Columns and keys after IF NOT EXISTS are removed if `lines` of CREATE TABLE, or earlier parts, have them.
    If no part is left, the list is empty.
    """
    comma, end = Word("sign", ",", False), Word("sign", ")", False)
    there = set(map(_declared, lines))
    kept: list[Word] = []
    for part in _alterations(words):
        upper = [word.upper for word in part]
        place = next((n for n in range(1, 4) if upper[n : n + 3] == ["IF", "NOT", "EXISTS"]), None)
        if place is not None:
            part = [*part[:place], *part[place + 3 :]]
        behind = 2 if upper[1:2] == ["COLUMN"] else 1
        verb, line = part[:behind], part[behind:]
        several = [word.text for word in line[:1]] == ["("]
        left: list[Word] = []
        for each in filter(None, lines_of(line) if several else [line]):
            if place is None or _declared(each) not in there:
                left += [comma, *each]
            there.add(_declared(each))
        if left or not line:
            kept += [comma, *verb, *([line[0], *left[1:], end] if several else left[1:])]
    return [*words[:3], *kept[1:]] if kept else []


def _declared(line: Sequence[Word]) -> tuple[bool, str]:
    """Return whether a line is of a column, and the name of its column or key, whose case does not count."""
    if is_column(line):
        return True, shown_name(line[0].text).casefold()
    before = takewhile(lambda word: word.upper not in ("(", "USING"), line)
    *_, name = "", *(shown_name(word.text) for word in before if is_column([word]))
    return False, name.casefold() or joined(line)


def altered(words: Sequence[Word]) -> Iterator[tuple[str, list[Word], str | None]]:
    """Yield the columns and keys that an ALTER TABLE adds or modifies: verb, line and position.

    The position is the column to put it behind, empty for FIRST, and `None` if it is not given.
    """
    for verb, *rest in _alterations(words):
        line = [word for word in rest if word.upper != "COLUMN"]
        if verb.upper not in _ALTERED or not line:
            continue
        if line[0].text == "(":  # several columns
            yield from ((verb.upper, each, None) for each in lines_of(line) if each)
            continue
        last = [word.upper for word in line[-2:]]
        if is_column(line) and last[-1] == "FIRST":
            yield verb.upper, line[:-1], ""
        elif is_column(line) and last[0] == "AFTER":
            yield verb.upper, line[:-2], shown_name(line[-1].text)
        else:
            yield verb.upper, line, None


def _options(words: Sequence[str]) -> str:
    """Return a table's character set, collation and next AUTO_INCREMENT; other options are left out."""
    kept = []
    for place, word in enumerate(words):
        if word in ("AUTO_INCREMENT", "CHARSET", "COLLATE"):
            value = next((each.strip("'") for each in words[place + 1 : place + 3] if each != "="), "")
            if re.fullmatch(r"\w+", value):
                kept.append(f" {word}={value.lower()}")
    return "".join(kept)


def view_made(words: Sequence[Word]) -> tuple[str, list[str], str]:
    """Return a view's name, its listed columns, and the statement that makes it.

    The view has its reader's rights (SQL SECURITY INVOKER), not those of the account that makes it.
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
    """Return the INSERT of rows, without values of generated `columns`.

    MariaDB's dumps have such values, although the server refuses them.
    """
    names, written = rows.columns, rows.rows
    if not names and any(column.generated for column in columns):
        kept = [not column.generated for column in columns]
        names = f"({', '.join(quote(column.name) for column in columns if not column.generated)})"
        written = [", ".join(compress(cells(row), kept)) for row in written]
    return Step(f"{rows.verb} INTO {rows.table} {names} VALUES ({'), ('.join(written)})")


def _check_calls(words: Sequence[Word]) -> None:
    for word, after in pairwise(words):
        if after.text == "(" and shown_name(word.text).upper() in _NEVER_CALLED:
            refuse(f"{word.text}(")


_ORIGIN_CHARACTERS = 4096
"""Characters of a statement searched for another server's SQL. Without semicolons, a statement is the whole
file."""


_ORIGINS = {
    "SQL Server": re.compile(
        r"\[ [A-Z]|\bDBO \.|\bIDENTITY \( \d|\bGO (?:ALTER|CREATE|DROP|INSERT|USE)\b"
        r"|\bSET (?:IDENTITY_INSERT|ANSI_NULLS|QUOTED_IDENTIFIER|NOCOUNT)\b"
    ),
    "PostgreSQL": re.compile(r"\b(?:PUBLIC|PG_CATALOG) \.|\bFROM STDIN\b"),
}
"""Patterns that only other servers' scripts match, for tokens in upper case with a blank between them."""

_UNDIVIDED = re.compile(
    r"((?:CREATE|DROP|ALTER|TRUNCATE) TABLE|DELETE FROM) .*? ((?:CREATE|DROP|TRUNCATE) TABLE|INSERT INTO) "
)
"""Pattern of a second statement within a statement, for the same notation."""


def check_origin(statement: str) -> None:
    """Raise TaskError for a statement of another server, one without its semicolon, or another encoding."""
    bare = bare_text(statement[:_ORIGIN_CHARACTERS])
    if (whose := next((name for name, form in _ORIGINS.items() if form.search(bare)), None)) is not None:
        raise TaskError(
            f"it is a script of {whose}, not a dump of MySQL or MariaDB. Export each of its tables as a CSV "
            "file with a header, and give those."
        )
    if both := _UNDIVIDED.match(bare):
        raise TaskError(
            f"a statement with {both[1]} has {both[2]} within it: end each statement with a semicolon."
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
