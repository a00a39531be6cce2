"""The native format: JSONL, one task a line, which holds everything that a task is.

docs/tasks.md has its fields ("The native format"), and those of a `database` ("Shared databases"). A relative
path is looked for beside the task file, or in the folder that is read, then in the working directory; it is
written as an absolute one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.formats.base import BesideFiles, WriteContext, folder_of
from trl_dbbench.tasks.model import Task


class OwnFormat(BesideFiles):
    name = "own"
    suffix = ".jsonl"
    nested = frozenset(("tables", "answer", "skills", "results", "database", "suite"))

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Any entry: what no other format claims is read as this one, whose errors say what is missing."""
        return True

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        entry = dict(entry)
        if "database" in entry:
            entry["database"] = self._found(entry["database"])
        if isinstance(entry.get("suite"), list):
            entry["suite"] = [self._found(each) for each in entry["suite"]]
        return Task.from_entry(entry)

    def _found(self, database: Any) -> Any:
        """Return the database with its whole path; anything else is left for `Task.from_entry` to refuse."""
        if not isinstance(database, dict):
            return database
        paths = {key: database[key] for key in ("path", "descriptions") if isinstance(database.get(key), str)}
        return {**database, **{key: self._located(path) for key, path in paths.items()}}

    def _located(self, path: str) -> str:
        """Where a database lies: beside the tasks, or else as seen from the working directory."""
        try:
            given = Path(path).expanduser()
            if given.is_absolute():
                return path
            places = list(dict.fromkeys((folder_of(self.path), Path.cwd())))
            found = next((place / given for place in places if (place / given).exists()), None)
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or no such user
            raise TaskError(f"the database's path {path[:200]!r} cannot be one: {error}") from None
        if found is None:
            folders = " nor in ".join(map(str, places))
            raise TaskError(
                f"there is no database '{path}', not in {folders}. Give its path from the task file, from "
                "the working directory, or the whole path."
            )
        return str(found)

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        return task.to_entry()
