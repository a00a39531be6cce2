"""Statements of MySQL in forms that `random_sql` does not draw and that models write: comments, brackets, literals
of dates, ANY and ALL, LATERAL, joins in UPDATE and DELETE, INSERT of many rows, and the like.

    rng = random.Random(1)
    world = tables(rng)
    OddWriter(rng, world).odd()       # SELECT COUNT(DISTINCT t1.i1, t1.ref) AS n FROM items AS t1 GROUP BY ...
"""

from __future__ import annotations

from collections.abc import Sequence

from random_sql import DATES, NUMBERS, TIMES, WORDS, Field, Writer, fields_of

from trl_dbbench.tasks import Table


class OddWriter(Writer):
    """Draws them over the tables."""

    def odd(self) -> str:
        """A query (7 of 10), or a change."""
        queries = (
            *(self._spelled, self._literals, self._keyed, self._counted, self._quantified, self._lateral),
            *(self._values, self._union, self._shared, self._correlated, self._named_window, self._having),
            *(self._cast, self._pattern, self._places, self._rows_in, self._constants, self._chosen),
            *(self._dates_in, self._constant_keys, self._sides, self._negated, self._bytes, self._floats),
        )
        changes = (
            *(
                self._update_join,
                self._update_alias,
                self._insert_rows,
                self._insert_select,
                self._insert_set,
            ),
            *(self._delete_some, self._delete_join, self._delete_listed, self._duplicate),
        )
        return self.rng.choice(queries if self.rng.random() < 0.7 else changes)()

    # --- parts --------------------------------------------------------------------------------------------

    def _one(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def _table(self) -> tuple[Table, str, list[Field]]:
        table, alias = self.rng.choice(self.world), self._alias("t")
        return table, alias, fields_of(table, alias)

    def _of(self, fields: Sequence[Field], *kinds: str) -> str:
        """The name of a column of one of these kinds, or of any."""
        fitting = [field for field in fields if not kinds or field.kind in kinds]
        return self.rng.choice(fitting or list(fields)).name

    def _text(self) -> str:
        return "'" + self.rng.choice(WORDS).replace("'", "''") + "'"

    def _test(self, fields: Sequence[Field]) -> str:
        """A condition as models write them."""
        column, other = self._of(fields), self._of(fields)
        number, text = self._of(fields, *NUMBERS), self._of(fields, "text")
        return self._one(
            f"NOT {number} = {self.rng.randint(0, 9)}",
            f"(({number} > {self.rng.randint(-3, 9)}))",
            f"!({column} IS NULL)",
            f"{number} != 0 && {text} <> {self._text()}",
            f"({number} = 1 || {text} = {self._text()})",
            f"({number} > 2) IS TRUE",
            f"({text} = {self._text()}) IS NOT TRUE",
            f"({number} < 5) IS NOT FALSE",
            f"{number} BETWEEN 1 AND 5 AND {column} IS NOT NULL",
            f"({column} IS NULL) = ({other} IS NULL)",
            f"NOT ({number} > 3 OR {text} LIKE '%n')",
            f"{number} NOT IN (1, 2, NULL)",
            f"{text} IN ('Ann', 'Bob') OR {number} <= 2",
            f"BINARY {text} = {self._text()}",
            f"COALESCE({number}, 0) + 1 > 2",
            f"{text} > 'B' XOR {number} > 3",
        )

    def _when(self, fields: Sequence[Field]) -> str:
        """A condition of dates, beside literals of all forms."""
        date, day, time = self._of(fields, "date", "datetime"), self.rng.choice(DATES), self.rng.choice(TIMES)
        return self._one(
            f"{date} {self._operator()} DATE '{day}'",
            f"{date} {self._operator()} TIMESTAMP '{time}'",
            f"{date} BETWEEN '{DATES[0]}' AND '{day}'",
            f"{date} NOT BETWEEN DATE '{DATES[1]}' AND DATE '{DATES[3]}'",
            f"DATE({date}) = '{day}'",
            f"{date} >= '2020-01-01' AND {date} < '2020-01-01' + INTERVAL 1 YEAR",
            f"{date} < '{day}' - INTERVAL 1 MONTH",
            f"YEAR({date}) = 2020 AND MONTH({date}) IN (1, 2, 3)",
            f"YEAR({date}) = '2020'",
            f"{date} LIKE '2020%'",
            f"DATE_FORMAT({date}, '%Y-%m') = '2020-01'",
            f"DATEDIFF('{day}', {date}) > 30",
            f"{date} IN ('{day}', '{DATES[2]}')",
            f"EXTRACT({self._one('YEAR_MONTH', 'YEAR', 'QUARTER', 'WEEK')} FROM {date}) > 5",
            f"{date} > {self._one('CURDATE()', 'NOW()', 'CURRENT_DATE', 'CURRENT_TIMESTAMP()')}",
        )

    # --- queries ------------------------------------------------------------------------------------------

    def _spelled(self) -> str:
        table, alias, fields = self._table()
        column = self._of(fields)
        head = self._one(
            *("SELECT", "select", "SELECT SQL_NO_CACHE", "SELECT ALL", "SELECT /*+ NO_MERGE() */"),
            *("SELECT /* all */", "SELECT DISTINCTROW", "SELECT /*! STRAIGHT_JOIN */", "-- first\nSELECT"),
        )
        shown = self._one(
            f"{alias}.*", column, f"({column})", f"{column} AS 'a b'", f"{column} `n`", f"{column} 'n'"
        )
        source = self._one(
            f"{table.name} AS {alias}",
            f"`{table.name}` {alias}",
            f"({table.name} {alias})",
            f"{table.name} `{alias}`",
        )
        end = self._one(
            "", ";", " # all\n", " LOCK IN SHARE MODE", " FOR UPDATE", f" ORDER BY {alias}.id LIMIT 1, 2"
        )
        return f"{head} {shown} FROM {source} WHERE {self._test(fields)}{end}"

    def _literals(self) -> str:
        table, alias, fields = self._table()
        extra = self._one(
            *(
                "'a' 'b'",
                "DATE '2020-02-29'",
                "TIMESTAMP '2020-02-29 10:00:00'",
                "TRUE",
                "1e2",
                "0.50",
                "N'x'",
            ),
            *("'it''s'", '"it\'s"', r"'a\nb'", r"'a\%b'", "X'41'", "0x41", "-0", "1.", ".5", "NULL"),
        )
        return f"SELECT {self._of(fields)}, {extra} FROM {table.name} {alias} WHERE {self._when(fields)}"

    def _keyed(self) -> str:
        table, alias, fields = self._table()
        column = self._of(fields, "int", "text")
        key = self._one(
            f"IFNULL({column}, 0)", f"IF({column} IS NULL, 'none', 'some')", f"COALESCE({column}, 'none')",
            f"LEFT({self._of(fields, 'text')}, 1)", f"{column} IS NULL",
            f"CASE WHEN {column} > 3 THEN 'high' WHEN {column} > 1 THEN 'mid' ELSE 'low' END",
            f"DATE_FORMAT({self._of(fields, 'date', 'datetime')}, '%Y-%m')",
        )  # fmt: skip
        by = self._one("k", "1", key)
        having = self._one(
            "", " HAVING n > 1", " HAVING COUNT(*) > 1 AND k IS NOT NULL", f" HAVING {key} IS NOT NULL"
        )
        order = self._one(
            "", " ORDER BY n DESC, k", " ORDER BY 2 DESC, 1", " ORDER BY COUNT(*), k", f" ORDER BY {key}"
        )
        return f"SELECT {key} AS k, COUNT(*) AS n FROM {table.name} {alias} GROUP BY {by}{having}{order}"

    def _counted(self) -> str:
        table, alias, fields = self._table()
        number, text = self._of(fields, *NUMBERS), self._of(fields, "text")
        shown = [
            f"COUNT(DISTINCT {self._of(fields)}, {self._of(fields)})",
            f"SUM(CASE WHEN {self._test(fields)} THEN 1 ELSE 0 END)",
            f"COUNT(IF({number} > 2, 1, NULL))",
            f"SUM({number} > 2)",
            f"AVG({number} = 1) * 100",
            f"ROUND(SUM({number}) * 100.0 / COUNT(*), 2)",
            f"COUNT(CASE WHEN {text} LIKE '%n%' THEN 1 END) / COUNT(*)",
            f"GROUP_CONCAT(DISTINCT {text} ORDER BY {text} SEPARATOR '; ')",
            f"GROUP_CONCAT({alias}.id, ':', {number} ORDER BY {alias}.id)",
            f"GROUP_CONCAT(DISTINCT {number} ORDER BY {number} DESC SEPARATOR '|')",
            f"CAST(SUM({number}) AS DECIMAL(10,2))",
            f"MAX({number}) - MIN({number})",
            f"IFNULL(SUM(CASE WHEN {number} > 100 THEN {number} END), 0)",
            f"MAX({self._of(fields, 'date', 'datetime')})",
        ]
        picked = ", ".join(self.rng.sample(shown, 2))
        group = self._one("", f" GROUP BY {self._of(fields)}")
        return f"SELECT {picked} FROM {table.name} {alias} WHERE {self._test(fields)}{group}"

    def _quantified(self) -> str:
        table, alias, fields = self._table()
        other, name, inner = self._table()
        kind = self._one("int", "int", "text", "date")
        word, operator = self._one("ANY", "ALL", "SOME"), self._operator()
        where = self._one("", f" WHERE {self._test(inner)}", f" WHERE {name}.ref = {alias}.id")
        picked = f"SELECT {self._of(inner, kind)} FROM {other.name} {name}{where}"
        return f"SELECT {alias}.id FROM {table.name} {alias} WHERE {self._of(fields, kind)} {operator} {word} ({picked})"

    def _lateral(self) -> str:
        table, alias, _ = self._table()
        other, name, inner = self._table()
        rows = f"SELECT {self._of(inner)} AS x FROM {other.name} {name} WHERE {name}.ref = {alias}.id"
        rows = self._one(rows, f"SELECT COUNT(*) AS x FROM {other.name} {name} WHERE {name}.ref = {alias}.id")
        join = self._one(
            f", LATERAL ({rows}) z", f" JOIN LATERAL ({rows}) z", f" LEFT JOIN LATERAL ({rows}) z ON TRUE"
        )
        return f"SELECT {alias}.id, z.x FROM {table.name} {alias}{join}"

    def _values(self) -> str:
        rows = ", ".join(f"ROW({self.rng.randint(0, 5)}, {self._text()})" for _ in range(3))
        table, alias, _ = self._table()
        return self._one(
            f"VALUES {rows}",
            f"SELECT * FROM (VALUES {rows}) v",
            f"SELECT v.column_0 FROM (VALUES {rows}) AS v ORDER BY 1",
            f"SELECT v.b, {alias}.id FROM {table.name} {alias} JOIN (VALUES {rows}) AS v(a, b) ON v.a = {alias}.id",
            f"TABLE {table.name}",
            f"TABLE {table.name} ORDER BY id LIMIT 2",
        )

    def _union(self) -> str:
        sides = []
        for _ in range(self.rng.choice((2, 2, 3))):
            table, alias, fields = self._table()
            sides.append(f"SELECT {alias}.id AS n, {self._of(fields, 'text')} AS s FROM {table.name} {alias}")
        word = self._one(" UNION ", " UNION ALL ", " UNION DISTINCT ", " EXCEPT ", " INTERSECT ")
        joined = word.join(sides)
        bracketed = word.join(
            f"({side} ORDER BY {side.split('.')[0].split()[-1]}.id LIMIT 2)" for side in sides
        )
        return self._one(
            f"{joined} ORDER BY n, s",
            f"{joined} ORDER BY 1 DESC, 2 LIMIT 3",
            f"{bracketed} ORDER BY n, s",
            f"({joined})",
            f"SELECT COUNT(*), MAX(u.s) FROM ({joined}) u WHERE u.n > 1",
            f"SELECT s, COUNT(*) AS c FROM ({joined}) AS u GROUP BY s HAVING c > 1",
        )

    def _shared(self) -> str:
        first, second = self._table(), self._table()
        column = self._of([*first[2], *second[2]])
        join = self._one(
            *("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "RIGHT OUTER JOIN", "STRAIGHT_JOIN"),
        )
        on = self._one("USING (id)", "USING (id, ref)", f"ON ({first[1]}.id = {second[1]}.ref)")
        tables = f"{first[0].name} {first[1]} {join} {second[0].name} {second[1]} {on}"
        comma = (
            f"{first[0].name} {first[1]}, {second[0].name} {second[1]} WHERE {first[1]}.id = {second[1]}.ref"
        )
        natural = (
            f"{first[0].name} {first[1]} NATURAL {self._one('', 'LEFT ')}JOIN {second[0].name} {second[1]}"
        )
        return f"SELECT {self._one(column, first[1] + '.*', '*')} FROM {self._one(tables, tables, comma, natural)}"

    def _correlated(self) -> str:
        table, alias, fields = self._table()
        other, name, inner = self._table()
        link = f"{name}.ref = {alias}.id"
        number = self._of(inner, *NUMBERS)
        fold = self._one(
            f"MAX({number})", f"AVG({number})", "COUNT(*)", f"SUM({number})", f"MIN({self._of(inner)})"
        )
        scalar = f"(SELECT {fold} FROM {other.name} {name} WHERE {link})"
        sorted_ = (
            f"(SELECT {self._of(inner)} FROM {other.name} {name} WHERE {link} ORDER BY {name}.id LIMIT 1)"
        )
        return self._one(
            f"SELECT {alias}.id, {scalar} AS x FROM {table.name} {alias}",
            f"SELECT {alias}.id, {sorted_} AS x FROM {table.name} {alias}",
            f"SELECT {alias}.id FROM {table.name} {alias} WHERE {self._of(fields, *NUMBERS)} >= {scalar}",
            f"SELECT {alias}.id FROM {table.name} {alias} WHERE {scalar} > 1",
            f"SELECT {alias}.id FROM {table.name} {alias} WHERE EXISTS (SELECT * FROM {other.name} {name} WHERE {link} "
            f"AND {self._test(inner)})",
            f"SELECT {alias}.id FROM {table.name} {alias} WHERE NOT EXISTS (SELECT {name}.id FROM {other.name} {name} "
            f"WHERE {link} GROUP BY {name}.id HAVING COUNT(*) > 1)",
            f"SELECT {alias}.id FROM {table.name} {alias} WHERE {alias}.id IN (SELECT {name}.ref FROM {other.name} "
            f"{name} WHERE {self._when(inner)})",
            f"SELECT {alias}.id FROM {table.name} {alias} ORDER BY {scalar} DESC, {alias}.id LIMIT 3",
        )

    def _named_window(self) -> str:
        table, alias, fields = self._table()
        number, part = self._of(fields, *NUMBERS), self._of(fields)
        call = self._one(
            *(
                "ROW_NUMBER()",
                "RANK()",
                f"SUM({number})",
                f"LAG({number}, 1, 0)",
                f"AVG({number})",
                "PERCENT_RANK()",
            ),
            *(f"NTH_VALUE({number}, 2)", f"MAX({part})"),
        )
        frame = self._one("", " RANGE UNBOUNDED PRECEDING", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING")
        window = f"(PARTITION BY {part} ORDER BY {alias}.id{frame})"
        source = f"{table.name} {alias}"
        return self._one(
            f"SELECT {alias}.id, {call} OVER w AS x FROM {source} WINDOW w AS {window}",
            f"SELECT {alias}.id, {call} OVER (w ORDER BY {alias}.id) AS x FROM {source} WINDOW w AS (PARTITION BY {part})",
            f"SELECT * FROM (SELECT {alias}.id, ROW_NUMBER() OVER {window} AS r FROM {source}) z WHERE z.r = 1",
            f"SELECT {part}, COUNT(*), RANK() OVER (ORDER BY COUNT(*) DESC) FROM {source} GROUP BY {part}",
            f"SELECT {part} AS k, SUM({number}) / SUM(SUM({number})) OVER () FROM {source} GROUP BY {part}",
        )

    def _having(self) -> str:
        table, alias, fields = self._table()
        number, key = self._of(fields, *NUMBERS), self._of(fields)
        bare = number.split(".")[1]
        source = f"FROM {table.name} {alias}"
        return self._one(
            f"SELECT MAX({number}) AS {bare} {source} HAVING {bare} > 1",
            f"SELECT {key}, MAX({number}) AS {bare} {source} GROUP BY {key} HAVING {bare} > 1 ORDER BY {bare}, {key}",
            f"SELECT {number} AS v {source} HAVING v > 1 ORDER BY v",
            f"SELECT {key} AS k, AVG({number}) AS a {source} GROUP BY k HAVING a >= (SELECT AVG({bare}) FROM {table.name})",
            f"SELECT COUNT(*) AS n {source} HAVING n > 2",
            f"SELECT {alias}.id, {number} + 1 AS id {source} ORDER BY id",
            f"SELECT {number} AS {key.split('.')[1]}, COUNT(*) AS n {source} GROUP BY {number}",
            f"SELECT DISTINCT {key} AS k {source} HAVING k IS NOT NULL ORDER BY k",
        )

    def _cast(self) -> str:
        table, alias, fields = self._table()
        type = self._one(
            "CHAR(3)", "CHAR", "SIGNED", "UNSIGNED", "DECIMAL(6,1)", "DATE", "DATETIME", "DOUBLE", "YEAR"
        )
        column = self._of(fields)
        shown = self._one(
            f"CAST({column} AS {type})", f"CONVERT({column}, {type})", f"CONVERT({column} USING utf8mb4)",
            f"CAST({self._text()} AS {type})", f"CONCAT(CAST({column} AS {type}), '!')", f"CONCAT({column}, '%')",
            f"FORMAT({self._of(fields, *NUMBERS)}, 2)", f"ROUND({self._of(fields, *NUMBERS)} / 3, 3)",
            f"EXTRACT({self._one('YEAR_MONTH', 'DAY_HOUR', 'WEEK')} FROM {self._of(fields, 'date', 'datetime')})",
            f"TIMESTAMPDIFF(MONTH, {self._of(fields, 'date', 'datetime')}, '2021-01-01')",
            f"{self._of(fields, 'date', 'datetime')} + INTERVAL {self.rng.randint(1, 40)} DAY",
        )  # fmt: skip
        return f"SELECT {alias}.id, {shown} AS x FROM {table.name} {alias}"

    def _pattern(self) -> str:
        table, alias, fields = self._table()
        text, any_ = self._of(fields, "text"), self._of(fields)
        test = self._one(
            f"{text} LIKE '%!_%' ESCAPE '!'", f"{text} LIKE '50|%' ESCAPE '|'", rf"{text} LIKE '50\%'",
            f"{text} NOT LIKE '%a%'", f"{text} RLIKE '^[A-Z]'", f"{text} NOT REGEXP '[[:digit:]]'",
            f"REGEXP_LIKE({text}, '^b', 'i')", rf"{text} REGEXP '\\d'", f"{any_} LIKE '%1%'", f"{any_} REGEXP '1'",
            f"{text} LIKE CONCAT('%', {self._text()}, '%')", f"LOWER({text}) = LOWER({self._text()})",
            f"{text} LIKE BINARY 'a%'", f"{text} = 'ann' COLLATE utf8mb4_bin", f"TRIM(BOTH ' ' FROM {text}) <> ''",
            f"SUBSTRING({text} FROM 2 FOR 2) = 'nn'", f"INSTR({text}, 'n') > 0", f"FIND_IN_SET({text}, 'Ann,Bob') > 0",
        )  # fmt: skip
        return f"SELECT {alias}.id FROM {table.name} {alias} WHERE {test}"

    def _places(self) -> str:
        source, fields, keys = self._from()
        cells = [self._of(fields), self.value(fields, 1)]
        order = self._one(
            "1, 2", "2 DESC, 1", f"-{keys[0]}", f"{cells[0]} IS NULL, {cells[0]}", f"LENGTH({cells[0]})"
        )
        limit = self._one("", f" LIMIT {self.rng.randint(0, 3)}, {self.rng.randint(1, 4)}")
        return f"SELECT {', '.join(cells)} {source} ORDER BY {order}, {', '.join(keys)}{limit}"

    def _rows_in(self) -> str:
        table, alias, fields = self._table()
        other, name, inner = self._table()
        column = self._of(fields, "int")
        return f"SELECT {alias}.id FROM {table.name} {alias} WHERE " + self._one(
            f"({alias}.id, {column}) IN ((1, 2), (2, 3), (3, NULL))",
            f"({alias}.id, {column}) = (1, 2)",
            f"({alias}.id, {column}) IN (SELECT {name}.id, {name}.ref FROM {other.name} {name})",
            f"{column} IN (SELECT {self._of(inner, 'int')} FROM {other.name} {name}) IS NOT TRUE",
            f"{column} NOT IN (SELECT {self._of(inner, 'int')} FROM {other.name} {name} WHERE {self._test(inner)})",
            f"{alias}.id = (SELECT MAX({name}.id) FROM {other.name} {name} WHERE {self._when(inner)})",
            f"ROW({alias}.id, {column}) = ROW(1, 2)",
        )

    def _constants(self) -> str:
        fields = [
            Field("1", "int"),
            Field("2.5", "decimal"),
            Field("'Ann'", "text"),
            Field("'2020-02-29'", "text"),
        ]
        shown = ", ".join(self.value(fields, 2) for _ in range(2))
        return f"SELECT {shown}{self._one('', ' FROM DUAL', ' WHERE 1 = 1', ' LIMIT 1')}"

    def _chosen(self) -> str:
        table, alias, fields = self._table()
        number, text = self._of(fields, *NUMBERS), self._of(fields, "text")
        cell = self._one(
            f"IF({self._test(fields)}, 'yes', 'no')",
            f"CASE {text} WHEN 'Ann' THEN 1 WHEN 'Bob' THEN 2 ELSE 3 END",
            f"CASE WHEN {self._when(fields)} THEN {number} ELSE 0 END",
            f"IFNULL(NULLIF({text}, ''), 'empty')",
            f"COALESCE({number}, {self._of(fields, *NUMBERS)}, 0)",
            f"GREATEST({number}, 2, {alias}.id)",
            f"ISNULL({number}) + 0",
            f"({number} > 2) + ({text} = 'Ann')",
            f"CONCAT_WS(' ', {text}, NULL, {number})",
            f"CONCAT({number}, ' of ', {text})",
            f"{number} MOD 3",
            f"{number} DIV 2",
            f"{number} & 3",
            f"REPLACE({text}, ',', '') + 0",
        )
        return f"SELECT {alias}.id, {cell} AS x FROM {table.name} {alias}"

    def _dates_in(self) -> str:
        """A constant date IN constants."""
        day, time, other = self.rng.choice(DATES), self.rng.choice(TIMES), self.rng.choice(DATES)
        short = other.replace("-0", "-")
        value = self._one(
            f"DATE '{day}'", f"TIMESTAMP '{time}'", f"DATE('{time}')", f"CAST('{day}' AS DATETIME)", f"LAST_DAY('{day}')",
            f"DATE_ADD(DATE '{day}', INTERVAL 1 DAY)", f"STR_TO_DATE('{day}', '%Y-%m-%d')", f"COALESCE(DATE '{day}', NULL)",
            f"IF(1, DATE '{day}', DATE '{other}')", f"CAST('{time}' AS DATE)", f"'{time}'", f"'{day}' + INTERVAL 1 DAY",
        )  # fmt: skip
        among = [
            f"'{day}'",
            f"'{short}'",
            f"'{time}'",
            f"DATE '{other}'",
            f"TIMESTAMP '{time}'",
            "'x'",
            "NULL",
        ]
        among += [day.replace("-", ""), f"'{day.replace('-', '')}'", f"'{day}x'", f"CONCAT('{other}', '')"]
        listed = ", ".join(self.rng.sample(among, self.rng.randint(1, 3)))
        test = self._one(
            f"{value} {self._one('', 'NOT ')}IN ({listed})",
            f"{value} BETWEEN {self.rng.choice(among)} AND {self.rng.choice(among)}",
            f"CASE {value} WHEN {self.rng.choice(among)} THEN 1 WHEN {self.rng.choice(among)} THEN 2 ELSE 3 END",
            f"FIELD({value}, {listed})",
            f"{value} {self._operator()} {self.rng.choice(among)}",
        )
        table, alias, _ = self._table()
        return self._one(f"SELECT {test}", f"SELECT {alias}.id FROM {table.name} {alias} WHERE {test}")

    def _constant_keys(self) -> str:
        """Rows sorted and grouped by constants, some of them places."""
        table, alias, fields = self._table()
        column = self._of(fields)
        key = self._one(
            *("--4", "- -2", "-(-9)", "-1", "(1)", "(2)", "+1", "+9", "1 + 0", "1.0", "'x'", "NOT 1", "TRUE"),
            *("NULL", "((2))", "-(1)", "- - -3", "9", "0", f"- -{alias}.id", f"-{alias}.id", "(SELECT 1)"),
        )
        word = self._one("", " DESC")
        source = f"FROM {table.name} {alias}"
        return self._one(
            f"SELECT {alias}.id, {column} {source} ORDER BY {key}{word}",
            f"SELECT {alias}.id, {column} {source} ORDER BY {key}{word}, {alias}.id LIMIT 2",
            f"SELECT {alias}.id, COUNT(*) {source} GROUP BY {key}",
            f"SELECT COUNT(*), MAX({alias}.id) {source} GROUP BY {key}",
            f"SELECT {alias}.id, SUM({alias}.id) OVER (ORDER BY {key}{word}) {source}",
            f"SELECT {alias}.id, COUNT(*) OVER (PARTITION BY {key}) {source}",
            f"SELECT {alias}.id {source} UNION SELECT 3 ORDER BY {key}",
            f"SELECT GROUP_CONCAT({alias}.id ORDER BY {key}{word}) {source}",
            f"DELETE {source.removesuffix(alias)}ORDER BY {key.replace(alias + '.', '')}, id LIMIT 1",
        )

    def _sides(self) -> str:
        """UNION of columns of different types, some of them chosen."""
        sides = []
        for _ in range(self.rng.choice((2, 2, 3))):
            table, alias, fields = self._table()
            cell, other = self._of(fields), self._of(fields)
            shown = self._one(
                *(cell, f"COALESCE({cell}, {other})", f"COALESCE({cell})", f"IFNULL({cell}, 'x')"),
                *(f"IF({alias}.id > 2, {cell}, {other})", f"MAX({cell})", "NULL", "1", "0.1", "'2020-1-1'"),
            )
            sides.append(f"SELECT {shown} AS x FROM {table.name} {alias}")
        joined = self._one(" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT ").join(sides)
        return self._one(joined, joined, f"SELECT COUNT(DISTINCT u.x), MAX(u.x) FROM ({joined}) u")

    def _negated(self) -> str:
        """NOT of a subquery that may have several rows, or none."""
        table, alias, fields = self._table()
        other, name, inner = self._table()
        where = self._one(
            "", f" WHERE {self._test(inner)}", f" WHERE {name}.id = {alias}.id", f" WHERE {name}.id = 3"
        )
        rows = f"(SELECT {self._of(inner)} FROM {other.name} {name}{where})"
        test = self._one(
            f"NOT {rows}", f"NOT ({rows})", f"!{rows}", rows, f"NOT ({rows} > 1)", f"NOT NOT {rows}", f"NOT -{rows}",
            f"NOT ({rows} IS NULL)", f"{rows} IS NOT TRUE", f"NOT {rows} = 2", f"NOT ({rows} = {self._of(fields)})",
        )  # fmt: skip
        source = f"FROM {table.name} {alias}"
        return self._one(
            f"SELECT {alias}.id {source} WHERE {test}",
            f"SELECT {alias}.id, {test} AS x {source}",
            f"SELECT {alias}.id {source} WHERE {self._test(fields)} AND {test}",
            f"SELECT z.id FROM (SELECT {alias}.id {source} WHERE {self._test(fields)}) z WHERE "
            f"{test.replace(alias + '.', 'z.')}",
            f"SELECT IF({test}, 1, 2)".replace(f"{alias}.", "1 + "),
            f"SELECT COUNT(*) {source} HAVING {test}",
        )

    def _bytes(self) -> str:
        """Character sets, codes of characters, and bytes."""
        charset = self._one("utf8mb4", "utf8", "ucs2", "latin1", "ascii", "nope", "binary", "utf16")
        table, alias, fields = self._table()
        cell = self._of(fields, "text")
        code = self._one(
            "65", "0x41", "0xC3A4", "0xD83D", "233", "65.6", "'66'", "NULL", "X'42'", "256", "-1"
        )
        shown = self._one(
            f"CHAR({code} USING {charset})", f"CHAR(72, {code}, 105 USING utf8mb4)", f"CONVERT({cell} USING {charset})",
            f"CAST({cell} AS CHAR CHARACTER SET {charset})", f"CAST({cell} AS CHAR(2))", "0x4142", "HEX(0x41)",
            f"{cell} = 0x78", "0x41 + 1", f"_{charset}'a'", "_utf8mb4'ä'", "b'101'", "CONCAT(0x41, 'b')",
            f"HEX({cell})", f"ORD({cell})", f"LENGTH(CONVERT({cell} USING {charset}))",
        )  # fmt: skip
        return f"SELECT {shown} AS x FROM {table.name} {alias}"

    def _floats(self) -> str:
        """Columns of numbers beside each other, as texts, in groups and in subqueries."""
        (table, alias, fields), (other, name, inner) = self._table(), self._table()
        f, n = self._of(fields, "float"), self._of(fields, *NUMBERS)
        g, m = self._of(inner, "float"), self._of(inner, *NUMBERS)
        constant = self._one("0.1", "'0.1'", "1.1e0", "99.99", "2", "CAST(1.1 AS FLOAT)", "-3.3")
        source = f"FROM {table.name} {alias}"
        cell = self._one(
            f, f"{f} + {n}", f"CONCAT({f})", f"IF({n} > 1, {f}, {n})", f"COALESCE({f}, {n})", f"COALESCE({f}, {constant})",
            f"CASE WHEN {n} > 1 THEN {f} ELSE 0 END", f"CAST({f} AS CHAR)", f"CAST({f} AS DECIMAL(12,4))", f"GREATEST({f}, {n})",
            f"LEAST({f}, {constant})", f"CONCAT(IF({n} > 1, {f}, 'x'))", f"IFNULL({f}, 'none')", f"ROUND({f}, 1)", f"{f} LIKE '%1'",
            f"{f} {self._operator()} {constant}", f"{f} IN ({constant}, {n})", f"NULLIF({f}, {constant})", f"LENGTH({f})",
            f"CAST({n} AS FLOAT)", f"CONCAT(CAST({n} AS FLOAT))", f"{f} BETWEEN {constant} AND {n}", f"REPLACE({f}, '.', ',')",
            f"(SELECT MAX({g}) FROM {other.name} {name})", f"FORMAT({f}, 2)", f"TRUNCATE({f}, 1)", f"{f} DIV 1", f"{f} % 1",
            f"LAG({f}) OVER (ORDER BY {alias}.id)", f"SUM({f}) OVER (ORDER BY {alias}.id)", f"FIELD({f}, {constant}, {n})",
        )  # fmt: skip
        fold = self._one(
            f"SUM({f})", f"AVG({f})", f"MAX({f})", f"GROUP_CONCAT({f} ORDER BY {f})", f"COUNT(DISTINCT {f})", f"MIN({f}) + 0",
            f"GROUP_CONCAT(DISTINCT COALESCE({f}, 0) ORDER BY 1)", f"SUM(DISTINCT {f})", f"MAX({f}) = {constant}",
            f"CONCAT(MAX({f}), 'x')", f"ROUND(AVG({f}), 2)", f"MAX(IF({n} > 1, {f}, 0))", f"COALESCE(SUM({f}), 0)",
        )  # fmt: skip
        bare = [each.split(".")[1] for each in (f, n)]
        return self._one(
            f"SELECT {alias}.id, {cell} AS x {source}",
            f"SELECT {alias}.id, {cell} AS x {source} WHERE {f} {self._operator()} {constant}",
            f"SELECT z.x, z.x + 0, CONCAT(z.x) FROM (SELECT {cell} AS x {source}) z",
            f"SELECT {fold} {source}",
            f"SELECT {n}, {fold} {source} GROUP BY {n}",
            f"SELECT {f}, COUNT(*) {source} GROUP BY {f} ORDER BY {f}",
            f"SELECT DISTINCT {f} {source} ORDER BY {f} DESC",
            f"SELECT {f} {source} {self._one('UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT')} SELECT {m} FROM {other.name} {name}",
            f"SELECT {alias}.id, {name}.id {source} JOIN {other.name} {name} ON {f} = {m}",
            f"SELECT {alias}.id {source} WHERE {f} IN (SELECT {m} FROM {other.name} {name})",
            f"SELECT {alias}.id {source} WHERE {n} = ANY (SELECT {g} FROM {other.name} {name})",
            f"UPDATE {table.name} SET {bare[1]} = {bare[0]}",
            f"UPDATE {table.name} SET {bare[0]} = {bare[0]} * 1.1 WHERE {bare[0]} > {constant}",
            f"UPDATE {table.name} SET {self._of(fields[1:]).split('.')[1]} = {bare[0]}",
            f"INSERT INTO {table.name} (id, {bare[0]}) SELECT {name}.id + 50, {m} FROM {other.name} {name}",
            f"DELETE FROM {table.name} WHERE {bare[0]} = {constant}",
        )

    # --- changes ------------------------------------------------------------------------------------------

    def _update_join(self) -> str:
        (table, alias, fields), (other, name, inner) = self._table(), self._table()
        kind = self._one("int", "text", "date")
        new = self._one(self._of(inner, kind), self.constant(kind), f"{alias}.id + {name}.id")
        sets = f"SET {self._of(fields[1:], kind)} = {new}"
        where = self._one("", f" WHERE {self._test(inner)}", f" WHERE {self._when(fields)}")
        counts = f"(SELECT ref, COUNT(*) AS n FROM {other.name} GROUP BY ref) {name}"
        return self._one(
            f"UPDATE {table.name} {alias} JOIN {other.name} {name} ON {name}.id = {alias}.ref {sets}{where}",
            f"UPDATE {table.name} {alias}, {other.name} {name} {sets} WHERE {name}.id = {alias}.ref",
            f"UPDATE {table.name} {alias} LEFT JOIN {other.name} {name} ON {name}.id = {alias}.ref {sets}{where}",
            f"UPDATE {table.name} {alias} JOIN {counts} ON {name}.ref = {alias}.id SET {alias}.ref = {name}.n",
        )

    def _update_alias(self) -> str:
        table, alias, fields = self._table()
        kind = self._one(*NUMBERS, "text", "date")
        column, other = self._of(fields[1:], kind), self._of(fields[1:])
        maximum = f"(SELECT MAX(x.id) FROM {self.rng.choice(self.world).name} x)"
        new = self._one(
            self.constant(kind), f"{column} + 1", "NULL", f"CASE WHEN {self._test(fields)} THEN {column} ELSE NULL END",
            f"IFNULL({column}, {self.constant(kind)})", maximum, f"CONCAT({column}, 'x')", f"ROUND({column} * 1.1, 1)",
            f"IF({self._when(fields)}, {column}, {self.constant(kind)})",
        )  # fmt: skip
        more = self._one("", "", f", {other} = NULL", f", {self._of(fields[1:], 'text')} = {self._text()}")
        where = self._one(
            f" WHERE {self._test(fields)}", f" WHERE {self._when(fields)}", f" WHERE {alias}.id = 2", ""
        )
        return f"UPDATE {table.name} {self._one('', 'AS ')}{alias} SET {column} = {new}{more}{where}"

    def _insert_rows(self) -> str:
        table = self.rng.choice(self.world)
        fields = fields_of(table, "t")
        field = self.rng.choice(fields[1:])
        column, other = field.name.split(".")[1], self.rng.choice(self.world).name
        cell = self._one(
            self.constant(field.kind), "NULL", "1 + 2", "DEFAULT", f"(SELECT MAX(ref) FROM {other})"
        )
        rows = [(self.rng.randint(7, 14), self.constant(field.kind)) for _ in range(2)]
        rows.append((self.rng.randint(1, 14), cell))
        verb = self._one("INSERT INTO", "INSERT", "INSERT IGNORE INTO", "REPLACE INTO", "insert into")
        values = ", ".join(f"({key}, {value})" for key, value in rows)
        return f"{verb} {table.name} (id, {column}) {self._one('VALUES', 'VALUE')} {values}"

    def _insert_select(self) -> str:
        table, (other, alias, fields) = self.rng.choice(self.world), self._table()
        number = self._of(fields, "int")
        return f"INSERT INTO {table.name} (id, ref) " + self._one(
            f"SELECT {alias}.id + 50, {number} FROM {other.name} {alias} WHERE {self._test(fields)}",
            f"SELECT MAX({alias}.id) + 60, COUNT(*) FROM {other.name} {alias}",
            f"SELECT {alias}.id + 70, COUNT(*) FROM {other.name} {alias} WHERE {self._when(fields)} GROUP BY {alias}.id",
            f"SELECT {alias}.id + 80, {number} FROM {other.name} {alias} ORDER BY {alias}.id DESC LIMIT 2",
            f"SELECT 90, {self.rng.randint(1, 9)} UNION ALL SELECT 91, NULL",
            f"SELECT 92, 1 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {other.name} {alias} WHERE {self._test(fields)})",
        )

    def _insert_set(self) -> str:
        table = self.rng.choice(self.world)
        field = self.rng.choice(fields_of(table, "t")[1:])
        name = field.name.split(".")[1]
        verb = self._one("INSERT INTO", "REPLACE INTO")
        return f"{verb} {table.name} SET id = {self.rng.randint(1, 14)}, {name} = {self.constant(field.kind)}"

    def _delete_some(self) -> str:
        table = self.rng.choice(self.world)
        fields = [Field(each.name.split(".")[1], each.kind) for each in fields_of(table, "t")]
        where = self._one("", f" WHERE {self._test(fields)}", f" WHERE {self._when(fields)}")
        order = self._one("id", "id DESC", f"{self._of(fields)}, id", f"{self._of(fields)} IS NULL, id DESC")
        return f"DELETE FROM {table.name}{where} ORDER BY {order} LIMIT {self.rng.randint(1, 3)}"

    def _delete_join(self) -> str:
        (table, alias, fields), (other, name, inner) = self._table(), self._table()
        where = self._one("", f" WHERE {self._test(inner)}", f" WHERE {self._when(fields)}")
        join = f"{table.name} {alias} JOIN {other.name} {name} ON {name}.ref = {alias}.id"
        left = f"{table.name} {alias} LEFT JOIN {other.name} {name} ON {name}.ref = {alias}.id"
        return self._one(
            f"DELETE {alias} FROM {join}{where}",
            f"DELETE {alias} FROM {left} WHERE {name}.id IS NULL",
            f"DELETE FROM {alias} USING {join}{where}",
            f"DELETE {alias}, {name} FROM {join}{where}",
        )

    def _delete_listed(self) -> str:
        table, (other, alias, fields) = self.rng.choice(self.world), self._table()
        picked = f"SELECT {self._of(fields, 'int')} FROM {other.name} {alias} WHERE {self._test(fields)}"
        return f"DELETE FROM {table.name} WHERE id " + self._one(
            f"IN ({picked})",
            f"NOT IN ({picked})",
            f"IN (SELECT * FROM ({picked}) z)",
            f"= (SELECT MAX({alias}.id) FROM {other.name} {alias})",
            f"> ALL ({picked})",
            "BETWEEN '2' AND 4",
            "IN ('1', '3')",
        )

    def _duplicate(self) -> str:
        table = self.rng.choice(self.world)
        key, value = self.rng.randint(1, 9), self.rng.randint(1, 9)
        rows = f"INSERT INTO {table.name} (id, ref) VALUES ({key}, {value}), ({key + 1}, NULL)"
        return self._one(
            f"{rows} ON DUPLICATE KEY UPDATE ref = VALUES(ref)",
            f"{rows} ON DUPLICATE KEY UPDATE ref = IFNULL(ref, 0) + VALUES(id)",
            f"{rows} AS new ON DUPLICATE KEY UPDATE ref = new.ref",
            f"{rows} ON DUPLICATE KEY UPDATE id = id + 100",
        )
