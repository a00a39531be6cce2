"""What one connection over HTTP may take: time for each request and answer, bytes, and a place.

```
stranger    nothing of it has come through the gate yet; at most MAX_STRANGERS, then the oldest is hung up on
guest       a request of it has come through; strangers never take its place
```
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_STRANGERS = 512
"""Connections that have shown nothing yet. A client shows its token with its first bytes."""

BACKLOG = 128
"""Connections accepted at once. Those before them are read from before `MAX_STRANGERS` of them have come."""

REQUEST_SECONDS = 20
"""From the end of the last answer, or the connection's begin, to the end of a request; and how long a client
may leave an answer unread."""

REFUSED_BYTES = 2 * 1024**2
"""How much of a request that has been answered already is read and dropped: many clients read no answer
before they have sent all."""

CONNECTION = "dbbench_connection"
"""The key in a request's `scope["state"]` that holds its `BoundedHTTP`."""

_COMING = (h11.IDLE, h11.SEND_BODY)


class BoundedHTTP(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a request."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self.stranger = True
        self._began = time.monotonic()
        self._end_of_request: asyncio.TimerHandle | None = None
        self._end_of_answer: asyncio.TimerHandle | None = None
        self._dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        strangers = [each for each in self.connections if isinstance(each, BoundedHTTP) and each._waits]
        if len(strangers) > MAX_STRANGERS:
            min(strangers, key=lambda each: each._began).transport.abort()

    @property
    def _waits(self) -> bool:
        return self.stranger and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._end_of_request)
        self._end(self._end_of_answer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._dropped += len(data)
            if self._dropped > REFUSED_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._await_request()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.stranger = False  # uvicorn's WebSocket answers at once, and has time limits of its own
        self._end(self._end_of_request)
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        self._end_of_answer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._end(self._end_of_answer)
        super().resume_writing()

    def _await_request(self) -> None:
        """Starts the time of a request, unless it runs already, and ends it when the request is whole."""
        if self.transport.get_protocol() is not self:  # a WebSocket by now
            return
        if self.conn.their_state not in _COMING:
            self._end(self._end_of_request)
            self._end_of_request, self._dropped = None, 0
        elif self._end_of_request is None:
            self._end_of_request = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    @staticmethod
    def _end(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
