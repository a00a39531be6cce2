"""Statements without end, one half as a model may write them, the other half mutated: for what must hold of any text.

They are about bytes, character sets, types, functions, DDL, session variables, SIGNAL, casts, JSON, dates, user
variables, odd names, nested calls, transactions and virtual tables, over the tables of `TABLES`. Nothing in them is
meant to keep a server busy; `hostile.py` does that.

    rng = random.Random(1)
    for sql in islice(statements(rng, "mysql"), 1000): ...
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import hostile
from databases import table
from hostile_statements import GRAMMAR
from random_odd_sql import OddWriter
from random_sql import tables

from trl_dbbench.tasks import Table

WORLD = tuple(each for each in tables(random.Random(3)) if each.name != "orders")
"""The tables that `random_sql` and `random_odd_sql` write about."""

TABLES: tuple[Table, ...] = (
    table(
        "medals",
        "nation TEXT, gold INT, share FLOAT, price DECIMAL(8,2), won DATE, at DATETIME, note VARCHAR(40), photo BLOB",
        ("Chad", 1, 0.5, "1.50", "2020-02-29", "2020-02-29 12:30:15", "first", "a"),
        ("Peru", 22, -1.25, "-3.10", "2019-12-31", None, "Ü😀", None),
        ("Perú", None, None, None, None, "2021-07-15 08:05:00", "", ""),
    ),
    table("orders", "id INT, note VARCHAR(40)", *((n, f"note {n}") for n in range(12))),
    *WORLD,
)

COLUMNS = ("nation", "gold", "share", "price", "won", "at", "note", "photo")

PROBES = (
    "SELECT 1.5, 'é', NULL, 1/3",
    "SELECT nation AS `Städte` FROM medals ORDER BY nation",
    "SELECT COUNT(*), SUM(gold), MAX(won), MIN(price) FROM medals",
    "SELECT nation FROM medals WHERE nation LIKE 'p%' AND LENGTH(note) > 1",
    "SELECT * FROM orders WHERE id < 3 ORDER BY id",
    "INSERT INTO orders VALUES (77, 'probe')",
    "UPDATE medals SET gold = gold + 1 WHERE gold > 1",
    "SELECT SUM(gold) FROM medals",
)
"""Statements that a session answers alike whatever other sessions did. `hostile.seen` asks for traces."""

# --- values ---------------------------------------------------------------------------------------------------


def _of(text: str, between: str | None = None) -> tuple[str, ...]:
    """The parts of a text: its words, or what stands between these marks."""
    return tuple(part.strip(" \n") if between else part for part in text.split(between))


INTEGERS = (
    *_of(
        "0 1 -1 2 3 7 22 127 255 32768 65536 -2147483649 4294967296 9223372036854775807 9223372036854775808"
    ),
    *_of("-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616"),
    *("9" * 30, "9" * 65, "9" * 66, "-" + "9" * 81, "9" * 400),
)
NUMBERS = (
    *_of("0.0 -0.0 1.5 .5 5. 0.1e1 1e22 1e308 -1.7976931348623157e308 1e309 1e-320 1e-400 1e99999 0xff"),
    *_of("0x8000000000000000 0b1 b'101' TRUE NULL"),
    *("0." + "9" * 30, "9" * 35 + "." + "9" * 30),
)
TEXTS = (
    *_of(
        "'x' '' 'Chad' 'Ü😀' '1.5abc' '-' '1e400' 'nan' '-inf' '\u202ex' 'a\x00b' '\u0301' '\U0010ffff' '%' '_'"
    ),
    *_of(
        r"""'\\' 'it''s' '$.a' '$[0]' '$.' '$**.a' '2020-02-29' '2020-02-30' '0000-00-00' '-838:59:59' '24:00'"""
    ),
    *_of(
        r"""'0001-01-01' '10000-01-01' '2020-W01' '12:30' 'now' 'julianday' '[1' 'null' '[a-z' '(a' '^a+$'"""
    ),
    *_of(
        r"""'"\\ud83d"' '{"a":1e999}' '\\p{L}' 'a,b,c' '[1,2,3]' '"x"' 'ud83d' '{}' '[]' 'AND' '"' '*' 'x*'"""
    ),
    *_of("""' 7 ' ~ '9999-12-31 23:59:59.999999' ~ '+1 month' ~ '%Y-%j %W' ~ '{"a": [1, 2, null]}'""", "~"),
    *_of("'[1, [2, {}]]' ~ '%s %d' ~ 'POINT(1 1)'", "~"),
)
BYTES = _of("x'' x'ff' X'00' x'd83d' x'c328' x'f09f98' x'00ff00ff00ff00ff00' x'edA080'")
CHARSETS = _of(
    "utf8mb4 utf8mb3 latin1 ascii binary ucs2 utf16 utf16le utf32 cp1251 gbk sjis big5 koi8r nothing"
)
COLLATIONS = _of(
    "utf8mb4_bin utf8mb4_general_ci utf8mb4_0900_as_cs latin1_swedish_ci binary utf16_bin ucs2_general_ci NOCASE "
    "nothing"
)
UNITS = _of("DAY MONTH YEAR HOUR MICROSECOND QUARTER WEEK YEAR_MONTH DAY_MICROSECOND")
TYPES = _of(
    "INT ~ INT UNSIGNED ~ TINYINT(1) ~ BIGINT UNSIGNED ~ BIT(64) ~ FLOAT ~ FLOAT(5.2) ~ DOUBLE(5,2) ~ DECIMAL(5,2) ~ "
    "DECIMAL(5.2) ~ DECIMAL(65,30) ~ DECIMAL(70,2) ~ DECIMAL(0) ~ NUMERIC ~ REAL ~ BOOL ~ DATE ~ DATETIME(6) ~ "
    "DATETIME(7) ~ TIMESTAMP ~ TIME(3) ~ YEAR ~ CHAR(3) ~ VARCHAR(40) ~ VARCHAR ~ TEXT CHARACTER SET utf16 ~ "
    "VARCHAR(9) CHARACTER SET ucs2 COLLATE ucs2_bin ~ LONGTEXT ~ TINYTEXT ~ BINARY(4) ~ VARBINARY(9) ~ BLOB ~ "
    "ENUM('a','b') ~ SET('x','y') ~ JSON ~ VECTOR(3) ~ GEOMETRY ~ POINT ~ UUID ~ INET6 ~ SERIAL ~ NATIONAL CHAR(2) ~ "
    "CHAR(3) BINARY ~ TEXT(99999999999)",
    "~",
)
CASTS = _of(
    "SIGNED ~ UNSIGNED ~ CHAR ~ CHAR(5) ~ CHAR(0) ~ CHAR CHARACTER SET ucs2 ~ CHAR(2) CHARACTER SET latin1 ~ NCHAR(3) "
    "~ BINARY ~ BINARY(4) ~ DECIMAL ~ DECIMAL(5,2) ~ DECIMAL(5.2) ~ DECIMAL(65,30) ~ DECIMAL(-1) ~ DECIMAL(2,5) ~ DATE "
    "~ DATETIME(6) ~ DATETIME ~ TIME(2) ~ YEAR ~ JSON ~ FLOAT ~ FLOAT(53) ~ DOUBLE ~ REAL ~ INTEGER ~ TEXT ~ BLOB ~ "
    "NUMERIC ~ INT ~ VARCHAR(3) ~ POINT ~ UNSIGNED ARRAY ~ INTERVAL",
    "~",
)
NAMES = (
    *_of(
        'u v medals orders `Städte` `a``b` `😀` `select` `%s` `sqlite_x` "q" `` `a\x00b` temp.t dbbench.u main.u'
    ),
    *_of("`information_schema`.x `\\` `my_x` [b] rowid `:a` `{x}` dbbench.`\u0131`"),
    *("`a b`", "`" + "n" * 65 + "`"),
)
# each with the number of its arguments, where that is not 1
MYSQL_FUNCTIONS = _of(
    """
    ABS ACOS ADDDATE/2 ADDTIME/2 AES_ENCRYPT/2 ASCII ASIN ATAN ATAN2/2 AVG BIN BIT_AND BIT_COUNT BIT_LENGTH
    BIT_OR CEIL CHAR/2 CHAR_LENGTH CHARSET COALESCE/2 COERCIBILITY COLLATION COMPRESS CONCAT/2 CONCAT_WS/3
    CONNECTION_ID/0 CONV/3 CONVERT_TZ/3 COS COT COUNT CRC32 CURDATE/0 CURTIME/0 DATABASE/0 DATE DATEDIFF/2
    DATE_ADD/2 DATE_FORMAT/2 DAYNAME DAYOFWEEK DAYOFYEAR DEGREES ELT/2 EXP EXPORT_SET/3 EXTRACTVALUE/2 FIELD/3
    FIND_IN_SET/2 FLOOR FORMAT/2 FROM_BASE64 FROM_DAYS FROM_UNIXTIME/2 GET_FORMAT/2 GREATEST/2 GROUP_CONCAT HEX
    HOUR IF/3 IFNULL/2 INET_ATON INET_NTOA INSERT/4 INSTR/2 IS_IPV4 ISNULL JSON_ARRAY JSON_ARRAYAGG
    JSON_CONTAINS/2 JSON_DEPTH JSON_EXTRACT/2 JSON_KEYS/2 JSON_LENGTH JSON_MERGE_PATCH/2 JSON_OBJECT/2
    JSON_OBJECTAGG/2 JSON_PRETTY JSON_QUOTE JSON_SEARCH/3 JSON_SET/3 JSON_TYPE JSON_UNQUOTE JSON_VALID LAST_DAY
    LAST_INSERT_ID/0 LEAST/2 LEFT/2 LENGTH LN LOCATE/2 LOG/2 LOG10 LOG2 LOWER LPAD/3 LTRIM MAKEDATE/2 MAKETIME/3
    MAKE_SET/2 MAX MD5 MICROSECOND MID/3 MIN MINUTE MOD/2 MONTH MONTHNAME NOW/0 NTH_VALUE/2 NULLIF/2 OCT ORD
    PERIOD_ADD/2 PERIOD_DIFF/2 PI/0 POW/2 QUARTER QUOTE RADIANS RAND/0 REGEXP_INSTR/2 REGEXP_LIKE/2
    REGEXP_REPLACE/3 REGEXP_SUBSTR/2 REPEAT/2 REPLACE/3 REVERSE RIGHT/2 ROUND/2 ROW_COUNT/0 RPAD/3 SEC_TO_TIME
    SECOND SHA1 SHA2/2 SIGN SIN SOUNDEX SPACE SQRT STD STDDEV_SAMP STRCMP/2 STR_TO_DATE/2 STRING_TO_VECTOR
    SUBDATE/2 SUBSTR/2 SUBSTRING_INDEX/3 SUBTIME/2 SUM TAN TIME TIMEDIFF/2 TIMESTAMP TIME_FORMAT/2 TIME_TO_SEC
    TO_BASE64 TO_DAYS TO_SECONDS TRIM TRUNCATE/2 UCASE UNCOMPRESS UNHEX UNIX_TIMESTAMP/0 UPDATEXML/3 UPPER
    USER/0 UTC_TIMESTAMP/0 UUID/0 UUID_TO_BIN/2 VALUES VARIANCE VAR_SAMP VERSION/0 WEEK/2 WEEKDAY WEIGHT_STRING
    YEAR YEARWEEK/2 ST_AsText ST_GeomFromText POINT/2 BIN_TO_UUID NOTHING
    """
)
SQLITE_FUNCTIONS = _of(
    """
    abs changes/0 char coalesce/2 concat concat_ws/2 format/2 glob/2 hex ifnull/2 iif/3 instr/2
    last_insert_rowid/0 length like/2 likelihood/2 likely lower ltrim max/2 min/2 nullif/2 octet_length printf/2
    quote random/0 randomblob replace/3 round/2 rtrim sign soundex sqlite_version/0 sqlite_source_id/0 substr/2
    substring/2 total_changes/0 trim typeof unhex unicode unlikely upper zeroblob date time datetime julianday
    unixepoch strftime/2 timediff/2 avg count group_concat string_agg/2 sum total json jsonb json_array
    json_array_length json_extract/2 json_insert/3 json_object/2 json_patch/2 json_remove/2 json_replace/3
    json_set/3 json_type json_valid json_quote json_group_array json_group_object/2 json_error_position
    json_pretty acos asin atan atan2/2 ceil cos degrees exp floor ln log log2 mod/2 pi/0 pow/2 radians sin sqrt
    tan trunc row_number/0 rank/0 ntile lag/2 lead/2 first_value nth_value/2 bm25 highlight/3 snippet
    rtreecheck/2 rtreedepth fts5_source_id/0 match load_extension sqlite_compileoption_get subtype nothing
    """
)
VARIABLES = _of(
    """
    character_set_results character_set_client character_set_connection collation_connection sql_mode time_zone
    autocommit group_concat_max_len div_precision_increment sql_select_limit sql_safe_updates max_sort_length
    lc_time_names default_week_format timestamp sql_quote_show_create max_error_count unique_checks foreign_key_checks
    transaction_isolation tx_read_only insert_id explicit_defaults_for_timestamp big_tables sql_auto_is_null old_mode
    last_insert_id nothing
    """
)
SETTINGS = _of(
    """
    0 1 DEFAULT NULL '' -1 'utf16' utf16 latin1 NULL 'ANSI_QUOTES' 'ORACLE' '+14:00' 'NO_BACKSLASH_ESCAPES'
    'PAD_CHAR_TO_FULL_LENGTH' 'ja_JP' 'SERIALIZABLE' 9223372036854775807 x'ff'
    """
)
FORMATS = _of("'%d %s' ~ '%.99f' ~ '%999999d' ~ '%q' ~ '%!.30g' ~ '%*c'", "~")
FTS_COMMANDS = _of("'rebuild' 'optimize' 'integrity-check' 'delete-all' 'merge' 'automerge'")
SQLSTATES = _of("'HY000' '45000' '02000' '01000' '00000' 'x'")
ERRNOS = _of("1205 1213 1114 1226 1030 1836 2006 2013 1021 1041 1927 0 65535 3024 1317")
JUNK = (
    *_of(
        "\x00 \ufeff é e\u0301 🍐 \ud83d \x1a \\ ' \" ` /* */ -- # ; @ @@ := { } ( ) [ ? %s :x ${x} , . .. = <=> ||"
    ),
    *("->>", "::", "\u2028", "\t", "-- ", "/*! "),
)


class Grammar:
    """Draws statements that a server's grammar takes, mostly."""

    functions: Sequence[str]

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def one(self, *choices: str | Callable[[], str]) -> str:
        picked = self.rng.choice(choices)
        return picked if isinstance(picked, str) else picked()

    def literal(self) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(("1", "2", "0.5", "'Chad'", "'2020-02-29'", "NULL"))
        return self.rng.choice(self.rng.choice((INTEGERS, NUMBERS, TEXTS, TEXTS, BYTES)))

    def value(self, depth: int = 2) -> str:
        """An expression over the columns of `medals`."""
        if depth == 0 or self.rng.random() < 0.25:
            return self.rng.choice(COLUMNS) if self.rng.random() < 0.4 else self.literal()
        return self.rng.choice((self.call, self.call, self.cast, self.operation, self.special))(depth - 1)

    def call(self, depth: int) -> str:
        name, _, arguments = self.rng.choice(self.functions).partition("/")
        count = int(arguments or 1) if self.rng.random() < 0.95 else self.rng.randint(0, 4)
        return f"{name}({', '.join(self.value(depth) for _ in range(count))})"

    def cast(self, depth: int) -> str:
        usual = ("SIGNED", "CHAR", "DECIMAL(5,2)", "DATE", "DOUBLE", "JSON", "DATETIME")
        return f"CAST({self.value(depth)} AS {self.rng.choice(usual if self.rng.random() < 0.6 else CASTS)})"

    def operation(self, depth: int) -> str:
        a, b = self.value(depth), self.value(depth)
        step = self.one(
            *(
                "+",
                "-",
                "*",
                "/",
                "%",
                "=",
                "<",
                "<>",
                "AND",
                "OR",
                "LIKE",
                "IS",
                "IS NOT",
                "&",
                "|",
                "<<",
                ">>",
                "||",
            ),
            *self.operators,
        )
        return self.one(f"{a} {step} {b}", f"({a}) {step} ({b})", f"-{a}", f"NOT {a}", f"~({a})")

    operators: Sequence[str] = ()

    def special(self, depth: int) -> str:
        a, b = self.value(depth), self.value(depth)
        return self.one(
            f"CASE WHEN {a} THEN {b} ELSE {self.value(depth)} END",
            f"CASE {a} WHEN {b} THEN 1 END",
            f"{a} BETWEEN {b} AND {self.value(depth)}",
            f"{a} IN ({b}, {self.value(depth)})",
            f"(SELECT {a} FROM medals LIMIT 1)",
            f"EXISTS (SELECT {a} FROM medals WHERE {b})",
            f"({a}) COLLATE {self.rng.choice(COLLATIONS)}",
            f"({a}, {b}) = ({b}, {a})",
            f"SUM({a}) OVER (PARTITION BY {b} ORDER BY gold)",
            f"(({a}))",
            *self.specials(a, b),
        )

    def specials(self, a: str, b: str) -> Sequence[str]:
        raise NotImplementedError

    def name(self) -> str:
        return (
            self.rng.choice(("u", "v", "medals", "orders"))
            if self.rng.random() < 0.6
            else self.rng.choice(NAMES)
        )

    def query(self) -> str:
        values = ", ".join(
            self.value() + (f" AS {self.name()}" if self.rng.random() < 0.3 else "")
            for _ in range(self.rng.randint(1, 3))
        )
        rest = self.one(
            "", " FROM medals", " FROM medals", " FROM medals", f" FROM medals WHERE {self.value()}", f" FROM medals GROUP BY {self.value(1)}",
            f" FROM medals ORDER BY {self.value(2)} LIMIT {self.rng.choice(INTEGERS)}",
            f" FROM medals m JOIN orders o ON {self.value(1)}", f" FROM medals UNION SELECT {self.value(1)}",
            f" FROM (SELECT {self.value(1)} AS gold, nation FROM medals) AS t", f" FROM {self.name()}",
            f" FROM medals GROUP BY nation HAVING {self.value(1)}",
        )  # fmt: skip
        with_ = self.one(*[""] * 9, f"WITH c (gold) AS (SELECT {self.value(1)}) ")
        return f"{with_}SELECT {self.one('', '', '', 'DISTINCT ')}{values}{rest}"

    def change(self) -> str:
        column, other = self.rng.choice(COLUMNS), self.rng.choice(COLUMNS)
        a, b = self.value(2), self.value(2)
        return self.one(
            f"UPDATE medals SET {column} = {a}",
            f"UPDATE medals SET {column} = {a}, {other} = {b} WHERE {self.value(1)}",
            f"INSERT INTO medals ({column}) VALUES ({a}), ({b})",
            f"INSERT INTO medals ({column}, {other}) SELECT {a}, {b} FROM medals",
            f"REPLACE INTO orders VALUES ({a}, {b})",
            f"DELETE FROM medals WHERE {a}",
            f"INSERT INTO {self.name()} VALUES ({a})",
            f"INSERT INTO {WORLD[0].name} (id, ref) VALUES (1, {a}) {self.upsert()} ref = {b}",
        )

    def upsert(self) -> str:
        return "ON DUPLICATE KEY UPDATE"

    def definition(self) -> str:
        a, name, type_ = self.value(2), self.name(), self.rng.choice(TYPES)
        return self.one(
            f"CREATE TABLE {name} AS SELECT {a} AS {self.name()}",
            f"CREATE TABLE {name} ({self.name()} {type_})",
            f"CREATE TABLE {name} (a {type_} DEFAULT ({a}), b {self.rng.choice(TYPES)} NOT NULL, PRIMARY KEY (a))",
            f"CREATE TABLE {name} (a {type_}, b {type_} AS ({a}) {self.one('', 'STORED', 'VIRTUAL')})",
            f"CREATE TABLE {name} (a {type_} CHECK ({a}), UNIQUE (a), KEY k (a))",
            f"CREATE TEMPORARY TABLE {name} AS SELECT {a}, nation FROM medals",
            f"CREATE VIEW {name} AS SELECT {a} FROM medals",
            f"CREATE INDEX {name} ON medals ({self.rng.choice(COLUMNS)})",
            f"ALTER TABLE medals ADD COLUMN {name} {type_}",
            f"ALTER TABLE medals RENAME COLUMN {self.rng.choice(COLUMNS)} TO {name}",
            f"ALTER TABLE medals RENAME TO {name}",
            f"ALTER TABLE medals DROP COLUMN {self.rng.choice(COLUMNS)}",
            f"DROP {self.one('TABLE', 'TABLE IF EXISTS', 'VIEW', 'INDEX')} {name}",
            f"SELECT * FROM {name}",
            f"INSERT INTO {name} VALUES ({a})",
        )

    def session(self) -> str:
        raise NotImplementedError

    def statement(self) -> str:
        draw = self.rng.random()
        if draw < 0.45:
            return self.query()
        return self.change() if draw < 0.65 else self.definition() if draw < 0.82 else self.session()


class MySQLGrammar(Grammar):
    functions = MYSQL_FUNCTIONS
    operators = (
        "DIV",
        "MOD",
        "XOR",
        "<=>",
        "REGEXP",
        "RLIKE",
        "SOUNDS LIKE",
        "^",
        "&&",
        "->",
        "->>",
        "MEMBER OF",
    )

    def literal(self) -> str:
        if self.rng.random() < 0.15:
            return self.one(
                f"_{self.rng.choice(CHARSETS)} {self.rng.choice(BYTES + TEXTS)}",
                f"N{self.rng.choice(TEXTS)}",
                f"{self.one('DATE', 'TIME', 'TIMESTAMP')} {self.rng.choice(TEXTS)}",
                *("@a", "@b", "@@sql_mode", "@@session.nothing", "CURRENT_TIMESTAMP(9)"),
            )
        return super().literal()

    def specials(self, a: str, b: str) -> Sequence[str]:
        return (
            f"CONVERT({a} USING {self.rng.choice(CHARSETS)})",
            f"CHAR({self.one(*INTEGERS, '0xD83D', '0xDFFF')} USING {self.rng.choice(CHARSETS)})",
            f"CONVERT({a}, {self.rng.choice(CASTS)})",
            f"{a} + INTERVAL {b} {self.rng.choice(UNITS)}",
            f"EXTRACT({self.rng.choice(UNITS)} FROM {a})",
            f"TIMESTAMPDIFF({self.rng.choice(UNITS)}, {a}, {b})",
            f"TRIM({self.one('BOTH', 'LEADING')} {a} FROM {b})",
            f"(@a := {a})",
            f"BINARY {a}",
            f"GROUP_CONCAT(DISTINCT {a} ORDER BY {b} SEPARATOR ';')",
            f"JSON_VALUE({a}, '$' RETURNING {self.rng.choice(CASTS)})",
            f"{a} LIKE {b} ESCAPE {self.rng.choice(TEXTS)}",
            f"INTERVAL({a}, {b})",
            f"WEIGHT_STRING({a} AS CHAR(3))",
            f"IF({a}, {b}, NULL)",
            f"MATCH (nation, note) AGAINST ({a} IN BOOLEAN MODE)",
        )

    def session(self) -> str:
        variable, setting = self.rng.choice(VARIABLES), self.one(*SETTINGS, lambda: self.value(1))
        signal = f"SIGNAL SQLSTATE {self.rng.choice(SQLSTATES)}" + self.one(
            "",
            f" SET MYSQL_ERRNO={self.rng.choice(ERRNOS)}",
            f" SET MYSQL_ERRNO={self.rng.choice(ERRNOS)}, MESSAGE_TEXT={self.rng.choice(TEXTS)}",
            f" SET MESSAGE_TEXT={self.rng.choice(BYTES)}",
        )
        return self.one(
            f"SET {variable} = {setting}",
            f"SET {self.one('SESSION ', '@@session.', '@@', 'LOCAL ')}{variable} = {setting}",
            f"SET NAMES {self.rng.choice(CHARSETS)}",
            f"SET CHARACTER SET {self.rng.choice(CHARSETS)}",
            f"SET @a = {self.value(2)}, @b = {self.value(1)}",
            "SELECT @a, @b, HEX(@a)",
            signal,
            f"CREATE PROCEDURE p() {signal}",
            f"CREATE FUNCTION f() RETURNS {self.rng.choice(TYPES)} DETERMINISTIC BEGIN {signal}; RETURN {self.value(1)}; END",
            f"CREATE TRIGGER g BEFORE UPDATE ON medals FOR EACH ROW {signal}",
            *("CALL p()", "SELECT f()", "DROP PROCEDURE p", "DROP TRIGGER g", "SHOW WARNINGS", "SHOW ERRORS"),
            *(
                "BEGIN",
                "START TRANSACTION",
                "COMMIT",
                "ROLLBACK",
                "SAVEPOINT s",
                "ROLLBACK TO s",
                "RELEASE SAVEPOINT s",
            ),
            *(
                "SHOW TABLES",
                "SHOW CREATE TABLE medals",
                "DESCRIBE medals",
                "SHOW COLUMNS FROM u",
                "SHOW INDEX FROM medals",
            ),
            f"SHOW VARIABLES LIKE {self.rng.choice(TEXTS)}",
            f"PREPARE s FROM {self.rng.choice(TEXTS)}",
            f"PREPARE s FROM 'SELECT {self.literal().replace(chr(39), chr(39) * 2)}, ?'",
            "EXECUTE s USING @a",
            f"EXPLAIN {self.query()}",
            f"DO {self.value(1)}",
            f"SELECT {self.value(1)} INTO @a",
            f"HANDLER medals {self.one('OPEN', 'READ FIRST', 'CLOSE')}",
            *(
                "TRUNCATE orders",
                "LOCK TABLES medals WRITE",
                "UNLOCK TABLES",
                "USE dbbench",
                "ANALYZE TABLE medals",
            ),
            "RENAME TABLE orders TO o2, o2 TO orders",
            f"SELECT * FROM information_schema.{self.one('tables', 'columns', 'nothing')} WHERE {self.value(1)}",
            f"SELECT * FROM JSON_TABLE({self.value(1)}, '$[*]' COLUMNS (x {self.rng.choice(TYPES)} PATH '$')) AS j",
        )


class SQLiteGrammar(Grammar):
    functions = SQLITE_FUNCTIONS
    operators = ("IS DISTINCT FROM", "GLOB", "MATCH", "REGEXP", "->", "->>", "==", "!<", "NOTNULL +")

    def upsert(self) -> str:
        return "ON CONFLICT DO UPDATE SET"

    def specials(self, a: str, b: str) -> Sequence[str]:
        return (
            f"CAST({self.rng.choice(BYTES)} AS TEXT)",
            f"RAISE({self.one('ABORT', 'FAIL', 'ROLLBACK')}, {a})",
            f"{a} LIKE {b} ESCAPE {self.rng.choice(TEXTS)}",
            f"count(*) FILTER (WHERE {a})",
            f"group_concat({a}, {b} ORDER BY {a})",
            f"(SELECT value FROM json_each({a}) LIMIT 3)",
            f"printf({self.rng.choice(FORMATS)}, {a}, {b})",
            f"strftime({a}, {b}, '+1 month', 'utc')",
            "1e308 * 10",
            "-9223372036854775808 / -1",
        )

    def session(self) -> str:
        a, b = self.value(1), self.value(1)
        virtual = self.one("ft", "rt", "vt")
        return self.one(
            "CREATE VIRTUAL TABLE ft USING fts5(nation, note)",
            f"CREATE VIRTUAL TABLE ft USING fts5(x, {self.one('content=medals', 'tokenize=trigram', 'prefix=2', 'nonsense=1')})",
            "CREATE VIRTUAL TABLE rt USING rtree(id, x0, x1)",
            "CREATE VIRTUAL TABLE rt USING rtree_i32(id, x0, x1, +note)",
            f"CREATE VIRTUAL TABLE vt USING {self.one('fts4(x)', 'fts3', 'dbstat', 'csv', 'fts5vocab(ft, row)', 'geopoly')}",
            f"INSERT INTO {virtual} VALUES ({a}, {b})",
            f"INSERT INTO {virtual} VALUES ({a}, {b}, {self.value(1)})",
            f"INSERT INTO ft(ft) VALUES ({self.one(*FTS_COMMANDS, a)})",
            f"SELECT * FROM {virtual} WHERE {virtual} MATCH {a}",
            f"SELECT *, rank FROM {virtual} ORDER BY {a}",
            f"DROP TABLE {virtual}",
            f"UPDATE ft_data SET block = {a}",
            f"DELETE FROM {self.one('ft_data', 'ft_idx', 'rt_node', 'rt_rowid', 'ft_config', 'ft_content', 'rt_parent')}",
            f"INSERT INTO {self.one('rt_node', 'rt_rowid', 'ft_docsize')} VALUES ({a}, {b})",
            f"PRAGMA {self.one('max_page_count', 'encoding', 'writable_schema', 'journal_mode', 'user_version')} = {a}",
            f"PRAGMA {self.one('integrity_check', 'table_info(medals)', 'cell_size_check = 1', 'hard_heap_limit = 1')}",
            f"ATTACH {a} AS other",
            "DETACH main",
            f"UPDATE sqlite_master SET sql = {a}",
            f"INSERT INTO sqlite_sequence VALUES ({a}, {b})",
            f"CREATE TRIGGER g BEFORE UPDATE ON medals BEGIN SELECT RAISE({self.one('ABORT', 'FAIL', 'ROLLBACK')}, {a}); END",
            "CREATE TRIGGER g AFTER INSERT ON orders BEGIN INSERT INTO orders VALUES (1, 'again'); END",
            *(
                "BEGIN",
                "BEGIN IMMEDIATE",
                "BEGIN EXCLUSIVE",
                "COMMIT",
                "ROLLBACK",
                "SAVEPOINT s",
                "ROLLBACK TO s",
                "RELEASE s",
            ),
            *(
                "VACUUM",
                "REINDEX",
                "ANALYZE",
                "VACUUM INTO 'x'",
                "SELECT * FROM sqlite_master",
                "SELECT * FROM pragma_page_count",
            ),
            f"SELECT * FROM json_tree({a})",
            f"SELECT * FROM json_each({a}, {b})",
            f"WITH RECURSIVE r(n) AS (SELECT {a} UNION ALL SELECT n + 1 FROM r LIMIT 20) SELECT {b}, n FROM r, medals",
            f"CREATE TABLE {self.name()} (a {self.rng.choice(TYPES)} PRIMARY KEY, b ANY) {self.one('STRICT', 'WITHOUT ROWID', '')}",
            f"INSERT INTO orders VALUES ({a}, {b}) RETURNING *, {a}",
            f"UPDATE OR {self.one('IGNORE', 'FAIL', 'ROLLBACK', 'REPLACE')} medals SET gold = {a} RETURNING {b}",
            f"EXPLAIN {self.one('', 'QUERY PLAN ')}{self.query()}",
        )


# --- statements that others have written ------------------------------------------------------------------------

_PLACES = {"{other}": "dbb_ca5ca5ca_r0_s1", "{slot}": "dbb_1_s1", "{pristine}": "dbb_1_t1"}
_HEAVY = re.compile(
    r"SLEEP|BENCHMARK|REPEAT|LOCK|KILL|SHUTDOWN|SCHEMA_VALID|PARTITION|RECURSIVE|ST_|WAIT|VECTOR|EXTRACTVALUE|UPDATEXML"
    r"|LOOP|WHILE|LONGTEXT|\d{5}|(?:orders|medals)\s+\w+\s*,|CROSS JOIN",
    re.IGNORECASE,
)


@cache
def _written() -> tuple[str, ...]:
    """The short statements of `hostile` and `hostile_statements` that want little of a server."""
    found: dict[str, None] = {}
    for group in (*hostile.CORPUS.values(), *GRAMMAR.values()):
        for item in group:
            for sql in (item,) if isinstance(item, str) else item:
                if len(sql) < 300 and sql.strip() and not _HEAVY.search(sql):
                    for place, name in _PLACES.items():
                        sql = sql.replace(place, name)
                    found[sql] = None
    return tuple(found)


# --- mutations ----------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"'(?:[^']|'')*'|`[^`]*`|\w+|\s+|[^\w\s]", re.DOTALL)


def mutated(rng: random.Random, sql: str, other: str, functions: Sequence[str]) -> str:
    """The statement with one to four of its tokens left out, doubled, exchanged, or others in their place."""
    tokens = _TOKEN.findall(sql) or [sql]
    spare = _TOKEN.findall(other) or [other]
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        place, second = rng.randrange(len(tokens) + 1), rng.randrange(len(tokens) + 1)
        start, token = rng.randrange(len(spare)), slice(place, place + 1)
        match rng.randrange(10):
            case 0:
                del tokens[place : place + rng.randint(1, 3)]
            case 1:
                tokens[place:place] = tokens[place : place + rng.randint(1, 4)]
            case 2:
                tokens[token], tokens[second : second + 1] = tokens[second : second + 1], tokens[token]
            case 3:
                tokens[place : place + rng.randint(0, 4)] = spare[start : start + rng.randint(1, 8)]
            case 4:
                tokens[place:place] = [rng.choice(JUNK)]
            case 5:
                digits = [n for n, each in enumerate(tokens) if each[:1].isdigit()]
                at = rng.choice(digits) if digits else place
                tokens[at : at + 1] = [rng.choice(INTEGERS + NUMBERS)]
            case 6:
                tokens[token] = [rng.choice(rng.choice((TEXTS, BYTES, NAMES, COLUMNS)))]
            case 7:
                words = [n for n, each in enumerate(tokens) if each[:1].isalpha()]
                at = rng.choice(words) if words else place
                tokens[at : at + 1] = [
                    rng.choice(functions).partition("/")[0],
                    "(",
                    *tokens[at : at + 1],
                    ")",
                ]
            case 8:
                letters = list("".join(tokens[token]))
                if letters:
                    letters[rng.randrange(len(letters))] = chr(
                        rng.choice((rng.randrange(128), rng.randrange(0x3000)))
                    )
                tokens[token] = ["".join(letters)]
            case _:
                tokens = tokens[:place] if rng.random() < 0.3 else tokens
        tokens = tokens or [rng.choice(JUNK)]
    return "".join(tokens)


def statements(rng: random.Random, dialect: str) -> Iterator[str]:
    """Statements without end, the same for a seed; half of them are mutations of what the others are like.

    Args:
        dialect: `mysql`, also for MariaDB and the emulation, or `sqlite`.
    """
    grammar = SQLiteGrammar(rng) if dialect == "sqlite" else MySQLGrammar(rng)
    writer = OddWriter(rng, WORLD)
    sources = (grammar.statement, writer.statement, writer.odd, lambda: rng.choice(_written()))

    def drawn() -> str:
        (source,) = rng.choices(sources, (7, 1, 1, 1))
        return source()

    last = "SELECT 1"
    while True:
        sql = drawn()
        yield sql if rng.random() < 0.5 else mutated(rng, sql, last, grammar.functions)
        last = sql
