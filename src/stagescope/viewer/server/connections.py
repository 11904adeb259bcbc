"""A server connection with limits for slow clients.

uvicorn has no limit for these: `timeout_keep_alive` starts only after a response, so a client may send a request one
byte at a time, and nothing limits how long a response waits for its reader. `limit_concurrency` refuses the newest
connection; on a shared machine any user could then lock out the owner with idle ones, so the oldest idle connection is
closed here instead. Each open connection costs memory and a file descriptor, of which a process may have as few as
256.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

resource: Any
try:
    import resource
except ImportError:  # Windows limits sockets differently, far above MOST_CONNECTIONS
    resource = None

if TYPE_CHECKING:
    import asyncio

REQUEST_SECONDS = 10.0
"""Time until a connection must have sent a complete request."""

STALL_SECONDS = 30.0
"""Time that a response may wait for its reader."""

MOST_CONNECTIONS = 256
"""Above this, idle connections are closed, the oldest first. A browser opens six."""

LEAST_CONNECTIONS = 16
RESERVED_DESCRIPTORS = 128
"""File descriptors that are not for connections: libraries, the run's files, and connections about to be closed.

Those are up to four times `serve.ACCEPTED_AT_ONCE`: the event loop needs as many turns from accepting to closing one.
"""


class LimitedConnection(H11Protocol):
    """A connection that is closed if its client is too slow."""

    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _opened_s: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._opened_s = self.loop.time()
        self._watch()
        self._close_oldest_idle_if_too_many()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request; only a complete request resets the timer."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        super().connection_lost(exc)
        for timer in (self._request_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Start the timer for the reader of a response."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timer: the reader has caught up."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    @property
    def is_idle(self) -> bool:
        """Whether no complete request has arrived since the last response."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if self.is_idle and self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_SECONDS, self._close_if_idle)
        elif not self.is_idle and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _close_if_idle(self) -> None:
        self._request_timer = None
        if self.is_idle:
            self.transport.abort()

    def _close_oldest_idle_if_too_many(self) -> None:
        # An aborted connection is in `connections` until a later turn of the event loop; in a burst there are many.
        others = [other for other in self.connections if isinstance(other, LimitedConnection)]
        others = [other for other in others if other is not self and not other.transport.is_closing()]
        if len(others) < most_connections():
            return
        waiting = [other for other in others if other.is_idle]
        oldest = min(waiting, key=lambda other: other._opened_s, default=self)  # noqa: SLF001 - of this class
        oldest.transport.abort()


def most_connections() -> int:
    """Return how many connections may be open, fewer if the process may open few files (``ulimit -n``)."""
    if resource is None:
        return MOST_CONNECTIONS
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, limit - RESERVED_DESCRIPTORS))
