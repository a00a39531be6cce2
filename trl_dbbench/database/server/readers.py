"""Sessions that agents share: each statement may run on any of them.

A session is lent for one statement. Before another episode has it, it is made as new, which costs four
exchanges with the server; unless neither what ran there since nor what comes now leaves or finds a trace
(`Dialect.is_traceless`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from trl_dbbench.database.dialect import Dialect
from trl_dbbench.database.server.connections import as_fault
from trl_dbbench.database.server.session import Session
from trl_dbbench.errors import EnvironmentFault

T = TypeVar("T")


@dataclass
class _Lent:
    """A session, `reader`, who has or had it last, and what ran there since it was as new."""

    session: Session
    reader: object
    others: bool = False
    """Whether statements of other readers did."""
    traces: bool = False
    """Whether a statement that may have left a trace did."""

    def pass_on(self, database: str | None, reader: object, traceless: bool) -> None:
        """Prepares the session for a reader's statement.

        Raises:
            DBAPIError, EnvironmentFault: the connection is lost.
        """
        others = self.others or self.reader is not reader
        if others and (self.traces or not traceless):
            self.session.renew(database or "")
            others = self.traces = False
        elif database is not None and self.session.database != database:
            self.session.use(database)
        self.reader, self.others = reader, others
        self.traces = self.traces or not traceless


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
        self._idle: list[_Lent] = []
        """The one that has been idle longest comes first."""
        self._lock = threading.Lock()
        self._closed = False

    def read(
        self,
        action: Callable[[Session], T],
        *,
        database: str | None = None,
        reader: object = None,
        traceless: bool = False,
    ) -> T:
        """What `action` reads.

        Args:
            database: the one in which unqualified names are looked up.
            reader: whose statement it is; it finds nothing in the session that others have left there.
            traceless: it leaves nothing there either that another such action could find.

        Raises:
            EnvironmentFault: the database failed.
        """
        with self._places:
            try:
                with self._session(database, reader, traceless) as session:
                    return action(session)
            except EnvironmentFault:
                # the server may have closed the idle connection, and reading again does no harm
                with self._session(database, reader, traceless, new=True) as session:
                    return action(session)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for lent in idle:
            lent.session.disconnect()

    @contextmanager
    def _session(
        self, database: str | None, reader: object, traceless: bool, *, new: bool = False
    ) -> Iterator[Session]:
        lent = self._take(database, reader, traceless, new)
        session = lent.session
        try:
            yield session
        except SQLAlchemyError as error:
            session.broken = str(error)
            raise as_fault(error, self._dialect) from None
        except BaseException as error:  # in the middle of an answer, perhaps
            session.broken = session.broken or repr(error)
            raise
        finally:
            with self._lock:
                keep = session.broken is None and not self._closed
                if keep:
                    self._idle.append(lent)
            if not keep:
                session.disconnect()

    def _take(self, database: str | None, reader: object, traceless: bool, new: bool) -> _Lent:
        lent = None if new else self._choose(database, reader)
        try:
            if lent is None:  # what it has been asked already shows in ROW_COUNT()
                lent = _Lent(self._connect(), reader, others=reader is not None)
            lent.pass_on(database, reader, traceless)
        except EnvironmentFault:
            if lent is not None:
                lent.session.disconnect()
            raise
        except SQLAlchemyError as error:
            if lent is not None:
                lent.session.disconnect()
            raise as_fault(error, self._dialect) from None
        return lent

    def _choose(self, database: str | None, reader: object) -> _Lent | None:
        """An idle session: the reader's own, or else one in the database, or else any."""
        with self._lock:
            if not self._idle:
                return None
            tastes = [(lent.reader is not reader, lent.session.database != database) for lent in self._idle]
            return self._idle.pop(tastes.index(min(tastes)))
