"""The kinds of shared databases, one module each: SQLite files, folders of tables, dumps.

`tasks/source.py` chooses the kind for a path.
"""
