"""Receive OpenTelemetry traces of a training on this machine into a file."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.exporters.new_files import create, make_directory
from stagescope.ingest.otlp.receiver import FAMILIES, Receiver
from stagescope.vocabulary.errors import CommandError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from stagescope.ingest.otlp.receiver import Counts

END_SECONDS = 2.0
DEFAULT_PORT = 4318
"""The port of OTLP/HTTP, to which exporters send by default."""

DEFAULT_MOST_BYTES = 4 << 30


class TraceReceiver:
    """A receiver of traces, and the file that it writes; use it in a `with` statement.

    `path` is a new file in `folder`, which is created. Lines are complete whenever the file is read. `on_new` is called
    with the rank and the host of each new process, None for what is not stated. Raises UsageError for a host that is
    not this machine's loopback, CommandError if the port is not available, OutputError if the file cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        most_bytes: int = DEFAULT_MOST_BYTES,
        on_new: Callable[[int | None, str | None], object] | None = None,
    ) -> None:
        """Bind the port and create the file."""
        if host not in FAMILIES:
            raise UsageError.receiver_not_loopback(host, FAMILIES)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.otlp.jsonl"
        self.path = Path(folder, name)
        self._most_bytes = most_bytes
        self._written = 0
        try:
            self._server = Receiver((host, port), self._store, on_new)
        except OSError as reason:
            raise CommandError.cannot_listen(host, port, reason) from None
        try:
            make_directory(Path(folder))
            self._file = os.fdopen(create(self.path), "wb", buffering=0)
        except OSError as reason:
            self._server.server_close()
            raise OutputError.cannot_write(self.path, reason) from None

    @property
    def endpoint(self) -> str:
        """The address for OTEL_EXPORTER_OTLP_ENDPOINT."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    @property
    def counts(self) -> Counts:
        """What was received so far."""
        return self._server.counts

    def __enter__(self) -> Self:
        """Begin to receive, in a thread."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, after requests that are being stored; the file ends with a complete line."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(END_SECONDS)
        self._server.end()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self._written:
            self.path.unlink(missing_ok=True)

    def _store(self, line: bytes) -> bool:
        """Write a line, under the lock of the server; return False if the file would be too large, or is closed."""
        if self._file.closed or self._written + len(line) > self._most_bytes:
            return False
        view = memoryview(line)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:  # such as a full disk: no partial line may remain
            self._file.truncate(self._written)
            self._file.seek(self._written)
            return False
        self._written += len(line)
        return True
