"""Pauses of the training by Python's garbage collector, as spans named ``garbage collection``.

A collection may begin at any allocation, also inside the recorder. Its times are therefore only kept, and recorded
before the next step or at the end of the recording. Those before the first step, and those of microseconds, which are
most of them, are ignored.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import TYPE_CHECKING

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME, GARBAGE_COLLECTION

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

OTHER = BY_NAME["other"].code
SHORTEST_NS = 100_000
MOST_KEPT = 1 << 12


class GarbageCollections:
    """The collections of one process since its last step. The interpreter runs one at a time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._start_ns = 0
        self._kept: deque[tuple[int, int, int, int]] = deque(maxlen=MOST_KEPT)

    def watch(self) -> None:
        """Note each collection from now on."""
        gc.callbacks.append(self._note)
        self._recorder.unfinished.append((self._kept, self._record))

    def ignore(self) -> None:
        """Stop noting collections."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            self._start_ns = now_ns()
            return
        end_ns, recorder = now_ns(), self._recorder
        is_long = self._start_ns and end_ns - self._start_ns >= SHORTEST_NS
        if is_long and recorder.enabled and recorder.step != NONE:  # imports allocate much, too
            self._kept.append((self._start_ns, end_ns, facts.get("generation", 0), recorder.step))

    def _record(self) -> None:
        if not self._recorder.has_recorded:  # a process that has recorded nothing else trains nothing
            self._kept.clear()
            return
        for _ in range(len(self._kept)):
            start_ns, end_ns, generation, step = self._kept.popleft()
            name = self._recorder.name_id(f"{GARBAGE_COLLECTION} of generation {generation}")
            self._recorder.emit(OTHER, start_ns, end_ns, name=name, step=step)
