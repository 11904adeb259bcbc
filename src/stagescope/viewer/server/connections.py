"""One connection of the server, with an end to patience: who asks or reads too slowly is let go.

uvicorn waits without limit for the rest of a request and for a client that does not read. A server for one person
on a machine with many must not: each such connection keeps memory and a file descriptor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

REQUEST_SECONDS = 10.0
"""How long a connection may take until it has asked for something, whole."""

STALL_SECONDS = 30.0
"""How long an answer may wait for its reader to take more of it."""

MOST_CONNECTIONS = 256
"""A browser opens six. With more than this, those that ask for nothing make room, the oldest first."""


class PatientConnection(H11Protocol):
    """A connection that is closed where the other end keeps it waiting."""

    _patience: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _opened_s: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._opened_s = self.loop.time()
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; a piece alone buys no time."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        for timer in (self._patience, self._stalled):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Begin to wait for the reader of an answer."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting: the reader has caught up."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing whole has been asked for since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if self.is_idle and self._patience is None:
            self._patience = self.loop.call_later(REQUEST_SECONDS, self._lose_patience)
        elif not self.is_idle and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        if self.is_idle:
            self.transport.abort()

    def _make_room(self) -> None:
        waiting = [
            other
            for other in self.connections
            if isinstance(other, PatientConnection) and other.is_idle and other is not self
        ]
        oldest = min(waiting, key=lambda other: other._opened_s, default=self)  # noqa: SLF001 - of this class
        oldest.transport.abort()
