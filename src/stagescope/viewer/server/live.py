"""The run that is shown: read again in the background when its files have changed, replaced when that is done.

A recording that is still being written changes all the time. So the next reading begins no sooner than a few times
the last one took, and what is shown is always a whole run as it was at some moment.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from polars.exceptions import PolarsError

from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.viewer.tiles.run import RunView

LEAST_PAUSE_S = 2.0
PAUSE_FACTOR = 3.0
"""Reading again takes at most a quarter of the time."""

VERSIONS_KEPT = 3
"""A page goes on with the version that it was opened with, until this many newer ones have come."""


class Opener(NamedTuple):
    """Where a run comes from: a cheap text that changes with its files, and the run as it is now."""

    stamp: Callable[[], str]
    open: Callable[[], RunView]


class LiveRun:
    """The newest whole state of a run; `problem` says why the last attempt at a newer one failed."""

    def __init__(self, opener: Opener, first: RunView, stamp: str) -> None:
        self._opener = opener
        self._stamp = stamp
        self._lock = threading.Lock()
        self._reading = False
        self._not_before_s = 0.0
        self._versions = {first.version: first}
        self.current = first
        self.problem: str | None = None

    def version(self, name: str) -> RunView | None:
        """Return the run as it was in some version, None where that is no longer kept or never was."""
        return self._versions.get(name)

    def look(self) -> None:
        """Begin to read the run again if its files have changed and nothing reads it already."""
        now_s = time.monotonic()
        with self._lock:
            if self._reading or now_s < self._not_before_s:
                return
            self._reading = True
        # A daemon: whoever ends the server does not wait for a reading that nobody will see.
        threading.Thread(target=self._read, args=(now_s,), name="stagescope-refresh", daemon=True).start()

    def _read(self, began_s: float) -> None:
        try:
            stamp = self._opener.stamp()
            if stamp != self._stamp:
                self._show(self._opener.open())
                self._stamp, self.problem = stamp, None
        except (StagescopeError, PolarsError, OSError, ValueError) as error:
            self.problem = str(error)
        finally:
            took_s = time.monotonic() - began_s
            self._not_before_s = time.monotonic() + max(LEAST_PAUSE_S, PAUSE_FACTOR * took_s)
            self._reading = False

    def _show(self, run: RunView) -> None:
        kept = [other for other in self._versions.values() if other.version != run.version]
        self._versions = {other.version: other for other in [*kept, run][-VERSIONS_KEPT:]}
        self.current = run
