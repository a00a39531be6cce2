"""Tasks: a question or a change, the tables it is asked of, and the gold it is judged by.

`model` is the task itself, `formats/` has a module for each layout of task files, `entries` reads and writes
the files, whatever layout they have, and `load` puts them together:

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
