"""The current version of the run: reloaded in the background when its files change, and replaced as a whole.

A recording in progress changes all the time. The next reload therefore starts only after a multiple of the time that
the last one took.
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
"""Reloading takes at most a quarter of the time."""

VERSIONS_KEPT = 3
"""Versions that open pages can still query."""


class Opener(NamedTuple):
    """Access to a run: a cheap fingerprint that changes with its files, and a function that reads it."""

    fingerprint: Callable[[], str]
    open: Callable[[], RunView]


class LiveRun:
    """The newest complete version of a run; `problem` is the error of the last reload, None without."""

    def __init__(self, opener: Opener, first: RunView, fingerprint: str) -> None:
        self._opener = opener
        self._fingerprint = fingerprint
        self._lock = threading.Lock()
        self._reading = False
        self._not_before_s = 0.0
        self._versions = {first.version: first}
        self.current = first
        self.problem: str | None = None

    def version(self, name: str) -> RunView | None:
        """Return a version of the run, None if it is unknown or no longer kept."""
        return self._versions.get(name)

    def look(self) -> None:
        """Start reloading the run if its files have changed, unless a reload is running or was too recent."""
        now_s = time.monotonic()
        with self._lock:
            if self._reading or now_s < self._not_before_s:
                return
            self._reading = True
        # A daemon thread: Ctrl-C does not wait for a reload whose result is no longer needed.
        threading.Thread(target=self._read, args=(now_s,), name="stagescope-refresh", daemon=True).start()

    def _read(self, began_s: float) -> None:
        try:
            fingerprint = self._opener.fingerprint()
            if fingerprint != self._fingerprint:
                self._show(self._opener.open())
                self._fingerprint, self.problem = fingerprint, None
        except (StagescopeError, PolarsError, OSError, ValueError) as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - the pages keep the last version and show why
            self.problem = f"internal error: {type(error).__name__}: {error}"
        finally:
            took_s = time.monotonic() - began_s
            self._not_before_s = time.monotonic() + max(LEAST_PAUSE_S, PAUSE_FACTOR * took_s)
            self._reading = False

    def _show(self, run: RunView) -> None:
        kept = [other for other in self._versions.values() if other.version != run.version]
        self._versions = {other.version: other for other in [*kept, run][-VERSIONS_KEPT:]}
        self.current = run
