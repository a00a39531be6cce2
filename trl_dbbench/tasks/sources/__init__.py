"""Kinds of shared databases, one module each: a SQLite file, a folder of tables, a dump.

`tasks/source.py` is the way in: it tells which one lies at a path.
"""
