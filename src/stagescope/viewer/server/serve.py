"""The server process: a socket on the loopback interface, the event loop, and a clean shutdown."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn

from stagescope.viewer.server.access import Access
from stagescope.viewer.server.app import ASSETS, make_app
from stagescope.viewer.server.connections import LimitedConnection
from stagescope.viewer.server.gate import Gate
from stagescope.vocabulary.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

    from stagescope.viewer.server.app import Query
    from stagescope.viewer.server.live import VersionedRun

LOOPBACK = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
BACKLOG = 128
"""Connections that wait in the system until the server accepts them."""

ACCEPTED_AT_ONCE = 16
"""Connections that the event loop accepts in one turn, before it can close others."""

MOST_HEAD_BYTES = 1 << 17
"""The longest request lists 10,000 rows, in 50 kB."""

END_SECONDS = 1
"""Time for pending responses after a shutdown request."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors after which asyncio pauses accepting."""

LAST_TURNS = 3
"""Iterations of the event loop until a new connection is registered, aborted and closed."""


class _EndingServer(uvicorn.Server):
    """A server that also closes connections accepted during its shutdown, which uvicorn would leave open."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like uvicorn, and make accepting survive a burst of connections."""
        asyncio.get_running_loop().set_exception_handler(_ignore_exhaustion)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio has set it to the number that it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down like uvicorn, then abort the remaining connections."""
        await super().shutdown(sockets)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
            for connection in list(self.server_state.connections):
                transport = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()


def _ignore_exhaustion(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error as asyncio does, except that no file descriptor was left for a new connection.

    asyncio accepts it a second later, when slow and idle connections have been closed, and would print a traceback.
    """
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in EXHAUSTED and "socket" in context):
        loop.default_exception_handler(context)


class Listening(NamedTuple):
    """A bound server that does not answer yet, and the link that opens the viewer once."""

    server: uvicorn.Server
    socket: socket.socket
    link: str

    @contextmanager
    def ended_by_ctrl_c(self) -> Iterator[None]:
        """Make Ctrl-C shut the server down, including just before and after it serves.

        KeyboardInterrupt is not used: raised inside a callback or destructor, it would be lost.
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
        """Serve until Ctrl-C or `server.should_exit`."""
        with self.ended_by_ctrl_c():
            self.server.run(sockets=[self.socket])


def require_loopback(host: str) -> None:
    """Raise UsageError for a host that is not this machine's loopback."""
    if host not in LOOPBACK:
        raise UsageError.not_loopback(host, LOOPBACK)


def listen(
    live: VersionedRun,
    host: str = "127.0.0.1",
    port: int = 0,
    assets: Traversable = ASSETS,
    query: Query | None = None,
) -> Listening:
    """Return a server for a run, on a free port where `port` is 0; `assets` has the viewer's script and style.

    `query` answers SQL queries of the page; without it, they are refused.

    Raises UsageError for a host that is not this machine's loopback, CommandError if the port is not available.
    """
    require_loopback(host)
    bound = _bind(host, port)
    own_port = bound.getsockname()[1]
    access = Access(own_port)
    servers: list[uvicorn.Server] = []
    config = uvicorn.Config(
        Gate(make_app(live, assets, lambda: any(server.should_exit for server in servers), query), access),
        http=LimitedConnection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # its log would contain the token
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        timeout_graceful_shutdown=END_SECONDS,
    )
    servers.append(_EndingServer(config))
    shown = f"[{host}]" if ":" in host else host
    return Listening(servers[0], bound, access.link(shown))


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(LOOPBACK[host], socket.SOCK_STREAM)
    try:
        # On Windows, SO_REUSEADDR would let another program take over the port.
        option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(("127.0.0.1" if host == "localhost" else host, port))
        bound.listen(BACKLOG)  # a browser that connects now waits for the first response
    except OSError as reason:
        bound.close()
        raise CommandError.cannot_listen(host, port, reason) from None
    return bound
