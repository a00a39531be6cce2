"""Faults of a task, found by executing its gold SQL and by comparing this with the question."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from sqlglot import exp

from trl_dbbench.data.audit.slips import MAX_SLIPS, slips_of
from trl_dbbench.database import Database, State
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.episode.gold import (
    changes_with_time,
    execute_untruncated,
    execute_untruncated_in,
    state_after,
)
from trl_dbbench.episode.judge import answer_graders, published_right
from trl_dbbench.errors import TaskError
from trl_dbbench.grading import Grader, SQLGrader, get_grader
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Task
from trl_dbbench.utils.sql import normal_form, only_statement

MIN_CHARACTERS = 4
"""Smallest length, in characters, of a cell that a question is unlikely to contain by chance."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])")
_COPY = re.compile(r"\b(?:cop(?:y|ies|ied)|duplicat\w*|clone\w*|the same)\b", re.IGNORECASE)
_SAID_OTHERWISE = (exp.Limit, exp.Offset, exp.Func, exp.DataType, exp.Interval, exp.Mul, exp.Div)


def not_named(task: Task) -> list[str]:
    """Return the values that the gold SQL compares with or writes but the question does not name.

    Numbers up to 1, dates and numbers of rows (LIMIT) are left out, as a question can word them in many ways.
    """
    said = _folded(f"{task.question} {task.knowledge or ''}")
    numbers = _numbers(said)
    return [
        text
        for text, is_number in _values(task)
        if (is_number and _number(text) not in numbers and text not in said)
        or not (is_number or text in said or all(word in said for word in re.findall(r"\w+", text)))
    ]


def not_used(task: Task) -> list[str]:
    """Return cells, columns and numbers above 1 that the question names and the gold SQL lacks."""
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
    words = {cell for cell in cells - names if cell and not _NUMBER.fullmatch(cell)}
    told = {cell for cell in words if re.search(rf"(?<!\w){re.escape(cell)}(?!\w)", said)}
    numbers = _numbers(used) | {float(digits) for name in names for digits in re.findall(r"\d+", name)}
    numbers |= {float(len(rows.expressions)) for rows in tree.find_all(exp.Values)}  # "Insert 3 rows: ..."
    return [
        *sorted(cell for cell in told if cell not in used),
        *_columns_not_used(task, tree, said),
        *(f"{number:g}" for number in sorted(_numbers(_DATE.sub(" ", said)) - numbers) if number > 1),
    ]


def not_copied(task: Task) -> list[str]:
    """Return the columns that the gold SQL leaves empty where the question asks for copies of rows."""
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
    """Return the columns of the gold SQL's tables that the question names and the SQL does not use.

    A name that is part of a used one (`stadium` in `stadium capacity`) does not count. The list is empty if
    the SQL may mean all columns: `SELECT *`, `INSERT`.
    """
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
    """Return the text without a name, whether written with underscores or with spaces."""
    for form in {name, name.replace("_", " ")} - {""}:
        said = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", " ", said)
    return said


def _values(task: Task) -> Iterator[tuple[str, bool]]:
    """Yield the gold SQL's literals that a question should name, each with whether it is a number."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    for literal in tree.find_all(exp.Literal) if tree is not None else ():
        above = literal.find_ancestor(*_SAID_OTHERWISE)
        while isinstance(above, exp.Connector | exp.Exists):  # sqlglot counts these as functions
            above = above.find_ancestor(*_SAID_OTHERWISE)
        if above is not None:
            continue
        text = literal.name
        is_number = not literal.is_string or bool(_NUMBER.fullmatch(text))
        if is_number and abs(_number(text)) <= 1:
            continue
        if isinstance(literal.parent, exp.Like):
            text = re.sub(r"[%_]+", " ", text)
        if text.strip() and not _DATE.search(text):
            yield _folded(text), is_number


def _folded(text: str) -> str:
    return " ".join(text.replace("\\n", " ").casefold().split())


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:  # sqlglot takes the name `1e` for a number
        return 0.0


def _numbers(said: str) -> set[float]:
    return {_number(found) for found in _NUMBER.findall(said)}


KINDS = {
    "fails": "the gold SQL does not run",
    "unstable": "the gold SQL gives something else another time",
    "open": "the gold SQL gives something else where the rows lie in another order",
    "empty": "the gold SQL gives no rows, or changes nothing",
    "mismatch": "the gold SQL does not end in the gold answer, or in the published state",
    "differs": "databases do not agree on what the gold SQL gives",
    "weak": "a statement one slip away from the gold SQL is right as well",
    "not copied": "the question asks for copies of rows, and the gold SQL leaves cells of them empty",
    "not named": "the gold SQL uses a value that the question does not name",
    "not used": "the question names a value or a column of the tables that the gold SQL does not use",
    "not examined": "there is no gold SQL",
}
"""Kind of finding -> its meaning."""

OF_WORDING = ("not copied", "not named", "not used")
"""Kinds that may be false alarms, as the meaning of a question can only be guessed."""

DOUBTS = (*OF_WORDING, "not examined")
"""Kinds that do not count as faults."""

_SQLITES_TIMES = frozenset({"DATE", "TIME", "DATETIME", "JULIANDAY", "UNIXEPOCH", "STRFTIME", "TIMEDIFF"})
"""SQLite's time functions. sqlglot parses DATE with one argument and STRFTIME with two as other classes."""

Ending = Result | State
"""Result of a statement: the rows for a question, the tables afterwards for a change."""


@dataclass(frozen=True)
class Finding:
    """A fault or doubt. `kind` is one of `KINDS`; `slip` is a statement with a slip that is graded right."""

    kind: str
    text: str
    slip: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.kind not in DOUBTS


@dataclass
class Examined:
    """A task on one database, where the gold SQL and other statements are executed and judged.

    Args:
        grader: judges questions instead of the task's own grader.
    """

    task: Task
    database: Database
    grader: Grader | SQLGrader | None = None

    @cached_property
    def _sql(self) -> SQLGrader | None:
        own = get_grader(self.task.grader) if self.task.grader is not None else None
        return named if isinstance(named := self.grader or own, SQLGrader) else None

    @cached_property
    def gold(self) -> tuple[Ending | None, str]:
        """The gold SQL's result, or `None` and the reason."""
        return self.ending(self.task.gold.sql or "")

    def ending(self, sql: str) -> tuple[Ending | None, str]:
        """Return a statement's result, or `None` and the reason; a question's grader may rewrite it first."""
        if self.task.is_question:
            return execute_untruncated(self.database, self.task, self._rewritten(sql))
        after = state_after(self.database, self.task, sql)
        return after.state, after.error or ""

    def _rewritten(self, sql: str) -> str:
        return sql if self._sql is None else self._sql.rewrite(sql)

    def right(self, ending: Ending) -> bool:
        """Return whether a result is right, to any of the graders if the protocol chooses between several."""
        if not isinstance(ending, Result):
            gold = self.gold[0]
            return gold is not None and not isinstance(gold, Result) and same_state(ending, gold)
        if self._sql is not None:
            gold = self.gold[0]
            assert self.task.gold.sql is not None
            return isinstance(gold, Result) and self._sql.right(ending, [gold], self.task.gold.sql)
        override = self.grader if isinstance(self.grader, Grader) else None
        graders = answer_graders(self.task, override)
        return any(grader.judge(grader.answer(ending.rows), gold) for grader, gold in graders)

    def surviving(self, slips: Sequence[str], at_most: int = MAX_SLIPS) -> list[str]:
        """Return the slips that are graded right, at most `at_most` of them."""
        found = (sql for sql, ending in self._endings(slips) if ending is not None and self.right(ending))
        found = (sql for sql in found if not self._same_to_grader(sql) and self._right_on_suite(sql))
        return list(islice(found, at_most))

    def _right_on_suite(self, sql: str) -> bool:
        """Return whether a statement is also right on the databases of the task's suite."""
        for task in islice(self.task.on_each_database(), 1, None):
            other = replace(self, task=task)
            ending, _ = other.ending(sql)
            if ending is None or not other.right(ending):
                return False
        return True

    def _same_to_grader(self, sql: str) -> bool:
        """Return whether the grader rewrites a statement and the gold SQL into the same form.

        A grader that drops DISTINCT does so if they differ only in that.
        """
        if self._sql is None:
            return False
        own, gold = (normal_form(self._rewritten(each)) for each in (sql, self.task.gold.sql or ""))
        return own == gold

    def _endings(self, statements: Sequence[str]) -> Iterator[tuple[str, Ending | None]]:
        if not self.task.is_question:
            for sql in statements:
                yield sql, self.ending(sql)[0]
            return
        with self.database.sandbox(self.task) as sandbox:  # queries change nothing, so they share one
            for sql in statements:
                yield sql, execute_untruncated_in(sandbox, self.task, self._rewritten(sql))[0]


def examine(
    task: Task, databases: Sequence[Database], grader: Grader | SQLGrader | None = None
) -> list[Finding]:
    """Return the findings about a task.

    Args:
        databases: the first one runs all checks; on the others the gold SQL has to run and agree.

    Raises:
        EnvironmentFault: if a database fails.
    """
    if task.gold.sql is None:
        return [Finding("not examined", KINDS["not examined"])]
    try:
        first = Examined(task, databases[0], grader)
        gold, problem = first.gold
        if gold is None:
            return [Finding("fails", f"{databases[0].dialect.product}: {problem}")]
        found = [*_of_gold(first, gold), *_on_others(first, gold, databases[1:])]
        if not found:
            found = [Finding("weak", f"also right: {sql}", sql) for sql in first.surviving(slips_of(task))]
    except TaskError as error:
        return [Finding("fails", str(error))]
    found += [Finding("not copied", f"left empty in the copies: {name}") for name in not_copied(task)]
    found += [Finding("not named", f"not in the question: {value}") for value in not_named(task)]
    found += [Finding("not used", f"not in the gold SQL: {value}") for value in not_used(task)]
    return found


def _of_gold(examined: Examined, gold: Ending) -> list[Finding]:
    """Return the faults of the gold SQL itself on one database."""
    task, found = examined.task, list[Finding]()
    if changing := _changing(task):
        found.append(Finding("unstable", f"it depends on {changing}"))
    elif not isinstance(gold, Result) and changes_with_time(examined.database, task, gold):
        found.append(Finding("unstable", "executed a second later, it leaves other tables"))
    elif (again := examined.ending(task.gold.sql or "")[0]) is None or not _same(gold, again):
        found.append(Finding("unstable", "executed twice, it gave two results"))
    if is_empty(examined, gold):
        found.append(
            Finding("empty", "no rows" if isinstance(gold, Result) else "the tables stay as they are")
        )
    if isinstance(gold, Result):
        if task.gold.answer is not None and not examined.right(gold):
            found.append(
                Finding("mismatch", f"it gives {gold.rows[:3]}, the gold answer is {task.gold.answer}")
            )
    elif published_right(task, gold) is False:
        found.append(Finding("mismatch", f"it leaves another state than {task.gold.state_md5}"))
    if not found and _is_open(examined):
        found.append(Finding("open", KINDS["open"]))
    return found


def _changing(task: Task) -> str | None:
    """Return the first function in the gold SQL that depends on chance, the clock or the server."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    for node in tree.find_all(exp.Func) if tree is not None else ():
        name = node.name.upper() if isinstance(node, exp.Anonymous) else node.sql_name()
        varies = MYSQL.varies(f"{name}()") and not (name == "UNIX_TIMESTAMP" and node.expressions)
        if varies or (task.dialect == "sqlite" and _is_of_now(node)):
            return node.sql(dialect=task.dialect)
    return None


def _is_of_now(node: exp.Expr) -> bool:
    """Return whether a node is a time function of SQLite with the argument `now`, which is the default."""
    named = isinstance(node, exp.Anonymous) and node.name.upper() in _SQLITES_TIMES
    if not named and not isinstance(node, exp.Date | exp.TsOrDsToTimestamp):
        return False
    given = [*node.iter_expressions()]
    return not given or any(isinstance(each, exp.Literal) and each.name.lower() == "now" for each in given)


def _same(a: Ending, b: Ending) -> bool:
    if isinstance(a, Result) and isinstance(b, Result):
        return list(a.rows) == list(b.rows)
    return not isinstance(a, Result) and not isinstance(b, Result) and same_state(a, b)


def is_empty(examined: Examined, ending: Ending) -> bool:
    """Return whether a question's statement gives no rows or only NULLs, or a change changes nothing."""
    if isinstance(ending, Result):
        return ending.says_nothing
    with examined.database.sandbox(examined.task) as sandbox:
        return same_state(ending, sandbox.state())


def _is_open(examined: Examined) -> bool:
    """Return whether the gold SQL gives a wrong result when the rows are stored in another order.

    False for a task on a database file, whose rows stay in their order.
    """
    task, rng = examined.task, random.Random(examined.task.id)
    if task.source is not None or all(len(table.rows) < 2 for table in task.tables):
        return False
    turned = [replace(table, rows=table.rows[::-1]) for table in task.tables]
    shuffled = [replace(each, rows=tuple(rng.sample(each.rows, len(each.rows)))) for each in task.tables]
    for tables in map(tuple, (turned, shuffled)):
        ending, _ = replace(examined, task=replace(task, tables=tables)).gold
        if ending is None or not examined.right(ending):
            return True
    return False


def _on_others(first: Examined, gold: Ending, databases: Sequence[Database]) -> list[Finding]:
    """Return a finding for each other database on which the gold SQL fails or gives another result."""
    found = []
    for database in databases:
        ending, problem = replace(first, database=database).gold
        if ending is None:
            found.append(Finding("fails", f"{database.dialect.product}: {problem}"))
        elif not first.right(ending):
            gives = ending.rows[:3] if isinstance(ending, Result) else "other tables"
            found.append(Finding("differs", f"{database.dialect.product} gives {gives}"))
    return found
