"""The kernels of a few steps: torch.profiler runs in them, and its trace is written beside the recording.

`stagescope control --steps 1200:1205 --detail kernels` asks for it. The profiler starts and ends in the training
thread, between two steps, and the actions of these steps are ranges in it, so that stagescope reads the trace as a run.
On a CPU it has the operators of torch, with CUDA their kernels as well. Only one profiler can run in a process: where
the training has one of its own, nothing is traced, because the training's profiler would fail.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import KERNEL_FOLDER
from stagescope.record.mirrors import Mirrors
from stagescope.vocabulary.file_modes import directory_mode, file_mode
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

FACT = "kernels"
NAME = "kernel trace"
RANGES = "kineto"
OTHER = BY_NAME["other"].code


OWN: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of earlier requests, which exist until the garbage collector finds them."""


class KernelTrace:
    """Traces the kernels of the recorded steps from the next step on. No method raises."""

    def __init__(self, recorder: Recorder) -> None:
        """Trace nothing yet; `follow` starts the profiler."""
        self._recorder = recorder
        self._profiler: Any = None
        self._mirror_before: Mirrors | None = None
        self._first = self._last = 0
        self._is_over = False

    def follow(self, step: int, *, is_wanted: bool) -> None:
        """Start the profiler before the first wanted step, and end it before the first other one."""
        if is_wanted and self._profiler is None and not self._is_over:
            self._attempt(self._begin)
            self._first = step
        elif not is_wanted and self._profiler is not None:
            self.end()
        self._last = step if is_wanted else self._last

    def end(self) -> None:
        """End the profiler and write its trace, if it runs."""
        if self._profiler is not None:
            self._is_over = True
            self._attempt(self._end)

    def _attempt(self, function: Any) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  # an error of the profiler must not stop the training
            self._profiler = None
            self._refuse(f"{type(error).__name__}: {error}")

    def _begin(self) -> None:
        reason = reason_against()
        if reason:
            self._refuse(reason)
            return
        profiler = sys.modules["torch"].profiler.profile()
        OWN.add(profiler)
        profiler.start()
        self._profiler = profiler
        self._mirror_before = self._recorder.mirror
        self._recorder.mirror = self._mirror_before or Mirrors(self._recorder, (RANGES,))
        self._recorder.unsettle()

    def _end(self) -> None:
        began_ns, profiler = now_ns(), self._profiler
        self._profiler = None
        self._recorder.mirror = self._mirror_before
        profiler.stop()
        path = self._path()
        os.makedirs(os.path.dirname(path), directory_mode(), exist_ok=True)
        unfinished = f"{path}.unfinished-{os.getpid()}.json.gz"  # torch compresses by the suffix
        # Created here, so that it has the mode of the recording and no link in its place is followed.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode()))
        profiler.export_chrome_trace(unfinished)
        os.replace(unfinished, path)
        facts = {
            "steps": f"{self._first}:{self._last + 1}",
            "file": os.path.relpath(path, self._recorder.directory),
        }
        self._recorder.describe(**{FACT: facts})
        self._recorder.emit(OTHER, began_ns, now_ns(), name=self._recorder.name_id(NAME))

    def _path(self) -> str:
        """Return the path of the trace: one directory per request, which is read as a run of its own."""
        if self._recorder.path is None:
            self._recorder.flush()  # the writer has not named the recording yet
        recording = self._recorder.path or os.path.join(self._recorder.directory, f"process-{os.getpid()}")
        folder, name = os.path.split(recording)
        own = f"{KERNEL_FOLDER}{self._first}-{self._last}"
        return os.path.join(folder, own, f"{name.partition('.')[0]}.pt.trace.json.gz")

    def _refuse(self, reason: str) -> None:
        self._is_over = True
        self._recorder.warn(f"no kernels are traced: {reason}")
        self._recorder.describe(**{FACT: {"refused": reason}})


def reason_against() -> str:
    """Return why no profiler may be started in this process, an empty text if one may."""
    torch = sys.modules.get("torch")
    profile = getattr(getattr(torch, "profiler", None), "profile", None)
    if torch is None or profile is None:
        return "the training has not imported torch"
    if torch.autograd._profiler_enabled():  # noqa: SLF001  # there is no public function
        return "a profiler of the training is running"
    # Takes some 100 ms in a large process, once per request. isinstance() would ask objects that load modules then.
    if any(issubclass(type(each), profile) and each not in OWN for each in gc.get_objects()):
        return "the training has a profiler of its own, and only one can run"
    return ""
