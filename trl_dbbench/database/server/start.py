"""Server that a run owns, its options, and waiting for it to come up. `docker.py` and `local.py` start one.

It ends with the process that started it, no matter how that process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql

from trl_dbbench.database.server.connections import BoundedConnection
from trl_dbbench.errors import DatabaseError

START_SECONDS = 120
"""Seconds that a server may take to accept our login, or a command that prepares it to finish."""

SHOWN_CHARACTERS = 500
"""Most characters of a program's output that an error quotes."""

LOG_CHARACTERS = 100_000
"""Characters at the end of a server's log that are searched for the reason it ended."""


@dataclass(frozen=True)
class Server:
    """Running server, with its URL and a description of `where` it runs.

    `stop` may be called repeatedly. `kill` ends the server at once, as a failure would. `restart` replaces a
    server that has ended with an empty one at the same URL, and raises DatabaseError if that fails. `log`
    returns the end of the server's log.
    """

    url: str
    where: str
    stop: Callable[[], None]
    kill: Callable[[], None]
    alive: Callable[[], bool]
    restart: Callable[[], None]
    log: Callable[[], str]


def wait_for(check: Callable[[], None], **where: Any) -> None:
    """Wait until the server accepts our login; `check` raises if waiting has become pointless."""
    end = time.monotonic() + START_SECONDS
    while True:
        check()
        try:
            BoundedConnection(**where, connect_timeout=5, read_timeout=5).close()
            return
        except pymysql.MySQLError as error:
            if time.monotonic() > end:
                raise DatabaseError(
                    f"The server was started but lets nobody in after {START_SECONDS} s: {error.args[-1]}."
                ) from None
        time.sleep(0.1)


ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "TCMALLOC_AGGRESSIVE_DECOMMIT": "true",
}
"""Environment variables that make a server return a statement's memory to the system. glibc, with which
MariaDB allocates, would raise both thresholds as large blocks are freed; tcmalloc, which comes with MySQL 9,
would keep freed memory."""

FAST = (
    "--performance-schema=OFF",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    "--innodb-buffer-pool-size=64M",
    "--max-connections=1000",
    "--event-scheduler=OFF",
    "--max-prepared-stmt-count=1048576",  # for all sessions together: an agent can prepare thousands
)

MAX_PACKET_BYTES = 320 * 1024
"""Longest text, in bytes, that a function can make or a cell can hold; enough for the longest statement that
we send. A statement can make thousands of such texts, and searching one for another takes time that grows
with the square of their length."""

BOUNDED = (
    f"--max-allowed-packet={MAX_PACKET_BYTES}",
    # memory of a session; MySQL's connection_memory_limit counts neither variables nor JSON
    "--max-heap-table-size=16M",
    "--maximum-max-heap-table-size=16M",
    "--tmp-table-size=16M",
    "--maximum-tmp-table-size=16M",
    "--maximum-sort-buffer-size=4M",
    "--maximum-join-buffer-size=4M",
    "--maximum-read-buffer-size=1M",
    "--maximum-read-rnd-buffer-size=1M",
    # files: only InnoDB's, by which the size of an agent's tables is measured
    "--loose-disabled-storage-engines=MyISAM,MRG_MyISAM,MEMORY,CSV,ARCHIVE,BLACKHOLE,FEDERATED,EXAMPLE",
    "--loose-temptable-max-ram=64M",
    "--loose-temptable-max-mmap=0",
    "--innodb-max-undo-log-size=16M",
)

BOUNDED_MYSQL = ("--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:76M",)
"""Options for MySQL only: bound of the undo log of temporary tables. Statements that need more fail."""

BOUNDED_MARIADB = (
    # All temporary tables are in this file, which does not shrink before version 11.3. If it were bounded,
    # a statement that cannot be undone would end the server, so sandboxes check it
    # (`Tenancy.temporary_bytes`).
    "--innodb-temp-data-file-path=ibtmp1:12M:autoextend",
    "--enforce-storage-engine=InnoDB",
    "--aria-pagecache-buffer-size=8M",  # for internal temporary tables; 128M by default, never returned
    "--max-session-mem-used=64M",
    "--maximum-max-session-mem-used=64M",
    "--tmp-disk-table-size=256M",
    "--maximum-tmp-disk-table-size=256M",
    "--loose-max-tmp-session-space-usage=512M",
    "--loose-max-tmp-space-usage=4G",
    "--innodb-undo-tablespaces=2",
    "--innodb-undo-log-truncate=ON",
)
"""Options for MariaDB only. Only `max-tmp-*-space-usage` (from 11.5 on) bounds the files that sorts write."""
