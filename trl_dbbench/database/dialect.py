"""Differences between database products: how they parse statements and limit their time.

`Database.dialect` is `MYSQL`, `MARIADB` or `SQLITE`; `run.json` stores its `name`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError

from trl_dbbench.database.error_numbers import AGENT_ERRORS
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, cached, lexemes, parse_statements

Kind = Literal["reads", "plain", "tables", "denied", "other"]


@dataclass(frozen=True)
class Dialect:
    """Dialect of a server of the MySQL family, or of its emulation.

    The methods are right for the whole family; a server of another family overrides them.
    """

    name: str
    product: str

    def looks_like_read(self, sql: str) -> bool:
        """Return whether a statement may be tried on a read-only session that episodes share.

        Only the text decides: a statement that merely quotes a suspicious word does not look like a read, nor
        does a very long one.
        """
        return len(sql) <= MAX_STATEMENT_CHARACTERS and _looks_like_read(sql)

    def only_reads(self, sql: str) -> bool:
        """Return whether a statement changes nothing on any session and reveals nothing about its session."""
        return self.looks_like_read(sql) and self.kind_of(sql) == "reads"

    def only_shows(self, sql: str) -> bool:
        """Return whether a statement leaves nothing behind, unless it calls the agent's own code."""
        return _READ.match(sql) is not None and _KEEPS.search(sql) is None

    def kind_of(self, sql: str) -> Kind:
        """Return what a statement leaves behind.

        - `reads`: nothing;
        - `plain`: at most rows in tables;
        - `tables`: other tables, views or indexes;
        - `denied`: it must not run at all;
        - `other`: a trace in the session, code, or anything that cannot be told.
        """
        if _is_denied(sql):
            return "denied"
        if _EXECUTED_COMMENT.search(sql) or len(sql) > MAX_STATEMENT_CHARACTERS:
            return "other"
        return _kind_of(sql)

    def varies(self, sql: str) -> bool:
        """Return whether a statement, or a column's type, may give a different result each time.

        Results vary with the clock, with random numbers, or with the server's own names and estimates.
        """
        return _VARYING.search(sql) is not None

    def error_class(self, code: int) -> str:
        """Return the class of an agent's error: a key of `AGENT_ERRORS`, or `other`."""
        return next((name for name, codes in AGENT_ERRORS.items() if code in codes), "other")


@dataclass(frozen=True)
class ServerDialect(Dialect):
    """Dialect of a server, with the statements that MySQL and MariaDB write differently.

    - `time_limit` and `timed_select`: templates for the methods below;
    - `database_size`: statements; the last one returns the size in bytes of a database on disk, including
      a connection's temporary tables. Their parameters are `files` (a pattern of tablespaces),
      `database` and `connection`;
    - `temporary_size`: a statement that returns the size in bytes of the file that holds all temporary
      tables; `None` if there is no such file;
    - `list_prepared`: a statement that lists prepared XA transactions: format, lengths of the name's two
      parts, and the name, in hexadecimal digits or as SQL.
    """

    time_limit: str
    timed_select: str
    database_size: tuple[str, ...]
    temporary_size: str | None
    list_prepared: str

    def set_time_limit(self, seconds: float) -> str:
        """Return the statement that limits the time of each statement in a session."""
        return self.time_limit.format(seconds=seconds, milliseconds=max(1, round(1000 * seconds)))

    def select_all(self, table: str, seconds: int) -> str:
        """Return a SELECT of all rows whose time limit replaces the session's."""
        return self.timed_select.format(table=table, seconds=seconds, milliseconds=1000 * seconds)


_OTHER_ENGINES = (
    "SELECT DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %(database)s AND ENGINE <> 'InnoDB'"
)

MYSQL = ServerDialect(
    "mysql",
    "MySQL",
    time_limit="SET SESSION max_execution_time = {milliseconds}",
    timed_select="SELECT /*+ MAX_EXECUTION_TIME({milliseconds}) */ * FROM {table}",
    database_size=(
        "SET SESSION information_schema_stats_expiry = 0",
        "SELECT SUM(size) FROM (SELECT FILE_SIZE AS size FROM information_schema.INNODB_TABLESPACES "
        f"WHERE NAME LIKE %(files)s UNION ALL {_OTHER_ENGINES} UNION ALL "
        "SELECT SIZE FROM information_schema.INNODB_SESSION_TEMP_TABLESPACES "
        "WHERE ID = %(connection)s AND PURPOSE = 'USER') AS files",
    ),
    temporary_size=None,
    list_prepared="XA RECOVER CONVERT XID",
)
MARIADB = ServerDialect(
    "mariadb",
    "MariaDB",
    time_limit="SET SESSION max_statement_time = {seconds:g}",
    timed_select="SET STATEMENT max_statement_time={seconds} FOR SELECT * FROM {table}",
    database_size=(
        "SELECT SUM(size) FROM (SELECT FILE_SIZE AS size FROM information_schema.INNODB_SYS_TABLESPACES "
        f"WHERE NAME LIKE %(files)s UNION ALL {_OTHER_ENGINES}) AS files",
    ),
    temporary_size="SELECT FILE_SIZE FROM information_schema.INNODB_SYS_TABLESPACES "
    "WHERE NAME = 'innodb_temporary'",
    list_prepared="XA RECOVER FORMAT='SQL'",
)
SQLITE = Dialect("sqlite", "SQLite")


# --- classification of statements by their text -----------------------------------------------------------

_READ = re.compile(
    r"""[\s(]*+(?:SELECT | WITH | DESC | DESCRIBE | EXPLAIN
    | SHOW\s+(?:FULL\s+)?(?:TABLES | COLUMNS | FIELDS | CREATE\s+TABLE))\b""",
    re.IGNORECASE | re.VERBOSE,
)
_KEEPS = re.compile(r":=|\b(?:INTO|UPDATE|DELETE)\b|\bLAST_INSERT_ID\s*\(\s*[^\s)]|/\*M?!", re.IGNORECASE)
"""Words with which an apparent SELECT stores something that it shows, or changes rows."""

_NOT_ONLY_READ = re.compile(
    r"""@ | /\* | -- | \# | ;\s*\S                # variables; comments, which could part the words below
    | \bINTO\b | \bFOR\s+(?:UPDATE|SHARE|CONNECTION) | \bLOCK\s+IN
    | dbb_ | _schema\b                            # names of other databases, and the catalogs that list them
    | \b(?:DATABASE|SCHEMA|CURRENT_USER|CURRENT_ROLE)\b
    | \b(?:USER|SESSION_USER|SYSTEM_USER|CONNECTION_ID|LAST_INSERT_ID|FOUND_ROWS|ROW_COUNT|IS_FREE_LOCK
         |IS_USED_LOCK|GET_LOCK|RELEASE_LOCK|RELEASE_ALL_LOCKS)`?\s*\(""",
    re.IGNORECASE | re.VERBOSE,
)

# Named locks are global to the server: they would reveal other episodes and make them wait. Anything that may
# be such a call is denied, also inside strings, which may be dynamic SQL: no other string contains one.
_CALLS_LOCK = re.compile(
    r"""\b(?:(?:GET|RELEASE|IS_FREE|IS_USED)_LOCK|RELEASE_ALL_LOCKS)[`"]?\s*(?:\(|/\*|--|\#)""", re.IGNORECASE
)
# KILL could only end the agent's own connection, which would look like a server failure; a prepared XA
# transaction locks its tables forever; files in other folders would be left behind.
_PERHAPS_DENIED = re.compile(r"\b(?:KILL|XA|DIRECTORY)\b", re.IGNORECASE | re.ASCII)
_DENIED = re.compile(
    r"(?:KILL|XA)\b | .*\b(?:XA\ (?:START|BEGIN|COMMIT|ROLLBACK|RECOVER) | (?:DATA|INDEX)\ DIRECTORY)\b",
    re.VERBOSE,
)
_XA = re.compile(r"\bXA\b", re.IGNORECASE | re.ASCII)
_EXECUTED_COMMENT = re.compile(r"/\*M?!")
_STATEFUL_FUNCTIONS = frozenset({"LAST_INSERT_ID", "FOUND_ROWS"})
_READS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Show, exp.Describe)
_CHANGES = (exp.Insert, exp.Update, exp.Delete)

_VARYING = re.compile(
    r"""\b(?:NOW|SYSDATE|CURDATE|CURTIME|UNIX_TIMESTAMP|RAND|UUID|UUID_SHORT|RANDOM_BYTES|RANDOM|RANDOMBLOB
        |CONNECTION_ID|DATABASE|SCHEMA|USER|SESSION_USER|SYSTEM_USER)\s*\(
    |\b(?:CURRENT_DATE|CURRENT_TIME|CURRENT_TIMESTAMP|CURRENT_USER|LOCALTIME|LOCALTIMESTAMP
        |UTC_DATE|UTC_TIME|UTC_TIMESTAMP|INFORMATION_SCHEMA)\b
    |'now'
    |\bSHOW\s+(?!(?:FULL\s+)?(?:TABLES|COLUMNS|FIELDS)\b|CREATE\s+TABLE\b|WARNINGS\b)
    |^[\s(]*(?:EXPLAIN|ANALYZE)\b
    |^\s*DESC(?:RIBE)?\s*(?:\(
        |\b(?:SELECT|WITH|TABLE|VALUES|INSERT|REPLACE|UPDATE|DELETE|FORMAT|ANALYZE|EXTENDED|PARTITIONS)\b)""",
    re.VERBOSE | re.IGNORECASE,
)


def _is_denied(sql: str) -> bool:
    if _CALLS_LOCK.search(sql):
        return True
    if not _PERHAPS_DENIED.search(sql):
        return False
    if _EXECUTED_COMMENT.search(sql):
        return True  # servers differ in what such a comment hides
    parts = [(kind, text) for kind, text in lexemes(sql) if kind != "gap"]
    words = " ".join(text.upper() if kind == "word" else "." for kind, text in parts)
    if _DENIED.match(words):
        return True
    if "\\" in sql and _XA.search(sql):
        return True  # the end of a string with backslashes depends on the session's sql_mode
    dynamic = "PREPARE" in words or "IMMEDIATE" in words
    return dynamic and any(_is_denied(text[1:-1]) for kind, text in parts if kind == "string")


@cached
def _looks_like_read(sql: str) -> bool:
    return bool(_READ.match(sql)) and not _NOT_ONLY_READ.search(sql)


@cached
def _kind_of(sql: str) -> Kind:
    try:
        parsed = parse_statements("".join(" " if kind == "gap" else text for kind, text in lexemes(sql)))
    except (SqlglotError, RecursionError):
        return "other"
    tree = parsed[0] if len(parsed) == 1 else None
    if tree is None:
        return "other"
    makes = isinstance(tree, exp.Create | exp.Drop | exp.Alter) and tree.kind in ("TABLE", "VIEW", "INDEX")
    kind: Kind
    if makes or isinstance(tree, exp.TruncateTable):
        kind = "tables"
    elif isinstance(tree, _CHANGES):
        kind = "plain"
    elif isinstance(tree, _READS):
        kind = "reads"
    else:
        return "other"
    if tree.find(exp.TemporaryProperty) or tree.args.get("temporary"):
        return "other"
    for node in tree.find_all(exp.Parameter, exp.SessionParameter, exp.Into, exp.Anonymous):
        if not isinstance(node, exp.Anonymous) or node.name.upper() in _STATEFUL_FUNCTIONS:
            return "other"
        if kind == "reads":
            kind = "plain"  # perhaps a function that the agent made, which may change tables
    return kind
