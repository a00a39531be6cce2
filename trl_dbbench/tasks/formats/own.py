"""The native format: JSONL, one task a line, which holds everything that a task is.

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
| `skills` | optional | names from `skills.NAMED`; read off `sql` if left out |
| `grader` | optional | from `grading.GRADERS`; `lifelong` if left out, `null` for the protocol's own |
| `state_md5` | optional | the gold state's published hash |
| `results` | instead of `sql` | what SQL may give that is right: each has `columns`, names, and `rows` |
| `database` | instead of `tables` | a database beside the tasks, see below |
| `suite` | with `database` | a list of further databases, with the same tables and other rows |
| `dialect` | optional | of `sql` and of the agent's: `sqlite` over a SQLite file or a folder, else `mysql` |
| `knowledge` | optional | what the agent is told beside the question |
| `schema` | optional | what it is told of the tables: `names` if left out, `full` or `none` |
| `max_turns` | optional | turns of an episode at most; the run's `max_turns` if left out |

A `database` has the `path` of a SQLite file, of a folder of CSV or parquet files, or of a dump of MySQL's
(`.sql`), and the `digest` that it must have, if given. Of a dump it may have the `name` of the database, if
there are several; the names of tables that there are `only`; and `descriptions`, the path of a folder of CSV
files that say what columns mean. A path that is not absolute is looked for beside the task file, then in the
working directory; it is written as an absolute one.

A task whose `grader` is one of `grading.SQL_GRADERS` is answered with SQL: it needs `sql` or `results`, and
no `answer`. The answer must give what `sql` does, on each database of the `suite`, or one of the `results`,
and have no more columns. Where only some columns of a result count, it has those alone, and `width` is the
number of all.
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
