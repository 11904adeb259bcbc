"""Adds the marks and metadata that Ascend's pp_chart needs, while torch_npu's profiler runs.

Without stagescope, users add them to MindSpeed by hand. The marks are mstx ranges with the texts of msprof-analyze's
guide (pp_chart_instruct.md, 26.2.0), so ``msprof-analyze`` and MindStudio Insight read them. ``pp_info`` and
``distributed_args`` are added to a profiler that does not have them. The profiler is ``profile`` in
torch_npu/profiler/profiler.py.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]


class NpuMarks:
    """Marks actions on the NPU's stream while a profiler of torch_npu is running."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._running: Any = None
        self._described: object = None
        self._facts: dict[str, dict[str, object]] = {}

    @property
    def running(self) -> bool:
        """Whether a profiler is running."""
        return self._running is not None

    @never_raises()
    def install(self, patches: Patches) -> None:
        """Watch the start and stop of torch_npu's profiler, if torch_npu is imported."""
        profilers = sys.modules.get("torch_npu.profiler.profiler")
        if profilers is not None:
            patches.wrap(profilers.profile, "start", self._start)
            patches.wrap(profilers.profile, "stop", self._stop)

    def describe(self, **facts: dict[str, object]) -> None:
        """Set the metadata. A running profiler gets it immediately, others when they start."""
        self._facts = facts
        self._describe_profiler()

    def run(self, message: dict[str, object], call: Callable[[], Any]) -> Any:
        """Return the result of `call`, with a mark around it if a profiler is running."""
        if self._running is None:
            return call()
        number = self._range_start(str(message))
        try:
            return call()
        finally:
            self._range_end(number)

    @never_raises()
    def _range_start(self, text: str) -> Any:
        npu = sys.modules["torch_npu"].npu
        return npu.mstx.range_start(text, npu.current_stream())

    @never_raises()
    def _range_end(self, number: Any) -> None:
        if number is not None:
            sys.modules["torch_npu"].npu.mstx.range_end(number)

    @never_raises()
    def _describe_profiler(self) -> None:
        profiler = self._running
        if profiler is None or profiler is self._described or not self._facts:
            return
        self._described = profiler
        known = getattr(profiler, "metadata", {})
        for name, facts in self._facts.items():
            if name not in known:
                profiler.add_metadata_json(name, json.dumps(facts))

    def _start(self, original: Function) -> Function:
        def start(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(profiler, *args, **kwargs)
            self._running = profiler
            self._describe_profiler()
            return result

        return start

    def _stop(self, original: Function) -> Function:
        def stop(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            self._running = self._described = None
            return original(profiler, *args, **kwargs)

        return stop
