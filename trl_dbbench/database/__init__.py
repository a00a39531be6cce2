"""Execution of the agent's SQL: a database, and in it a private sandbox for each rollout.

```python
with open_database("auto") as database, database.sandbox(task) as sandbox:
    sandbox.execute("SELECT * FROM `medals`").rows
    sandbox.state()
```
"""

from trl_dbbench.database.base import Database
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.open import database_for, open_database
from trl_dbbench.database.sandbox import Limits, QueryResult, Sandbox, State, TableState

__all__ = ["Database", "Dialect", "Limits", "QueryResult", "Sandbox", "State", "TableState"]
__all__ += ["database_for", "open_database"]
