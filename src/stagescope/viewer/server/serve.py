"""The server as a whole: a socket on the loopback, the event loop, and a clean end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import uvicorn

from stagescope.viewer.server.access import Access
from stagescope.viewer.server.app import ASSETS, make_app
from stagescope.viewer.server.connections import PatientConnection
from stagescope.viewer.server.gate import Gate
from stagescope.vocabulary.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

    from stagescope.viewer.server.live import LiveRun

LOOPBACK = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
BACKLOG = 128
MOST_HEAD_BYTES = 1 << 17
"""The longest question names 10,000 rows one by one, in 50 kB."""

END_SECONDS = 1
"""How long answers that are under way may take when the server is asked to end."""

LAST_TURNS = 3
"""Turns of the loop in which a connection comes to be known, is cut, and closes its socket."""


class _EndingServer(uvicorn.Server):
    """A server that leaves no connection open: one that was made while it ended would otherwise stay."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, then cut what is still connected."""
        await super().shutdown(sockets)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
            for connection in list(self.server_state.connections):
                transport = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()


class Listening(NamedTuple):
    """A server that can be reached and does not answer yet, and the link that opens the viewer once."""

    server: uvicorn.Server
    socket: socket.socket
    link: str

    @contextmanager
    def ended_by_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C ask the server to end from now on, also in the moments before and after it answers.

        An exception instead could come while Python runs what must not raise, and be lost there.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self.server.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def run(self) -> None:
        """Answer until asked to end, by Ctrl-C or by `server.should_exit`."""
        with self.ended_by_ctrl_c():
            self.server.run(sockets=[self.socket])


def require_loopback(host: str) -> None:
    """Raise UsageError for a host that is not this machine's loopback."""
    if host not in LOOPBACK:
        raise UsageError.not_loopback(host, LOOPBACK)


def listen(live: LiveRun, host: str = "127.0.0.1", port: int = 0, assets: Traversable = ASSETS) -> Listening:
    """Return a server for a run, on a free port where `port` is 0; `assets` has the viewer's script and style.

    Raises UsageError for a host that is not this machine's loopback, CommandError where the port cannot be had.
    """
    require_loopback(host)
    bound = _bind(host, port)
    own_port = bound.getsockname()[1]
    access = Access(own_port)
    config = uvicorn.Config(
        Gate(make_app(live, assets), access),
        http=PatientConnection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # its log would name the token
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        timeout_graceful_shutdown=END_SECONDS,
    )
    shown = f"[{host}]" if ":" in host else host
    return Listening(_EndingServer(config), bound, access.link(shown))


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(LOOPBACK[host], socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1" if host == "localhost" else host, port))
        bound.listen(BACKLOG)  # a browser that asks now waits for the first answer
    except OSError as reason:
        bound.close()
        raise CommandError.cannot_listen(host, port, reason) from None
    return bound
