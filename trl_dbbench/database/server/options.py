"""The options of servers that we start: fast, since their data is thrown away, and bounded for agents.

They do without everything that keeps data safe (flushes, double writes, the binary log). An option with the
prefix `loose-` is ignored by a server that does not know it; `maximum-` bounds what a session may set.
"""

from __future__ import annotations

ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "TCMALLOC_AGGRESSIVE_DECOMMIT": "true",
}
"""A server gives back what one statement took. glibc, of which MariaDB has its memory, would raise both
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
"""That of MySQL alone: what undoes changes of temporary tables. Statements fail that need more."""

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
"""Those of MariaDB alone. Only `max-tmp-*-space-usage` (from 11.5 on) bounds the files of sorts."""
