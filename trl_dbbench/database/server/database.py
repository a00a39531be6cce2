"""A MySQL or MariaDB server as a database; one that we started is watched, and restarted when it ends.

A run's accounts, databases and connections on the server make up its `Tenancy`. After a restart of the
server, `recover` begins a new one, and sandboxes of the old one fail.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from functools import partial

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from trl_dbbench.database.base import Database
from trl_dbbench.database.dialect import MARIADB, MYSQL, ServerDialect
from trl_dbbench.database.sandbox import Limits, Sandbox
from trl_dbbench.database.server.connections import (
    CONNECT_SECONDS,
    connect_advice,
    error_text,
    make_engine,
    parse_url,
    shown,
)
from trl_dbbench.database.server.sandbox import ServerSandbox
from trl_dbbench.database.server.start import Server
from trl_dbbench.database.server.tenancy import Tenancy, crashed
from trl_dbbench.database.server.watchdog import Watchdog
from trl_dbbench.errors import DatabaseError
from trl_dbbench.tasks import Task

logger = logging.getLogger("trl_dbbench.database")

WATCH_SECONDS = 1.0
"""Seconds between checks whether a server that we started still runs."""

ENDING_TRIES = 10
"""Number of checks, a tenth of a second apart, whether a server that hung up has ended."""

RUNAWAY_SECONDS = 8
"""Seconds that a killed statement may continue on a server that we started. A search in a long text or a
geometry operation does not notice a kill and would occupy a processor for minutes or hours; no limit on
lengths prevents that."""


class ServerDatabase(Database):
    """Server of the MySQL family at a URL.

    Args:
        server: the server at the URL if this process has started it. It is restarted if it ends, and stopped
            with the database.
        ranks: the number of processes that share the server.
        require_accounts: refuse a server on which agents cannot have their own accounts.

    Raises:
        DatabaseError: the server cannot be reached, or the URL's account may not create databases.
    """

    dialect: ServerDialect

    def __init__(
        self,
        url: str,
        *,
        limits: Limits,
        run: str,
        rank: int = 0,
        ranks: int = 1,
        server: Server | None = None,
        patience: float = Database.patience,
        require_accounts: bool = False,
    ) -> None:
        self.url = url
        self.limits = limits
        self.patience = patience
        self._url = parse_url(url)
        self._server = server
        self._watchdog = Watchdog()
        self._recovering = threading.Lock()
        self._down_since: float | None = None
        self._tried = 0.0
        self._answers = True
        try:
            version = self._reach()
            self.dialect = MARIADB if "MariaDB" in version else MYSQL
            place = server.where if server else f"at {shown(self._url)}"
            self._description = f"{self.dialect.product} {version.split('-')[0]}, {place}"
            self._enter = partial(
                Tenancy,
                self._url,
                f"dbb_{run}_r{rank:05d}",
                itertools.count(),  # shared by all tenancies
                dialect=self.dialect,
                limits=limits,
                watchdog=self._watchdog,
                ranks=ranks,
                own_server=server is not None,
                require_accounts=require_accounts,
            )
            self.tenancy = self._enter()
        except SQLAlchemyError as error:
            raise DatabaseError(f"{shown(self._url)}: {error_text(error)}") from None
        self.statements_at_once = self.tenancy.statements
        if server is not None:
            threading.Thread(
                target=self._look_after, args=(server,), name="dbbench-server", daemon=True
            ).start()

    def describe(self) -> str:
        return self._description

    def fresh_sandbox(self, task: Task) -> Sandbox:
        return ServerSandbox(self.tenancy, task)

    @property
    def silent(self) -> bool:  # type: ignore[override]
        return self.tenancy.pulse.silent

    def lay_blame(self) -> None:
        """Note whose statement ended the server, if we started it and it has ended."""
        for _ in range(ENDING_TRIES):
            if self._server is None:
                return
            if not self._server.alive():
                self.tenancy.lay_blame(crashed(self._server.log()))
                return
            time.sleep(0.1)

    def recover(self) -> bool:
        asked = time.monotonic()
        with self._recovering:
            if self._tried > asked:  # another thread has tried meanwhile
                return self._answers
            self._answers = self._recover()
            self._tried = time.monotonic()
            return self._answers

    def _recover(self) -> bool:
        if self.closed or self.tenancy.held():
            return True
        try:
            if self._server is not None and not self._server.alive():
                logger.warning("The database server (%s) has ended; it is started again.", self._server.where)
                self.tenancy.lay_blame(crashed(self._server.log()))
                self.tenancy.leave()
                self._server.restart()
            tenancy = self._enter()
        except (SQLAlchemyError, DatabaseError) as error:
            if self._down_since is None:
                self._down_since = time.monotonic()
                text = error_text(error) if isinstance(error, SQLAlchemyError) else error
                logger.warning("%s does not answer (%s); it is waited for.", shown(self._url), text)
            return False
        self.tenancy.leave()
        self.tenancy = tenancy
        self.restarts += 1
        down = f" after {time.monotonic() - self._down_since:.0f} s" if self._down_since is not None else ""
        self._down_since = None
        logger.warning("%s answers again%s; what it has lost is made anew.", shown(self._url), down)
        return True

    def close(self) -> None:
        with self._recovering:
            if self.closed:
                return
            self.closed = True
        self._watchdog.close()
        self._threads.shutdown(wait=False)
        if self._server is None:
            self.tenancy.close()
        else:  # stopping the server removes everything on it
            self.tenancy.leave()
            self._server.stop()

    def _look_after(self, server: Server) -> None:
        """Restart the server as soon as it ends: other ranks may need it even if this one does not."""
        while not self.closed:
            time.sleep(WATCH_SECONDS)
            try:
                self._look_at(server)
            except Exception:  # if this thread ended, nothing would restart the server
                logger.warning("the database server cannot be looked after now", exc_info=True)

    def _look_at(self, server: Server) -> None:
        runaways = self.tenancy.runaways(RUNAWAY_SECONDS) if not self.closed and server.alive() else []
        if runaways:
            logger.warning(
                "A statement still runs %d s after it was killed; the database server is ended, and "
                "with it the statement.",
                RUNAWAY_SECONDS,
            )
            self.tenancy.lay_blame(runaways)
            server.kill()
        if not self.closed and not server.alive():
            self.recover()

    def _reach(self) -> str:
        """Return the server's version. This first contact has its own short time limit."""
        probe = make_engine(self._url, CONNECT_SECONDS)
        try:
            with probe.connect() as connection:
                return str(connection.exec_driver_sql("SELECT VERSION()").scalar())
        except DBAPIError as error:
            raise DatabaseError(f"{shown(self._url)}: {connect_advice(error)}") from None
        finally:
            probe.dispose()
