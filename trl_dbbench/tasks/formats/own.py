"""The native format: JSONL, one task a line, without any loss.

docs/tasks.md describes its fields ("The native format"), and those of a `database` ("Shared databases"). A
relative path is searched for beside the task file, or in the folder that is read, then in the working
directory. Absolute paths are written.
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
        """Match any entry: one that no other format matches is read as native, and errors name its faults."""
        return True

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        entry = dict(entry)
        if "database" in entry:
            entry["database"] = self._found(entry["database"])
        if isinstance(entry.get("suite"), list):
            entry["suite"] = [self._found(each) for each in entry["suite"]]
        return Task.from_entry(entry)

    def _found(self, database: Any) -> Any:
        """Return the entry of a database with absolute paths. `Task.from_entry` refuses any other value."""
        if not isinstance(database, dict):
            return database
        paths = {key: database[key] for key in ("path", "descriptions") if isinstance(database.get(key), str)}
        return {**database, **{key: self._located(path) for key, path in paths.items()}}

    def _located(self, path: str) -> str:
        """Return the absolute path of a database: beside the tasks, or else in the working directory."""
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
