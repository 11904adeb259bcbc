"""The condition of each process: whether it records, waits, computes, has ended or is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.model.process_states import WAIT
from stagescope.vocabulary.kinds import BY_NAME, COMM

if TYPE_CHECKING:
    from stagescope.model.process_states import Call, ProcessState

RUNNING = "running"
"""Recorded a span recently."""
WAITING = "waiting"
"""Has recorded nothing for a while, and waits for a transfer or a collective."""
BUSY = "busy"
"""Has recorded nothing for a while, and waits for nothing that is recorded: it computes, sleeps or is blocked."""
SILENT = "silent"
"""Exists, or may exist, but has not even written its regular clock readings."""
GONE = "gone"
"""Does not exist any more, and did not end its recording."""
ENDED = "ended"
"""Ended its recording."""

CONDITIONS = (RUNNING, WAITING, BUSY, SILENT, GONE, ENDED)

QUIET_AFTER_S = 10.0
GAP_FACTOR = 3.0
"""A process is quiet after this many times the longest time without a span before, and QUIET_AFTER_S at least."""
GONE_AFTER_S, SILENT_AFTER_S = 10.0, 15.0
"""A process writes clock readings every four seconds, also while it waits. One that seems not to exist may be in
another container, unless its recording states the namespace of its id, and is gone only if it does not write either.
"""


def condition_of(state: ProcessState, quiet_after_s: float = QUIET_AFTER_S) -> str:
    """Return the condition of a process."""
    if state.end_reason is not None:
        return ENDED
    if state.exists is False and (state.is_certain or state.written_s > GONE_AFTER_S):
        return GONE
    if state.written_s > SILENT_AFTER_S:
        return SILENT
    usual_s = state.longest_gap_s
    if not state.is_recorded and state.steps_per_s:
        usual_s = max(usual_s, 1 / state.steps_per_s)
    if state.quiet_s is None or state.quiet_s < max(quiet_after_s, GAP_FACTOR * usual_s):
        return RUNNING
    return WAITING if waits_of(state) else BUSY


def waits_of(state: ProcessState) -> tuple[Call, ...]:
    """Return the transfers and collectives that a process waits for: those of its innermost hooked call."""
    if not state.calls:
        return ()
    innermost = state.calls[0]
    if innermost.kind == WAIT:
        return innermost.waits_for
    kind = BY_NAME.get(innermost.kind)
    return (innermost,) if kind is not None and kind.lane == COMM else ()
