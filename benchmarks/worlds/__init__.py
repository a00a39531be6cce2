"""Makers of the tiny models in recipes/tiny*/: their tasks, teachers with bad habits, and random weights.

```
tiny, multi, tiny_sql                  levels of tasks: one small table; several turns; several tables
habits, multi_teacher, sql_teacher     teachers that make the same mistake in the same place
tiny_model                             a chat model of random weights
make                                   writes a world to recipes/: make tiny, tiny-multi, tiny-sql
```
"""
