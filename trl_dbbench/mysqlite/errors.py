"""MySQL's errors, and the MySQL numbers and messages for SQLite's errors."""

from __future__ import annotations

import re

SHOWN_DATABASE = "dbbench"
"""Name of the only database, as statements and messages show it."""


class StatementError(Exception):
    """Refusal of a statement: `code` is MySQL's error number, `text` the message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def syntax_error(sql: str, at: int = 0, line: int = 1) -> StatementError:
    """Return MySQL's syntax error at index `at` of a text whose first line has the number `line`."""
    near = sql[at:].encode()[:80].decode(errors="ignore")  # MySQL shows 80 bytes
    line += sql.count("\n", 0, at)
    return StatementError(
        1064,
        "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        f"version for the right syntax to use near '{near}' at line {line}",
    )


def unsupported(what: str) -> StatementError:
    """Return the error for what MySQL supports, but this database does not, or not certainly as MySQL."""
    return StatementError(1235, f"This version of MySQL doesn't yet support '{what}' (embedded database)")


def refuse_if(condition: object, what: str) -> None:
    """Raise `unsupported(what)` if the condition holds."""
    if condition:
        raise unsupported(what)


def fail_if(condition: object, code: int, text: str) -> None:
    """Raise a MySQL error if the condition holds."""
    if condition:
        raise StatementError(code, text)


def nested_too_deeply() -> StatementError:
    """Return the error for a statement that is too large or too deeply nested to be read."""
    return StatementError(1436, "Thread stack overrun: the statement is nested too deeply")


def unknown_column(name: str, clause: str = "field list") -> StatementError:
    """Return the error for an unknown column in a clause."""
    return StatementError(1054, f"Unknown column '{name}' in '{clause}'")


def unknown_table(name: str) -> StatementError:
    """Return the error for an unknown table or view."""
    return StatementError(1146, f"Table '{SHOWN_DATABASE}.{name}' doesn't exist")


OTHER_COUNT = (
    1353,
    "In definition of view, derived table or common table expression, SELECT list and column names list have "
    "different column counts",
)
"""MySQL's error for a list of column names that is longer or shorter than the list of columns."""

_OTHER_NUMBER = "Column count doesn't match value count at row"

_MESSAGES: list[tuple[str, int, str]] = [
    (r"no such column: (?:.*\.)?(.*)", 1054, "Unknown column '{0}' in 'field list'"),
    (r"table .* has no column named (.*)", 1054, "Unknown column '{0}' in 'field list'"),
    (r"no such table: (?:main\.|temp\.)?(.*)", 1146, f"Table '{SHOWN_DATABASE}.{{0}}' doesn't exist"),
    (r"UNIQUE constraint failed: (.*)", 1062, "Duplicate entry for key '{0}'"),
    (r"NOT NULL constraint failed: (?:.*\.)?(.*)", 1048, "Column '{0}' cannot be null"),
    (r"table .* has \d+ columns but \d+ values were supplied", 1136, f"{_OTHER_NUMBER} 1"),
    (r"\d+ values for \d+ columns", 1136, f"{_OTHER_NUMBER} 1"),
    (r"all VALUES must have the same number of terms", 1136, f"{_OTHER_NUMBER} 2"),
    (r"ambiguous column name: (.*)", 1052, "Column '{0}' in field list is ambiguous"),
    (r"(?:table|view) (.*) already exists", 1050, "Table '{0}' already exists"),
    (r"there is already another table or index with this name: (.*)", 1050, "Table '{0}' already exists"),
    (r"duplicate column name: (.*)", 1060, "Duplicate column name '{0}'"),
    (r"sub-select returns \d+ columns - expected (\d+)", 1241, "Operand should contain {0} column(s)"),
    (r"IN\(\.\.\.\) element has \d+ terms? - expected (\d+)", 1241, "Operand should contain {0} column(s)"),
    (r"no such window: (.*)", 3579, "Window name '{0}' is not defined."),
    (r"row value misused", 1241, "Operand should contain 1 column(s)"),
    (r"SELECTs to the left and .*", 1222, "The used SELECT statements have a different number of columns"),
    (r".*ORDER BY term out of range.*", 1054, "Unknown column in 'order clause'"),
    (r"aggregate functions are not allowed in the GROUP BY clause", 1056, "Can't group on an aggregate"),
    (r".*GROUP BY term out of range.*", 1054, "Unknown column in 'group statement'"),
    (r"no such function: (?:my_)?(.*)", 1305, f"FUNCTION {SHOWN_DATABASE}.{{0}} does not exist"),
    (r"wrong .* (?:my_)?(.*)\(\)", 1582, "Incorrect parameter count in the call to native function '{0}'"),
    (r"CHECK constraint failed: (.*)", 1366, "Incorrect numeric value for column '{0}'"),
    (r"frame (\w+) offset .*", 1064, "You have an error in your SQL syntax: the {0} offset of a frame"),
    (r"(?:second )?argument (?:of|to) (.*) must be a positive .*", 1210, "Incorrect arguments to {0}"),
    (r"database or disk is full", 1114, "The table is full"),
    (r"no tables specified", 1096, "No tables used"),
    (r"duplicate WITH table name: (.*)", 1066, "Not unique table/alias: '{0}'"),
    (r"table .* has \d+ values for \d+ columns", *OTHER_COUNT),
    (
        r"misuse of aliased window function (.*)",
        3594,
        "You cannot use the alias '{0}' of an expression containing a window function in this context.'",
    ),
    (r"too many columns.*", 1117, "Too many columns"),
    (r"string or blob too big", 1301, "Result was larger than max_allowed_packet"),
    (r"not authorized|.*prohibited.*", 1142, "Command denied to the agent"),
]

_UNSUPPORTED = (
    (r"misuse of (?:window function|aggregate)", "an aggregate of a query around this one"),
    (r"DISTINCT is not supported for window", "<window function>(DISTINCT ..)"),
    (r".* may not be used as a window function", "this function as a window function"),
    (r"parser stack overflow", "calls and subqueries in each other so deeply"),
)


def as_mysql(text: str) -> tuple[int, str]:
    """Return MySQL's number and message for the error that SQLite reports with this text."""
    for pattern, code, form in _MESSAGES:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match:
            return code, form.format(*(group.strip('"').strip("`") for group in match.groups()))
    refused = next((what for pattern, what in _UNSUPPORTED if re.match(pattern, text)), text)
    near = re.match(r'near "(.*)": syntax error|incomplete input', text, re.DOTALL)
    if near:  # it is in MySQL's grammar, which was checked before
        refused = f"{near[1] or 'an end'} here"
    error = unsupported(refused)
    return error.code, error.text
