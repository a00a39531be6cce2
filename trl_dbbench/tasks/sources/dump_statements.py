"""The statements of a dump: which are executed, and in which form.

They run under an account that may do much. So each is put together anew of the parts that make tables, rows
and views; what reads, touches or names anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import NamedTuple, NoReturn

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.sources.base import Step
from trl_dbbench.tasks.sources.dump_text import Rows, Word, cells, shown_name
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

_NO_COLUMN = frozenset(
    {"PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK", "PERIOD"}
)
"""With which a line of a table begins that is no column."""

_UNICODE = ("utf8", "utf8mb3", "utf8mb4", "binary", "NULL")


def kind_of(words: Sequence[Word]) -> str:
    """What to do with a statement; in capitals, what it is that is left out."""
    upper = [word.upper for word in words]
    first, second, _, fourth = [*upper[:4], "", "", "", ""][:4]
    if first in ("", *_SILENT):
        return "zone" if "TIME_ZONE" in upper and "'+00:00'" in upper else "nothing"
    if second in ("DATABASE", "SCHEMA"):
        return "nothing"
    if (first, second) == ("CREATE", "TABLE"):
        return "table"
    if first == "CREATE":
        made = next((each for each in upper[:20] if each in ("VIEW", *_CODE)), second)
        return "view" if made == "VIEW" else f"CREATE {made}"
    if (first, second) == ("ALTER", "TABLE"):
        if fourth in ("DISABLE", "ENABLE"):
            return "nothing"
        if fourth not in _ALTERED or "." in upper or _NEVER_ALTERED.intersection(upper):
            refuse(joined(words[:6]))
        _check_calls(words)
        return "alter"
    if first == "DROP" and second in ("TABLE", "VIEW"):
        if "." in upper:
            refuse(joined(words[:8]))
        return "drop"
    if first == "DROP":
        return "nothing"
    if first in ("INSERT", "REPLACE", "UPDATE", "DELETE", "TRUNCATE", "LOAD", "SELECT"):
        refuse(joined(words[:6]))
    return f"{first} {second}".upper() if second.isalpha() else first.upper()


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


def table_made(words: Sequence[Word]) -> str:
    """CREATE TABLE with its columns, and of its options those that say how its texts and numbers are.

    Raises:
        TaskError: it names another database, has its rows from a query, or calls what reads files.
    """
    parts = list(words[2:])
    if [part.upper for part in parts[:3]] == ["IF", "NOT", "EXISTS"]:
        parts = parts[3:]
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
    """Whether CREATE TABLE does nothing where there is such a table."""
    return [word.upper for word in words[2:5]] == ["IF", "NOT", "EXISTS"]


def not_made(words: Sequence[Word]) -> list[str]:
    """What a table has in the dump and not where it is loaded: partitions, and the history of its rows."""
    upper = [word.upper for word in words]
    lost = ["its partitions"] if ("PARTITION", "BY") in pairwise(upper) else []
    return lost + (["its system versioning"] if ("SYSTEM", "VERSIONING") in pairwise(upper) else [])


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


class DumpColumn(NamedTuple):
    name: str
    type: str
    generated: bool


def lines_of(words: Sequence[Word]) -> list[list[Word]]:
    """The columns and keys of a table, each by its words, out of the words of what `table_made` gives."""
    lines: list[list[Word]] = [[]]
    depth = 0
    for word in words:
        depth += word.text == "("
        if depth == 1 and word.text == ",":
            lines.append([])
        elif depth > 1 or (depth == 1 and word.text not in "()"):
            lines[-1].append(word)
        depth -= word.text == ")"
    return lines


def is_column(line: Sequence[Word]) -> bool:
    return line[0].upper not in _NO_COLUMN


def size_of(line: Sequence[Word]) -> int:
    """The place behind the type of a column's line, its size in parentheses included."""
    end = next((n for n, each in enumerate(line) if each.text == ")"), 0) if line[2:3] else 0
    return end + 1 if end and line[2].text == "(" else 2


def columns_of(words: Sequence[Word]) -> list[DumpColumn]:
    """The columns of a table, out of the words of what `table_made` gives."""
    found = []
    for line in filter(is_column, lines_of(words)):
        generated = any(each.upper in ("GENERATED", "AS") for each in line[2:])
        found.append(DumpColumn(shown_name(line[0].text), joined(line[1 : size_of(line)]), generated))
    return found


def _options(words: Sequence[str]) -> str:
    """Character set, collation and next number of a table, of all that stands behind its columns."""
    kept = []
    for place, word in enumerate(words):
        if word.startswith("PARTITION"):
            break
        if word in ("AUTO_INCREMENT", "CHARSET", "COLLATE"):
            (value,) = [each for each in words[place + 1 : place + 3] if each != "="][:1] or [""]
            if re.fullmatch(r"\w+", value):
                kept.append(f" {word}={value.lower()}")
    return "".join(kept)


def view_made(words: Sequence[Word]) -> tuple[str, list[str], str]:
    """A view's name, the columns that it names, and the statement that makes it.

    It reads under the rights of whoever reads it, not under those of the account that makes it.
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


def rows_put(rows: Rows, columns: Sequence[DumpColumn]) -> Step:
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


def joined(words: Sequence[Word]) -> str:
    return "".join(f" {word.text}" if word.spaced else word.text for word in words).strip()


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


def check_encoding(statement: str) -> None:
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
