"""Queries from the page of the local server: the tables of its run, read when the first query asks for them.

Each query runs in a process of its own (query_process.py), because Polars cannot be interrupted: a query without an
end, or with more results than memory, must not take the server with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from stagescope.api.queries import checked_query, spelled, tables_in
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.limits import checked_limits, limit, limits_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagescope.analysis import Report
    from stagescope.model import Timeline

ENGINE = Path(__file__).with_name("query_process.py")
RUN_FILE = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
"""Runs a file without its folder among the places of modules, whose names others have, too."""


class QueryService:
    """The answers to queries about one run. `state` changes when the run has to be read again."""

    def __init__(
        self,
        read: Callable[[], Timeline | Report],
        state: Callable[[], str] = lambda: "",
        limits: Mapping[str, int | str] | None = None,
    ) -> None:
        """Begin without data: `read` is called by the first query."""
        self._read = read
        self._state = state
        self._limits = checked_limits(limits)
        self._held: tuple[str, Timeline | Report] | None = None
        self._lock = threading.Lock()

    def answer(self, query: str) -> Mapping[str, Any]:
        """Return columns, rows and count of a query. Raises UsageError, and what reading the run raises."""
        checked_query(query)
        with self._lock, limits_in_force(self._limits):
            return self._run(query, limit("query"))

    def _run(self, query: str, seconds: int) -> Mapping[str, Any]:
        state = self._state()
        if self._held is None or self._held[0] != state:
            self._held = None
            self._held = (state, self._read())
        with tempfile.TemporaryDirectory(prefix="stagescope-query-") as folder:
            for name, frame in tables_in(self._held[1], query).items():
                spelled(frame).write_ipc(Path(folder, f"{name}.arrow"))
            return _answer(_output(folder, query, seconds))


def _output(folder: str, query: str, seconds: int) -> bytes:
    """Return what the process prints. Its input stays open as long as it may run: it ends with this process."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN_FILE, str(ENGINE), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as engine:
        late = threading.Event()

        def end() -> None:
            late.set()
            engine.kill()

        timer = threading.Timer(min(seconds or threading.TIMEOUT_MAX, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            entrance, exit_ = cast("IO[bytes]", engine.stdin), cast("IO[bytes]", engine.stdout)
            entrance.write(json.dumps(query).encode() + b"\n")
            entrance.flush()
            output = exit_.read()
        except BrokenPipeError:
            output = b""
        finally:
            timer.cancel()
            engine.kill()
    if late.is_set():
        raise UsageError.query_failed(f"it takes longer than the limit of {seconds} s")
    return output


def _answer(output: bytes) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = json.loads(output)
    except ValueError:
        # Polars aborts the process where it gets no memory.
        raise UsageError.query_failed(
            "its process ended, most likely because it needs too much memory"
        ) from None
    if "error" in answer:
        raise UsageError.query_failed(answer["error"])
    return answer
