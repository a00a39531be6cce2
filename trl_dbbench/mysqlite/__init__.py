"""MySQL's dialect on SQLite: in-memory tables in this process that answer as MySQL 9.7 does, or refuse.

```python
>>> from trl_dbbench.mysqlite import Column, Connection, Table
>>> shop = Connection([Table("orders", [Column("id", "INT"), Column("paid", "DATE")], [(1, "2026-1-5")])])
>>> shop.execute("SELECT paid + INTERVAL 1 MONTH AS due FROM orders").rows
[(datetime.date(2026, 2, 5),)]
>>> shop.execute("SELECT DATEDIFF(paid) FROM orders")
Traceback (most recent call last):
trl_dbbench.mysqlite.errors.StatementError: (1582, "Incorrect parameter count in the call to native ...")

```

A statement is checked against MySQL's grammar (`grammar`), parsed by sqlglot (`parse`), refused where MySQL
refuses it (`checks`, `names`), rewritten for SQLite (`rules`), and run under limits (`guard`). If MySQL's
answer is not certain, it is refused with error 1235. This package imports nothing else of `trl_dbbench`.
"""

from trl_dbbench.mysqlite.connection import TIME_LIMIT, Connection, Limits, Result
from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.kinds import Column, Table

__all__ = ["TIME_LIMIT", "Column", "Connection", "Limits", "Result", "StatementError", "Table"]
