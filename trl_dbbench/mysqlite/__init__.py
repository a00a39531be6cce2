"""SQLite in the place of MySQL: an emulation of MySQL's dialect in this process."""
