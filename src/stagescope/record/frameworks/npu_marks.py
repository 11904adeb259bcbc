"""What users of Ascend's pp_chart add to MindSpeed by hand today, while torch_npu's profiler runs: marks and metadata.

The marks are mstx ranges with the texts of msprof-analyze's guide (pp_chart_instruct.md, 26.2.0), so that
``msprof-analyze`` and MindStudio Insight take them as theirs. ``pp_info`` and ``distributed_args`` are added to a
profiler that does not have them. torch_npu: torch_npu/profiler/profiler.py, ``profile``.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.calls import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]


class NpuMarks:
    """Marks actions on the NPU's stream for as long as a profiler of torch_npu runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._running: Any = None
        self._told: object = None
        self._facts: dict[str, dict[str, object]] = {}

    @property
    def running(self) -> bool:
        """Whether a profiler runs."""
        return self._running is not None

    @harmless()
    def install(self, patches: Patches) -> None:
        """Watch torch_npu's profiler begin and end; without torch_npu there is none."""
        profilers = sys.modules.get("torch_npu.profiler.profiler")
        if profilers is not None:
            patches.wrap(profilers.profile, "start", self._start)
            patches.wrap(profilers.profile, "stop", self._stop)

    def describe(self, **facts: dict[str, object]) -> None:
        """Learn the metadata; a running profiler has them at once, another one when it starts."""
        self._facts = facts
        self._tell()

    def run(self, message: dict[str, object], call: Callable[[], Any]) -> Any:
        """Return what `call` returns, with a mark around it if a profiler runs."""
        if self._running is None:
            return call()
        number = self._range_start(str(message))
        try:
            return call()
        finally:
            self._range_end(number)

    @harmless()
    def _range_start(self, text: str) -> Any:
        npu = sys.modules["torch_npu"].npu
        return npu.mstx.range_start(text, npu.current_stream())

    @harmless()
    def _range_end(self, number: Any) -> None:
        if number is not None:
            sys.modules["torch_npu"].npu.mstx.range_end(number)

    @harmless()
    def _tell(self) -> None:
        profiler = self._running
        if profiler is None or profiler is self._told or not self._facts:
            return
        self._told = profiler
        known = getattr(profiler, "metadata", {})
        for name, facts in self._facts.items():
            if name not in known:
                profiler.add_metadata_json(name, json.dumps(facts))

    def _start(self, original: Function) -> Function:
        def start(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(profiler, *args, **kwargs)
            self._running = profiler
            self._tell()
            return result

        return start

    def _stop(self, original: Function) -> Function:
        def stop(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            self._running = self._told = None
            return original(profiler, *args, **kwargs)

        return stop
