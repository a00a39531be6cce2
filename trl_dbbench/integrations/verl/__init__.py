"""Episodes for a training with verl, on the parquet that `trl-dbbench convert` writes.

```
tool.py     tools for its agent loop: execute_sql, and the one that ends an episode
reward.py   its reward function: what our judge says of the episode
```

Neither needs TRL, transformers or torch, which verl has in other versions.
"""
