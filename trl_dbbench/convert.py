"""Tasks from one format to another, and from CSV files.

Reading is `tasks.load_tasks`; this module writes. What is written is read back task by task, and whatever
comes back different is a `Loss` that names task and field: nothing goes missing in silence. A loss that
would make another task of it (a second table dropped, NULL turned into text, a gold solution that no longer
gives the gold answer) is an error.

| format | file | what it cannot hold |
|---|---|---|
| `own` | `.jsonl` | holds everything |
| `verl` | `.parquet` | holds everything, in `extra_info.task` |
| `agentbench` | `.jsonl` | NULLs, column types, answers of several columns, gold SQL of questions, a named grader |
| `lifelong` | `.json` | several tables, a grader other than `lifelong` |
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trl_dbbench.csv_tasks import Loss, can_be_right, read_csv_tasks
from trl_dbbench.database import Database, Limits, State
from trl_dbbench.database.sqlite.database import SQLiteDatabase
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.protocol import get_protocol
from trl_dbbench.scoring import grade, state_hash
from trl_dbbench.tasks import (
    Cell,
    Column,
    Table,
    Task,
    _agentbench_task,
    _lifelong_task,
    load_tasks,
)
from trl_dbbench.verl import verl_bytes, verl_rows, verl_task

FORMATS = {"own": ".jsonl", "agentbench": ".jsonl", "lifelong": ".json", "verl": ".parquet"}
"""The formats that can be written, and how their files are named."""

PROTOCOLS_OWN = "the protocol's own"

GOLD_LIMITS = Limits(seconds=60.0, rows=10_000, characters=10_000_000)
"""For statements of the user's own; those of agents get less."""


class _Unrepresentable(Exception):
    """The target cannot hold the task without making another of it."""

    def __init__(self, task: Task, field: str, text: str):
        self.loss = Loss(task.id, field, text)


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    `losses` are of tasks that were written; `skipped` says of the others why they were not.
    """

    path: Path
    format: str
    written: int
    losses: list[Loss]
    skipped: list[Loss]

    def warnings(self) -> Iterator[str]:
        """A line for each kind of loss, with the first tasks it is about and their number."""
        for start, losses in (("left out: ", self.skipped), ("", self.losses)):
            for (field, text), tasks in _grouped(losses).items():
                yield f"{start}{_named(tasks)}, {field}: {text}"


def _grouped(losses: Iterable[Loss]) -> dict[tuple[str, str], list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for loss in losses:
        groups.setdefault((loss.field, loss.text), []).append(loss.task)
    return groups


def _named(tasks: Sequence[str], most: int = 5) -> str:
    names = ", ".join(f"'{task}'" for task in tasks[:most])
    more = f" and {len(tasks) - most} more" if len(tasks) > most else ""
    return f"task{'s' if len(tasks) > 1 else ''} {names}{more}"


def convert(
    source: str | Path,
    target: str | Path,
    to: str | None = None,
    *,
    tables: Sequence[str | Path] = (),
    split: str | None = None,
    protocol: str = "text",
    database: Database | None = None,
    skip: bool = False,
) -> Conversion:
    """Reads tasks, writes them in another format, and replaces `target` only when all of it is written.

    ```python
    convert("dev.jsonl", "dev.parquet")  # verl
    convert("questions.csv", "tasks.jsonl", tables=["orders.csv"])
    ```

    Args:
        source: what `load_tasks` takes, a parquet file that was made for verl here, or with `tables` a CSV or
            JSONL file of questions.
        to: one of `FORMATS`; left out, the name of `target` says it: `.jsonl` is own, `.json` lifelong,
            `.parquet` verl.
        tables: CSV files, each a table (see `read_csv_tasks`).
        split: of `source`, as in `load_tasks`; verl's `extra_info.split` too, where it is `train` if left out.
        protocol: `"text"` or `"tools"`, for verl's prompts.
        database: where gold SQL is executed; the embedded SQLite if left out.
        skip: leaves out tasks that the target cannot hold, instead of an error.

    Raises:
        ConfigError: if the target cannot be written or its format is not clear.
        TaskError: if a task is wrong, or the target cannot hold one.
    """
    target = Path(target)
    kind = _format(target, to)
    _check_target(target, source)
    get_protocol(protocol)
    if not tables and Path(source).suffix in (".csv", ".tsv"):
        raise ConfigError(
            f"{source} is a table of questions; name the CSV files of the tables that it asks of with --tables."
        )
    with _opened(database) as opened:
        losses: list[Loss] = []
        if tables:
            tasks, losses = read_csv_tasks(source, tables, opened)
        else:
            # a single file has no splits; for verl it says which one the file is
            tasks = read_tasks(source, None if kind == "verl" and Path(source).is_file() else split)
        if kind == "verl":
            skipped: list[Loss] = []
            content = verl_bytes(tasks, split or "train", protocol)
        else:
            content, tasks, found, skipped = _written(tasks, kind, opened, skip)
            losses += found
    _replace(target, content)
    return Conversion(target, kind, len(tasks), losses, skipped)


def read_tasks(source: str | Path, split: str | None = None) -> list[Task]:
    """`load_tasks`, which also reads back what was written for verl."""
    path = Path(source)
    if path.suffix == ".parquet" and path.is_file():
        rows = verl_rows(path)
        if rows is not None:
            return [verl_task(row, f"{path}, row {number}") for number, row in enumerate(rows, 1)]
    return load_tasks(source, split)


def _format(target: Path, to: str | None) -> str:
    by_name = {".jsonl": "own", ".json": "lifelong", ".parquet": "verl"}
    known = ", ".join(f"{name} ({suffix})" for name, suffix in FORMATS.items())
    if to is None:
        if target.suffix not in by_name:
            raise ConfigError(
                f"the name '{target}' says no format; name one with --to, or end it in .jsonl (own), .json "
                "(lifelong) or .parquet (verl)."
            )
        return by_name[target.suffix]
    if to not in FORMATS:
        raise ConfigError(f"unknown format {to!r}; allowed: {known}.")
    if target.suffix != FORMATS[to]:
        raise ConfigError(
            f"'{target}' is no name for the format {to}: a file is read by its ending. Call it "
            f"'{target.with_suffix(FORMATS[to])}'; the endings are {known}."
        )
    return to


def _check_target(target: Path, source: str | Path) -> None:
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise ConfigError(f"'{target}' cannot be written: it must be a file in a folder that is there.")
    if Path(source).exists() and target.exists() and target.samefile(source):
        raise ConfigError(f"'{target}' is the file to read; write to another.")


@contextmanager
def _opened(database: Database | None) -> Iterator[Database]:
    if database is not None:
        yield database
        return
    with SQLiteDatabase(GOLD_LIMITS) as opened:
        yield opened


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        raise ConfigError(f"'{target}' cannot be written: {error}") from None
    finally:
        beside.unlink(missing_ok=True)


# --- writing ----------------------------------------------------------------------------------------


def _written(
    tasks: Sequence[Task], kind: str, database: Database, skip: bool
) -> tuple[bytes, list[Task], list[Loss], list[Loss]]:
    """The file's bytes, the tasks in it, what they lost, and why others are not in it."""
    write, read = _WRITERS[kind]
    entries: list[dict[str, Any]] = []
    held: list[Task] = []
    losses: list[Loss] = []
    refused: list[Loss] = []
    for task in tasks:
        try:
            entry = write(task, database)
            again = read(json.loads(json.dumps(entry)))
            found = _losses(task, again, kind)
        except _Unrepresentable as error:
            refused.append(error.loss)
        except TaskError as error:
            refused.append(Loss(task.id, "task", str(error)))
        else:
            entries.append(entry)
            held.append(task)
            losses += found
    if refused and not (skip and held):
        lines = [f"{_named(names)}, {field}: {text}" for (field, text), names in _grouped(refused).items()]
        more = [f"and {len(lines) - 10} problems of other kinds"] if len(lines) > 10 else []
        raise TaskError(
            f"the format {kind} cannot hold {len(refused)} of {len(tasks)} tasks"
            + (":\n  " if skip else "; --skip leaves them out:\n  ")
            + "\n  ".join([*lines[:10], *more])
        )
    if kind == "lifelong":
        text = json.dumps({entry.pop("id"): entry for entry in entries}, ensure_ascii=False, indent=1) + "\n"
    else:
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    return text.encode(), held, losses, refused


def _own_entry(task: Task, database: Database) -> dict[str, Any]:
    return json.loads(task.to_json())


def _agentbench_entry(task: Task, database: Database) -> dict[str, Any]:
    """Cells become text in TEXT columns; the gold must still hold for such tables, which is executed."""
    gold = task.gold
    tables = tuple(_text_table(task, table) for table in task.tables)
    changed = replace(task, tables=tables)
    written = [
        {
            "table_name": table.name,
            "table_info": {
                "columns": [{"name": column.name, "type": column.type} for column in table.columns],
                "rows": [list(row) for row in table.rows],
            },
        }
        for table in tables
    ]
    entry: dict[str, Any] = {
        "id": task.id,
        "description": task.question,
        "add_description": task.prompt()[len(task.question.rstrip()) :].lstrip("\n"),
        "table": written if len(written) > 1 else written[0],
        "skills": list(task.skills),
    }
    if not task.is_question:
        md5 = gold.state_md5
        if tables != task.tables:
            _check_change(task, changed, database)
            md5 = None
        if md5 is None:
            md5 = _state_md5(changed, database)
        published = f"[('{md5}',)]" if md5 else "[(None,)]"
        return entry | {"type": [task.operation], "label": [gold.sql], "answer_md5": published}
    labels = _labels(task)
    if gold.sql is not None:
        if tables != task.tables:
            _check_question(changed, database)
        entry["sql"] = {"query": gold.sql, "length": len(gold.sql)}
    return entry | {"type": ["other"], "label": labels}


def _text_table(task: Task, table: Table) -> Table:
    """All cells as text; a NULL has none."""
    for number, row in enumerate(table.rows, 1):
        for column, cell in zip(table.columns, row, strict=True):
            if cell is None:
                raise _Unrepresentable(
                    task,
                    "tables",
                    f"table '{table.name}', row {number}, column '{column.name}' is NULL; AgentBench's cells are text",
                )
    rows = tuple(tuple(_cell_text(cell) for cell in row) for row in table.rows)
    return Table(table.name, tuple(Column(column.name) for column in table.columns), rows)


def _cell_text(cell: Cell) -> str:
    return str(int(cell)) if isinstance(cell, bool) else str(cell)


def _labels(task: Task) -> list:
    """The answer as a flat list of values."""
    assert task.gold.answer is not None
    if not task.gold.answer:
        raise _Unrepresentable(task, "answer", "it is empty; AgentBench has no label for nothing")
    labels = []
    for row in task.gold.answer:
        if not isinstance(row, list | tuple):
            labels.append(row)
        elif len(row) == 1:
            labels.append(row[0])
        else:
            raise _Unrepresentable(
                task, "answer", f"its rows have {len(row)} cells; AgentBench's labels are single values"
            )
    if any(label is None for label in labels):
        raise _Unrepresentable(task, "answer", "it holds NULL; AgentBench's labels are values")
    return labels


def _lifelong_entry(task: Task, database: Database) -> dict[str, Any]:
    if len(task.tables) != 1:
        raise _Unrepresentable(
            task, "tables", f"it has {len(task.tables)} tables; LifelongAgentBench's tasks have one"
        )
    gold, (table,) = task.gold, task.tables
    info: dict[str, Any] = {"direct": None, "md5": None, "sql": gold.sql}
    if task.is_question:
        info["direct"] = list(gold.answer or ())
        if task.grader != "lifelong" and not can_be_right(info["direct"], "lifelong"):
            raise _Unrepresentable(
                task,
                "answer",
                f"{info['direct']} could never be right to the grader lifelong, which cuts at commas",
            )
    else:
        md5 = gold.state_md5
        info["md5"] = (_state_md5(task, database) if md5 is None else md5) or "None"
    return {
        "id": task.id,
        "instruction": task.question,
        "answer_info": info,
        "table_info": {
            "name": table.name,
            "column_info_list": [{"name": column.name, "type": column.type} for column in table.columns],
            "row_list": [list(row) for row in table.rows],
        },
        "skill_list": list(task.skills),
    }


_WRITERS: dict[str, tuple[Callable[[Task, Database], dict], Callable[[dict], Task]]] = {
    "own": (_own_entry, lambda entry: Task.from_json(json.dumps(entry))),
    "agentbench": (_agentbench_entry, lambda entry: _agentbench_task(entry, "")),
    "lifelong": (_lifelong_entry, lambda entry: _lifelong_task(entry, "")),
}


def _state_md5(task: Task, database: Database) -> str:
    """The published hash of what the gold SQL makes of the first table; `""` for an empty one."""
    rows = _gold_state(task, database).get(task.tables[0].name)
    if rows is None:
        raise _Unrepresentable(task, "state_md5", "cannot be computed, the gold SQL drops the table")
    return state_hash(rows) or ""


def _gold_state(task: Task, database: Database) -> State:
    assert task.gold.sql is not None
    with database.sandbox(task) as sandbox:
        result = sandbox.execute(task.gold.sql)
        if result.error:
            raise _Unrepresentable(task, "sql", f"the gold SQL fails: {result.error}")
        return sandbox.state()


def _check_question(task: Task, database: Database) -> None:
    """Whether the gold SQL still gives the gold answer, now that all cells are text."""
    assert task.gold.sql is not None
    with database.sandbox(task) as sandbox:
        result = sandbox.execute(task.gold.sql)
    labels = _labels(task)
    cells = [str(cell) for row in result.rows or [] for cell in row]
    if result.error or not grade(str(cells), labels, "agentbench_fc"):
        raise _Unrepresentable(
            task,
            "tables",
            f"with all cells as text the gold SQL gives {result.error or result.rows}, the answer is {labels}",
        )


def _check_change(task: Task, as_text: Task, database: Database) -> None:
    """Whether the gold SQL still makes the same rows, now that all cells are text."""
    before, after = (_plain(_gold_state(of, database)) for of in (task, as_text))
    if before != after:
        raise _Unrepresentable(
            task, "tables", "with all cells as text the gold SQL makes other rows of the table"
        )


def _plain(state: State) -> dict[str, Counter]:
    """Tables as multisets of rows, numbers and their texts being the same."""

    def plain(cell: Any) -> Any:
        try:
            return None if cell is None else float(cell)
        except (TypeError, ValueError):
            return str(cell)

    return {name: Counter(tuple(map(plain, row)) for row in rows) for name, rows in state.items()}


_WHY = {
    ("agentbench", "tables"): "columns become TEXT and cells text, as the benchmark makes every table",
    ("agentbench", "sql"): "kept as 'sql.query', which is never executed as a question's gold",
    ("agentbench", "state_md5"): "computed anew, for cells that are text",
    ("agentbench", "answer"): "kept as labels without rows: their order and number no longer count",
    ("agentbench", "skills"): "kept as 'skills', which load_tasks does not read: it goes by the SQL",
    ("lifelong", "answer"): "labels become rows of one cell",
}


def _losses(task: Task, again: Task, kind: str) -> Iterable[Loss]:
    """The fields that come back different. A hash that was computed for a task without one is no loss.

    `repr`, as 1, 1.0 and True are equal in Python but not in a table.
    """
    before, after = _fields(task), _fields(again)
    for field, value in before.items():
        if repr(value) == repr(after[field]) or (field == "state_md5" and value is None):
            continue
        grader = f"{value or PROTOCOLS_OWN} becomes {after[field] or PROTOCOLS_OWN}"
        yield Loss(
            task.id,
            field,
            grader if field == "grader" else _WHY.get((kind, field), f"is not kept by the format {kind}"),
        )


def _fields(task: Task) -> dict[str, Any]:
    gold = task.gold
    return {
        "id": task.id,
        "question": task.question,
        "tables": task.tables,
        "operation": task.operation,
        "answer": gold.answer,
        "sql": gold.sql,
        "state_md5": gold.state_md5,
        "skills": task.skills,
        "grader": task.grader,
    }
