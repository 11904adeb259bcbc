"""When the slow counters of a process are read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

    Source = Callable[[], list[tuple[str, float]]]

INTERVAL_S = 1.0


class Sampler:
    """Reads the slow counters of one process and adds them to its counters.

    The writer thread calls it whenever it stores spans, so counters are read at most every `INTERVAL_S`, at the first
    spans and at the end. A source that raises is not asked again: its counters are missing, which is not zero.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._due_s = 0.0
        self._host: list[Source] | None = None
        self._device: list[Source] = []
        self._device_name = ""

    def sample(self, *, is_last: bool = False) -> None:
        """Read all counters if that is due, or `is_last`, and the current step is recorded."""
        recorder, now_s = self._recorder, time.monotonic()
        is_due = is_last or now_s >= self._due_s
        if not is_due or not (recorder.step in recorder.steps or recorder.step == NONE):
            return
        self._due_s = now_s + INTERVAL_S
        self._find_sources(is_last=is_last)
        for sources in (self._host or [], self._device):
            for source in sources.copy():
                try:
                    found = source()
                except Exception:  # noqa: BLE001  # not on this system, or in this version of a library
                    sources.remove(source)
                    continue
                for name, value in found:
                    recorder.counters.add(name, value)

    def _find_sources(self, *, is_last: bool) -> None:
        if self._host is None:
            from stagescope.record.sampling.host import host_sources  # not needed in a process without spans

            self._host = host_sources()
        timer = self._recorder.timer.device
        # Not at the end, where importing a library for the first time could disturb what the interpreter does.
        if timer is not None and timer.name != self._device_name and not is_last:
            from stagescope.record.sampling.gpu import gpu_sources  # only needed with a device
            from stagescope.record.sampling.memory import memory_sources

            self._device_name = timer.name
            self._device = [*memory_sources(timer.device), *gpu_sources(timer.device)]
