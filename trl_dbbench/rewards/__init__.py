"""Rewards: numbers for an episode or for each of its turns.

`outcome` pays for how an episode ended, `steps` for its turns, `efficiency` for few statements, `learned` and
`process` ask reward models. `registry` finds them by name or dotted path.
In: episodes. Out: one number, or a list with one number per turn, or None.
"""
