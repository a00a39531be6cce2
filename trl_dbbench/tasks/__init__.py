"""Tasks: a question or a change, its tables, and the gold that the agent's work is judged by.

`model` has the task itself, `formats/` a module for each format of task files, and `entries` reads and writes
the files (JSONL, JSON, parquet, CSV). `load` puts them together:

```python
>>> load_tasks("tasks.jsonl")[0].prompt()
'How many orders were late?\\nThe table is named orders and has these columns: id, late'
```
"""

from trl_dbbench.tasks.load import load_tasks
from trl_dbbench.tasks.model import Gold, Task
from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.table import Cell, Column, Table

__all__ = ["Cell", "Column", "Gold", "Source", "Table", "Task", "load_tasks"]
