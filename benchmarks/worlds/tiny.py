"""Tasks for a model of a million parameters: a closed vocabulary, one small table, one template a task.

Every word, number and sign that a question, a table, a gold SQL or its result can hold is in
`tiny_vocabulary()`, so a tokenizer of whole words covers them all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from trl_dbbench.data.generate import Level
from trl_dbbench.tasks import Cell, Column, Table


def _split(text: str) -> list[str]:
    return text.split()


NAMES = _split(
    """
    ann ben carl dora emil finn gina hugo ida jack kim leo mia nora olaf pia quinn rosa sam tina
    uwe vera will xena yuri zoe adam bella cora dan
    """
)
COLORS = _split("red blue green black white brown gray pink gold silver")
CITIES = _split("oslo rome paris berlin madrid lima cairo tokyo delhi quito")
ANIMALS = _split("cat dog horse rabbit parrot hamster turtle fish goat duck")
JOBS = _split("cook nurse pilot baker farmer painter teacher driver lawyer singer")
SPORTS = _split("tennis golf hockey chess rugby boxing rowing judo soccer skiing")
FOODS = _split("apple bread cheese rice soup cake pizza salad honey butter")
METALS = _split("iron copper tin zinc steel wood glass stone paper wool")
GENRES = _split("drama comedy crime poetry history travel fantasy science art music")

LARGEST = 30
MOST_ROWS = 4
# table, key column with its words, other text column with its words, number columns
THEMES: tuple[tuple[str, tuple[str, list[str]], tuple[str, list[str]], tuple[str, ...]], ...] = (
    ("pets", ("name", NAMES), ("kind", ANIMALS), ("age", "weight")),
    ("pupils", ("name", NAMES), ("sport", SPORTS), ("age", "grade")),
    ("workers", ("name", NAMES), ("job", JOBS), ("age", "salary")),
    ("cars", ("owner", NAMES), ("color", COLORS), ("speed", "price")),
    ("houses", ("owner", NAMES), ("city", CITIES), ("rooms", "rent")),
    ("books", ("author", NAMES), ("genre", GENRES), ("pages", "copies")),
    ("meals", ("food", FOODS), ("city", CITIES), ("price", "score")),
    ("teams", ("city", CITIES), ("sport", SPORTS), ("wins", "points")),
    ("tools", ("owner", NAMES), ("metal", METALS), ("length", "weight")),
    ("trips", ("city", CITIES), ("guest", NAMES), ("days", "cost")),
    ("animals", ("animal", ANIMALS), ("color", COLORS), ("height", "speed")),
    ("orders", ("food", FOODS), ("guest", NAMES), ("amount", "price")),
)


@dataclass(frozen=True)
class Theme:
    """A table with the part that each of its columns plays."""

    table: Table
    key: str
    kind: str
    numbers: tuple[str, ...]
    words: dict[str, list[str]]

    def cells(self, column: str) -> list:
        place = [each.name for each in self.table.columns].index(column)
        return [row[place] for row in self.table.rows]


def make_table(rng: random.Random) -> Theme:
    """Three or four rows; the key column has no value twice, the other text column may."""
    name, (key, keys), (kind, kinds), numbers = rng.choice(THEMES)
    numbers = rng.choice([numbers, numbers[:1], numbers[1:]])
    size = rng.randint(3, MOST_ROWS)
    few = rng.sample(kinds, rng.randint(2, 3))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (each, rng.choice(few), *(rng.randint(1, LARGEST) for _ in numbers))
        for each in rng.sample(keys, size)
    )
    columns = (
        Column(key, "VARCHAR(20)"),
        Column(kind, "VARCHAR(20)"),
        *(Column(each, "INT") for each in numbers),
    )
    return Theme(Table(name, columns, rows), key, kind, numbers, {key: keys, kind: kinds})


@dataclass(frozen=True)
class TinyPlan:
    """A template: the gold SQL with the questions that ask for it; `fill` picks what stands in its blanks."""

    skills: frozenset[str]
    sql: str
    questions: tuple[str, ...]
    fill: Callable[[random.Random, Theme], dict[str, object]]


def draft(rng: random.Random, theme: Theme, plan: TinyPlan) -> tuple[str, str]:
    """A question and its SQL."""
    number = rng.choice(theme.numbers)
    blanks: dict[str, object] = {
        "table": theme.table.name,
        "key": theme.key,
        "kind": theme.kind,
        "number": number,
        "column": rng.choice([theme.kind, *theme.numbers]),
    }
    blanks |= plan.fill(rng, theme)
    question = rng.choice(plan.questions)
    if "'{value}'" in plan.sql:  # in quotes there as well: so it is the same tokens, and easier to copy
        question = question.replace("{value}", "'{value}'")
    return question.format(**blanks), plan.sql.format(**blanks)


def _nothing(rng: random.Random, theme: Theme) -> dict[str, object]:
    return {}


def _threshold(rng: random.Random, theme: Theme) -> dict[str, object]:
    word, sign = rng.choice([("above", ">"), ("below", "<")])
    column = rng.choice(theme.numbers)
    return {"number": column, "word": word, "sign": sign, "value": rng.choice(theme.cells(column))}


def _kind(rng: random.Random, theme: Theme) -> dict[str, object]:
    return {"value": rng.choice(theme.cells(theme.kind))}


def _key(rng: random.Random, theme: Theme) -> dict[str, object]:
    return {"value": rng.choice(theme.cells(theme.key))}


def _extreme(rng: random.Random, theme: Theme) -> dict[str, object]:
    word, direction = rng.choice([("highest", "DESC"), ("lowest", "ASC")])
    return {"word": word, "direction": direction, "count": rng.randint(2, 3)}


def _aggregate(rng: random.Random, theme: Theme) -> dict[str, object]:
    word, function = rng.choice([("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM")])
    return {"word": word, "function": function}


def _new_cell(rng: random.Random, theme: Theme, column: str) -> tuple[str, str]:
    """A value that fits the column, as a question says it and as SQL writes it."""
    if column in theme.words:
        word = f"'{rng.choice(theme.words[column])}'"
        return word, word
    number = str(rng.randint(1, LARGEST))
    return number, number


def _assignment(rng: random.Random, theme: Theme) -> dict[str, object]:
    column = rng.choice([theme.kind, *theme.numbers])
    said, written = _new_cell(rng, theme, column)
    return {"column": column, "new": said, "new_sql": written} | _key(rng, theme)


def _row(rng: random.Random, theme: Theme) -> dict[str, object]:
    columns = [column.name for column in theme.table.columns]
    cells = [_new_cell(rng, theme, column) for column in columns]
    return {
        "columns": ", ".join(columns),
        "pairs": ", ".join(f"{column} {said}" for column, (said, _) in zip(columns, cells, strict=True)),
        "cells": ", ".join(written for _, written in cells),
    }


def _plan(skills: str, sql: str, fill: Callable, *questions: str) -> TinyPlan:
    return TinyPlan(frozenset(skills.split()), sql, questions, fill)


def _both(*fills: Callable) -> Callable[[random.Random, Theme], dict[str, object]]:
    return lambda rng, theme: {name: value for fill in fills for name, value in fill(rng, theme).items()}


PLANS = (
    _plan(
        "select",
        "SELECT COUNT(*) FROM {table}",
        _nothing,
        "How many rows are in {table}?",
        "Count the {table}.",
        "What is the number of {table}?",
    ),
    _plan(
        "select",
        "SELECT {function}({number}) FROM {table}",
        _aggregate,
        "What is the {word} {number} of all {table}?",
        "Find the {word} {number} in {table}.",
    ),
    _plan(
        "select where_single_condition",
        "SELECT COUNT(*) FROM {table} WHERE {kind} = '{value}'",
        _kind,
        "How many {table} have the {kind} {value}?",
        "Count the {table} with {kind} {value}.",
    ),
    _plan(
        "select where_single_condition",
        "SELECT COUNT(*) FROM {table} WHERE {number} {sign} {value}",
        _threshold,
        "How many {table} have {number} {word} {value}?",
        "Count the {table} with {number} {word} {value}.",
    ),
    _plan(
        "select where_single_condition",
        "SELECT {function}({number}) FROM {table} WHERE {kind} = '{value}'",
        _both(_aggregate, _kind),
        "What is the {word} {number} of {table} with {kind} {value}?",
        "Find the {word} {number} where the {kind} is {value}.",
    ),
    _plan(
        "select where_single_condition",
        "SELECT {column} FROM {table} WHERE {key} = '{value}'",
        _key,
        "What is the {column} of {value}?",
        "Which {column} does {value} have?",
        "Show the {column} where the {key} is {value}.",
    ),
    _plan(
        "select order_by_single_column limit_only",
        "SELECT {key} FROM {table} ORDER BY {number} {direction} LIMIT 1",
        _extreme,
        "Which {key} has the {word} {number}?",
        "Show the {key} with the {word} {number}.",
    ),
    _plan(
        "select order_by_single_column limit_only",
        "SELECT {key} FROM {table} ORDER BY {number} {direction} LIMIT {count}",
        _extreme,
        "Show the {key} of the {count} {table} with the {word} {number}, {word} first.",
        "Which {key} do the {count} {table} with the {word} {number} have, {word} first?",
    ),
    _plan(
        "select order_by_single_column",
        "SELECT {key} FROM {table} ORDER BY {number} {direction}",
        _extreme,
        "List every {key} by {number}, {word} first.",
        "Show the {key} of all {table}, {word} {number} first.",
    ),
    _plan(
        "select where_single_condition order_by_single_column",
        "SELECT {key} FROM {table} WHERE {kind} = '{value}' ORDER BY {number} {direction}",
        _both(_extreme, _kind),
        "List every {key} with {kind} {value}, {word} {number} first.",
    ),
    _plan(
        "insert",
        "INSERT INTO {table} ({columns}) VALUES ({cells})",
        _row,
        "Add a row to {table}: {pairs}.",
        "Insert into {table} a row with {pairs}.",
    ),
    _plan(
        "update",
        "UPDATE {table} SET {column} = {new_sql}",
        _assignment,
        "Set the {column} of all {table} to {new}.",
        "Change every {column} in {table} to {new}.",
    ),
    _plan(
        "update where_single_condition",
        "UPDATE {table} SET {column} = {new_sql} WHERE {key} = '{value}'",
        _assignment,
        "Set the {column} of {value} to {new}.",
        "Change the {column} of {value} to {new}.",
    ),
    _plan(
        "delete where_single_condition",
        "DELETE FROM {table} WHERE {key} = '{value}'",
        _key,
        "Delete the row of {value}.",
        "Remove {value} from {table}.",
    ),
    _plan(
        "delete where_single_condition",
        "DELETE FROM {table} WHERE {number} {sign} {value}",
        _threshold,
        "Delete all {table} with {number} {word} {value}.",
        "Remove the {table} that have {number} {word} {value}.",
    ),
)

# What a server answers in, and what it says of the mistakes that such a small model makes.
_REPLIES = """[('', 1), (Decimal('1'),)] NULL None 1054 (42S22): Unknown column '' in 'field list' 'where clause'
    'order clause' 1146 (42S02): Table '' doesn't exist 1064 (42000): You have an error in your SQL syntax"""


def tiny_words(text: str) -> list[str]:
    """The words, numbers and signs of a text, white space left out."""
    return re.findall(r"\w+|[^\w\s]", text)


def tiny_vocabulary() -> list[str]:
    """All that `tiny_words` can find in a task of level tiny: its prompt, cells, gold SQL and the result's text."""
    words = {str(number) for number in range(LARGEST * MOST_ROWS + 1)}
    for name, (key, keys), (kind, kinds), numbers in THEMES:
        words |= {name, key, kind, *keys, *kinds, *numbers}
    words |= {"above", "below", "highest", "lowest", "total", "DESC", "ASC", "MAX", "MIN", "SUM", *"=<>`"}
    for plan in PLANS:
        for text in (plan.sql, *plan.questions):
            words |= set(tiny_words(re.sub(r"\{\w+\}", " ", text)))
    words |= set(tiny_words("The table is named x and has these columns: x, x"))
    words |= set(tiny_words(_REPLIES))
    return sorted(words - {"x"})


def level() -> Level:
    """`generate --level worlds.tiny.level`"""
    return Level("tiny", PLANS, make_table, draft)
