"""What the tiny models in recipes/tiny*/ are made with: tasks, teachers with bad habits, and the models' maker.

```
tiny, multi, tiny_sql                  levels of tasks: one small table; several turns; several tables
habits, multi_teacher, sql_teacher     teachers that make the same mistake in the same place
tiny_model                             a chat model of random weights
make                                   writes a world to recipes/: make tiny, tiny-multi, tiny-sql
```
"""
