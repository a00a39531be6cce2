"""Evaluation of models and runs.

`evaluate` plays tasks greedily, `compare` tests whether one model is better than another, `report` shows a
run as an HTML page, `merge` merges an adapter into its base model.
In: models or runs. Out: episodes, tables and pages.
"""
