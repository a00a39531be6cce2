"""Episodes for training with verl, on the parquet files that `trl-dbbench convert` writes.

```
tool.py     tools for its agent loop: execute_sql, and the one that ends an episode
reward.py   its reward function, from our judge's verdict on the episode
```

Neither needs TRL, transformers or torch, which verl needs in other versions.
"""
