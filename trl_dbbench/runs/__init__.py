"""Files of a run, and their later uses.

`records` and `settings` define `episodes.jsonl` and `run.json`, `checkpoints` and `trained` find weights,
`replay` plays episodes again, `export` makes datasets, `few_shot` shows earlier episodes in prompts.
In: episodes and a trainer's settings. Out: files, records, datasets, metrics.
"""
