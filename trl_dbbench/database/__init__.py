"""Where the agent's SQL runs: a server, and on it one private sandbox per rollout.

```python
with open_database("auto") as database, database.sandbox(task) as sandbox:
    sandbox.execute("SELECT * FROM `medals`").rows
    sandbox.state()
```
"""

from trl_dbbench.database.base import Database
from trl_dbbench.database.open import open_database
from trl_dbbench.database.sandbox import Limits, QueryResult, Sandbox, State

__all__ = ["Database", "Limits", "QueryResult", "Sandbox", "State", "open_database"]
