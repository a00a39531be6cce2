"""Advantages: the credit of each token, computed from rewards.

`estimators` has pure functions; other files have one estimator each, with preparation or state. `batch` is
their input; `registry` finds them by name or dotted path.
In: an `AdvantageBatch`. Out: a tensor (episodes,) or (episodes, tokens).
"""
