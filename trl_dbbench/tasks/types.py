"""The types that a column can have: those of MySQL and MariaDB, by their first word."""

from __future__ import annotations

import re
from functools import lru_cache

from trl_dbbench.errors import TaskError
from trl_dbbench.utils.lookup import nearest

USUAL = (
    *("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "BOOLEAN", "DECIMAL", "NUMERIC"),
    *("FLOAT", "DOUBLE", "DATE", "TIME", "DATETIME", "TIMESTAMP", "YEAR", "CHAR", "VARCHAR"),
    *("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "JSON"),
)

TYPES = {
    *USUAL,
    *("INT1", "INT2", "INT3", "INT4", "INT8", "MIDDLEINT", "BOOL", "BIT", "SERIAL"),
    *("DEC", "FIXED", "NUMBER", "FLOAT4", "FLOAT8", "REAL"),
    *("CHARACTER", "NCHAR", "NATIONAL", "VARCHARACTER", "NVARCHAR", "VARCHAR2", "LONG", "CLOB", "XMLTYPE"),
    *("BINARY", "VARBINARY", "RAW", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"),
    *("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON"),
    *("GEOMETRYCOLLECTION", "GEOMCOLLECTION", "UUID", "INET4", "INET6", "VECTOR"),
}
"""Those of either server, synonyms included (MySQL 9 and MariaDB 12, "Data Types")."""

_FORM = re.compile(
    r"""\s*(?P<name>[A-Za-z]\w*)(?:\s+PRECISION|\s+VARYING)?
        (?:\s*\(\s*(?:\d+|'[^'\\]*')(?:\s*,\s*(?:\d+|'[^'\\]*'))*\s*\))?
        (?:\s+(?:[A-Za-z_]+|DEFAULT\s+(?:\d+|'[^'\\]*')))*\s*""",
    re.VERBOSE | re.IGNORECASE,
)


@lru_cache(maxsize=10_000)
def check_type(type: str, table: str, column: str) -> None:
    """Checks a column's type, which CREATE TABLE takes as it is written.

    Raises:
        TaskError: it is anything but the name of a type, an optional list in parentheses, and words such as
            NOT NULL; or neither MySQL nor MariaDB has such a type. SQLite would take any word.
    """
    form = _FORM.fullmatch(type)
    if form is None:
        raise TaskError(
            f"Table {table!r}, column {column!r}: {type!r} is not a column type. Allowed are MySQL's types, "
            "such as TEXT, INT NOT NULL, VARCHAR(50), DECIMAL(10,2), ENUM('a','b'). Correct the task."
        )
    if form["name"].upper() not in TYPES:
        near = nearest(form["name"], USUAL)
        meant = f"nearest: {near}" if near else "allowed are such as TEXT, INT, VARCHAR(50), DECIMAL(10,2)."
        raise TaskError(f"Table {table!r}, column {column!r}: no server has the type {type!r}; {meant}")
