"""Make, convert and check training data.

Generated tasks, audits of tasks, sampled episodes, demonstrations, labels for reward models, scores of
predicted SQL.
In: tasks, databases or episodes. Out: files of tasks, conversations or scores.
"""
