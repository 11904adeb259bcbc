"""Pauses of the training by Python's garbage collector, as spans named ``garbage collection``.

A collection may begin at any allocation, also inside the recorder. Its times are therefore only kept, and recorded
before the next step or at the end of the recording. Those before the first step, and those of microseconds, which are
most of them, are ignored.

The callback is in C (native/garbage.c), and without the extension no collection is recorded. In a callback in Python,
the handlers of signals would run that arrive during a collection, and Python ignores what a callback raises: 3 of 100
interrupts of a small training with Ctrl-C were lost.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Protocol

from stagescope.record import compiled
from stagescope.record.clock import now_ns
from stagescope.vocabulary.kinds import BY_NAME, GARBAGE_COLLECTION

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

OTHER = BY_NAME["other"].code
SHORTEST_NS = 100_000


class Collections(Protocol):
    """A callback of the garbage collector; see native/garbage.c. It keeps the last 4,096 collections."""

    def __call__(self, phase: str, facts: dict[str, int], /) -> None:
        """Note the begin or the end of a collection."""

    def __len__(self) -> int:
        """Return how many collections are kept."""

    def take(self) -> list[tuple[int, int, int, int]]:
        """Return and forget all collections: start, end, generation and step of each."""


class GarbageCollections:
    """The collections of one process since its last step. The interpreter runs one at a time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: Collections | None = None
        if now_ns is compiled.MONOTONIC_NS:
            self._kept = compiled.collections(recorder, SHORTEST_NS)

    def watch(self) -> None:
        """Note each collection from now on."""
        if self._kept is not None:
            gc.callbacks.append(self._kept)
            self._recorder.unfinished.append((self._kept, partial(self._record, self._kept)))

    def ignore(self) -> None:
        """Stop noting collections."""
        if self._kept in gc.callbacks:
            gc.callbacks.remove(self._kept)

    def _record(self, kept: Collections) -> None:
        taken = kept.take()
        if not self._recorder.has_recorded:  # a process that has recorded nothing else trains nothing
            return
        for start_ns, end_ns, generation, step in taken:
            name = self._recorder.name_id(f"{GARBAGE_COLLECTION} of generation {generation}")
            self._recorder.emit(OTHER, start_ns, end_ns, name=name, step=step)
