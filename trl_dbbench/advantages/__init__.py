"""Advantages: the credit that each token gets from the rewards.

One file per estimator; `batch` is what they read, `registry` finds them by name or dotted path.
In: an `AdvantageBatch`. Out: a tensor (episodes,) or (episodes, tokens).
"""
