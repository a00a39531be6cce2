"""Sessions that agents share: each statement may run on any of them.

A session is lent for one statement, and made as new before it is lent to another episode.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.server.connections import as_fault
from trl_dbbench.database.server.session import Session
from trl_dbbench.errors import EnvironmentFault

T = TypeVar("T")


class Readers:
    """A pool of sessions for statements that only read. Thread-safe.

    Args:
        connect: opens a session.
        connections: how many sessions there may be.
    """

    def __init__(self, connect: Callable[[], Session], dialect: Dialect, connections: int) -> None:
        self._connect = connect
        self._dialect = dialect
        self._places = threading.BoundedSemaphore(connections)
        self._idle: list[tuple[Session, object]] = []
        """Each with its last reader; the one that has been idle longest comes first."""
        self._lock = threading.Lock()
        self._closed = False

    def read(
        self, action: Callable[[Session], T], *, database: str | None = None, reader: object = None
    ) -> T:
        """What `action` reads.

        Args:
            database: the one in which unqualified names are looked up.
            reader: whose statement it is; it finds nothing in the session that others have left there.

        Raises:
            EnvironmentFault: the database failed.
        """
        with self._places:
            try:
                with self._session(database, reader) as session:
                    return action(session)
            except EnvironmentFault:
                # the server may have closed the idle connection, and reading again does no harm
                with self._session(database, reader, new=True) as session:
                    return action(session)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session.disconnect()

    @contextmanager
    def _session(self, database: str | None, reader: object, *, new: bool = False) -> Iterator[Session]:
        session = self._take(database, reader, new)
        try:
            yield session
        except SQLAlchemyError as error:
            session.broken = str(error)
            raise as_fault(error, self._dialect) from None
        finally:
            with self._lock:
                keep = session.broken is None and not self._closed
                if keep:
                    self._idle.append((session, reader))
            if not keep:
                session.disconnect()

    def _take(self, database: str | None, reader: object, new: bool) -> Session:
        session: Session | None = None
        last = reader
        with self._lock:
            if self._idle and not new:
                own = (number for number, (_, last) in enumerate(self._idle) if last is reader)
                session, last = self._idle.pop(next(own, 0))
        try:
            if session is None:
                session, last = self._connect(), None
            if last is not reader:  # a new session, too: what it has been asked shows in ROW_COUNT()
                session.renew(database or "")
            elif database is not None and session.database != database:
                session.use(database)
        except EnvironmentFault:
            if session is not None:
                session.disconnect()
            raise
        except SQLAlchemyError as error:
            if session is not None:
                session.disconnect()
            raise as_fault(error, self._dialect) from None
        return session
