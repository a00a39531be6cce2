"""Rewards: numbers for an episode or for each of its turns.

`outcome` scores whole episodes, `steps` turns, `efficiency` the speed of right SQL; `learned` and `process`
ask reward models. A new reward is a function marked with `named`; `registry` loads them by name.
In: episodes. Out: for each a number, a list with a number per turn, or `None`.
"""
