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
    from collections.abc import Generator, Mapping

    from stagescope.record.calls import Call
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, object]


class NpuMarks:
    """Marks actions on the NPU's stream while a profiler of torch_npu is running.

    `is_on` is False if the training marks its actions itself. A mark is opened and closed by the observer of an action.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.is_on = True
        self._running: Any = None
        self._described: object = None
        self._facts: Mapping[str, dict[str, object]] = {}

    def started(self, call: Call) -> Observation:
        """Observe the start of a profiler."""
        result = yield
        if self.is_on:
            self._running = call.owner
            self._describe_profiler()
        return result

    def stopped(self, call: Call) -> Observation:
        """Observe the stop of a profiler."""
        del call
        self._running = self._described = None
        return (yield)

    def describe(self, **facts: dict[str, object]) -> None:
        """Set the metadata. A running profiler gets it immediately, others when they start."""
        self._facts = facts
        self._describe_profiler()

    @never_raises()
    def open(self, message: Mapping[str, object]) -> Any:
        """Open a mark if a profiler is running; return what `close` needs."""
        if self._running is None:
            return None
        npu = sys.modules["torch_npu"].npu
        return npu.mstx.range_start(str(message), npu.current_stream())

    @never_raises()
    def close(self, number: Any) -> None:
        """Close a mark."""
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
