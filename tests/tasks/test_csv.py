"""CSV files as programs write them, above all Excel in Germany: what is told of them, and that no value changes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from trl_dbbench.data.convert import convert
from trl_dbbench.data.demonstrations import gold_actions
from trl_dbbench.data.generate.imported import import_from, usable
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer, TextProtocol, get_protocol
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.grading import grade
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks
from trl_dbbench.tasks.csv_tables import CsvOptions, read_csv_tables
from trl_dbbench.tasks.table import check_new_names


def read(tmp_path: Path, content: str | bytes, **options) -> tuple[Table, list[str]]:
    path, notes = tmp_path / "t.csv", list[str]()
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (table,) = read_csv_tables([path], CsvOptions(**options), notes.append).values()
    return table, [note.removeprefix(f"{path}: ") for note in notes]


def shown(table: Table) -> list[str]:
    return [f"{column.name} {column.type}" for column in table.columns]


GERMAN = (
    "Kunde;Straße;PLZ;Umsatz;Anteil;Datum;Anzahl\r\n"
    "Müller;Weg 1;01067;1.234,50;0,125;31.12.2024;3\r\n"
    "Özil;Weg 2;10115;-7,00;0,5;01.02.2024;\r\n"
)


@pytest.mark.parametrize(
    ("cells", "type", "kept", "note"),
    [
        (["4/13/2025", "1/2/2025"], "DATE", ["2025-04-13", "2025-01-02"], "months stand before days"),
        (["13/4/2025", "1/2/2025"], "DATE", ["2025-04-13", "2025-02-01"], "days stand before months"),
        (["13-4-2025"], "DATE", ["2025-04-13"], "days stand before months"),
        (["4/13/2025 9:05", "4/14/2025 13:30"], "DATETIME", ["2025-04-13 09:05:00", "2025-04-14 13:30:00"], "months"),
        (["4/13/2025 12:05 AM", "4/13/2025 1:05:07 pm"], "DATETIME", ["2025-04-13 00:05:00", "2025-04-13 13:05:07"], ""),
        (["4/3/2025", "1/2/2025"], "TEXT", ["4/3/2025", "1/2/2025"], "cannot be told from '4/3/2025'"),
        (["4/13/2025", "13/4/2025"], "TEXT", ["4/13/2025", "13/4/2025"], None),
        (["3.4.2025"], "DATE", ["2025-04-03"], "days stand before months"),
        (["4.13.2025"], "TEXT", ["4.13.2025"], None),
        (["2025/4/3", "2025/11/30"], "DATE", ["2025-04-03", "2025-11-30"], "months stand before days"),
        (["2025/4/3 9:05", "2025/4/4 13:30"], "DATETIME", ["2025-04-03 09:05:00", "2025-04-04 13:30:00"], "months"),
        (["2025-11-30", "2025-4-3"], "DATE", ["2025-11-30", "2025-04-03"], "months stand before days: '2025-4-3' is"),
        (["2025-4-3 9:05", "2025-11-30 13:30:10"], "DATETIME", ["2025-04-03 09:05:00", "2025-11-30 13:30:10"], "months"),
        (["2025-11-30 1:05 PM"], "TEXT", ["2025-11-30 1:05 PM"], None),
        (["2025-4/3"], "TEXT", ["2025-4/3"], None),
        (["2025-13-3"], "TEXT", ["2025-13-3"], None),
        (["12/31/24", "1/2/25"], "TEXT", ["12/31/24", "1/2/25"], "'12/31/24' is perhaps a day; kept as TEXT"),
        (["31-DEC-24", "01-JAN-25"], "TEXT", ["31-DEC-24", "01-JAN-25"], "'31-DEC-24' is perhaps a day"),  # Oracle
        (["31JAN2024", "n/a"], "TEXT", ["31JAN2024", "n/a"], "'31JAN2024' is perhaps a day"),  # SAS, Stata
        (["1/2", "12/31/24"], "TEXT", ["1/2", "12/31/24"], None),
        (["2025/13/3"], "TEXT", ["2025/13/3"], None),
        (["2025/4/3", "4/13/2025"], "TEXT", ["2025/4/3", "4/13/2025"], None),
        (["2025.1.3"], "TEXT", ["2025.1.3"], None),
        (["12.5%", "7 %"], "TEXT", ["12.5%", "7 %"], "'12.5%' is a number with a sign; kept as TEXT"),
        (["$1,234.50", "-$7.00", "$0.99"], "TEXT", ["$1,234.50", "-$7.00", "$0.99"], "'$1,234.50' is a number"),
        (["12 €", "n/a", "7"], "TEXT", ["12 €", "n/a", "7"], "'12 €' is a number with a sign"),
        (["R$ 12.50", "-R$ 2.00"], "TEXT", ["R$ 12.50", "-R$ 2.00"], "'R$ 12.50' is a number with a sign"),
        (["CHF 12.50", "7.25 kr"], "TEXT", ["CHF 12.50", "7.25 kr"], "'CHF 12.50' is a number with a sign"),
        (["5%", "five"], "TEXT", ["5%", "five"], None),
        (["1.5", "-inf"], "TEXT", ["1.5", "-inf"], "'-inf' is no number on a server; kept as TEXT"),
        (["3", "NaN", "Infinity"], "TEXT", ["3", "NaN", "Infinity"], "'Infinity' is no number on a server"),
        (["inf", "sup"], "TEXT", ["inf", "sup"], None),
    ],
)  # fmt: skip
def test_what_excel_writes_in_english(
    tmp_path: Path, cells: list[str], type: str, kept: list, note: str | None
) -> None:
    lines = "".join(f'{number},"{cell}"\n' for number, cell in enumerate(cells))
    table, notes = read(tmp_path, f"id,value\n{lines}")
    assert shown(table) == ["id INT", f"value {type}"]
    assert [row[1] for row in table.rows] == kept
    assert notes == [] if note is None else note in "\n".join(notes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_what_excel_writes_in_german(tmp_path: Path, encoding: str) -> None:
    table, notes = read(tmp_path, GERMAN.encode(encoding))
    assert shown(table) == [
        *("Kunde TEXT", "Straße TEXT", "PLZ TEXT"),
        *("Umsatz DECIMAL(10,2)", "Anteil DOUBLE", "Datum DATE", "Anzahl INT"),
    ]
    assert table.rows == (
        ("Müller", "Weg 1", "01067", "1234.50", 0.125, "2024-12-31", 3),
        ("Özil", "Weg 2", "10115", "-7.00", 0.5, "2024-02-01", None),
    )
    told = {
        "cp1252": "it is not UTF-8, and was read as cp1252",
        "utf-16-le": "read as utf-16-le",
        "utf-16": "read as utf-16",
    }
    assert told.get(encoding, "cells are separated by semicolons") in "\n".join(notes)
    assert notes[-4:] == [
        "cells are separated by semicolons",
        "t.Umsatz: decimal commas are read as points: '1.234,50' is 1234.50",
        "t.Anteil: decimal commas are read as points: '0,125' is 0.125",
        "t.Datum: days stand before months: '31.12.2024' is 2024-12-31",
    ]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("id;name\n1;a,b\n2;c\n", ["id INT", "name TEXT"]),
        ("id,tags\n1,a;b\n2,c;d\n", ["id INT", "tags TEXT"]),
        ("id\tname\n1\ta\n", ["id INT", "name TEXT"]),
        ("id|name\n1|a\n", ["id INT", "name TEXT"]),
        ("sep=;\nid;name\n1;a\n", ["id INT", "name TEXT"]),
        ('id;"a;b"\n1;"x;y"\n', ["id INT", "a;b TEXT"]),
        ("name\na b\n", ["name TEXT"]),
        ("preis;menge,stk\n1,5;3\n2,5;4\n", ["preis DOUBLE", "menge,stk INT"]),
    ],
)
def test_the_delimiter_is_the_one_that_divides_all_rows_like_the_header(
    tmp_path: Path, content: str, columns: list[str]
) -> None:
    assert shown(read(tmp_path, content)[0]) == columns


def test_a_row_that_does_not_fit_is_named_by_the_delimiter_of_the_header(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="line 3: has 2 cells, the header 3 columns"):
        read(tmp_path, "a;b;c\n1;2;3\n1;2\n")


@pytest.mark.parametrize(
    ("cells", "type", "kept", "note"),
    [
        (["1.10", "2.35"], "DECIMAL(10,2)", ["1.10", "2.35"], None),
        (["1.10", "2.5"], "DECIMAL(10,2)", ["1.10", "2.5"], "its numbers all get 2 digits behind the point"),
        (["1E5", "2E6"], "TEXT", ["1E5", "2E6"], "'1E5' may be a number or a name"),
        (["1E5", "1e400"], "TEXT", ["1E5", "1e400"], "'1e400' is beyond a DOUBLE; kept as TEXT"),
        (["9007199254740993", "1"], "BIGINT", [9007199254740993, 1], None),
        (
            ["9007199254740993", "0.5"],
            "TEXT",
            ["9007199254740993", "0.5"],
            "more than 15 digits are kept as TEXT",
        ),
        (["18446744073709551615"], "TEXT", ["18446744073709551615"], "more than 64 bits are kept as TEXT"),
        (["3", "NA", "5"], "INT", [3, None, 5], "'NA' (1 cells) is read as NULL"),
        (
            ["2024-01-02", "NULL", "n/a"],
            "DATE",
            ["2024-01-02", None, None],
            "'NULL', 'n/a' (2 cells) is read as NULL",
        ),
        (
            ["1.5", "..", "\u2013", ":"],
            "DOUBLE",
            [1.5, None, None, None],
            "'..', ':', '\u2013' (3 cells) is read",
        ),
        (["DE", "NA"], "TEXT", ["DE", "NA"], None),
        (
            ["Ann", r"\N"],
            "TEXT",
            ["Ann", r"\N"],
            r"'\\N' (1 cells) is kept as a text; leave such cells empty",
        ),
        (["5", "[NULL]", "(null)"], "INT", [5, None, None], "'(null)', '[NULL]' (2 cells) is read as NULL"),
        (["(1,234.50)", "7.10"], "TEXT", ["(1,234.50)", "7.10"], "'(1,234.50)' is a number with a sign"),
        (["007", "8"], "TEXT", ["007", "8"], None),
        (["-0", "1"], "INT", [0, 1], "negative zeros are read as 0"),
        (["1.5", "-0.0", "10.25"], "DOUBLE", [1.5, 0.0, 10.25], "negative zeros are read as 0"),
        (["-0", "x"], "TEXT", ["-0", "x"], None),
        (
            ["2024-01-02T03:04", "2024-01-02 05:06:07"],
            "DATETIME",
            ["2024-01-02 03:04:00", "2024-01-02 05:06:07"],
            "times are written as MySQL does: '2024-01-02T03:04' is '2024-01-02 03:04:00'",
        ),
        (["01/02/2024"], "TEXT", ["01/02/2024"], "whether days or months come first cannot be told"),
        (["-0.00", "1.25"], "DECIMAL(10,2)", ["0.00", "1.25"], "negative zeros are read as 0"),
        (
            ["1,234.50", "7.10"],
            "DECIMAL(10,2)",
            ["1234.50", "7.10"],
            "the marks between thousands are left out: '1,234.50' is 1234.50",
        ),
        (["1'234.50", "12'345'678.10"], "DECIMAL(10,2)", ["1234.50", "12345678.10"], "is 1234.50"),
        (["1\u2019234", "12"], "INT", [1234, 12], "'1\u2019234' is 1234"),
        (["1 234", "567"], "INT", [1234, 567], "'1 234' is 1234"),
        (["123 456", "234 567"], "TEXT", ["123 456", "234 567"], None),
        (["501 123 456", "501123457"], "TEXT", ["501 123 456", "501123457"], None),
        (["1,234", "567"], "TEXT", ["1,234", "567"], "'1,234' may be a whole number or a fraction"),
        (["1,234,567", "12,345"], "INT", [1234567, 12345], "'1,234,567' is 1234567"),
        (["1.234.567", "890"], "INT", [1234567, 890], "'1.234.567' is 1234567"),
    ],
)
def test_no_value_changes_without_a_note(
    tmp_path: Path, cells: list[str], type: str, kept: list, note: str | None
) -> None:
    table, notes = read(tmp_path, "a,b\n" + "".join(f'"{cell}",x\n' for cell in cells))
    assert table.columns[0] == Column("a", type)
    assert [row[0] for row in table.rows] == kept
    assert [repr(row[0]) for row in table.rows] == list(map(repr, kept))
    assert (note in "\n".join(notes)) if note else notes == []


def test_a_point_may_group_where_commas_are_decimal(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "umsatz;stück\n1,5;1.234\n2,5;2.500\n")
    assert table.rows == ((1.5, "1.234"), (2.5, "2.500"))
    assert notes[-1] == "t.stück: '1.234' may be a whole number or a fraction; kept as TEXT"
    table, notes = read(tmp_path, "preis;umsatz\n1,5;1.234\n2,5;567\n3,5;12.345\n")
    assert [row[1] for row in table.rows] == ["1.234", "567", "12.345"], "567 beside them groups nothing"
    table, notes = read(tmp_path, "umsatz;ort\n1.234;a\n567;b\n")
    assert [row[0] for row in table.rows] == ["1.234", "567"] and "kept as TEXT" in notes[-1]
    assert read(tmp_path, "umsatz;ort\n1.25;a\n567;b\n")[0].columns[0].type == "DOUBLE"


def test_decimal_commas_in_quotes_between_commas(tmp_path: Path) -> None:
    content = 'product,price,stock\nChair,"1.234,50",1.250\nDesk,"99,90",12.000\nLamp,"5,00",2.500\n'
    table, notes = read(tmp_path, content)
    assert shown(table) == ["product TEXT", "price DECIMAL(10,2)", "stock TEXT"]
    assert [row[1:] for row in table.rows] == [("1234.50", "1.250"), ("99.90", "12.000"), ("5.00", "2.500")]
    assert notes == [
        "t.price: decimal commas are read as points: '1.234,50' is 1234.50",
        "t.stock: '1.250' may be a whole number or a fraction; kept as TEXT",
    ]
    table, _ = read(tmp_path, 'pop,ids,height\n"1,234","1,2",2.5\n"5,678","3,4",1.5\n')
    assert shown(table) == ["pop TEXT", "ids TEXT", "height DOUBLE"], "the point is the decimal one"


def test_several_points_group_where_commas_are_decimal(tmp_path: Path) -> None:
    table, _ = read(tmp_path, "preis;einwohner\n1,5;1.234.567\n2,5;890.123\n")
    assert table.rows == ((1.5, 1234567), (2.5, 890123))


@pytest.mark.parametrize("other", ["1.50", "7", "a"])
@pytest.mark.parametrize("delimiter", ["\t", "|"])
def test_a_comma_may_group_where_no_column_says_that_it_is_decimal(
    tmp_path: Path, delimiter: str, other: str
) -> None:
    """As where Excel in the United States writes tabs."""
    content = "pop;x\n1,234;OTHER\n567;2\n12,345;3\n".replace(";", delimiter)
    sure, content = content.replace("OTHER", "1,5"), content.replace("OTHER", other)
    table, notes = read(tmp_path, content)
    assert [row[0] for row in table.rows] == ["1,234", "567", "12,345"]
    assert "t.pop: '1,234' may be a whole number or a fraction; kept as TEXT" in notes
    assert [row[0] for row in read(tmp_path, content, types={"pop": "INT"})[0].rows] == [1234, 567, 12345]
    assert [row[0] for row in read(tmp_path, sure)[0].rows] == [1.234, 567, 12.345]


def test_a_comma_may_group_where_points_are_decimal(tmp_path: Path) -> None:
    table, _ = read(tmp_path, "rate;pop;height\n52.5;1,234;1.234\n48.25;567;2.500\n")
    assert table.rows == ((52.5, "1,234", "1.234"), (48.25, "567", "2.500"))
    table, _ = read(tmp_path, "day;height\n31.12.2024;1,234\n1.2.2025;2,500\n")
    assert table.rows == (("2024-12-31", "1.234"), ("2025-02-01", "2.500"))


@pytest.mark.parametrize("mark", [" ", "\u00a0", "\u202f", "'", "."])
def test_marks_between_thousands_where_decimals_have_commas(tmp_path: Path, mark: str) -> None:
    table, notes = read(tmp_path, f"nom;prix\nA;1{mark}234,50\nB;12{mark}345{mark}678,00\nC;7,10\n")
    assert shown(table)[1] == "prix DECIMAL(10,2)"
    assert [row[1] for row in table.rows] == ["1234.50", "12345678.00", "7.10"]
    assert notes[-1].startswith("t.prix: decimal commas are read as points: ")


def test_points_may_group_beside_cells_without_a_value(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "preis;menge\n1,5;1.234\n2,5;NA\n3,5;12.345\n")
    assert table.rows == ((1.5, "1.234"), (2.5, "NA"), (3.5, "12.345"))
    assert [note for note in notes if note.startswith("t.menge")] == [
        "t.menge: '1.234' may be a whole number or a fraction; kept as TEXT"
    ]


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ('1, "two, or three"', (1, "two, or three")),  # quotes after a blank
        ('"x, ", lead', ("x, ", " lead")),  # a blank after the delimiter of a quoted cell
    ],
)
def test_blanks_before_quotes(tmp_path: Path, line: str, cells: tuple) -> None:
    assert read(tmp_path, f"a,b\n{line}\n")[0].rows == (cells,)


def test_blanks_after_each_delimiter(tmp_path: Path) -> None:
    assert read(tmp_path, "age, work, sex\n39, State-gov, F\n50, ,\n")[0].rows == (
        (39, "State-gov", "F"),
        (50, None, None),
    )
    assert read(tmp_path, "age,work\n39, State-gov\n")[0].rows == ((39, " State-gov"),)
    assert read(tmp_path, "line\n  a\n b\n")[0].rows == (("  a",), (" b",))


def test_a_delimiter_at_the_end_of_each_row(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "id;name\n1;A;\n2;B;\n")
    assert table.rows == ((1, "A"), (2, "B"))
    assert notes == ["cells are separated by semicolons"]
    with pytest.raises(TaskError, match=r"line 2: has 4 cells, the header 3 columns.*delete the lines above"):
        read(tmp_path, "id,name,note\n1,Ann, Berg,\n2,B,x\n")


def test_last_cells_that_are_empty_in_sixteen_rows_of_excel(tmp_path: Path) -> None:
    rows = [*(f"{n},A,x" for n in range(1, 16)), *(f"{n},B" for n in range(16, 32)), "32,C,", "33,C,y"]
    table, _ = read(tmp_path, "\n".join(["id,name,note", *rows, ""]))
    assert [row[2] for row in table.rows] == ["x"] * 15 + [None] * 17 + ["y"]
    for broken in ([*rows[:15], "16,B,", "17,B", *rows[17:]], [*rows[:15], "16,B"]):
        with pytest.raises(TaskError, match=r"line 1[78]: has 2 cells, the header 3 columns"):
            read(tmp_path, "\n".join(["id,name,note", *broken, ""]))


def test_a_colon_may_be_part_of_a_name(tmp_path: Path) -> None:
    table, _ = read(tmp_path, "dc:title,geo:lat,net:gross (EUR)\na,1.5,2\n")
    assert shown(table) == ["dc:title TEXT", "geo:lat DOUBLE", "net:gross (EUR) INT"]
    for header in ("price:DECIMALL", "price:decmal(10,2)"):
        with pytest.raises(TaskError, match=r"unknown type '(DECIMALL|decmal)' of the column 'price'"):
            read(tmp_path, f'"{header}"\n1\n')
    with pytest.raises(ConfigError, match="'decmal' is not a type for the column 'price'"):
        read(tmp_path, "price\n1\n", types={"price": "decmal"})


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("dc:title,dc:date", ["dc:title INT", "dc:date INT"]),
        ("source,Source:date", ["source INT", "Source:date INT"]),
        ("made:int,source:date", ["made INT", "source DATE"]),
        ("dc:title,dc:DATE", ["dc:title INT", "dc DATE"]),
        ("dc:title,dc:varchar(9)", ["dc:title INT", "dc VARCHAR(9)"]),
    ],
)
def test_a_type_in_small_letters_beside_names_with_the_same_beginning(
    tmp_path: Path, header: str, columns: list[str]
) -> None:
    cell = "2024-01-01" if columns[1].endswith("DATE") else "2024"
    assert shown(read(tmp_path, f"{header}\n1,{cell}\n")[0]) == columns


@pytest.mark.parametrize("cells", ['="007"', '"=""007"""'])
def test_excels_formula_of_a_text_is_that_text(tmp_path: Path, cells: str) -> None:
    table, notes = read(tmp_path, f'="plz",n,="t"\n{cells},="1",a\n8,2,"=""say """"x"""""""\n="",3,="b\n')
    assert table.rows == (("007", "1", "a"), ("8", "2", 'say "x"'), (None, "3", '="b'))
    assert shown(table) == ["plz TEXT", "n TEXT", "t TEXT"]
    assert 't.plz: ="007" is read as a text, as by Excel' in notes
    assert read(tmp_path, f'plz:INT\n{cells}\n="12"\n', types={"plz": "TEXT"})[0].rows == (("007",), ("12",))


def test_quotes_between_tabs_that_do_not_pair_are_characters(tmp_path: Path) -> None:
    path, notes = tmp_path / "t.tsv", list[str]()
    path.write_text('id\tname\n1\t5" pipe\n2\t"quoted\n3\t"a" b\n')
    (table,) = read_csv_tables([path], note=notes.append).values()
    assert table.rows == ((1, '5" pipe'), (2, '"quoted'), (3, '"a" b'))
    odd = "the quotes of line {} do not pair: all quotes are characters of the cells"
    assert notes == [f"{path}: {odd.format(3)}"]
    path.write_text('sep=\t\nid\tname\n1\t"a\tb"\n2\t"c" d\n')
    with pytest.raises(TaskError, match=f"line 3: has 3 cells, .* the header. Beware that {odd.format(4)}."):
        read_csv_tables([path])
    path.write_text('id\tname\n1\t"5"" pipe"\n')
    assert read_csv_tables([path])["t"].rows == ((1, '5" pipe'),)


def test_blanks_among_numbers_are_no_value(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "id,total\n1,29.85\n2, \n3,108.15\n")
    assert table.rows == ((1, "29.85"), (2, None), (3, "108.15"))
    assert notes == ["t.total: '' (1 cells) is read as NULL"]
    assert read(tmp_path, "id,word\n1,a\n2, \n")[0].rows == ((1, "a"), (2, " "))


def test_texts_longer_than_text_holds(tmp_path: Path) -> None:
    assert shown(read(tmp_path, f"body\n{'é' * 40_000}\n")[0]) == ["body MEDIUMTEXT"], "of two bytes each"


def test_columns_without_a_name_are_left_out_with_a_note(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "id;name;;\r\n1;A;;\r\n2;B;;\r\n")
    assert shown(table) == ["id INT", "name TEXT"] and table.rows == ((1, "A"), (2, "B"))
    assert notes[1:] == [
        f"column {place} has no name and is left out; name it to keep it" for place in (3, 4)
    ]
    assert shown(read(tmp_path, ",a\n0,x\n1,y\n")[0]) == ["a TEXT"], "as pandas writes its index"
    with pytest.raises(TaskError, match="none of its columns has a name"):
        read(tmp_path, ";;\n1;2;3\n")


def test_empty_rows_of_excel_are_no_rows(tmp_path: Path) -> None:
    table, notes = read(tmp_path, "id,name\n1,A\n,\n2,\n,\n")
    assert table.rows == ((1, "A"), (2, None))
    assert notes == ["rows whose cells are all empty (2) are left out"]
    assert read(tmp_path, 'name\nA\n""\n\n')[0].rows == (("A",), (None,)), "a cell, then an empty line"


@pytest.mark.parametrize(
    "questions",
    [
        "question,answer\nHow many?,2\n,\n,\n",
        ",question,answer\n0,How many?,2\n",  # pandas' index
        "question,answer,\nHow many?,2,\n",
    ],
)
def test_questions_of_excel_and_pandas(tmp_path: Path, questions: str) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    (tmp_path / "q.csv").write_text(questions)
    convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    assert [(task.question, task.gold.answer) for task in load_tasks(tmp_path / "o.jsonl")] == [
        ("How many?", ((2,),))
    ]


def test_questions_of_which_no_column_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    (tmp_path / "q.csv").write_text(",\nHow many?,1\n")
    with pytest.raises(TaskError, match=r"q\.csv: none of its columns has a name"):
        convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    long = "x" * 200_000
    assert read(tmp_path, f"id,text\n1,{long}\n")[0].rows == ((1, long),)


def test_a_tsv_that_has_no_tabs(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id;name\n1;a\n2;b\n")
    notes: list[str] = []
    (table,) = read_csv_tables([tmp_path / "t.tsv"], note=notes.append).values()
    assert shown(table) == ["id INT", "name TEXT"]
    assert notes == [f"{tmp_path / 't.tsv'}: cells are separated by semicolons"]


def test_the_columns_whose_letters_are_a_guess_are_named(tmp_path: Path) -> None:
    _, notes = read(tmp_path, "id;miasto;kod\n1;Łódź;a\n2;Kielce;b\n".encode("cp1250"))
    assert "t.miasto: read as cp1252, '£ódŸ'" in notes
    assert not [note for note in notes if note.startswith(("t.id", "t.kod"))]


@pytest.mark.parametrize(
    ("content", "types", "column", "cells"),
    [
        ('p\n"1,234.50"\n2\n', {"p": "DECIMAL(12,2)"}, "p DECIMAL(12,2)", ("1234.50", "2")),
        ('p,q\n"1,234",1\n2,1\n', {"p": "INT"}, "p INT", (1234, 2)),
        ("p;q\n1.234;1\n12;1\n", {"p": "INT"}, "p INT", (1234, 12)),
        ("d;q\n31.12.2024;1\n01.02.2024;1\n", {"d": "DATE"}, "d DATE", ("2024-12-31", "2024-02-01")),
        (
            "d;q\n31.12.2024 08:30;1\n01.02.2024 09:00;1\n",
            {"d": "DATETIME"},
            "d DATETIME",
            ("2024-12-31 08:30:00", "2024-02-01 09:00:00"),
        ),
        ("d:TEXT COLLATE utf8mb4_bin,q\n01,1\n2,1\n", {}, "d TEXT COLLATE utf8mb4_bin", ("01", "2")),
    ],
)
def test_a_type_that_is_told_reads_what_would_be_read_without_it(
    tmp_path: Path, content: str, types: dict, column: str, cells: tuple
) -> None:
    table, _ = read(tmp_path, content, types=types)
    assert shown(table)[0] == column
    assert tuple(row[0] for row in table.rows) == cells


def test_types_delimiter_and_encoding_can_be_told(tmp_path: Path) -> None:
    content = "code;price\n12;1,50\n13;NA\n".encode("cp1250")
    table, _ = read(tmp_path, content, types={"code": "VARCHAR(5)", "t.price": "DECIMAL(6,2)"})
    assert shown(table) == ["code VARCHAR(5)", "price DECIMAL(6,2)"]
    assert table.rows == (("12", "1.50"), ("13", None))
    assert shown(read(tmp_path, "a;b,c\n1;2,3\n", delimiter=",")[0]) == ["a;b TEXT", "c INT"]
    assert read(tmp_path, "a\n\u0159\n".encode("cp1250"), encoding="cp1250")[0].rows == (("\u0159",),)
    with pytest.raises(ConfigError, match=r"'cod'; .*nearest: code"):
        read(tmp_path, content, types={"cod": "TEXT"})
    with pytest.raises(ConfigError, match="one character"):
        CsvOptions(delimiter=";;")
    with pytest.raises(ConfigError, match="no encoding 'utf-9'"):
        CsvOptions(encoding="utf-9")
    with pytest.raises(TaskError, match=r"'1\.555' is not of type DECIMAL\(10,2\)"):
        read(tmp_path, "a,b\n1.555,1\n", types={"a": "DECIMAL(10,2)"})


@pytest.mark.parametrize(
    ("type", "cells", "kept_as", "kept", "note"),
    [
        ("DATETIME", ["2024-01-01 10:00:00"], "DATETIME", ["2024-01-01 10:00:00"], None),
        (
            "DATETIME",
            ["2024-01-01T10:00:00.25", "2024-01-01", "NA"],
            "DATETIME(2)",
            ["2024-01-01 10:00:00.25", "2024-01-01 00:00:00", None],
            "t.a: 'NA' is read as NULL; fractions of seconds make it DATETIME(2); times are written as MySQL "
            "does: '2024-01-01T10:00:00.25' is '2024-01-01 10:00:00.25'",
        ),
        (
            "DATETIME NOT NULL",
            ["2024-01-01 10:00:00.1234560"],
            "DATETIME(6) NOT NULL",
            ["2024-01-01 10:00:00.123456"],
            "DATETIME(6)",
        ),
        ("DATETIME", ["2024-01-01 10:00:00.000"], "DATETIME", ["2024-01-01 10:00:00"], "written as MySQL"),
        ("DATETIME(3)", ["2024-01-01 10:00:00.25"], "DATETIME(3)", ["2024-01-01 10:00:00.25"], None),
        ("TIMESTAMP", ["2024-01-01 10:00:00.5"], "TIMESTAMP(1)", ["2024-01-01 10:00:00.5"], "TIMESTAMP(1)"),
        ("TIME", ["10:00:00.25", "-838:59:59"], "TIME(2)", ["10:00:00.25", "-838:59:59"], "TIME(2)"),
        ("TIME", ["7:05"], "TIME", ["07:05:00"], "'7:05' is '07:05:00'"),
    ],
)
def test_a_declared_time_keeps_all_that_is_written(
    tmp_path: Path, type: str, cells: list[str], kept_as: str, kept: list, note: str | None
) -> None:
    table, notes = read(tmp_path, "a,b\n" + "".join(f"{cell},x\n" for cell in cells), types={"a": type})
    assert table.columns[0] == Column("a", kept_as)
    assert [row[0] for row in table.rows] == kept
    assert (note in "\n".join(notes)) if note else notes == []


@pytest.mark.parametrize(
    ("type", "cell", "why"),
    [
        ("DATETIME", "2024-01-01T10:00:00+02:00", "an offset from UTC, which no such type keeps"),
        ("DATETIME", "2024-01-01T10:00:00Z", "an offset from UTC"),
        ("TIMESTAMP", "2024-01-01 10:00:00 UTC", "an offset from UTC"),
        ("TIME", "10:00:00-05", "an offset from UTC"),
        (
            "DATETIME(1)",
            "2024-01-01 10:00:00.25",
            r"its second has 2 digits behind the point; DATETIME\(2\) holds",
        ),
        ("DATETIME", "2024-01-01 10:00:00.1234567", "7 digits behind the point; TEXT holds it"),
        ("TIME(0)", "10:00:00.5", r"TIME\(1\) holds it"),
        ("DATETIME", "2024-W01-1", ""),
        ("DATETIME", "2024-02-30 10:00:00", ""),
        ("TIME", "10:61", ""),
        ("TIME", "839:00:00", ""),
        ("TIME", "10", ""),
        ("YEAR", "24", ""),
        ("DECIMAL", "1.5", "it has 1 digits behind the point, of which a server would keep 0"),
        ("DECIMAL(10,2)", "1_000", ""),
        ("DECIMAL(10,2)", "\uff11\uff12", ""),
    ],
)
def test_what_a_declared_type_would_change_is_an_error_that_names_row_and_column(
    tmp_path: Path, type: str, cell: str, why: str
) -> None:
    """Servers round fractions and move what has an offset to their own time zone, or cut it off."""
    with pytest.raises(TaskError, match=rf"t\.csv, line 3, column 'a': '.*' is not of type .*{why}"):
        read(tmp_path, f"a,b\n,x\n{cell},x\n", types={"a": type})


def test_times_with_fractions_are_what_a_server_gives_back(tmp_path: Path, server_database: Database) -> None:
    table, _ = read(
        tmp_path, "at,lap\n2024-01-01T10:00:00.25,01:02:03.5\n", types={"at": "DATETIME", "lap": "TIME"}
    )
    task = Task("t", "?", (table,), "SELECT", Gold(answer=((1,),)))
    with server_database.sandbox(task) as sandbox:
        assert sandbox.execute("SELECT * FROM t WHERE at = '2024-01-01 10:00:00.25'").rows == [
            (
                datetime(2024, 1, 1, 10, 0, 0, 250_000),
                timedelta(hours=1, minutes=2, seconds=3, milliseconds=500),
            )
        ]


def test_the_embedded_database_refuses_fractions_and_import_keeps_them_as_text(
    tmp_path: Path, sqlite_database: Database
) -> None:
    """It would cut them off without a word, and gold answers with them."""
    path = tmp_path / "t.csv"
    path.write_text("at,n\n2024-01-01T10:00:00.25,1\n2024-01-01 10:00:00.5,2\n")
    (table,) = read_csv_tables([path]).values()
    assert table.columns[0] == Column("at", "DATETIME(2)")
    task = Task("t", "?", (table,), "SELECT", Gold(answer=((1,),)))
    with (
        pytest.raises(TaskError, match=r"'fractions of a second in a column'.*embedded database"),
        sqlite_database.sandbox(task),
    ):
        pass
    found = import_from([str(path)])
    assert found.tables[0].columns[0] == Column("at", "TEXT")
    assert [row[0] for row in found.tables[0].rows] == ["2024-01-01 10:00:00.25", "2024-01-01 10:00:00.5"]
    assert any("t.at: its type DATETIME(2) becomes TEXT" in note for note in found.notes)

    whole = replace(table, rows=(("2024-01-01 10:00:00.00", 1),))
    with sqlite_database.sandbox(replace(task, tables=(whole,))) as sandbox:
        assert sandbox.execute("SELECT at FROM t").rows == [(datetime(2024, 1, 1, 10),)]
        refused = sandbox.execute("UPDATE t SET at = '2024-01-01 10:00:00.5'")
        assert "embedded database" in (refused.error or "")


def test_a_name_that_no_server_takes_is_said_early(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,answer\nHow many?,1\n")
    for name, header in (("t", f"id,{'a' * 65}"), ("t" * 65, "id,name")):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"{header}\n1,2\n")
        for make in (
            lambda path=path: import_from([str(path)]),
            lambda path=path: convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[path]),
        ):
            with pytest.raises(TaskError, match=r"a name of 65 characters; .* at most 64 \(1059"):
                make()
    assert read(tmp_path, f"id,{'ä' * 64}\n1,2\n")[0].rows == ((1, 2),)


def test_a_task_with_such_a_name_is_refused_wherever_it_is_played(tmp_path: Path) -> None:
    line = '{"id": "x", "question": "?", "tables": [{"name": "t", "columns": [{"name": "%s"}], "rows": []}], "answer": [[1]]}'
    (tmp_path / "t.jsonl").write_text(line % ("a" * 65))
    with pytest.raises(TaskError, match="1059"):
        load_tasks(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("94105", "94105"),  # a text in the table, as another begins with 0
        ("7", 7),
        ("31.12.2024", "2024-12-31"),
        ("12/31/2024", "2024-12-31"),
        ("2024/12/31", "2024-12-31"),
        ("2024-1-1 10:00", "2024-01-01 10:00:00"),
        ("1.1.2024 10:00", "2024-01-01 10:00:00"),
        ("30.12.2024", "30.12.2024"),  # of no row
        ("NULL", None),
        ("12.50", 12.5),  # of a DECIMAL, which is a number
        ("9:30", "09:30:00"),
        ("2024-01-01 10:00", "2024-01-01 10:00:00"),
    ],
)
def test_an_answer_is_what_the_tables_hold(
    tmp_path: Path, sqlite_database: Database, answer: str, gold: Any
) -> None:
    """An agent copies it from there."""
    rows = "02134,7,31.12.2024,12.50,9:30,2024-01-01 10:00\n94105,9,,7.25,,\n"
    (tmp_path / "t.csv").write_text(f"zip,count,day,price,opens:TIME,made\n{rows}")
    (tmp_path / "q.csv").write_text(f"question,answer\nWhich?,{answer}\n")
    convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    (task,) = load_tasks(tmp_path / "o.jsonl")
    assert task.gold.answer == ((gold,),)
    with sqlite_database.sandbox(task) as sandbox:
        columns = {"94105": "zip", 7: "count", "2024-12-31": "day", 12.5: "price", "09:30:00": "opens"}
        if name := (columns | {"2024-01-01 10:00:00": "made"}).get(gold):
            shown = sandbox.execute(f"SELECT {name} FROM t WHERE {name} = '{gold}'")
            answered = Answer(TextProtocol().observe(shown))
            assert Judge(sqlite_database)(task, answered, sandbox, "agentbench_text").right


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("[94105, 10001, 7]", (("94105",), ("10001",), (7,))),
        ('["31.12.2024", "1.1.2024"]', (("2024-12-31",), ("2024-01-01",))),
        ("(1, '31.12.2024', None)", ((1, "2024-12-31", None),)),
        ("[1, '1']", ((1,), ("1",))),
        (94105, (("94105",),)),
        ([[94105, 2], ["5.1.2024", None]], (("94105", 2), ("2024-01-05", None))),
        (1, ((1,),)),
    ],
)
def test_each_value_of_an_answer_is_what_the_tables_hold(tmp_path: Path, answer: Any, gold: tuple) -> None:
    (tmp_path / "t.csv").write_text("zip,day,n\n02134,31.12.2024,1\n94105,1.1.2024,2\n10001,5.1.2024,3\n")
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Which?", "answer": answer}))
    convert(tmp_path / "q.jsonl", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    (task,) = load_tasks(tmp_path / "o.jsonl")
    assert task.gold.answer == gold


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("share,id\n0.5,1\n#DIV/0!,2\n0.25,3\n", ((0.5, 1), (None, 2), (0.25, 3))),
        *(
            (f"share,id\n0.5,1\n{error},2\n0.25,3\n", ((0.5, 1), (None, 2), (0.25, 3)))
            for error in ("#N/A", "#NV", "#N/D", "#¡DIV/0!", "#¿NOMBRE?", "#RIF!", "#GETAL!", "#SPILL!")
        ),
        ('id,name\n1, "Bob, Jr."\n2, "Al"\n', ((1, "Bob, Jr."), (2, "Al"))),
        ('id,name\n1,"He said, ""no"""\n', ((1, 'He said, "no"'),)),
    ],
)
def test_what_excel_and_others_write(tmp_path: Path, content: str, rows: tuple) -> None:
    table, _ = read(tmp_path, content)
    assert tuple(tuple(float(c) if isinstance(c, Decimal) else c for c in row) for row in table.rows) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "Sales 2024,,\n,,\nid,name,amount\n1,a,2\n",
            r"names one column, 'Sales 2024', and 2 others .* a title, delete",
        ),
        ('id,name\n1,"a \\"b\\" c"\n', r'not CSV \(.*\)\. Within a cell a quote is doubled \(""\), not \\"'),
    ],
)
def test_a_title_and_quotes_with_backslashes_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("['a', 'b']", (("a",), ("b",))),
        ("[(1, 'a'), (2, 'b')]", ((1, "a"), (2, "b"))),
        ("(1, 'a')", ((1, "a"),)),
        ("[('a',), ('b',)]", (("a",), ("b",))),
        ("{'b', 'a'}", (("a",), ("b",))),
        ("[1, None]", ((1,), (None,))),
        ('["a", "b"]', (("a",), ("b",))),
        ("[unknown]", (("[unknown]",),)),
        ("12345678901234567890123", ((12345678901234567890123,),)),
        ("1.5", ((1.5,),)),
    ],
)
def test_answers_as_python_writes_them(tmp_path: Path, answer: str, gold: tuple) -> None:
    (tmp_path / "t.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "q.csv").write_text('question,answer\nWhich?,"{}"\n'.format(answer.replace('"', '""')))
    convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    (task,) = load_tasks(tmp_path / "o.jsonl")
    assert task.gold.answer == gold


@pytest.mark.parametrize(
    ("answer", "cell"),
    [
        ('[{"name": "Ann", "amount": 5}]', "{'name': 'Ann', 'amount': 5}"),
        ('{"name": "Ann"}', "{'name': 'Ann'}"),
        ('[[["Ann", 5]]]', "['Ann', 5]"),
        ("[NaN]", "nan"),
        ("-Infinity", "-inf"),
    ],
)
def test_an_answer_in_json_has_cells_that_agents_can_give(tmp_path: Path, answer: str, cell: str) -> None:
    (tmp_path / "t.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "q.jsonl").write_text(f'{{"question": "Who?", "answer": {answer}}}\n')
    with pytest.raises(TaskError, match=r"q\.jsonl, line 1: the answer has the cell ") as error:
        convert(tmp_path / "q.jsonl", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    assert f"the answer has the cell {cell}; a cell is a string, a finite number" in str(error.value)


@pytest.mark.parametrize(
    "answer", ["['a', b]", "['a' 'b']", "[1 2 3]", "[Decimal('1.5')]", "['a', ['b', ['c']]]"]
)
def test_lists_that_cannot_be_read_are_errors_that_name_the_line(tmp_path: Path, answer: str) -> None:
    (tmp_path / "t.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "q.csv").write_text(f'question,answer\nHow?,1\nWhich?,"{answer}"\n')
    with pytest.raises(TaskError, match=r"q\.csv, line 3: the answer "):
        convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])


@pytest.mark.parametrize(
    "answer", ["1,50", "1.234,50", "1,234", "1 234", "1'234.50", "$37.75", "66.7%", "12 €", "R$ 1.234,50"]
)
def test_a_number_that_no_answer_equals_is_a_warning(tmp_path: Path, answer: str) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "q.csv").write_text(f'question,answer\nHow?,"{answer}"\nWho?,"Ann, Bob"\n')
    found = convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    said = [line for line in found.warnings() if "to which no number is right" in line]
    assert len(said) == 1 and repr(answer) in said[0]


def test_a_text_of_the_tables_may_look_like_a_number_with_a_sign(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,share\n1,66.7%\n2,x\n")
    (tmp_path / "q.csv").write_text("question,answer\nWhich share?,66.7%\n")
    found = convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    assert list(found.warnings()) == []


def test_a_nan_of_pandas_is_an_empty_field(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    lines = [
        '{"question": "How many?", "answer": 2, "sql": NaN}',
        '{"question": "b?", "answer": NaN, "sql": "SELECT b FROM t LIMIT 1"}',
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    convert(tmp_path / "q.jsonl", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    tasks = load_tasks(tmp_path / "o.jsonl")
    assert [(task.gold.answer, task.gold.sql) for task in tasks] == [
        (((2,),), None),
        ((("x",),), "SELECT b FROM t LIMIT 1"),
    ]


@pytest.mark.parametrize(
    "answer", ["Decimal('1.5')", "datetime.date(2024, 1, 2)", "(Decimal('1.5'),)", "np.int64(3)"]
)
def test_values_as_python_shows_them_are_errors_that_name_the_line(tmp_path: Path, answer: str) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "q.csv").write_text(f'question,answer\nHow?,"{answer}"\n')
    with pytest.raises(TaskError, match=r"q\.csv, line 2: the answer"):
        convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])


def test_convert_tells_how_it_read_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id;name\n1;a\n2;b\n")
    (tmp_path / "q.csv").write_text("question;answer\nHow many?;2\n")
    found = convert(tmp_path / "q.csv", tmp_path / "o.jsonl", tables=[tmp_path / "t.csv"])
    assert [note.rpartition(": ")[2] for note in found.notes] == ["cells are separated by semicolons"]
    assert load_tasks(tmp_path / "o.jsonl")[0].tables[0].rows == ((1, "a"), (2, "b"))


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT MIN(day) FROM orders", (("2024-01-31",),)),
        ("SELECT MIN(sent) FROM orders", (("2024-01-31 10:00:00",),)),
        ("SELECT took FROM orders", (("02:00:00",), ("26:30:00",))),
        ("SELECT day, took FROM orders LIMIT 1", (("2024-01-31", "02:00:00"),)),
    ],
)
def test_gold_sql_that_gives_dates_and_times_is_right(
    tmp_path: Path, sqlite_database: Database, sql: str, answer: tuple
) -> None:
    table, questions, out = tmp_path / "orders.csv", tmp_path / "q.csv", tmp_path / "o.jsonl"
    table.write_text(
        "day,sent,took:TIME\n"
        "2024-01-31,2024-01-31 10:00:00,02:00:00\n"
        "2024-02-05,2024-02-05 11:30:00,26:30:00\n"
    )
    questions.write_text(f'question,sql\nWhich?,"{sql}"\n')
    convert(questions, out, tables=[table])
    (task,) = load_tasks(out)
    assert task.gold.answer == answer
    assert [found.problem for found in validate([task], sqlite_database)] == [None]
    _, said = gold_actions(task, get_protocol("text"), sqlite_database)
    assert grade(said.text, answer, "lifelong")


def test_convert_takes_the_options_of_import(tmp_path: Path, command: Callable) -> None:
    """For the tables and for the questions; nothing in these files tells cp1250 from cp1252, or what `~` is."""
    table, questions, out = tmp_path / "t.csv", tmp_path / "q.csv", tmp_path / "o.jsonl"
    table.write_bytes("zip~city\n1~Plzeň\n2~Říčany\n".encode("cp1250"))
    questions.write_bytes("question~answer\nWhich city is 2?~Říčany\n".encode("cp1250"))
    told = ["--delimiter", "~", "--encoding", "cp1250", "--type", "t.zip=VARCHAR(5)"]
    code, _ = command("convert", questions, out, "--tables", table, *told)
    assert code == 0
    (task,) = load_tasks(out)
    assert task.tables == (
        Table("t", (Column("zip", "VARCHAR(5)"), Column("city", "TEXT")), (("1", "Plzeň"), ("2", "Říčany"))),
    )
    assert task.gold.answer == (("Říčany",),)
    assert command("convert", questions, out, "--tables", table, "--type", "zip")[0].startswith(
        "error: --type 'zip' is not NAME=TYPE"
    )
    assert command("convert", out, tmp_path / "p.jsonl", "--encoding", "cp1250")[0] == (
        "error: --delimiter, --encoding and --type go with --tables, which is not given."
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "has the name ''; .* none that is empty"),
        ("a ", "has the name 'a '; .* ends in a space"),
        ("a😀", "has the name 'a😀'; .* beyond U\\+FFFF"),
        ("a\0", r"has the name 'a\\x00'; .* a NUL"),
    ],
)
def test_other_names_that_no_server_takes(
    tmp_path: Path, local_database: Database, name: str, reason: str
) -> None:
    table = Table("t", (Column("id", "INT"), Column(name, "TEXT")), ((1, "x"), (2, "y")))
    with pytest.raises(TaskError, match=reason):
        check_new_names(table)
    kept, notes = usable([table])
    assert [column.name for column in kept[0].columns] == ["id"]
    assert len(notes) == 1 and notes[0].startswith(f"t.{name}: left out")
    other = Table(name, (Column("id", "INT"), Column("v", "TEXT")), ((1, "x"), (2, "y")))
    assert len(usable([other])[1]) == 1, "one note of the table, not of its columns"
    sandbox = local_database.sandbox(
        Task("t", "?", (Table("u", (Column("id", "INT"),)),), "SELECT", Gold(((1,),)))
    )
    with sandbox as session:
        assert session.execute(f"CREATE TABLE `{name}` (n INT)").error, "and no server takes it"


def test_a_file_is_read_in_less_than_sixteen_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = (
        f"{row},customer {row % 999},{row * 7 % 10**6 / 100:.2f},2024-03-05,paid\n" for row in range(20_000)
    )
    path.write_text(f"id,customer,amount,day,status\n{''.join(rows)}")
    tracemalloc.start()
    try:
        read_csv_tables([path])
        assert tracemalloc.get_traced_memory()[1] < 16 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_a_first_line_that_may_be_a_row_is_told(tmp_path: Path) -> None:
    """As phpMyAdmin writes a table unless it is asked for the names of columns."""
    told = "the first line names a column '1'; if it is a row, put a line of names above it"
    assert told in read(tmp_path, '"1","Rex"\n"2","Tom"\n')[1][0]
    assert read(tmp_path, "country,2019,2020\nDE,1,2\n")[1] == []


@pytest.mark.parametrize("lines", ["id^name\n1^Ann\n", '"id,name"\n"1,Ann"\n'])
def test_one_column_that_may_be_several_is_told(tmp_path: Path, lines: str) -> None:
    """The second as Excel saves a file that it had opened in one column."""
    table, notes = read(tmp_path, lines)
    assert len(table.columns) == 1
    assert "it has one column, 'id" in notes[0] and notes[0].endswith(
        "name the delimiter if it should be several"
    )
