"""MySQL's tables in SQLite: CREATE TABLE, ALTER TABLE, DESCRIBE, SHOW, information_schema.

A type that SQLite would misunderstand is declared as a name of our own and a storage type: `my_date TEXT`,
`my_decimal_10_2 REAL`. The name of a decimal also tells `sqlite3` how to convert the values that it reads.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from trl_dbbench.mysqlite import errors, values
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, fail_if, refuse_if, syntax_error
from trl_dbbench.mysqlite.guard import Guard
from trl_dbbench.mysqlite.kinds import (
    DATETIME,
    INTEGERS,
    JSON,
    LONG_TEXT,
    MOST_SINGLE_BITS,
    UNKNOWN,
    Column,
    Kind,
    Table,
    TableColumns,
    declared,
    words,
)
from trl_dbbench.mysqlite.parse import quote, text_of
from trl_dbbench.mysqlite.patterns import like
from trl_dbbench.mysqlite.rules import write
from trl_dbbench.mysqlite.storage import stored_cell

_CONVERTED = ("text", "date", "datetime", "time", "decimal", "fixed")


def shown(rows: Iterable[Sequence[Any]], kinds: Sequence[Kind]) -> Iterable[Sequence[Any]]:
    """Return the rows of a result with cells converted to Python's types, as a MySQL driver returns them."""
    places = [(n, kind) for n, kind in enumerate(kinds) if kind.name in _CONVERTED or kind.is_single]
    return (_converted(row, places) for row in rows) if places else rows


def _converted(row: Sequence[Any], places: Sequence[tuple[int, Kind]]) -> tuple:
    cells = list(row)
    for place, kind in places:
        cells[place] = _cell(cells[place], kind)
    return tuple(cells)


def _cell(value: Any, kind: Kind) -> Any:
    if kind.name == "text":
        return values.text(value) if isinstance(value, date | int | float | Decimal) else value
    if isinstance(value, int | float) and kind.is_single:
        digits = values.shown_single(values.single(value) or value)
        refuse_if(kind.silent and digits != value, "MIN or MAX of a computed FLOAT in groups")
        return digits
    if kind.name in ("decimal", "fixed") and isinstance(value, float):
        return values.decimal(value, kind.places)
    if not isinstance(value, str):
        return value
    try:
        if kind.name == "date":
            return date.fromisoformat(value[:10])
        if kind.name == "datetime":
            return datetime.fromisoformat(value)
        if kind.name == "time":
            return duration(value)
    except (ValueError, OverflowError):
        pass  # Python has no such date: keep the text
    return value


def duration(value: str) -> timedelta:
    """Return a TIME as a timedelta; a leading minus sign applies to all its parts."""
    hours, minutes, seconds = value.removeprefix("-").split(":")
    length = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    return -length if value.startswith("-") else length


_T = exp.DataType.Type
_INTEGER = re.compile(r"\s*(?:TINY|SMALL|MEDIUM|BIG)?INT", re.IGNORECASE)


def _types(names: str) -> set[Any]:
    return {_T[name] for name in names.split()}


_REALS = _types("DECIMAL UDECIMAL")
_TEXTS = _types("CHAR NCHAR VARCHAR NVARCHAR TEXT TINYTEXT MEDIUMTEXT LONGTEXT")
_AS_TEXT = _types("DATE DATETIME DATETIME64 TIMESTAMP TIMESTAMPTZ TIMESTAMPNTZ TIME JSON ENUM SET")
_NUMBERS = _REALS | _types("INT UINT BIGINT UBIGINT SMALLINT TINYINT MEDIUMINT FLOAT DOUBLE")


def _decimal_converter(places: int) -> Callable[[bytes], Any]:
    unit = Decimal(1).scaleb(-places)

    def convert(value: bytes) -> Decimal | str:
        written = value.decode("utf-8", "replace")
        try:
            return Decimal(written).quantize(unit, context=values.DECIMAL_DIGITS)
        except InvalidOperation:
            return written

    return convert


_CREATED = words(
    """
    Create Schema Table Identifier Column ColumnDef DataType DataTypeParam Literal Null Boolean Neg Var
    CurrentTimestamp Localtime Localtimestamp Constraint ColumnConstraint NotNullColumnConstraint
    PrimaryKeyColumnConstraint UniqueColumnConstraint DefaultColumnConstraint AutoIncrementColumnConstraint
    CommentColumnConstraint PrimaryKey IndexColumnConstraint IndexParameters Properties EngineProperty
    CharacterSetProperty CollateProperty SchemaCommentProperty TemporaryProperty
    """
)
"""Types of nodes in CREATE TABLE that are supported or have no effect."""
_OPTIONS = words("innodb utf8mb4 utf8mb4_0900_ai_ci")


def create(tree: exp.Expr, given: bool = False) -> str:
    """Return CREATE TABLE for SQLite. If it is `given`, not an agent's, unsupported parts are left out."""
    schema = tree.this
    temporary = "TEMP " if tree.find(exp.TemporaryProperty) else ""
    refuse_if(not isinstance(schema, exp.Schema) or tree.expression, "CREATE TABLE LIKE, or with a query")
    columns = [each for each in schema.expressions if isinstance(each, exp.ColumnDef)]
    counted = exp.AutoIncrementColumnConstraint
    automatic = next((column.name for column in columns if column.find(counted)), None)
    parts, key, keyed = list[str](), list[str](), list[str]()
    for constraint in schema.expressions:
        while isinstance(constraint, exp.Constraint):
            constraint = constraint.expressions[0]
        held = constraint.this if isinstance(constraint.this, exp.Schema) else constraint
        names = [each.name or getattr(each.this, "name", "") for each in held.expressions or ()]
        keyed += map(str.lower, names)
        if isinstance(constraint, exp.PrimaryKey) and automatic not in names:
            key = keyed[-len(names) :]
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, names))})")
        elif isinstance(constraint, exp.UniqueColumnConstraint):
            parts.append(f"UNIQUE ({', '.join(map(quote, names))})")
        refuse_if(automatic in names and len(names) > 1 and not given, "AUTO_INCREMENT in a longer key")
    written = [_column(column, automatic, column.name.lower() in key) for column in columns]
    if not given:
        _check_created(tree, keyed)
    exists = "IF NOT EXISTS " if tree.args.get("exists") else ""
    return f"CREATE {temporary}TABLE {exists}{quote(own_name(schema.this))} ({', '.join(written + parts)})"


def _check_created(tree: exp.Expr, keyed: Sequence[str] = ()) -> None:
    """Refuse a column, key or option that would differ from MySQL's. `keyed` are the columns in keys."""
    for node in tree.walk():
        called = isinstance(node, exp.Anonymous) and isinstance(node.parent, exp.DefaultColumnConstraint)
        odd = isinstance(node, exp.Var) and node.name.lower() not in _OPTIONS
        refuse_if(odd or not (called or type(node).__name__ in _CREATED), f"{text_of(node)[:40]} in a table")
    unique = (exp.PrimaryKeyColumnConstraint, exp.UniqueColumnConstraint)
    for column in tree.find_all(exp.ColumnDef):
        kind = UNKNOWN if column.kind is None else declared(_declared(column.kind))
        in_key = column.name.lower() in keyed or column.find(*unique)
        default = column.find(exp.DefaultColumnConstraint)
        given = default is not None and not isinstance(default.this, exp.Null)
        if kind == LONG_TEXT and in_key:
            raise StatementError(1170, f"BLOB/TEXT column '{column.name}' used in key without a key length")
        odd = kind == UNKNOWN or (kind in (LONG_TEXT, JSON) and given)
        counted = column.find(exp.AutoIncrementColumnConstraint) and not in_key
        refuse_if(odd or counted, f"a column of {text_of(column)[:40]}")
    refuse_if(tree.find(exp.IndexColumnConstraint), "KEY in a table")


def create_filled(tree: exp.Create, row: Iterable[tuple[str, Kind]]) -> str:
    """Return CREATE TABLE for SQLite, for a table that a query with these columns will fill."""
    temporary = "TEMP " if tree.find(exp.TemporaryProperty) else ""
    columns = ", ".join(f"{quote(name)} {_made(kind)} COLLATE {values.COLLATION}" for name, kind in row)
    return f"CREATE {temporary}TABLE {quote(own_name(tree.this))} ({columns})"


def _made(kind: Kind) -> str:
    """Return the type of a column that a query fills; its size may differ in MySQL."""
    refuse_if(kind.is_single or kind.name in ("null", "unknown", "fixed", "blob"), "such a column of a query")
    if kind.name == "decimal":
        return f"{_decimal(kind.size or 65, kind.places)} made"
    if kind.name == "int":
        return f"my_{INTEGERS.get(kind.size or 64, 'bigint')} INT {'unsigned ' * kind.unsigned}made"
    if kind.name == "float":
        return "my_double REAL made"
    word = "char" if kind.trims else "varchar" if kind.silent is False else "longtext"
    size = f"_{kind.size}" if kind.size else f"_{_coded(kind.members)}" if kind.members else ""
    return f"my_{word if kind.name == 'text' else kind.name}{size} TEXT made"


def alter(tree: exp.Alter) -> list[str]:
    """Return ALTER TABLE for SQLite, one statement for each change."""
    table = quote(own_name(tree.this))
    refuse_if(tree.args.get("options"), "ALTER TABLE with options")
    return [f"ALTER TABLE {table} {_change(action)}" for action in tree.args.get("actions") or []]


def described(row: tuple) -> tuple:
    """Return a row of SQLite's table_info as a row of MySQL's DESCRIBE."""
    _, name, kind, not_null, default, key = row
    refuse_if(kind.endswith(" made"), "the columns of a table that a query made")
    quoted, held = default is not None and default[:1] == "'", declared(kind)
    shown = default[1:-1].replace("''", "'") if quoted else default
    extra = "auto_increment" if kind == "INTEGER" else ""
    if default == "my_NOW()":
        shown, extra = "CURRENT_TIMESTAMP", "DEFAULT_GENERATED"
    elif default is not None and held.name == "float":
        shown = (values.single_text if held.is_single else values.written)(float(shown))
    elif default is not None and held.name == "decimal":
        shown = f"{float(shown):.{held.places}f}"
    return (name, _shown_type(kind), "NO" if not_null or key else "YES", "PRI" if key else "", shown, extra)


def written_out(name: str, columns: list[tuple], temporary: str) -> str:
    """Return the text of SHOW CREATE TABLE."""
    lines = []
    for column, kind, null, _, default, extra in columns:
        rest = " NOT NULL" if null == "NO" else " NULL" * (kind == "timestamp")
        now = default == "CURRENT_TIMESTAMP" and kind in ("datetime", "timestamp")
        given = default if now else exp.convert(default).sql()
        rest += f" DEFAULT {given}" * (default is not None or (null == "YES" and kind != "text"))
        lines.append(f"  {quote(column)} {kind}{rest}{' AUTO_INCREMENT' * (extra == 'auto_increment')}")
    keys = [quote(column[0]) for column in columns if column[3] == "PRI"]
    refuse_if(len(keys) > 1, "SHOW CREATE TABLE of a key of several columns")
    if keys:
        lines.append(f"  PRIMARY KEY ({','.join(keys)})")
    body = ",\n".join(lines)
    options = f"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={values.COLLATION}"
    return f"CREATE {temporary}TABLE {quote(name)} (\n{body}\n) {options}"


def _shown_type(kind: str) -> str:
    if kind == "INTEGER":
        return "int"
    if (found := declared(kind)).name == "decimal":
        return f"decimal({found.size},{found.places})"
    if found.members:
        return f"{found.name}({','.join(exp.Literal.string(each).sql() for each in found.members)})"
    return kind.lower().removeprefix("my_").removesuffix(" text") if kind.startswith("my_") else kind.lower()


Describe = Callable[[str], list[tuple]]
"""Function that returns the columns of a table as DESCRIBE lists them."""


def _catalog_columns(names: list[tuple[str, str]], describe: Describe) -> list[tuple]:
    return [
        (SHOWN_DATABASE, name, column, place, default, null, kind.split("(")[0], kind, key, extra)
        for name, _ in names
        for place, (column, kind, null, key, default, extra) in enumerate(describe(name), 1)
    ]


_DATABASES = (SHOWN_DATABASE, "information_schema", "performance_schema")
"""Databases that MySQL shows to an agent."""

CATALOG: dict[str, tuple[str, Callable[[list[tuple[str, str]], Describe], list[tuple]]]] = {
    "columns": (
        "TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION COLUMN_DEFAULT IS_NULLABLE DATA_TYPE "
        "COLUMN_TYPE COLUMN_KEY EXTRA",
        _catalog_columns,
    ),
    "tables": (
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE ENGINE",
        lambda names, describe: [
            ("def", SHOWN_DATABASE, name, type, "InnoDB" if type == "BASE TABLE" else None)
            for name, type in names
        ],
    ),
    "schemata": ("CATALOG_NAME SCHEMA_NAME", lambda names, describe: [("def", name) for name in _DATABASES]),
}
"""Tables of information_schema: their columns, and a function that returns their rows."""

_NAME = r"(?:`[^`]+`|[\w$]+)"
_TO = re.compile(rf"({_NAME}(?:\s*\.\s*{_NAME})?)\s+TO\s+({_NAME}(?:\s*\.\s*{_NAME})?)", re.IGNORECASE)
_RENAMED = re.compile(rf"TABLES?\s+{_TO.pattern}(?:\s*,\s*{_TO.pattern})*\s*", re.IGNORECASE)


def renamed(what: str) -> list[tuple[str, str]]:
    """Return the pairs of old and new names that follow RENAME."""
    if not _RENAMED.fullmatch(what):
        raise syntax_error(what)
    pairs = ([exp.to_table(name, dialect="mysql") for name in pair] for pair in _TO.findall(what))
    return [(own_name(old), own_name(new)) for old, new in pairs]


def own_name(table: exp.Expr) -> str:
    """Return the case-sensitive name of a table; raise StatementError if it is in another database."""
    schema = table.text("db")
    fail_if(schema not in ("", SHOWN_DATABASE), 1049, f"Unknown database '{schema}'")
    return table.name


def _column(column: exp.ColumnDef, automatic: str | None = None, in_key: bool = False) -> str:
    if column.kind is None:
        raise syntax_error(text_of(column))
    if column.name == automatic:
        return f"{quote(column.name)} INTEGER PRIMARY KEY AUTOINCREMENT"
    parts = [quote(column.name), _declared(column.kind)]
    if column.kind.this in _NUMBERS:
        parts.append(f"CONSTRAINT {quote(column.name)} CHECK (typeof({quote(column.name)}) <> 'text')")
    if in_key:
        parts.append("NOT NULL")
    for constraint in column.constraints:
        kind = constraint.kind
        if isinstance(kind, exp.NotNullColumnConstraint) and not kind.args.get("allow_null"):
            parts.append("NOT NULL")
        elif isinstance(kind, exp.PrimaryKeyColumnConstraint):
            parts.append("NOT NULL PRIMARY KEY")
        elif isinstance(kind, exp.UniqueColumnConstraint):
            parts.append("UNIQUE")
        elif isinstance(kind, exp.DefaultColumnConstraint):
            parts.append(_default(kind, column.name, declared(parts[1])))
    if column.kind.this in _TEXTS | _AS_TEXT:
        parts.append(f"COLLATE {values.COLLATION}")
    return " ".join(parts)


def _default(constraint: exp.DefaultColumnConstraint, column: str, kind: Kind) -> str:
    value = constraint.this
    literal = value.this if isinstance(value, exp.Neg) and not value.this.is_string else value
    now = isinstance(value, exp.CurrentTimestamp | exp.Localtime | exp.Localtimestamp) or (
        isinstance(value, exp.Anonymous) and value.name.upper() in ("NOW", "CURRENT_TIMESTAMP", "LOCALTIME")
    )
    if isinstance(literal, exp.Boolean):
        literal = exp.Literal.number(int(literal.this))
    if not now and not isinstance(literal, exp.Literal):
        return "" if isinstance(literal, exp.Null) else write(constraint)[0]
    try:
        if now:
            fail_if(kind != DATETIME, 1067, "")
            return "DEFAULT (my_NOW())"
        read = str if literal.is_string or kind.name == "text" else int if literal.is_int else float
        held = stored_cell(read("-" * isinstance(value, exp.Neg) + literal.name), column, kind)
    except StatementError as error:
        refuse_if(error.code == 1235, "a default value that columns here do not hold")
        raise StatementError(1067, f"Invalid default value for '{column}'") from None
    return f"DEFAULT {exp.convert(held).sql()}"


def _declared(kind: exp.DataType) -> str:
    sizes = [size.name for size in kind.expressions if isinstance(size, exp.DataTypeParam)]
    if len(sizes) == 2 and all(map(str.isdecimal, sizes)) and int(sizes[0]) < int(sizes[1]) <= 30:
        raise StatementError(1427, "For float(M,D), double(M,D) or decimal(M,D), M must be >= D.")
    if kind.this in _REALS:
        given = [*sizes, "0"][:2] if sizes else ["10", "0"]
        if not all(size.isdecimal() for size in given):
            raise syntax_error(text_of(kind))
        digits, places = map(int, given)
        fail_if(digits > 65, 1426, f"Too-big precision {digits} specified. Maximum is 65.")
        fail_if(places > 30, 1425, f"Too big scale {places} specified. Maximum is 30.")
        return _decimal(digits, places)
    if kind.this in (_T.ENUM, _T.SET):
        members = (each.name.rstrip(" ") for each in kind.expressions)
        return f"my_{kind.this.value.lower()}_{_coded(members)} TEXT"
    if kind.this in _AS_TEXT:
        word = {_T.TIMESTAMPTZ: "TIMESTAMP", _T.TIMESTAMPNTZ: "TIMESTAMP", _T.DATETIME64: "DATETIME"}.get(
            kind.this, kind.this.value
        )
        return f"my_{word.lower()} TEXT"
    if kind.this == _T.FLOAT and len(sizes) == 1 and sizes[0].isdecimal():
        return "FLOAT" if int(sizes[0]) <= MOST_SINGLE_BITS else "DOUBLE"
    text = text_of(kind)
    if kind.this == _T.BOOLEAN:
        return "TINYINT(1)"
    # INTEGER PRIMARY KEY, spelled out, would become SQLite's rowid and be filled in automatically
    return {"INTEGER": "INT", "CHAR": "CHAR(1)"}.get(text, text)


def _coded(members: Iterable[str]) -> str:
    """Return the members of an ENUM or SET, encoded for its type in SQLite."""
    return "\0".join(members).encode().hex()


def _decimal(digits: int, places: int) -> str:
    word = f"my_decimal_{digits}_{places}"
    sqlite3.register_converter(word, _decimal_converter(places))
    return f"{word} REAL"


def _change(action: exp.Expr) -> str:
    if isinstance(action, exp.ColumnDef):
        refuse_if(action.args.get("position"), "ADD COLUMN ... FIRST or AFTER")
        _check_created(action)
        return f"ADD COLUMN {_column(action)}"
    if isinstance(action, exp.Drop) and action.args.get("kind") == "COLUMN":
        dropped = (action.args.get("tables") or [action.this])[0]
        if dropped is None:
            raise syntax_error(text_of(action))
        return f"DROP COLUMN {quote(dropped.name)}"
    if isinstance(action, exp.RenameColumn):
        return f"RENAME COLUMN {quote(action.this.name)} TO {quote(action.args['to'].name)}"
    if isinstance(action, exp.AlterRename):
        return f"RENAME TO {quote(own_name(action.this))}"
    raise errors.unsupported(f"ALTER TABLE ... {action.sql(dialect='mysql')[:40]}")


def stored_rows(table: Table, kinds: Sequence[Kind]) -> list[tuple]:
    """Return the rows of a table as columns of these kinds store them."""
    return [
        tuple(
            stored_cell(cell if kind.name == "decimal" else _bindable(cell, column), column.name, kind)
            for cell, column, kind in zip(row, table.columns, kinds, strict=True)
        )
        for row in table.rows
    ]


def _bindable(cell: Any, column: Column) -> Any:
    """Return a cell as SQLite accepts it; raise StatementError if it is too large for an integer column."""
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
        if _INTEGER.search(column.type):
            raise StatementError(
                1264,
                f"1264 (22003): Out of range value for column {column.name!r}. Embedded SQLite holds "
                "integers of 64 bits; give the column the type TEXT, or play it on a server with "
                "DECIMAL(65).",
            )
        return str(cell)  # the column's type decides how it is stored
    return cell


OF_COLUMNS = ("Field", "Type", "Null", "Key", "Default", "Extra")
"""Column names of DESCRIBE."""


def show(tree: exp.Show, schema: Schema) -> tuple[tuple[str, ...], list[tuple]]:
    """Return the column names and the rows of SHOW."""
    what, target = tree.name.upper(), tree.args.get("target")
    name = target.name if target is not None else ""
    full = tree.args.get("full")
    fail_if(tree.text("db") not in ("", SHOWN_DATABASE), 1049, f"Unknown database '{tree.text('db')}'")
    if what == "TABLES":
        names: tuple[str, ...] = (f"Tables_in_{SHOWN_DATABASE}", "Table_type")[: 2 if full else 1]
        found: list[tuple] = [each if full else each[:1] for each in sorted(schema.listed())]
    elif what == "DATABASES":
        names, found = ("Database",), [(name,) for name in _DATABASES]
    elif what == "COLUMNS":
        refuse_if(full, "SHOW FULL COLUMNS")
        names, found = OF_COLUMNS, schema.described(name)
    elif what == "CREATE TABLE":
        refuse_if(schema.keys(name), "SHOW CREATE TABLE of a table with more keys")
        temporary = "TEMPORARY " * (name in schema.temporary())
        names = ("Table", "Create Table")
        found = [(name, written_out(name, schema.described(name), temporary))]
    else:
        raise errors.unsupported(f"SHOW {what}")
    refuse_if(tree.args.get("where"), "SHOW ... WHERE")
    if (pattern := tree.args.get("like")) is None:
        return names, found
    if what != "COLUMNS":
        names = (f"{names[0]} ({pattern.name})", *names[1:])
    return names, [row for row in found if like(row[0], pattern.name)]


class Schema:
    """Access to a database's schema, which is read anew each time."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard) -> None:
        self._connection = connection
        self._guard = guard

    def listed(self) -> list[tuple[str, str]]:
        """Return the name and type, `BASE TABLE` or `VIEW`, of each table and view that is not temporary."""
        of_type = "iif(type = 'view', 'VIEW', 'BASE TABLE')"
        query = f"SELECT name, {of_type} FROM main.sqlite_master WHERE type IN ('table', 'view')"
        return self._rows(rf"{query} AND name NOT LIKE 'sqlite\_%' ESCAPE '\'")

    def names(self, kind: str | None = None, schemas: tuple[str, ...] = ("temp", "main")) -> set[str]:
        """Return the names of all tables and views, or only of one `kind`."""
        return {
            name
            for schema in schemas
            for name, found in self._rows(f"SELECT name, type FROM {schema}.sqlite_master")
            if found in ((kind,) if kind else ("table", "view"))
            and not name.startswith(("sqlite_", "information_schema."))
        }

    def temporary(self) -> dict[str, str]:
        """Return the names of the agent's temporary tables, with the SQLite statement that creates each."""
        found = self._rows("SELECT name, sql FROM temp.sqlite_master WHERE type = 'table'")
        return {
            name: sql.replace("CREATE TABLE", "CREATE TEMP TABLE", 1)
            for name, sql in found
            if not name.startswith(("sqlite_", "information_schema."))
        }

    def skip_numbers(self, name: str, count: int) -> None:
        """Skip `count` AUTO_INCREMENT values of a table that has used some."""
        schema = "temp" if name in self.temporary() else "main"
        with self._guard.own():
            self._connection.execute(
                f"UPDATE {schema}.sqlite_sequence SET seq = seq + ? WHERE name = ?", (count, name)
            )

    def table_name(self, name: str) -> str:
        """Return the name; raise StatementError if no table or view has it."""
        if name not in self.names():
            raise errors.unknown_table(name)
        return name

    def described(self, name: str) -> list[tuple]:
        """Return the columns as DESCRIBE lists them: name, type, NULL allowed, key, default, extra."""
        refuse_if(self.table_name(name) in self.names("view"), "the columns of a view")
        keys = self.keys(name)
        rows = [
            (column, kind, null, key or keys.get(column, ""), *rest)
            for column, kind, null, key, *rest in (described(row) for row in self._info(name))
        ]
        if name not in self.temporary():
            return rows
        return [(*row, extra if extra == "auto_increment" else "NULL") for *row, extra in rows]

    def keys(self, name: str) -> dict[str, str]:
        """Return what DESCRIBE shows as `Key` for the columns of keys other than the primary key."""
        columns = {row[1]: row for row in self._info(name)}
        primary, keys = any(row[5] for row in columns.values()), dict[str, str]()
        with self._guard.own():
            found = [
                (unique, [row[2] for row in self._rows(f"PRAGMA index_info({quote(index)})")])
                for _, index, unique, origin, _ in reversed(self._rows(f"PRAGMA index_list({quote(name)})"))
                if origin != "pk"
            ]
        for unique, of in found:
            if unique and not primary and all(columns[each][3] for each in of):
                keys |= dict.fromkeys(of, "PRI")  # MySQL treats it as the primary key
                primary = True
            elif keys.get(of[0]) != "PRI" and (unique and len(of) == 1):
                keys[of[0]] = "UNI"
            else:
                keys.setdefault(of[0], "MUL")
        return keys

    def columns(self, name: str) -> TableColumns:
        """Return the columns of a table or view."""
        info = self._info(name)
        columns = tuple((row[1], declared(row[2])) for row in info)
        key, filled = ((row[1] for row in info if row[5]), (row[1] for row in info if row[3] and row[4]))
        automatic = next((row[1] for row in info if row[2] == "INTEGER"), "")
        return TableColumns(name, columns, tuple(key), tuple(filled), automatic)

    def kinds(self, name: str) -> list[Kind]:
        """Return the kinds of a table's columns, even if a temporary table hides it."""
        return [declared(row[2]) for row in self._info(name, "main.")]

    def offer_catalog(self, wanted: frozenset[str]) -> None:
        """Create these information_schema tables, with their current rows."""
        connection = self._connection
        with self._guard.own():
            names = sorted(self.listed())
            for catalog in wanted:
                headers, read = CATALOG[catalog]
                columns, rows = headers.split(), read(names, self.described)
                target = quote(f"information_schema.{catalog}")
                connection.execute(f"DROP TABLE IF EXISTS temp.{target}")
                connection.execute(f"CREATE TEMP TABLE {target} ({', '.join(columns)})")
                if rows:
                    places = ", ".join("?" * len(columns))
                    connection.executemany(f"INSERT INTO temp.{target} VALUES ({places})", rows)

    def _info(self, name: str, schema: str = "") -> list[tuple]:
        with self._guard.own():
            return self._rows(f"PRAGMA {schema}table_info({quote(name)})")

    def _rows(self, sql: str) -> list[tuple]:
        return self._connection.execute(sql).fetchall()
