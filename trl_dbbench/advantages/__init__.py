"""Advantages: the credit of each token, computed from rewards.

`estimators` has the pure functions, the other files one estimator with a state each. `batch` is their input;
`registry` finds them by name or dotted path.
In: an `AdvantageBatch`. Out: a tensor (episodes,) or (episodes, tokens).
"""
