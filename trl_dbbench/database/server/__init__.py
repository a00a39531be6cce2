"""MySQL and MariaDB: a server that was started here or runs elsewhere, and the accounts and tables on it."""
