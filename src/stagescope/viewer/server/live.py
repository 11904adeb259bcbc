"""The versions of a run that changes: the newest one, those that open pages still show, and what is sent to pages.

A run that is read from files is reloaded in the background when they change, and replaced as a whole. The next reload
starts only after a multiple of the time that the last one took. A training that is followed (api/live_training.py)
publishes its versions itself.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from polars.exceptions import PolarsError

from stagescope.reports.translations import with_message
from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagescope.viewer.tiles.run import RunView

LEAST_PAUSE_S = 2.0
PAUSE_FACTOR = 3.0
"""Reloading takes at most a quarter of the time."""

VERSIONS_KEPT = 3
"""The newest versions, which open pages can still query."""

SHOWN_S = 30.0
"""A version that a page has asked for is kept for so long. A page asks every five seconds, also while it rests."""

MOST_VERSIONS = 16
"""Versions on disk at the same time, however many pages show different ones."""


class Opener(NamedTuple):
    """Access to a run: a cheap fingerprint that changes with its files, and a function that reads it."""

    fingerprint: Callable[[], str]
    open: Callable[[], RunView]


class VersionedRun:
    """The newest version of a run and older ones; `problem` is why there is no newer one, None without.

    `number` increases whenever `state` has changed, which is sent to pages: the newest version, the problem, and
    the state of a training that is followed.
    """

    def __init__(self, first: RunView, drop: Callable[[RunView], object] = lambda _: None) -> None:
        """Begin with a version; `drop` is called with each one that is no longer kept."""
        self._versions = {first.version: first}
        self._asked_s: dict[str, float] = {}
        self._expected: set[str] = set()
        self._drop = drop
        self.current = first
        self.problem: str | None = None
        self.training: Mapping[str, Any] | None = None
        self.number = 0
        self.listeners: set[Callable[[], object]] = set()
        """Called by any thread when `number` has increased."""

    @property
    def state(self) -> dict[str, Any]:
        """What is sent to pages."""
        facts = {"version": self.current.version, "training": self.training}
        return with_message(facts, "problem", self.problem)

    def version(self, name: str) -> RunView | None:
        """Return a version of the run, None if it is unknown or no longer kept."""
        found = self._versions.get(name)
        if found is not None:
            self._asked_s[name] = time.monotonic()
        return found

    def expect(self) -> str:
        """Return the newest version, to which a page is sent: its address is valid until it has asked for its data."""
        self._expected.add(self.current.version)
        self.version(self.current.version)
        return self.current.version

    def is_expected(self, name: str) -> bool:
        """Return whether the page of a version may be shown: the newest one, or one that a page was sent to."""
        return name == self.current.version or (name in self._expected and self.version(name) is not None)

    def has_arrived(self, name: str) -> None:
        """Note that the page of a version has asked for its data: from then on its address leads to the newest one."""
        self._expected.discard(name)

    def look(self) -> None:
        """Look for newer data, in the background."""

    def announce(self) -> None:
        """Note that `state` has changed, and call the listeners."""
        self.number += 1
        for listener in tuple(self.listeners):
            listener()

    def trend_since(self, number: int) -> Mapping[str, Any]:
        """Return the measured steps of a training from a number on; a run that is not followed has none."""
        return {"first": number, "steps": []}

    def show(self, run: RunView) -> None:
        """Make a version the newest one, and drop those that no page shows."""
        versions = [other for other in self._versions.values() if other.version != run.version] + [run]
        now_s = time.monotonic()
        older = versions[:-VERSIONS_KEPT]
        used = [each for each in older if now_s - self._asked_s.get(each.version, -SHOWN_S) < SHOWN_S]
        kept = [*used[-(MOST_VERSIONS - VERSIONS_KEPT) :], *versions[-VERSIONS_KEPT:]]
        self._versions = {each.version: each for each in kept}
        self.current = run
        self.announce()
        for each in older:
            if each.version not in self._versions:
                self._asked_s.pop(each.version, None)
                self._expected.discard(each.version)
                self._drop(each)


class LiveRun(VersionedRun):
    """A run that is read from files, and read again when they change."""

    def __init__(self, opener: Opener, first: RunView, fingerprint: str) -> None:
        """Begin with what was read when the files had this fingerprint."""
        super().__init__(first)
        self._opener = opener
        self._fingerprint = fingerprint
        self._lock = threading.Lock()
        self._reading = False
        self._not_before_s = 0.0

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
        problem = self.problem
        try:
            fingerprint = self._opener.fingerprint()
            if fingerprint != self._fingerprint:
                self.show(self._opener.open())
                self._fingerprint, self.problem = fingerprint, None
        except (StagescopeError, PolarsError, OSError, ValueError) as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - the pages keep the last version and show why
            self.problem = f"internal error: {type(error).__name__}: {error}"
        finally:
            if self.problem != problem:
                self.announce()
            took_s = time.monotonic() - began_s
            self._not_before_s = time.monotonic() + max(LEAST_PAUSE_S, PAUSE_FACTOR * took_s)
            self._reading = False
