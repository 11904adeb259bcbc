"""An OTLP/HTTP receiver on the loopback interface: a server of traces alone, for programs of this machine.

Source: the OTLP specification, "OTLP/HTTP": POST of an ExportTraceServiceRequest to /v1/traces, as protobuf or JSON,
maybe compressed by gzip. Metrics and logs are accepted and discarded, because a refusal would only fill the log of the
training. What is received is passed on as one line of JSON per request, under a lock.

Anything on this machine can reach a port, and a web page can make a browser send to it. Therefore only the loopback
interface is bound, a request needs a Host of it and no Origin, and nothing is ever sent back but an empty success or
one sentence. A connection may take CONNECTION_SECONDS per request, bodies are bounded, few are in memory at a time, and
at most MOST_CONNECTIONS are open.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from stagescope.ingest.otlp.messages import Resource, values_of
from stagescope.ingest.otlp.names import HOST, rank_of
from stagescope.ingest.otlp.request_body import MOST_BODY_BYTES, RefusedError, answer, media_type, received

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.ingest.otlp.messages import Request

TRACES, DISCARDED = "/v1/traces", ("/v1/metrics", "/v1/logs")
CONNECTION_SECONDS = 20.0
"""A request that takes longer is cut off, however slowly its bytes arrive; and so is an idle connection."""

MOST_CONNECTIONS = 64
BODIES_AT_ONCE = 4
FULL = "The file has reached its size limit; these spans were not stored."
FAMILIES = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}


@dataclass
class Counts:
    """What was received: spans by rank and host, requests, and what was not stored."""

    spans: dict[tuple[int | None, str | None], int] = field(default_factory=dict)
    requests: int = 0
    refused: int = 0
    discarded: int = 0
    not_stored: int = 0

    @property
    def span_count(self) -> int:
        """Number of stored spans."""
        return sum(self.spans.values())


class Receiver(ThreadingHTTPServer):
    """The server; `store` gets each line and returns whether it was stored, `on_new` each new process."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        store: Callable[[bytes], bool],
        on_new: Callable[[int | None, str | None], object] | None = None,
    ) -> None:
        """Bind the address; raises OSError if that is not possible."""
        self.address_family = FAMILIES[address[0]]
        self.counts = Counts()
        self._store = store
        self._on_new = on_new
        self._lock = threading.Lock()
        self._connections = 0
        self.bodies = threading.BoundedSemaphore(BODIES_AT_ONCE)
        super().__init__(("127.0.0.1" if address[0] == "localhost" else address[0], address[1]), Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, as the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment] # host and port

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of Host."""
        return tuple(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own, or close it if there are too many."""
        with self._lock:
            is_one_more = self._connections < MOST_CONNECTIONS
            self._connections += is_one_more
        if is_one_more:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, and count it out."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a connection that broke: the sender sends again."""

    def take(self, line: bytes, request: Request) -> int:
        """Store a request; return the number of its spans that were not stored."""
        with self._lock:
            self.counts.requests += 1
            if not self._store(line + b"\n"):
                self.counts.not_stored += request.span_count
                return request.span_count
            for part in request.resource_spans:
                resource = values_of((part.resource or Resource()).attributes)
                host = str(resource[HOST]) if HOST in resource else None
                process = (rank_of(resource), host)
                if process not in self.counts.spans and self._on_new is not None:
                    self._on_new(*process)
                own = sum(len(scope.spans) for scope in part.scope_spans)
                self.counts.spans[process] = self.counts.spans.get(process, 0) + own
        return 0

    def end(self) -> None:
        """Wait for a request that is being stored, and store no further ones."""
        with self._lock:
            self._store = _store_nothing

    def count(self, name: str) -> None:
        """Count a request that was refused or discarded."""
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + 1)


def _store_nothing(_: bytes) -> bool:
    return False


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = CONNECTION_SECONDS
    server_version, sys_version = "stagescope", ""

    @property
    def receiver(self) -> Receiver:
        """The server."""
        return cast("Receiver", self.server)

    def handle_one_request(self) -> None:
        """Handle a request; the connection is cut off if it takes too long, even if bytes keep coming."""
        watch = threading.Timer(CONNECTION_SECONDS, self._cut_off)
        watch.daemon = True
        watch.start()
        try:
            super().handle_one_request()
        finally:
            watch.cancel()

    def do_POST(self) -> None:
        """Receive a request."""
        try:
            self._check_sender()
            if self.path in DISCARDED:
                self._body()
                self.receiver.count("discarded")
                self._answer(200, b"")
                return
            self._check_path()
            with self.receiver.bodies:
                kind = media_type(self.headers.get("Content-Type", ""))
                found = received(self._body(), kind, self.headers.get("Content-Encoding", "").strip().lower())
                rejected = self.receiver.take(*found)
            self._answer(200, answer(kind, rejected, FULL), kind)
        except RefusedError as refusal:
            self.receiver.count("refused")
            # The body may be unread: what follows on this connection would not be a request.
            self.close_connection = True
            self._answer(refusal.status, f"{refusal.sentence}\n".encode(), "text/plain; charset=utf-8")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _check_sender(self) -> None:
        if self.headers.get("Host", "").lower() not in self.receiver.hosts:
            raise RefusedError(403, "This receiver accepts requests to its loopback address only.")
        if "Origin" in self.headers or self.headers.get("Sec-Fetch-Site", "none") != "none":
            raise RefusedError(403, "This receiver accepts no requests from web pages.")

    def _check_path(self) -> None:
        if self.path != TRACES:
            raise RefusedError(404, f"Traces are received at {TRACES}.")

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise RefusedError(411, "Content-Length is needed; chunked bodies are not accepted.")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 12):  # noqa: PLR2004 - far above the limit
            raise RefusedError(411, "Content-Length is needed.")
        if int(length) > MOST_BODY_BYTES:
            raise RefusedError(413, f"The body is larger than {MOST_BODY_BYTES >> 20} MiB.")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RefusedError(400, "The connection ended within the body.")
        return body

    def _answer(self, status: int, body: bytes, kind: str = "application/x-protobuf") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _cut_off(self) -> None:
        with suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)
