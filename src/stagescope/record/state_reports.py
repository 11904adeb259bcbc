"""When the writer thread reports what its process is doing: after requests, and when nothing is recorded any more.

A process whose steps are not recorded, because of `--steps` or a pause, reports its step in the same way, so that its
training does not look as if it had stopped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagescope.record.clock import now_ns
from stagescope.record.control import Control
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder
    from stagescope.record.recording import Recording

FIRST_AFTER_S = 2.0
"""Without a span for this long, the state is reported; again after twice that time, and so on."""
AT_LEAST_EVERY_S = 30.0
SAME_EVERY_S = 600.0
"""An unchanged state is looked at as often, but written so seldom: in a hang of days, thousands of equal states would
take the place of the spans that `--keep` keeps."""


class StateReports:
    """Writes STATE frames into a recording. Called by the writer thread whenever it wakes up."""

    def __init__(self, recorder: Recorder, recording: Recording) -> None:
        self._recorder = recorder
        self._recording = recording
        self._control = Control(recorder)
        self._spans = -1
        self._last_change_s = 0.0
        self._step = NONE
        self._step_since_ns = 0
        self._pause_s = FIRST_AFTER_S
        self._written: dict[str, object] = {}
        self._written_s = 0.0

    def notice(self) -> None:
        """Read a request that is there already. Called before the thread of the writer starts."""
        self._control.notice()

    def look(self) -> None:
        """Write a report if one is due."""
        now_s, recorder = time.monotonic(), self._recorder
        if self._recording.spans_written != self._spans:
            self._spans = self._recording.spans_written
            self._last_change_s, self._pause_s = now_s, FIRST_AFTER_S
        if recorder.step != self._step:
            self._step, self._step_since_ns = recorder.step, now_ns()
        answer = self._control.look()
        is_quiet = now_s - self._last_change_s >= self._pause_s
        if answer is None and not is_quiet:
            return
        if is_quiet:
            self._pause_s += min(self._pause_s, AT_LEAST_EVERY_S)
        from stagescope.record.process_state import process_state  # rarely needed, and it imports `inspect`

        wants_stacks = answer is not None and self._control.wants_stacks
        state = process_state(recorder, all_threads=wants_stacks)
        state |= {"is_recorded": recorder.enabled, "step_since_ns": self._step_since_ns}
        content = {name: value for name, value in state.items() if name != "time_ns"}
        # How long a step that is not recorded has lasted is only known from the last report.
        is_same = recorder.enabled and content == self._written
        if answer is None and is_same and now_s - self._written_s < SAME_EVERY_S:
            return
        self._written, self._written_s = content, now_s
        if answer is not None:
            state["control"] = answer
            self._recording.keeps_without_spans = (
                True  # before the first span, the answer is all that there is
            )
        self._recording.write_state(state)
