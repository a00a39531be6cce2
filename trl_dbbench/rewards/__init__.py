"""Rewards: numbers for an episode or for each of its turns.

`outcome` scores whole episodes, `steps` scores turns, `efficiency` the speed of right SQL; `learned` and
`process` run reward models. A new reward is a function decorated with `named`; `registry` loads it by name.
In: episodes. Out: for each a number, a list with a number per turn, or `None`.
"""
