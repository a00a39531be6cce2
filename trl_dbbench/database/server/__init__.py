"""MySQL and MariaDB servers, started here or running elsewhere, with the accounts and tables on them."""
