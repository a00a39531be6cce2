"""The own format: JSONL, one task a line, which holds everything that a task is.

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
| `skills` | optional | names from `skills.SKILLS` or `skills.KINDS`; read off `sql` if left out |
| `grader` | optional | from `grading.GRADERS`; `lifelong` if left out, `null` for the protocol's own |
| `state_md5` | optional | the gold state's published hash |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trl_dbbench.tasks.formats.base import WriteContext
from trl_dbbench.tasks.model import Task


class OwnFormat:
    name = "own"
    suffix = ".jsonl"
    nested = frozenset(("tables", "answer", "skills"))

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Any entry: what no other format claims is read as this one, whose errors say what is missing."""
        return True

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        return Task.from_entry(entry)

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        return task.to_entry()
