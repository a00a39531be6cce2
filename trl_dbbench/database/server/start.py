"""A server that a run owns, and waiting for one to come up. `docker.py` and `local.py` start them.

They end with the process that started them, however it ends.
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
"""Seconds a server may take to let us in, or a command that prepares it to end."""

SHOWN_CHARACTERS = 500
"""Characters of a program's output that an error quotes."""

LOG_CHARACTERS = 100_000
"""Characters of a server's log that are searched for what ended it."""


@dataclass(frozen=True)
class Server:
    """A running server: its URL, and `where` it runs in words.

    `stop` may be called repeatedly. `kill` ends it at once, as a failure would. `restart` replaces a server
    that has ended with an empty one at the same URL, and raises DatabaseError if that fails. `log` gives the
    last lines that it has written.
    """

    url: str
    where: str
    stop: Callable[[], None]
    kill: Callable[[], None]
    alive: Callable[[], bool]
    restart: Callable[[], None]
    log: Callable[[], str]


def wait_for(check: Callable[[], None], **where: Any) -> None:
    """Return when the server lets us in; `check` raises when waiting has become pointless."""
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
"""A server gives back what one statement took. glibc, which MariaDB allocates with, would raise both
thresholds with what is freed; tcmalloc, which comes with MySQL 9, would keep what is freed."""

FAST = (
    "--performance-schema=OFF",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    "--innodb-buffer-pool-size=64M",
    "--max-connections=1000",
    "--event-scheduler=OFF",
    "--max-prepared-stmt-count=1048576",  # of all sessions together: an agent can prepare thousands
)

MAX_PACKET_BYTES = 320 * 1024
"""The longest text that a function makes and that a cell can have; enough for the longest statement that is
sent. A statement can make thousands of such texts, and searching one for another takes time by the square of
their lengths."""

BOUNDED = (
    f"--max-allowed-packet={MAX_PACKET_BYTES}",
    # memory of one session; MySQL's connection_memory_limit counts neither variables nor JSON
    "--max-heap-table-size=16M",
    "--maximum-max-heap-table-size=16M",
    "--tmp-table-size=16M",
    "--maximum-tmp-table-size=16M",
    "--maximum-sort-buffer-size=4M",
    "--maximum-join-buffer-size=4M",
    "--maximum-read-buffer-size=1M",
    "--maximum-read-rnd-buffer-size=1M",
    # files: only InnoDB's, which the size of an agent's tables is asked of
    "--loose-disabled-storage-engines=MyISAM,MRG_MyISAM,MEMORY,CSV,ARCHIVE,BLACKHOLE,FEDERATED,EXAMPLE",
    "--loose-temptable-max-ram=64M",
    "--loose-temptable-max-mmap=0",
    "--innodb-max-undo-log-size=16M",
)

BOUNDED_MYSQL = ("--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:76M",)
"""MySQL only: bounds the log that undoes changes of temporary tables. Statements that need more fail."""

BOUNDED_MARIADB = (
    # All temporary tables are in this file, which does not shrink before version 11.3. If it may not grow,
    # a statement that cannot be undone ends the server, so sandboxes look at its size (`temporary_grew`).
    "--innodb-temp-data-file-path=ibtmp1:12M:autoextend",
    "--enforce-storage-engine=InnoDB",
    "--aria-pagecache-buffer-size=8M",  # of its own temporary tables, 128M by default and never given back
    "--max-session-mem-used=64M",
    "--maximum-max-session-mem-used=64M",
    "--tmp-disk-table-size=256M",
    "--maximum-tmp-disk-table-size=256M",
    "--loose-max-tmp-session-space-usage=512M",
    "--loose-max-tmp-space-usage=4G",
    "--innodb-undo-tablespaces=2",
    "--innodb-undo-log-truncate=ON",
)
"""MariaDB only. Only `max-tmp-*-space-usage` (from 11.5 on) bounds the files of sorts."""
