"""Tasks: a question or a change, the tables it is asked of, and the gold it is judged by.

Three published layouts and our own become one `Task`. Readers fail at the first thing that cannot be
right and say where it stands, since a task that is silently wrong trains a silently wrong agent.

The own format is JSONL, one task a line:

```json
{"id": "late-orders", "question": "How many orders were late?",
 "tables": [{"name": "orders", "columns": [{"name": "id", "type": "INT"}, {"name": "late", "type": "INT"}],
             "rows": [[1, 0], [2, 1], [3, 1]]}],
 "sql": "SELECT COUNT(*) FROM orders WHERE late = 1", "answer": [[2]]}
```

| key | for | meaning |
|---|---|---|
| `id` | all | unique in the file |
| `question` | all | what the agent reads; the names of tables and columns are added to it |
| `tables` | all | `name`, `columns` (`name` and MySQL `type`, TEXT if left out), `rows` |
| `answer` | questions | gold rows, in order (`[[2]]`; a bare `2` is a row of one cell) |
| `sql` | changes; optional for questions | the gold solution |
| `operation` | optional | SELECT, INSERT, UPDATE or DELETE; read off `sql` if left out |
| `skills` | optional | names from `skills.SKILLS`; read off `sql` if left out |
| `grader` | optional | a name from `scoring.GRADERS`; `lifelong` if left out |
| `state_md5` | optional | the gold state's published hash |
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, Protocol

from trl_dbbench.errors import TaskError
from trl_dbbench.scoring import GRADERS
from trl_dbbench.skills import SKILLS, operation_of, skills_of

if TYPE_CHECKING:
    from datasets import Dataset

Cell = str | int | float | bool | None
"""A cell of a table, as JSON holds it; the column's type says what MySQL makes of it."""

OPERATIONS = ("SELECT", "INSERT", "UPDATE", "DELETE")

AGENTBENCH_QUESTIONS = (
    "other",
    "counting",
    "comparison",
    "ranking",
    "aggregation-SUM",
    "aggregation-MIN",
    "aggregation-MAX",
    "aggregation-AVG",
)
"""The kinds of question that AgentBench's `type` has beside INSERT, UPDATE and DELETE."""

LIFELONG_HUB_ID = "csyq/LifelongAgentBench"
LIFELONG_HUB_FOLDER = "db_bench"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and its MySQL type, as written in CREATE TABLE."""

    name: str
    type: str = "TEXT"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it lies in the database when an episode starts."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Gold:
    """What a right episode ends in.

    Questions have an `answer`: labels (AgentBench) or rows (tuples). Changes have the `sql` that makes
    the gold state and, in published data, its hash `state_md5` (32 hex digits; `""` stands for the
    hash of an empty table, which MySQL gives as NULL).
    """

    answer: tuple | None = None
    sql: str | None = None
    state_md5: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One question or change.

    `grader` names one of `scoring.GRADERS`; `None` leaves it to the protocol, for AgentBench has a
    grader for each of its two protocols.
    """

    id: str
    question: str
    tables: tuple[Table, ...]
    operation: str
    gold: Gold
    skills: tuple[str, ...] = ()
    grader: str | None = "lifelong"

    @property
    def is_question(self) -> bool:
        """Whether the task is judged by its answer; otherwise by the state of its tables."""
        return self.operation == "SELECT"

    def prompt(self) -> str:
        """The question, then what the agent may know of the tables: their names and columns."""
        return "\n".join([self.question.rstrip(), *map(_describe, self.tables)])

    def to_json(self) -> str:
        """The task as a line of the own format; `from_json` gives an equal task back."""
        # spelled out: dataclasses.asdict copies every cell, which takes a minute for 100,000 tasks
        fields = {
            "id": self.id,
            "question": self.question,
            "tables": [
                {
                    "name": table.name,
                    "columns": [{"name": column.name, "type": column.type} for column in table.columns],
                    "rows": table.rows,
                }
                for table in self.tables
            ],
            "operation": self.operation,
            "skills": self.skills,
            "grader": self.grader,
            "answer": self.gold.answer,
            "sql": self.gold.sql,
            "state_md5": self.gold.state_md5,
        }
        return json.dumps(fields, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """16 hex digits that stand for all of the task: its id is unique in a file only."""
        return hashlib.blake2b(self.to_json().encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Reads a line that `to_json` wrote or a user did by hand.

        Raises:
            TaskError: if it is not a task, saying why.
        """
        return _own_task(json_object(line))


def _describe(table: Table) -> str:
    columns = ", ".join(column.name for column in table.columns)
    return f"The table is named {table.name} and has these columns: {columns}"


class PromptSource(Protocol):
    """What `to_dataset` needs of a protocol (see `protocol.py`)."""

    def messages(self, task: Task, system_prompt: str | None = None) -> list[dict[str, str]]: ...


def to_dataset(
    tasks: Sequence[Task], protocol: str | PromptSource = "text", system_prompt: str | None = None
) -> Dataset:
    """The rows that the trainer reads: `prompt`, a list of messages, and `task`, a JSON string.

    `task` is text because Arrow has no column for tables whose cells differ in type from task to task.

    Args:
        tasks: what `load_tasks` returned.
        protocol: `"text"`, `"tools"` or a protocol object.
        system_prompt: replaces the protocol's own.
    """
    from datasets import Dataset, concatenate_datasets

    from trl_dbbench.protocol import get_protocol

    source = get_protocol(protocol) if isinstance(protocol, str) else protocol

    def chunk(start: int) -> Dataset:
        """A part at a time: as Python objects all rows would take several times their size."""
        part = tasks[start : start + 1_000]
        return Dataset.from_list(
            [{"prompt": source.messages(task, system_prompt), "task": task.to_json()} for task in part]
        )

    return concatenate_datasets([chunk(start) for start in range(0, max(len(tasks), 1), 1_000)])


def load_tasks(path_or_id: str | Path, split: str | None = None) -> list[Task]:
    """Reads tasks from a file, a folder of parquet files, or the LifelongAgentBench hub repository.

    The layout is recognised by the keys of the first task: AgentBench JSONL, LifelongAgentBench's
    `{key: entry}` JSON or parquet, or our own JSONL.

    Args:
        path_or_id: a `.jsonl`, `.json` or `.parquet` file, a folder of parquet files, or
            `csyq/LifelongAgentBench` (needs the network).
        split: the split to take of a hub repository or of parquet files named after their split;
            `None` takes all.

    Raises:
        TaskError: if there is nothing to read or a task in it is wrong; the text names the file and,
            where there is one, the line.
    """
    path = Path(path_or_id)
    if path.is_dir():
        entries = _parquet_entries(path, split)
    elif path.exists() and split is not None:
        raise TaskError(f"{path} is a single file, which has no split {split!r}; leave the split out.")
    elif path.exists():
        entries = _parquet_rows([path]) if path.suffix == ".parquet" else _text_entries(path)
    elif str(path_or_id) == LIFELONG_HUB_ID:
        entries = _hub_entries(split)
    else:
        raise TaskError(
            f"no task file at '{path_or_id}'. Give a .jsonl, .json or .parquet file, a folder of parquet files, "
            f"or the hub id '{LIFELONG_HUB_ID}'."
        )
    tasks = list(_read(entries, str(path_or_id)))
    if not tasks:
        raise TaskError(
            f"{path_or_id} holds no tasks. Expected one JSON object a line, or a {{key: entry}} object."
        )
    return tasks


# Every source yields (where, entry): `where` is what an error names, such as "line 3".
Entries = Iterable[tuple[str, dict[str, Any]]]


def _text_entries(path: Path) -> Entries:
    if path.suffix == ".json":
        text = "".join(_lines(path))
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TaskError(
                f"{path} is not JSON: {error}. A file of one task a line must be named .jsonl."
            ) from None
        if isinstance(whole, dict) and all(isinstance(entry, dict) for entry in whole.values()):
            return [(f"entry '{key}'", {"id": key, **entry}) for key, entry in whole.items()]
        if isinstance(whole, list) and all(isinstance(entry, dict) for entry in whole):
            return [(f"entry {number}", entry) for number, entry in enumerate(whole, 1)]
        raise TaskError(f"{path} must hold an object {{key: entry}} or a list of tasks.")
    return _jsonl_entries(path)


def _lines(path: Path) -> Iterator[str]:
    try:
        # utf-8-sig: some editors put a byte order mark in front; newline: no other sign ends a line here
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _jsonl_entries(path: Path) -> Entries:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                yield f"line {number}", json_object(line.removesuffix("\n"))
            except TaskError as error:
                raise TaskError(f"{path}, line {number}: {error}") from None


def json_object(line: str) -> dict[str, Any]:
    """A line of JSONL. Raises TaskError if it is no JSON object."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise TaskError(f"must be a JSON object, is {type(entry).__name__}")
    return entry


def _parquet_entries(folder: Path, split: str | None) -> Entries:
    files = sorted(folder.rglob("*.parquet"))
    if split is not None:
        # train-00000-of-00001.parquet, train.parquet and train/0000.parquet, but not training.parquet
        named = re.compile(rf"{re.escape(split)}(?![A-Za-z0-9])")
        files = [f for f in files if any(map(named.match, f.relative_to(folder).parts))]
    if not files:
        wanted = "*.parquet" if split is None else f"{split}*.parquet"
        raise TaskError(f"the folder {folder} has no {wanted}.")
    return _parquet_rows(files)


def _hub_entries(split: str | None) -> Entries:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            LIFELONG_HUB_ID, repo_type="dataset", allow_patterns=f"{LIFELONG_HUB_FOLDER}/*.parquet"
        )
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TaskError(
            f"'{LIFELONG_HUB_ID}' could not be downloaded ({reason}). Check the network, or give a local file."
        ) from None
    return _parquet_entries(Path(folder) / LIFELONG_HUB_FOLDER, split)


def _parquet_rows(files: Sequence[Path]) -> Entries:
    import pyarrow
    import pyarrow.parquet

    for file in files:
        try:
            rows = pyarrow.parquet.read_table(file).to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{file} is not a readable parquet file: {error}") from None
        for number, row in enumerate(rows, 1):
            yield f"{file.name} row {number}", {key: _unpack(value, key) for key, value in row.items()}


# The fields that Arrow has no type for when cells differ in type.
_NESTED = frozenset(
    (
        # LifelongAgentBench, AgentBench, our own
        *("answer_info", "direct", "table_info", "column_info_list", "row_list", "skill_list"),
        *("type", "label", "sql", "table"),
        *("tables", "answer", "skills"),
    )
)


def _unpack(value: Any, key: str) -> Any:
    """A nested field that an export wrote as text, JSON or Python's; other exports have structs."""
    if isinstance(value, dict):
        return {name: _unpack(inner, name) for name, inner in value.items()}
    if not isinstance(value, str) or key not in _NESTED:
        return value
    if value in ("", "null", "None") and key == "direct":
        return None
    if value[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return _unpack(read(value), key)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value


def _read(entries: Entries, source: str) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for where, entry in entries:
        try:
            # AgentBench has no ids: dev.jsonl's third task is dev-3, and stays apart from standard-3
            task = _reader(entry)(entry, f"{Path(source).stem}-{where.rpartition(' ')[2]}")
        except TaskError as error:
            raise TaskError(f"{source}, {where}: {error}") from None
        if task.id in seen:
            raise TaskError(
                f"{source}, {where}: the id '{task.id}' stands at {seen[task.id]} already; ids must differ."
            )
        seen[task.id] = where
        yield task


def _reader(entry: Mapping[str, Any]):
    if "answer_info" in entry or "table_info" in entry:
        return _lifelong_task
    if "description" in entry or "table" in entry:
        return _agentbench_task
    return _own_task


# --- our own format -------------------------------------------------------------------------------


def _own_task(entry: Mapping[str, Any], default_id: str = "") -> Task:
    sql = _optional(entry, "sql", str)
    answer = _optional(entry, "answer", list)
    grader = entry.get("grader", "lifelong")
    if grader is not None and grader not in tuple(GRADERS):
        raise TaskError(f"unknown grader {grader!r}; allowed: {', '.join(GRADERS)}")
    if grader == "lifelong" and answer is not None:
        answer = [tuple(row) if isinstance(row, list) else (row,) for row in answer]
    return _task(
        id=_required(entry, "id", (str, int)),
        question=_required(entry, "question", str),
        tables=_tables(_required(entry, "tables", list)),
        operation=entry.get("operation") or (_operation(sql) if sql else "SELECT"),
        gold=Gold(None if answer is None else tuple(answer), sql, _optional(entry, "state_md5", str)),
        skills=entry.get("skills"),
        grader=grader,
    )


def _tables(tables: list) -> tuple[Table, ...]:
    return tuple(
        _table(_object(table, "table"), name="name", columns="columns", rows="rows") for table in tables
    )


def _operation(sql: str) -> str:
    operation = operation_of(sql)
    if operation is None:
        raise TaskError(f"'sql' is not one statement of {', '.join(OPERATIONS)}: {sql}")
    return operation


# --- AgentBench -----------------------------------------------------------------------------------


def _agentbench_task(entry: Mapping[str, Any], default_id: str) -> Task:
    kind = _required(entry, "type", list)
    label = _required(entry, "label", list)
    if not kind or not label:
        raise TaskError(f"'{'type' if not kind else 'label'}' is empty")
    if kind[0] not in (*OPERATIONS[1:], *AGENTBENCH_QUESTIONS):
        allowed = ", ".join((*OPERATIONS[1:], *AGENTBENCH_QUESTIONS))
        raise TaskError(f"unknown operation {kind[0]!r} in 'type'; allowed: {allowed}")
    tables = _required(entry, "table", (dict, list))
    question = _required(entry, "description", str)
    if evidence := entry.get("evidence"):
        question += f"\n{evidence}"
    changes = kind[0] in OPERATIONS[1:]
    if changes and not isinstance(label[0], str):
        raise TaskError(f"the 'label' of a change must be its gold SQL, is {label[0]!r}")
    # the published SQL of a question is often not valid: skills are read off it, it is never executed as gold
    sql = entry.get("sql")
    query = sql.get("query") if isinstance(sql, dict) and not changes else None
    return _task(
        id=_first_of(entry, ("id",), default_id),
        question=question,
        tables=tuple(map(_agentbench_table, tables if isinstance(tables, list) else [tables])),
        operation=kind[0] if changes else "SELECT",
        gold=Gold(sql=label[0], state_md5=_published_md5(_required(entry, "answer_md5", str)))
        if changes
        else Gold(answer=tuple(label)),
        skills=entry.get("skills", skills_of(query) if isinstance(query, str) else None),
        grader=None,
    )


def _agentbench_table(table: Any) -> Table:
    table = _object(table, "table")
    info = _required(table, "table_info", dict)
    plain = _table(
        {**info, "name": _required(table, "table_name", str)}, name="name", columns="columns", rows="rows"
    )
    # the benchmark creates every column as TEXT, whatever its type says, and inserts str(cell)
    return Table(
        plain.name,
        tuple(Column(column.name) for column in plain.columns),
        tuple(tuple(str(cell) for cell in row) for row in plain.rows),
    )


def _published_md5(text: str) -> str:
    """`"[('<md5>',)]"`, as a MySQL driver printed it, without the wrapping; an empty table's is `""`."""
    try:
        ((md5,),) = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        md5 = False
    if md5 is not None and not _is_md5(md5):
        raise TaskError(f"'answer_md5' must look like [('<md5>',)], is {text!r}")
    return md5 or ""


def _is_md5(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


# --- LifelongAgentBench ---------------------------------------------------------------------------


def _lifelong_task(entry: Mapping[str, Any], default_id: str) -> Task:
    gold = _required(entry, "answer_info", dict)
    table = _required(entry, "table_info", dict)
    answer, md5, sql = (_optional(gold, *field) for field in (("direct", list), ("md5", str), ("sql", str)))
    if md5 in ("", "null") or (md5 == "None" and answer is not None):  # how some exports write null
        md5 = None
    if (answer is None) == (md5 is None):
        raise TaskError("'answer_info' must have exactly one of 'direct' (a question) and 'md5' (a change)")
    if answer is not None:
        answer = tuple(tuple(row) if isinstance(row, list | tuple) else (row,) for row in answer)
    return _task(
        id=_first_of(entry, ("id", "sample_index"), default_id),
        question=_required(entry, "instruction", str),
        tables=(_table(table, name="name", columns="column_info_list", rows="row_list"),),
        operation="SELECT" if md5 is None else _operation(_required(gold, "sql", str)),
        # the benchmark takes the hash out of MySQL's reply, where that of an empty table reads None
        gold=Gold(answer=answer, sql=sql, state_md5="" if md5 == "None" else md5),
        skills=entry.get("skill_list"),
        grader="lifelong",
    )


# --- what every format must satisfy ---------------------------------------------------------------


def _task(*, id: Any, skills: Any, **fields: Any) -> Task:
    operation, gold = fields["operation"], fields["gold"]
    if operation not in OPERATIONS:
        raise TaskError(f"unknown operation {operation!r}; allowed: {', '.join(OPERATIONS)}")
    if operation == "SELECT" and gold.answer is None:
        raise TaskError("a question needs its gold 'answer'")
    if operation != "SELECT" and not gold.sql:
        raise TaskError(f"{operation} needs its gold solution 'sql'")
    if gold.state_md5 and not _is_md5(gold.state_md5):
        raise TaskError(f"the gold state's md5 must be 32 hex digits, is {gold.state_md5!r}")
    if skills is None:
        skills = skills_of(gold.sql) if gold.sql else ()
    if not isinstance(skills, list | tuple):
        raise TaskError(f"the skills must be a list of names, are {skills!r}")
    if unknown := [skill for skill in skills if skill not in SKILLS]:
        raise TaskError(f"unknown skill {unknown[0]!r}; allowed: {', '.join(SKILLS)}")
    names = [table.name for table in fields["tables"]]
    if not names:
        raise TaskError("a task needs at least one table; the list is empty")
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskError(f"there are two tables named '{twice[0]}'")
    task = Task(id=str(id), skills=tuple(skills), **fields)
    try:
        task.to_json().encode()
    except UnicodeEncodeError as error:
        raise TaskError(
            f"holds half of a surrogate pair, which is no text: {error.object[error.start]!r}"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"holds what JSON cannot: {error}") from None
    return task


def _first_of(entry: Mapping[str, Any], keys: Sequence[str], otherwise: str) -> str | int:
    """The first of the fields that is there, 0 included."""
    return next((_optional(entry, key, (str, int)) for key in keys if entry.get(key) is not None), otherwise)


def _table(table: Mapping[str, Any], *, name: str, columns: str, rows: str) -> Table:
    title = _required(table, name, str)
    read = []
    for column in _required(table, columns, list):
        column = _object(column, "column")
        read.append(_column(_required(column, "name", str), _optional(column, "type", str) or "TEXT"))
    if not read:
        raise TaskError(f"table '{title}' has no columns")
    folded = [column.name.casefold() for column in read]
    if twice := [column.name for column in read if folded.count(column.name.casefold()) > 1]:
        raise TaskError(
            f"table '{title}' has the column '{twice[0]}' twice; MySQL ignores case in column names"
        )
    lines = []
    for number, row in enumerate(_required(table, rows, list), 1):
        if not isinstance(row, list | tuple) or len(row) != len(read):
            size = f"{len(row)} cells" if isinstance(row, list | tuple) else repr(row)
            raise TaskError(f"table '{title}', row {number} has {size}, the table has {len(read)} columns")
        if wrong := [cell for cell in row if not _is_cell(cell)]:
            raise TaskError(
                f"table '{title}', row {number} has the cell {wrong[0]!r}; a cell is a string, a finite number, "
                "true, false or null"
            )
        # the same names come again and again in a file of many tasks: one object for each
        lines.append(tuple(intern(cell) if isinstance(cell, str) else cell for cell in row))
    return Table(title, tuple(read), tuple(lines))


@lru_cache(maxsize=10_000)
def _column(name: str, type: str) -> Column:
    return Column(name, type)


def _is_cell(value: Any) -> bool:
    return value is None or (
        isinstance(value, str | int | float) and not (value != value or value in (math.inf, -math.inf))
    )


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TaskError(f"a {what} must be a JSON object, is {value!r}")
    return value


def _required(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    if entry.get(key) is None:
        raise TaskError(f"the field '{key}' is missing; found: {', '.join(map(str, entry)) or 'nothing'}")
    return _optional(entry, key, kind)


def _optional(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = entry.get(key)
    if value is not None and not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TaskError(f"the field '{key}' must be {names}, is {type(value).__name__}")
    return value
