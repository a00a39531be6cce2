"""The registry of task formats.

`FORMATS` can be read and written; docs/data.md says what each cannot hold. `READ_ONLY` are benchmarks whose
answers are SQL; docs/tasks.md describes their files. docs/extending.md shows how to write your own format,
which is named by its dotted path. The format `csv` is not registered, since its questions need tables and a
database: only `convert` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trl_dbbench.errors import ConfigError, DBBenchError, TaskError
from trl_dbbench.tasks.formats.agentbench import AgentBenchFormat
from trl_dbbench.tasks.formats.base import TaskFormat, WritableFormat
from trl_dbbench.tasks.formats.critic import CriticFormat
from trl_dbbench.tasks.formats.lifelong import LifelongFormat
from trl_dbbench.tasks.formats.own import OwnFormat
from trl_dbbench.tasks.formats.spider2 import Spider2Format
from trl_dbbench.tasks.formats.text2sql import BirdFormat, SpiderFormat
from trl_dbbench.tasks.formats.verl import VerlFormat
from trl_dbbench.tasks.model import Task
from trl_dbbench.utils.lookup import look_up

FORMATS: dict[str, WritableFormat] = {
    each.name: each for each in (OwnFormat(), AgentBenchFormat(), LifelongFormat(), VerlFormat())
}
READ_ONLY: dict[str, TaskFormat] = {
    each.name: each for each in (SpiderFormat(), BirdFormat(), CriticFormat(), Spider2Format())
}

_ALL: dict[str, TaskFormat] = {**FORMATS, **READ_ONLY}


def get_format(name: str) -> TaskFormat:
    """Return one of `FORMATS` or `READ_ONLY`, or the class at a dotted path. Raises ConfigError."""
    found: Any = look_up("task format", name, _ALL)
    if name in _ALL:
        return found
    try:
        made = found()
    except Exception as error:  # the user's class may raise anything
        raise ConfigError(
            f"the task format {name!r} cannot be made: {type(error).__name__}: {error}. It must be a class "
            "that takes no arguments."
        ) from error
    if missing := [each for each in ("name", "matches", "read") if not hasattr(made, each)]:
        raise ConfigError(
            f"the task format {name!r} has no '{missing[0]}'; a format has a name, matches(entry) and "
            "read(entry, default_id)."
        )
    return made


def format_of(entry: Mapping[str, Any]) -> TaskFormat:
    """Return the format of an entry, by the names of its fields."""
    # in reverse, as the first, `own`, matches any entry
    return next(each for each in reversed(_ALL.values()) if each.matches(entry))


def read_entry(format: TaskFormat, entry: Mapping[str, Any], default_id: str) -> Task:
    """Read the task of an entry in this format.

    A task of a user's own format is converted to the native format and back, which checks it and turns its
    lists into tuples.
    """
    if type(_ALL.get(format.name)) is type(format):
        return format.read(entry, default_id)
    try:
        task = format.read(entry, default_id)
    except DBBenchError:
        raise
    except Exception as error:  # the user's format may raise anything
        raise TaskError(
            f"the format {format.name} cannot read it: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(task, Task):
        raise TaskError(f"the format {format.name} must read a Task, gave {type(task).__name__}")
    try:
        line = task.to_json()
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"the format {format.name} read a task that cannot be: {error}") from error
    return Task.from_json(line)
