"""The files of a run, and what can be done with them later.

`records` and `settings` are the forms of `episodes.jsonl` and `run.json`, `checkpoints` and `trained` find
weights, `replay` plays episodes again, `export` makes datasets, `few_shot` shows episodes in prompts.
In: episodes and a trainer's settings. Out: files, records, datasets, metrics.
"""
