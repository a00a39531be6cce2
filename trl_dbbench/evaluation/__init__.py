"""Measure models and look at what they did.

`evaluate` plays tasks greedily, `compare` tests whether one model is better than another, `report` draws a
run as a page, `merge` turns an adapter into a model that can be served.
In: models or runs. Out: episodes, tables and pages.
"""
