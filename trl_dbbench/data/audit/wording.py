"""Whether a question and its gold SQL speak of the same values.

Guesses, and so doubts; but a copy of rows that lacks cells is a fault (`not_copied`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from trl_dbbench.tasks import Task
from trl_dbbench.utils.sql import only_statement

MIN_CHARACTERS = 4
"""Of a cell that a question would not name by chance."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])")
_COPY = re.compile(r"\b(?:cop(?:y|ies|ied)|duplicat\w*|clone\w*|the same)\b", re.IGNORECASE)
_SAID_OTHERWISE = (exp.Limit, exp.Offset, exp.Func, exp.DataType, exp.Interval, exp.Mul, exp.Div)


def not_named(task: Task) -> list[str]:
    """Values that the gold SQL compares with or writes, and that the question does not name.

    Numbers up to 1, dates and numbers of rows (LIMIT) are left out: they are said in many ways.
    """
    said = _folded(f"{task.question} {task.knowledge or ''}")
    numbers = _numbers(said)
    return [
        text
        for text, is_number in _values(task)
        if (is_number and _number(text) not in numbers and text not in said)
        or (not is_number and not _says(said, text))
    ]


def not_used(task: Task) -> list[str]:
    """What the question names and the gold SQL does not have: cells, columns, and numbers above 1."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    if tree is None:
        return []
    said = _folded(task.question)
    used = "\n".join(_folded(literal.name) for literal in tree.find_all(exp.Literal))
    names = {
        _folded(name) for table in task.tables for name in (table.name, *(c.name for c in table.columns))
    }
    quoted = {_folded(text) for pair in re.findall(r"\"([^\"]+)\"|'([^']+)'", task.question) for text in pair}
    cells = {
        _folded(cell)
        for table in task.tables
        for row in table.rows
        for cell in row
        if isinstance(cell, str) and (len(cell) >= MIN_CHARACTERS or _folded(cell) in quoted)
    }
    told = (cell for cell in cells - names if cell and not _NUMBER.fullmatch(cell) and _word(cell, said))
    numbers = _numbers(used) | {float(digits) for name in names for digits in re.findall(r"\d+", name)}
    numbers |= {float(len(rows.expressions)) for rows in tree.find_all(exp.Values)}  # "Insert 3 rows: ..."
    return [
        *sorted(cell for cell in told if cell not in used),
        *_columns_not_used(task, tree, said),
        *(f"{number:g}" for number in sorted(_numbers(_DATE.sub(" ", said)) - numbers) if number > 1),
    ]


def not_copied(task: Task) -> list[str]:
    """Columns that the gold SQL leaves empty in the copies of rows that the question asks for."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    if not isinstance(tree, exp.Insert) or not _COPY.search(task.question):
        return []
    listed, query = tree.this, tree.expression
    if not isinstance(listed, exp.Schema) or not isinstance(query, exp.Select):
        return []
    target = _folded(listed.this.name)
    table = next((each for each in task.tables if _folded(each.name) == target), None)
    if table is None or target not in {_folded(each.name) for each in query.find_all(exp.Table)}:
        return []
    filled = {
        _folded(column.name)
        for column, cell in zip(listed.expressions, query.expressions, strict=False)
        if not isinstance(cell, exp.Null) or re.search(r"\bnull\b|\bempty\b", task.question, re.IGNORECASE)
    }
    given = [column for column in table.columns if "AUTO_INCREMENT" not in column.type.upper()]
    return [column.name for column in given if _folded(column.name) not in filled]


def _columns_not_used(task: Task, tree: exp.Expr, said: str) -> list[str]:
    """Columns of the gold SQL's tables that the question names, but not as part of a name there (`stadium`
    of `stadium capacity`). None where the SQL may mean them all: `SELECT *`, `INSERT`."""
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    if stars or isinstance(tree, exp.Insert):
        return []
    used = {_folded(node.name) for node in tree.find_all(exp.Table, exp.Column, exp.Literal)}
    for name in sorted(used, key=len, reverse=True):
        said = _without(name, said)
    tables = [table for table in task.tables if _folded(table.name) in used]
    others = [column.name for table in tables for column in table.columns if _folded(column.name) not in used]
    return [name for name in others if _without(_folded(name), said) != said]


def _without(name: str, said: str) -> str:
    """What is said without a name, be it written with underscores or with blanks."""
    for form in {name, name.replace("_", " ")} - {""}:
        said = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", " ", said)
    return said


def _values(task: Task) -> Iterator[tuple[str, bool]]:
    """The literals of the gold SQL, each with whether it is a number."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    for literal in tree.find_all(exp.Literal) if tree is not None else ():
        if literal.find_ancestor(*_SAID_OTHERWISE):
            continue
        text = literal.name
        is_number = not literal.is_string or bool(_NUMBER.fullmatch(text))
        if is_number and abs(_number(text)) <= 1:
            continue
        if isinstance(literal.parent, exp.Like):
            text = re.sub(r"[%_]+", " ", text)
        if text.strip() and not _DATE.search(text):
            yield _folded(text), is_number


def _says(said: str, text: str) -> bool:
    return text in said or all(word in said for word in re.findall(r"\w+", text))


def _word(cell: str, said: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(cell)}(?!\w)", said) is not None


def _folded(text: str) -> str:
    return " ".join(text.replace("\\n", " ").casefold().split())


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def _numbers(said: str) -> set[float]:
    return {_number(found) for found in _NUMBER.findall(said)}
