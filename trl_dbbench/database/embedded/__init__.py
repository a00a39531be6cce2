"""Databases embedded in this process: native SQLite, and MySQL's dialect on SQLite (`mysqlite`)."""
