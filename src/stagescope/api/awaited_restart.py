"""How long a launcher may take to start a training again that has failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagescope.analysis.hangs.culprits import IS_OVER

if TYPE_CHECKING:
    from stagescope.analysis.hangs.culprits import HangReport
    from stagescope.model.process_states import ProcessState

RESTART_GRACE_S = 60.0
"""torchrun notices a failed worker within its monitor interval of 0.1 s, ends the others, which takes up to 30 s if
they do not react, and starts new ones, which import torch and set up their process groups before they record."""


class AwaitedRestart:
    """Whether a new attempt is still expected, since the training was seen to be over."""

    def __init__(self, grace_s: float) -> None:
        """Expect a new attempt for so many seconds."""
        self._grace_s = grace_s
        self._has_run = False
        self._over_since_s: float | None = None

    def wait_s(self, report: HangReport) -> float:
        """Return how many seconds longer a new attempt is expected; 0 unless the training has failed and is over."""
        if report.outcome != IS_OVER:
            self._has_run, self._over_since_s = True, None
            return 0.0
        if not report.has_stopped or not any(state.can_restart for state in report.states):
            return 0.0
        if self._over_since_s is None:
            # The recordings state when a training ended that was never seen to run.
            age_s = 0.0 if self._has_run else min(map(_ended_ago_s, report.states))
            self._over_since_s = time.monotonic() - age_s
        return max(0.0, self._grace_s - (time.monotonic() - self._over_since_s))


def _ended_ago_s(state: ProcessState) -> float:
    return state.written_s if state.ended_ns is None else max(0.0, time.time() - state.ended_ns / 1e9)
