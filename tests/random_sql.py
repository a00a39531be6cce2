"""Statements of MySQL, drawn at random over tables drawn at random: queries whose rows do not depend on the server's
mood (LIMIT only in a total order), changes, and slips of both that a parser or a check of names should refuse.

    rng = random.Random(1)
    world = tables(rng)
    Writer(rng, world).query()       # SELECT t1.v1 AS c1, COUNT(*) AS c2 FROM items t1 GROUP BY ...
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trl_dbbench.tasks import Column, Table

NAMES = ("items", "orders", "people", "visits")
LETTERS = (
    *(
        "Øyvind",
        "Olav",
        "Łukasz",
        "Lukasz",
        "Århus",
        "Đorđe",
        "straße",
        "STRASSE",
        "Æsa",
        "Þórir",
        "Ýmir",
        "œuvre",
    ),
    *(
        "Őry",
        "Škoda",
        "Ħal",
        "Çelik",
        "\u0131\u011fd\u0131r",
        "İzmir",
        "Νίκος",
        "ΝΙΚΟΣ",
        "Жанна",
        "йод",
        "ъ",
        "Straßen",
        "ñandú",
    ),
)
"""Words of Norwegian, Polish, Danish, Croatian, German, Icelandic, French, Hungarian, Czech, Maltese, Turkish, Greek,
Russian and Spanish."""
WORDS = (
    *("Ann", "ann", "Bob", "Zoë", "x", "", "10", "9", "1,429", "apple pie", "Pear", "a_b", "50%", "O'Neil"),
    *("2 - 0", "120 hp", "1.5", "?", *LETTERS),
)
DATES = ("2019-12-31", "2020-01-01", "2020-02-29", "2020-03-31", "2021-07-15")
TIMES = ("2019-12-31 23:59:59", "2020-01-01 00:00:00", "2020-02-29 12:30:15", "2021-07-15 08:05:00")
FLOATS = (0.5, 1.25, 2.0, -7.75, 1000.0, 0.1, 1.1, -3.3, 99.99, 3.14159265, 1234567.5)
"""Some are exact in 32 bits, and some are not."""
TYPES = {
    "int": ("INT", lambda rng: rng.choice((0, 1, 2, 3, 5, 7, 10, -4, 100))),
    "decimal": ("DECIMAL(8,2)", lambda rng: rng.choice(("0.00", "1.50", "2.25", "10.00", "-3.10", "99.99"))),
    "float": ("DOUBLE", lambda rng: rng.choice(FLOATS)),
    "text": ("VARCHAR(40)", lambda rng: rng.choice(WORDS)),
    "date": ("DATE", lambda rng: rng.choice(DATES)),
    "datetime": ("DATETIME", lambda rng: rng.choice(TIMES)),
}
NUMBERS = ("int", "decimal", "float")
LETTER = {"int": "i", "decimal": "m", "float": "f", "text": "t", "date": "d", "datetime": "w"}
"""How the names of columns begin that hold values of a kind."""
ALL_TEXT = 0.4
"""The share of tables whose columns are of TEXT but for their key, whatever they hold, as all of AgentBench's are."""
DECLARED = {
    "text": ("TEXT", "TEXT", "VARCHAR(50)"),
    "float": ("FLOAT", "DOUBLE"),
}
"""Other types of columns: LifelongAgentBench has INT, TEXT, VARCHAR(50) and FLOAT."""


def tables(rng: random.Random) -> tuple[Table, ...]:
    """Two or three tables with an `id` each, columns of all kinds, NULLs, ties, and references to each other."""
    made = []
    for name in rng.sample(NAMES, rng.choice((2, 3))):
        kinds = rng.sample(tuple(TYPES), rng.randint(3, 5))
        columns = [Column("id", "INT PRIMARY KEY")]
        text = rng.random() < ALL_TEXT
        for place, kind in enumerate(kinds, 1):
            declared = "TEXT" if text else rng.choice(DECLARED.get(kind, (TYPES[kind][0],)))
            columns.append(Column(f"{LETTER[kind]}{place}", declared))
        columns.append(Column("ref", "TEXT" if text else "INT"))
        rows = []
        for key in range(1, rng.randint(5, 9)):
            cells = [TYPES[kind][1](rng) if rng.random() > 0.12 else None for kind in kinds]
            cells.append(rng.randint(1, 8) if rng.random() > 0.15 else None)
            if text:  # numbers as texts, and here and there a word among them
                cells = [
                    None if cell is None else rng.choice(WORDS) if rng.random() < 0.1 else str(cell)
                    for cell in cells
                ]
            rows.append((key, *cells))
        made.append(Table(name, tuple(columns), tuple(rows)))
    return tuple(made)


@dataclass(frozen=True)
class Field:
    """Something that an expression can name, and what kind of value it has."""

    name: str
    kind: str


def fields_of(table: Table, alias: str) -> list[Field]:
    kinds = {letter: kind for kind, letter in LETTER.items()} | {"r": "int"}
    return [Field(f"{alias}.{column.name}", kinds[column.name[0]]) for column in table.columns]


class Writer:
    """Draws statements over the tables."""

    def __init__(self, rng: random.Random, world: Sequence[Table]) -> None:
        self.rng = rng
        self.world = world
        self.fresh = 0

    def statement(self) -> str:
        """A query (4 of 5), or a change, one in six with a slip in it."""
        sql = self.query() if self.rng.random() < 0.8 else self.change()
        return slip(self.rng, sql) if self.rng.random() < 1 / 6 else sql

    # --- queries ------------------------------------------------------------------------------------------

    def query(self) -> str:
        shape = self.rng.choice(
            (
                *(self._plain, self._plain, self._plain, self._grouped, self._grouped, self._windowed),
                *(self._set, self._derived, self._cte, self._aggregates, self._recursive),
            )
        )
        return shape()

    def _alias(self, letter: str) -> str:
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def _from(self) -> tuple[str, list[Field], list[str]]:
        """FROM with up to two joins: its text, what can be named, and the keys of a row of it."""
        first = self.rng.choice(self.world)
        alias = self._alias("t")
        text, fields, keys = f"FROM {first.name} {alias}", fields_of(first, alias), [f"{alias}.id"]
        for _ in range(self.rng.choice((0, 0, 0, 1, 1, 2))):
            other, name = self.rng.choice(self.world), self._alias("t")
            kind = self.rng.choice(
                ("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "CROSS JOIN")
            )
            own = f"{name}.id = {self.rng.choice(keys).split('.')[0]}.ref"
            mine = fields_of(other, name)
            if self.rng.random() < 0.2:
                own += f" AND {self.condition([*fields, *mine], 1)}"
            text += f" {kind} {other.name} {name}" + ("" if kind == "CROSS JOIN" else f" ON {own}")
            fields, keys = [*fields, *mine], [*keys, f"{name}.id"]
        return text, fields, keys

    def _where(self, fields: list[Field], often: float = 0.6) -> str:
        return f" WHERE {self.condition(fields)}" if self.rng.random() < often else ""

    def _plain(self) -> str:
        source, fields, keys = self._from()
        distinct = self.rng.random() < 0.2
        cells = [self.value(fields) for _ in range(self.rng.randint(1, 3))]
        shown = ", ".join(
            f"{cell} AS c{n}" if self.rng.random() < 0.5 else cell for n, cell in enumerate(cells)
        )
        if self.rng.random() < 0.06:
            shown = "*"
        sql = f"SELECT {'DISTINCT ' * distinct}{shown} {source}{self._where(fields)}"
        if not distinct and self.rng.random() < 0.45:
            first = self.rng.choice([*(field.name for field in fields), cells[0]])
            order = f" ORDER BY {first}{self.rng.choice(('', ' ASC', ' DESC'))}, " + ", ".join(keys)
            sql += order + self.rng.choice(
                ("", f" LIMIT {self.rng.randint(1, 4)}", " LIMIT 2 OFFSET 1", " LIMIT 1, 3")
            )
        return sql

    def _grouped(self) -> str:
        source, fields, _ = self._from()
        keys = list(dict.fromkeys(self.rng.choice(fields).name for _ in range(self.rng.randint(1, 2))))
        if self.rng.random() < 0.3:
            keys[0] = self.value(fields, depth=1)
        folded = [self.aggregate(fields) for _ in range(self.rng.randint(1, 2))]
        names = [f"k{n}" for n in range(len(keys))]
        shown = ", ".join([*(f"{key} AS {name}" for key, name in zip(keys, names, strict=True)), *folded])
        by = ", ".join(names if self.rng.random() < 0.5 else keys)
        sql = f"SELECT {shown} {source}{self._where(fields, 0.4)} GROUP BY {by}"
        if self.rng.random() < 0.3:
            sql += f" HAVING {self.aggregate(fields)} {self._operator()} {self.number([], 0)}"
        if self.rng.random() < 0.3:
            sql += " ORDER BY " + ", ".join(names)
        return sql

    def _aggregates(self) -> str:
        source, fields, _ = self._from()
        shown = ", ".join(self.aggregate(fields) for _ in range(self.rng.randint(1, 3)))
        return f"SELECT {shown} {source}{self._where(fields)}"

    def _windowed(self) -> str:
        source, fields, keys = self._from()
        order = f"ORDER BY {self.rng.choice(fields).name}, {', '.join(keys)}"
        part = f"PARTITION BY {self.rng.choice(fields).name} " if self.rng.random() < 0.5 else ""
        column = self.rng.choice(fields)
        number = self.rng.choice([field for field in fields if field.kind in NUMBERS]).name
        frame = self.rng.choice(
            ("", "", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", " ROWS UNBOUNDED PRECEDING")
        )
        call = self.rng.choice(
            (
                *("ROW_NUMBER()", "RANK()", "DENSE_RANK()", "NTILE(2)", f"LAG({column.name})", "CUME_DIST()"),
                *(f"LEAD({column.name}, 2)", f"FIRST_VALUE({column.name})", f"LAST_VALUE({column.name})"),
                *(f"SUM({number})", f"AVG({number})", "COUNT(*)", f"MAX({column.name})", f"MIN({number})"),
            )
        )
        frame = frame if re.match("SUM|AVG|COUNT|MAX|MIN|FIRST|LAST", call) else ""
        window = f"OVER ({part}{order}{frame})"
        return f"SELECT {', '.join(keys)}, {call} {window} AS w {source}{self._where(fields, 0.3)}"

    def _set(self) -> str:
        kinds = [self.rng.choice(("number", "text", "date")) for _ in range(self.rng.randint(1, 2))]
        sides = []
        for _ in range(2):
            source, fields, _ = self._from()
            cells = ", ".join(getattr(self, kind)(fields, 1) for kind in kinds)
            sides.append(f"SELECT {cells} {source}{self._where(fields, 0.4)}")
        return f" {self.rng.choice(('UNION', 'UNION ALL', 'UNION', 'INTERSECT', 'EXCEPT'))} ".join(sides)

    def _inner(self) -> tuple[str, list[Field]]:
        source, fields, _ = self._from()
        if self.rng.random() < 0.4:
            key = self.rng.choice(fields)
            inner = f"SELECT {key.name} AS a, COUNT(*) AS b {source} GROUP BY {key.name}"
            return inner, [Field("a", key.kind), Field("b", "int")]
        picked = self.rng.sample(fields, 2)
        inner = f"SELECT {picked[0].name} AS a, {picked[1].name} AS b {source}{self._where(fields)}"
        return inner, [Field("a", picked[0].kind), Field("b", picked[1].kind)]

    def _outer(self, alias: str, fields: list[Field]) -> str:
        named = [Field(f"{alias}.{field.name}", field.kind) for field in fields]
        if self.rng.random() < 0.4:
            return f"{self.aggregate(named)}, {self.aggregate(named)} FROM "
        return f"{self.value(named)}, {alias}.b FROM "

    def _derived(self) -> str:
        inner, fields = self._inner()
        return f"SELECT {self._outer('d', fields)}({inner}) AS d"

    def _cte(self) -> str:
        inner, fields = self._inner()
        return f"WITH d AS ({inner}) SELECT {self._outer('d', fields)}d"

    def _recursive(self) -> str:
        end = self.rng.randint(1, 6)
        return (
            f"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < {end}) "
            f"SELECT {self.value([Field('n', 'int')], 1)} FROM r"
        )

    # --- changes ------------------------------------------------------------------------------------------

    def change(self) -> str:
        table = self.rng.choice(self.world)
        fields = [Field(each.name.split(".")[1], each.kind) for each in fields_of(table, "t")]
        name, field = table.name, self.rng.choice(fields[1:])
        match self.rng.randrange(6):
            case 0:
                return f"INSERT INTO {name} (id, {field.name}) VALUES ({self.rng.randint(7, 12)}, {self.constant(field.kind)})"
            case 1:
                other = self.rng.choice(self.world)
                return f"INSERT INTO {name} (id, ref) SELECT id + 100, ref FROM {other.name} WHERE id > {self.rng.randint(1, 6)}"
            case 2:
                return f"DELETE FROM {name}{self._where(fields, 0.95)}"
            case 3:
                verb = self.rng.choice(("REPLACE INTO", "INSERT IGNORE INTO", "REPLACE"))
                return f"{verb} {name} (id, {field.name}) VALUES ({self.rng.randint(1, 9)}, {self.constant(field.kind)})"
            case 4:
                return (
                    f"INSERT INTO {name} (id, ref) VALUES ({self.rng.randint(1, 9)}, 4) "
                    f"ON DUPLICATE KEY UPDATE ref = ref + {self.rng.randint(1, 3)}"
                )
            case _:
                new = self.of(field.kind, fields, 1)
                end = self.rng.choice(("", "", "", " ORDER BY id LIMIT 2"))
                return f"UPDATE {name} SET {field.name} = {new}{self._where(fields, 0.9)}{end}"

    # --- expressions --------------------------------------------------------------------------------------

    def of(self, kind: str, fields: Sequence[Field], depth: int) -> str:
        if kind in NUMBERS:
            return self.number(fields, depth)
        return self.text(fields, depth) if kind == "text" else self.date(fields, depth)

    def value(self, fields: Sequence[Field], depth: int = 2) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(fields).name
        kind = self.rng.choice((self.number, self.number, self.text, self.text, self.date, self.condition))
        return kind(fields, depth)

    def constant(self, kind: str) -> str:
        if self.rng.random() < 0.08:
            return "NULL"
        cell = TYPES[kind][1](self.rng)
        return str(cell) if kind in ("int", "float", "decimal") else "'" + str(cell).replace("'", "''") + "'"

    def _column(self, fields: Sequence[Field], kinds: Sequence[str]) -> str:
        fitting = [field.name for field in fields if field.kind in kinds]
        return self.rng.choice(fitting) if fitting else self.constant(self.rng.choice(kinds))

    def _pick(self, forms: Sequence[Callable[[], str]]) -> str:
        return self.rng.choice(forms)()

    def _operator(self) -> str:
        return self.rng.choice(("=", "=", "<", ">", "<=", ">=", "<>", "!="))

    def number(self, fields: Sequence[Field], depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.25:
            return self.constant("int") if self.rng.random() < 0.3 else self._column(fields, NUMBERS)
        n, t, d, b = self._below(fields, depth)
        part = self.rng.choice(
            ("YEAR", "MONTH", "DAY", "QUARTER", "DAYOFWEEK", "WEEKDAY", "DAYOFYEAR", "DAYOFMONTH")
        )
        unit = self.rng.choice(("DAY", "MONTH", "YEAR", "HOUR", "WEEK"))
        digits, step = self.rng.randint(-1, 3), self.rng.choice(("+", "-", "*", "/", "DIV", "%", "MOD"))
        return self._pick(
            [
                lambda: f"({n()} {step} {n()})",
                lambda: f"({n()} {step} {n()})",
                lambda: f"{n()} {step} {n()}",
                lambda: f"-{n()}",
                lambda: f"{self.rng.choice(('ABS', 'FLOOR', 'CEIL', 'CEILING', 'SIGN', 'ROUND'))}({n()})",
                lambda: f"{self.rng.choice(('ROUND', 'TRUNCATE'))}({n()}, {digits})",
                lambda: f"{self.rng.choice(('LENGTH', 'CHAR_LENGTH', 'ASCII'))}({t()})",
                lambda: f"LOCATE({t()}, {t()})",
                lambda: f"INSTR({t()}, {t()})",
                lambda: f"{part}({d()})",
                lambda: f"EXTRACT({self.rng.choice(('YEAR', 'MONTH', 'DAY', 'HOUR'))} FROM {d()})",
                lambda: f"DATEDIFF({d()}, {d()})",
                lambda: f"TIMESTAMPDIFF({unit}, {d()}, {d()})",
                lambda: f"IF({b()}, {n()}, {n()})",
                lambda: f"CASE WHEN {b()} THEN {n()} ELSE {n()} END",
                lambda: f"CASE {n()} WHEN {n()} THEN {n()} END",
                lambda: (
                    f"{self.rng.choice(('COALESCE', 'IFNULL', 'NULLIF', 'GREATEST', 'LEAST', 'POWER'))}({n()}, {n()})"
                ),
                lambda: f"CAST({t()} AS {self.rng.choice(('SIGNED', 'DECIMAL(10,2)', 'DOUBLE'))})",
                lambda: f"CAST({n()} AS {self.rng.choice(('SIGNED', 'DECIMAL(10,1)', 'UNSIGNED', 'FLOAT'))})",
                lambda: f"{t()} + 0",
                lambda: f"MOD({n()}, {n()})",
                lambda: f"FIELD({t()}, {t()}, {t()})",
                lambda: f"STRCMP({t()}, {t()})",
                lambda: f"SQRT({n()})",
                lambda: f"TO_DAYS({d()})",
                lambda: self._scalar(),
            ]
        )

    def text(self, fields: Sequence[Field], depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.25:
            return self.constant("text") if self.rng.random() < 0.4 else self._column(fields, ("text",))
        n, t, d, b = self._below(fields, depth)
        pattern = self.rng.choice(
            ("%Y-%m", "%Y", "%d.%m.%y", "%M %e", "%W", "%H:%i", "%b %D", "%j", "%a %T", "%p %h")
        )
        few = self.rng.randint(0, 4)
        return self._pick(
            [
                lambda: f"CONCAT({t()}, {t()})",
                lambda: f"CONCAT({t()}, '-', {n()})",
                lambda: f"CONCAT_WS(', ', {t()}, {t()})",
                lambda: (
                    f"{self.rng.choice(('UPPER', 'LOWER', 'TRIM', 'REVERSE', 'LTRIM', 'UCASE', 'RTRIM'))}({t()})"
                ),
                lambda: f"{self.rng.choice(('SUBSTRING', 'SUBSTR', 'MID'))}({t()}, {few}, 2)",
                lambda: f"SUBSTRING({t()}, -{few})",
                lambda: f"{self.rng.choice(('LEFT', 'RIGHT', 'REPEAT'))}({t()}, {few})",
                lambda: f"REPLACE({t()}, {t()}, {t()})",
                lambda: f"{self.rng.choice(('LPAD', 'RPAD'))}({t()}, {few + 2}, '*')",
                lambda: f"SUBSTRING_INDEX({t()}, ' ', {self.rng.choice((1, -1, 2))})",
                lambda: f"DATE_FORMAT({d()}, '{pattern}')",
                lambda: f"{self.rng.choice(('DAYNAME', 'MONTHNAME'))}({d()})",
                lambda: f"IF({b()}, {t()}, {t()})",
                lambda: f"CASE WHEN {b()} THEN {t()} WHEN {b()} THEN {t()} ELSE {t()} END",
                lambda: (
                    f"{self.rng.choice(('COALESCE', 'IFNULL', 'NULLIF', 'GREATEST', 'LEAST'))}({t()}, {t()})"
                ),
                lambda: f"CAST({self._pick([n, d])} AS CHAR)",
                lambda: f"ELT({few}, {t()}, {t()})",
                lambda: f"HEX({t()})",
                lambda: f"FORMAT({n()}, {few % 3})",
            ]
        )

    def date(self, fields: Sequence[Field], depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.4:
            return (
                self.constant("date")
                if self.rng.random() < 0.2
                else self._column(fields, ("date", "datetime"))
            )
        _, _, d, b = self._below(fields, depth)
        unit, many = self.rng.choice(("DAY", "MONTH", "YEAR", "HOUR", "WEEK")), self.rng.randint(-3, 14)
        return self._pick(
            [
                lambda: f"DATE_ADD({d()}, INTERVAL {many} {unit})",
                lambda: f"DATE_SUB({d()}, INTERVAL {many} {unit})",
                lambda: f"{d()} + INTERVAL {abs(many)} {unit}",
                lambda: f"DATE({d()})",
                lambda: f"LAST_DAY({d()})",
                lambda: f"CAST({d()} AS DATE)",
                lambda: f"IF({b()}, {d()}, {d()})",
                lambda: f"COALESCE({d()}, {d()})",
                lambda: f"STR_TO_DATE('{self.rng.choice(DATES)}', '%Y-%m-%d')",
                lambda: f"GREATEST({d()}, {d()})",
            ]
        )

    def condition(self, fields: Sequence[Field], depth: int = 2) -> str:
        n, t, d, b = self._below(fields, max(depth, 1))
        same = self.rng.choice((n, n, t, t, d))
        negated = self.rng.choice(("", "", "NOT "))
        forms: list[Callable[[], str]] = [
            lambda: f"{same()} {self._operator()} {same()}",
            lambda: f"{same()} {self._operator()} {same()}",
            lambda: f"{self._pick([n, t, d])} {self._operator()} {self._pick([n, t, d])}",
            lambda: f"{same()} {negated}BETWEEN {same()} AND {same()}",
            lambda: f"{same()} {negated}IN ({same()}, {same()}, {same()})",
            lambda: (
                f"{t()} {negated}LIKE '{self.rng.choice(('a%', '%n', '%o%', 'Z_e', '_', '1%', '50!%', 'O%', 'l%', '%ss%', '%ø%', 'ж%', '%ς', 'i%', '%ae%'))}'"
            ),
            lambda: f"{t()} {negated}REGEXP '{self.rng.choice(('^a', 'n$', '[0-9]+', 'p.*e', '^.$'))}'",
            lambda: f"{same()} IS {negated}NULL",
            lambda: f"{same()} <=> {same()}",
        ]
        if depth > 1:
            forms += [
                lambda: f"({b()} {self.rng.choice(('AND', 'OR', 'XOR'))} {b()})",
                lambda: f"{b()} {self.rng.choice(('AND', 'OR'))} {b()}",
                lambda: f"NOT ({b()})",
                lambda: self._in_query(fields, negated),
                lambda: self._exists(fields, negated),
                lambda: f"{n()} {self._operator()} {self._scalar()}",
            ]
        return self._pick(forms)

    def aggregate(self, fields: Sequence[Field]) -> str:
        name = self.rng.choice(("COUNT", "SUM", "AVG", "MIN", "MAX", "GROUP_CONCAT", "STDDEV", "COUNT(*)"))
        if name == "COUNT(*)":
            return name
        distinct = self.rng.choice(("", "", "DISTINCT "))
        if name == "GROUP_CONCAT":
            text = self._column(fields, ("int",))  # no ties but those of equal numbers
            return (
                f"GROUP_CONCAT({distinct}{text} ORDER BY {text} SEPARATOR '; ')"
                if distinct
                else (f"GROUP_CONCAT({text} ORDER BY {text} DESC)")
            )
        if name == "STDDEV":
            return f"ROUND(STDDEV({self.number(fields, 1)}), 4)"
        if name in ("MIN", "MAX", "COUNT"):
            return f"{name}({distinct * (name == 'COUNT')}{self.value(fields, 1)})"
        return f"{name}({distinct}{self.number(fields, 1)})"

    def _below(self, fields: Sequence[Field], depth: int) -> tuple[Callable[[], str], ...]:
        kinds = (self.number, self.text, self.date, self.condition)
        return tuple((lambda kind=kind: kind(fields, depth - 1)) for kind in kinds)

    def _scalar(self) -> str:
        table, alias = self.rng.choice(self.world), self._alias("s")
        fields = fields_of(table, alias)
        number = self.rng.choice([field for field in fields if field.kind in NUMBERS]).name
        return f"(SELECT {self.rng.choice(('MAX', 'MIN', 'COUNT', 'SUM', 'AVG'))}({number}) FROM {table.name} {alias})"

    def _in_query(self, fields: Sequence[Field], negated: str) -> str:
        table, alias = self.rng.choice(self.world), self._alias("s")
        inner = self.rng.choice(fields_of(table, alias))
        outer = self._column(fields, (inner.kind,))
        return f"{outer} {negated}IN (SELECT {inner.name} FROM {table.name} {alias}{self._where(fields_of(table, alias), 0.4)})"

    def _exists(self, fields: Sequence[Field], negated: str) -> str:
        table, alias = self.rng.choice(self.world), self._alias("s")
        outer = self._column(fields, ("int",))
        return f"{negated}EXISTS (SELECT 1 FROM {table.name} {alias} WHERE {alias}.ref = {outer})"


_WORD = re.compile(r"'(?:[^']|'')*'|[A-Za-z_]\w*(?:\.\w+)?|\d+(?:\.\d+)?|<=>|[<>!]=|<>|\S")


def slip(rng: random.Random, sql: str) -> str:
    """The statement with a word left out, doubled, exchanged with its neighbour, or made another."""
    words = list(_WORD.finditer(sql))
    word = rng.choice(words)
    before, this, after = sql[: word.start()], word[0], sql[word.end() :]
    match rng.randrange(5):
        case 0:
            return before + after
        case 1:
            return f"{before}{this} {this}{after}"
        case 2:
            other = words[min(words.index(word) + 1, len(words) - 1)]
            return f"{before}{other[0]} {this} {sql[other.end() :]}"
        case 3:
            new = rng.choice(
                ("nothing", "FROM", "1", "'x'", ",", ")", "(", "AND", "id", "SUM(id)", "t1.none")
            )
            return f"{before}{new}{after}"
        case _:
            name = rng.choice([each for each in words if each[0][0].isalpha()])
            return f"{sql[: name.end()]}{rng.choice(('s', '_x'))}{sql[name.end() :]}"
