"""Convert tasks from one format to another, and from CSV files.

Each written task is read back, and each difference is reported as a `Loss` that names the task and the field,
so nothing gets lost silently. A loss that would change the task (a second table dropped, NULL turned into
text, a gold solution that no longer gives the gold answer) is an error. The formats are in `tasks.formats`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trl_dbbench.database import Database, Limits, State
from trl_dbbench.database.embedded.database import SQLiteDatabase
from trl_dbbench.episode.gold import execute_alone, gold_state
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Task, load_tasks
from trl_dbbench.tasks.csv_tables import CSV_SUFFIXES, FROM_FILE, CsvOptions, read_csv_tables
from trl_dbbench.tasks.entries import WRITABLE, write_entries
from trl_dbbench.tasks.formats import FORMATS, get_format, read_entry
from trl_dbbench.tasks.formats.base import Loss, Unrepresentable, WritableFormat, WriteContext
from trl_dbbench.tasks.formats.csv import CsvFormat
from trl_dbbench.tasks.model import FIELDS
from trl_dbbench.utils.files import check_outputs
from trl_dbbench.utils.lookup import some_of

GOLD_LIMITS = Limits(seconds=60.0, rows=10_000, characters=10_000_000)
"""Limits for the user's own gold SQL; agents get tighter ones."""


@dataclass(frozen=True)
class Conversion:
    """The outcome of `convert`.

    `losses` concern tasks that were written; `skipped` says why the others were not. `notes` say how the CSV
    files of tables were read.
    """

    path: Path
    format: str
    written: int
    losses: list[Loss]
    skipped: list[Loss]
    notes: tuple[str, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Yield a line for each kind of loss, with the first tasks that it concerns and their number."""
        yield from (f"left out: {line}" for line in _lines(self.skipped))
        yield from _lines(self.losses)


def _lines(losses: Iterable[Loss]) -> list[str]:
    """Return a line for each kind of loss."""
    tasks: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for loss in losses:
        tasks[loss.field, loss.text].append(f"'{loss.task}'")
    return [
        f"task{'s' if len(names) > 1 else ''} {some_of(names, 5)}, {field}: {text}"
        for (field, text), names in tasks.items()
    ]


def convert(
    source: str | Path,
    target: str | Path,
    to: str | None = None,
    *,
    source_format: str | None = None,
    tables: Sequence[str | Path] = (),
    csv: CsvOptions = FROM_FILE,
    split: str | None = None,
    protocol: str | None = None,
    skip: bool = False,
) -> Conversion:
    """Read tasks, write them in another format, and replace `target` only when all of it is written.

    ```python
    convert("dev.jsonl", "dev.parquet")  # verl
    convert("questions.csv", "tasks.jsonl", tables=["orders.csv"])
    ```

    Args:
        source: what `load_tasks` takes, or with `tables` a CSV or JSONL file of questions (see `CsvFormat`).
        to: one of `FORMATS`, or the dotted path of your own. By default `target`'s suffix decides: `.jsonl`
            is own, `.json` lifelong, `.parquet` verl.
        source_format: the format of `source`, which may also be one of `READ_ONLY`. By default the names of
            its fields decide.
        tables, csv: CSV files, one for each table, and the options for reading them and the questions.
        split: the split of `source`, as in `load_tasks`, and verl's `extra_info.split` (`train` by default).
        protocol: `"text"` (default), `"tools"` or a dotted path, for verl's prompts.
        skip: leave out tasks that the target cannot hold, instead of raising an error.

    Raises:
        ConfigError, TaskError: if a file or a task is wrong, or the target cannot hold a task.
    """
    target = Path(target)
    format = _target_format(target, to)
    check_outputs([target], source)
    _check_source(source, source_format, tables, csv)
    if protocol is not None and format is not FORMATS["verl"] and format in FORMATS.values():
        raise ConfigError(
            f"--protocol has no effect: tasks in the format {format.name} have no prompts. Leave it out."
        )
    protocol = protocol or "text"
    messages = get_protocol(protocol).messages
    with SQLiteDatabase(GOLD_LIMITS) as database:
        rows, state = partial(_rows, database), partial(_state, database)
        context = WriteContext(rows, state, messages, protocol, split or "train")
        losses: list[Loss] = []
        notes: list[str] = []
        if tables:
            questions = CsvFormat(read_csv_tables(tables, csv, notes.append), rows, csv)
            tasks, losses = load_tasks(source, format=questions), questions.warnings
        else:
            # a single file has no splits; for verl, `split` names the one that the file is
            of_target = format is FORMATS["verl"] and Path(source).is_file()
            tasks = load_tasks(source, None if of_target else split, source_format)
        entries, found, skipped = _write(tasks, format, context, skip)
    write_entries(target, entries, format.arrow_schema() if hasattr(format, "arrow_schema") else None)
    return Conversion(target, format.name, len(entries), losses + found, skipped, tuple(notes))


def _target_format(target: Path, to: str | None) -> WritableFormat:
    if to is None:
        # of two formats with the same suffix, the first one
        by_suffix = {format.suffix: format for format in reversed(FORMATS.values())}
        if target.suffix not in by_suffix:
            raise ConfigError(
                f"the name '{target}' says no format; name one with --to, or end it in .jsonl (own), .json "
                "(lifelong) or .parquet (verl)."
            )
        return by_suffix[target.suffix]
    format: Any = get_format(to)
    if missing := [each for each in ("suffix", "write") if not hasattr(format, each)]:
        raise ConfigError(f"the task format {to!r} can only be read: it has no '{missing[0]}'.")
    if format.suffix not in WRITABLE:
        raise ConfigError(
            f"the task format {to!r} has the suffix {format.suffix!r}; allowed: {', '.join(WRITABLE)}."
        )
    if target.suffix != format.suffix:
        known = ", ".join(f"{each.name} ({each.suffix})" for each in FORMATS.values())
        raise ConfigError(
            f"'{target}' is not a name for the format {to}: a file is read by its ending. Call it "
            f"'{target.with_suffix(format.suffix)}'; the endings are {known}."
        )
    return format


def _check_source(
    source: str | Path, format: str | None, tables: Sequence[str | Path], csv: CsvOptions
) -> None:
    if csv != FROM_FILE and not tables:
        raise ConfigError("--delimiter, --encoding and --type go with --tables, which is not given.")
    if tables and format is not None:
        raise ConfigError(
            "with --tables, IN is a file of questions, which has no other format; leave --from out."
        )
    if not tables and format is None and Path(source).suffix.lower() in CSV_SUFFIXES:
        raise ConfigError(
            f"{source} is a table of questions; name the CSV files of the tables that it asks of with "
            "--tables."
        )


def _rows(database: Database, task: Task) -> list[tuple]:
    assert task.gold.sql is not None
    result = execute_alone(database, task, task.gold.sql)
    if result.error:
        raise Unrepresentable("sql", f"the gold SQL fails: {result.error}")
    if result.limit:
        raise Unrepresentable("sql", f"the gold SQL gives more than the limit of {result.limit}")
    return result.rows or []


def _state(database: Database, task: Task) -> State:
    gold = gold_state(database, task)
    if gold.state is None:
        raise Unrepresentable("sql", f"the gold SQL fails: {gold.error}")
    return gold.state


# --- writing ----------------------------------------------------------------------------------------


def _write(
    tasks: Sequence[Task], format: WritableFormat, context: WriteContext, skip: bool
) -> tuple[list[dict[str, Any]], list[Loss], list[Loss]]:
    """Return the entries, the losses of their tasks, and the reasons why other tasks are left out."""
    entries: list[dict[str, Any]] = []
    losses: list[Loss] = []
    refused: list[Loss] = []
    for task in tasks:
        context.index = len(entries)
        try:
            entry = format.write(task, context)
            again = read_entry(format, json.loads(json.dumps(entry)), "")
        except Unrepresentable as error:
            refused.append(Loss(task.id, error.field, str(error)))
        except TaskError as error:
            refused.append(Loss(task.id, "task", str(error)))
        else:
            entries.append(entry)
            losses += _losses(task, again, format)
    if refused and not (skip and entries):
        lines = _lines(refused)
        more = [f"and {len(lines) - 10} problems of other kinds"] if len(lines) > 10 else []
        raise TaskError(
            f"the format {format.name} cannot hold {len(refused)} of {len(tasks)} tasks"
            + (":\n  " if skip else "; --skip leaves them out:\n  ")
            + "\n  ".join([*lines[:10], *more])
        )
    return entries, losses, refused


def _losses(task: Task, again: Task, format: WritableFormat) -> Iterator[Loss]:
    """Yield a loss for each field that comes back different, except a hash computed for a task without one.

    Fields are compared by `repr`, as 1, 1.0 and True are equal in Python but not in a table.
    """
    before, after = (each.grader or "the protocol's own" for each in (task, again))
    why = {"grader": f"{before} becomes {after}", **getattr(format, "losses", {})}
    for field in FIELDS:
        value = _field(task, field)
        if repr(value) == repr(_field(again, field)) or (field == "state_md5" and value is None):
            continue
        yield Loss(task.id, field, why.get(field, f"is not kept by the format {format.name}"))


def _field(task: Task, name: str) -> Any:
    """Return a task's value for a field of the native format."""
    if name == "database":
        return task.source
    return getattr(task.gold if hasattr(task.gold, name) else task, name)
