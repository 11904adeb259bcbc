"""Values of counters on their way to the recording.

Any thread may add values. The writer thread takes them when it stores spans, and adds what it samples itself
(`record.sampling`). A counter alone creates no recording.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import TYPE_CHECKING

from stagescope.record.clock import now_ns
from stagescope.record.format import COUNTER, NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder
    from stagescope.record.sampling.sampler import Sampler

Place = tuple[int, int, int]
"""Step, stage and micro-batch that a value belongs to; `NONE` where there is none."""

MOST_WAITING = 2**13
"""Values that wait for the disk; they take about 2 MiB."""

MOST_LATER = 2**8


class Counters:
    """The values of one process that have not been written yet. `dropped` counts those that never will be.

    `is_given` is set once the training itself has counted its data.
    """

    __slots__ = ("_later", "_recorder", "_sampler", "_waiting", "dropped", "is_given")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: deque[tuple[int, float, int, int, int, int]] = deque()
        self._later: deque[Callable[[Counters], object]] = deque()
        self._sampler: Sampler | None = None
        self.dropped = 0
        self.is_given = False

    def place(self, stage: int = NONE, microbatch: int = NONE) -> Place:
        """Return the current step and an action in it, if any."""
        return self._recorder.step, stage, microbatch

    def add(self, name: str, value: float, stage: int = NONE, microbatch: int = NONE) -> None:
        """Add a value of the current step that was read now. Costs less than 1 us."""
        self.put(name, value, (self._recorder.step, stage, microbatch), now_ns())

    def put(self, name: str, value: float, place: Place, time_ns: int) -> None:
        """Add a value that was read at a moment."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
        else:
            self._waiting.append((time_ns, value, *place, self._recorder.name_id(name)))

    def prepare(self) -> None:
        """Import what samples counters: an import at the end of a process would change its exit code.

        After an unhandled KeyboardInterrupt, CPython ends the process by SIGINT only if no module has been executed
        since (``unhandled_keyboard_interrupt`` in Modules/main.c).
        """
        try:
            from stagescope.record.sampling.sampler import Sampler  # not needed in a process without spans

            self._sampler = self._sampler or Sampler(self._recorder)
        except Exception as error:  # noqa: BLE001  # for example while the interpreter shuts down
            self._recorder.warn(f"counters cannot be sampled: {error!r}")

    def put_later(self, add: Callable[[Counters], object]) -> None:
        """Let `add` add values when the writer thread takes them."""
        if len(self._later) >= MOST_LATER:
            self.dropped += 1
        else:
            self._later.append(add)
            if len(self._later) == MOST_LATER // 2:  # steps are so short that they add many
                self._recorder.flush_soon()

    def collect(self, *, is_last: bool = False) -> bytes:
        """Return the waiting values and those that are sampled now, as packed records. For the writer thread."""
        try:
            if self._sampler is not None:
                self._sampler.sample(is_last=is_last)
        except Exception as error:  # noqa: BLE001  # for example an import while the interpreter shuts down
            self._recorder.warn(f"counters could not be sampled: {error!r}")
        return self.take()

    def take(self) -> bytes:
        """Return the waiting values as packed records, and forget them. A value that is no finite number is dropped."""
        records: list[bytes] = []
        for _ in range(len(self._later)):
            self._take_into(records)  # before there are too many: each of these functions adds several
            self._later.popleft()(self)
        self._take_into(records)
        return b"".join(records)

    def _take_into(self, records: list[bytes]) -> None:
        for _ in range(len(self._waiting)):
            try:
                record = _packed(self._waiting.popleft())
            except (struct.error, TypeError, OverflowError):
                record = b""
            records.append(record)
            self.dropped += not record


def _packed(value: tuple[int, float, int, int, int, int]) -> bytes:
    """Return one record; nothing for a value that is not finite."""
    return COUNTER.pack(*value) if math.isfinite(value[1]) else b""
