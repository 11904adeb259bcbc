"""When the slow counters of a process are read, and on which thread.

The writer thread reads those of the host, which are files. A thread of its own reads those of the GPU: the driver of a
broken GPU may never answer, and the writer thread has to store the recording in any case.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from stagescope.record.format import NONE
from stagescope.record.sampling import host

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device
    from stagescope.record.recorder import Recorder

    Source = Callable[[], list[tuple[str, float]]]

INTERVAL_S = 1.0


class Sampler:
    """Reads the slow counters of one process and adds them to its counters.

    The writer thread calls it whenever it stores spans, so the counters of the host are read at most every
    `INTERVAL_S`, at the first spans and at the end. A source that raises is not asked again: its counters are missing,
    which is not zero.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._due_s = 0.0
        self._host: list[Source] | None = None
        self._has_ended = threading.Event()
        self._gpu = ""

    def sample(self, *, is_last: bool = False) -> None:
        """Read the counters of the host if that is due, or `is_last`, and the current step is recorded."""
        now_s = time.monotonic()
        if is_last:
            self._has_ended.set()
        if not (is_last or now_s >= self._due_s) or not self._is_recorded:
            return
        self._due_s = now_s + INTERVAL_S
        if self._host is None:
            self._host = host.host_sources()
        self._read(self._host)
        timer = self._recorder.timer.device
        if timer is not None and timer.name != self._gpu and not is_last:
            self._gpu = timer.name
            self._watch_gpu(timer.device)

    @property
    def _is_recorded(self) -> bool:
        recorder = self._recorder
        return recorder.step in recorder.steps or recorder.step == NONE

    def _read(self, sources: list[Source]) -> None:
        for source in sources.copy():
            try:
                found = source()
            except Exception:  # noqa: BLE001  # not on this system, or in this version of a library
                sources.remove(source)
                continue
            for name, value in found:
                self._recorder.counters.add(name, value)

    def _watch_gpu(self, device: Device) -> None:
        if hasattr(device, "uuid"):
            arguments = (device, self._gpu)
            threading.Thread(
                target=self._poll_gpu, args=arguments, name="stagescope-gpu", daemon=True
            ).start()

    def _poll_gpu(self, device: Device, name: str) -> None:
        """Read the counters of a GPU until the end of the recording, or until another device is used."""
        from stagescope.record.sampling.gpu import gpu_sources  # only needed with a GPU

        sources = gpu_sources(device)
        while sources and name == self._gpu:
            if self._is_recorded:
                self._read(sources)
            if self._has_ended.wait(INTERVAL_S):
                return
