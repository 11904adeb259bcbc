"""Watch a training while it runs: the values of its steps, alarms, and what its processes are doing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope.analysis.hangs.conditions import QUIET_AFTER_S
from stagescope.analysis.hangs.culprits import HANGS, IS_OVER, find_hang
from stagescope.analysis.watching.alarms import LEAST_CHANGE, Alarms
from stagescope.analysis.watching.step_values import QUANTITIES, measure_steps, within_steps
from stagescope.api.reading import align_timeline
from stagescope.ingest.layout import Layout
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.recording.following import Follower
from stagescope.ingest.recording.latest import read_process_states
from stagescope.ingest.stages import place_stages
from stagescope.vocabulary.conditions import parse_lasting_condition

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from stagescope.analysis.hangs.culprits import HangReport
    from stagescope.analysis.watching.alarms import Alarm
    from stagescope.analysis.watching.step_values import StepValues

FEWEST_STEPS = 8
ENOUGH_SPANS = 100_000
"""Steps that are analyzed together, as what is usual for an action is known from several of them; fewer, if they have
so many spans."""

FEW_RANKS = 16
STATES_EVERY_S = 5.0
"""How often the states of many processes are read: each is in the last megabyte of a file."""


@dataclass(frozen=True)
class Look:
    """What one look at a training has found.

    steps
        The values of the steps that have settled since the last look, in their order.
    alarms
        Alarms that began, became more specific, or ended in these steps.
    skipped
        How many steps between the last look and this one were not measured, because they came faster than they could
        be, or because not all ranks recorded them.
    processes
        What the processes are doing, and why the training hangs, if it does.
    hang_began, hang_ended
        Whether the training has stopped, or goes on again, since the last look.
    """

    steps: tuple[StepValues, ...]
    alarms: tuple[Alarm, ...]
    skipped: int
    processes: HangReport
    hang_began: bool
    hang_ended: bool

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return self.processes.outcome == IS_OVER


class Watcher:
    """Follow the recordings of a running training; `look` returns what is new.

    `directories` are those of its recordings. `alerts` are conditions such as ``"bubble>0.35 for 20 steps"``, on one of
    QUANTITIES. `least_change` is the smallest change of level that is an alarm, relative to the value; 0 for none. A
    rank has stopped if it has recorded nothing for `quiet_after_s` seconds and three times its longest earlier pause.

    Raises UsageError for a malformed alert.
    """

    def __init__(
        self,
        *directories: str | os.PathLike[str],
        alerts: Iterable[str] = (),
        least_change: float = LEAST_CHANGE,
        quiet_after_s: float = QUIET_AFTER_S,
    ) -> None:
        """Watch the training that writes to these directories."""
        conditions = [parse_lasting_condition(text, QUANTITIES, "--alert") for text in alerts]
        self.alarms = Alarms(conditions, least_change)
        self._directories = directories
        self._quiet_after_s = quiet_after_s
        self._follower = Follower(directories)
        self._last_step: int | None = None
        self._processes: HangReport | None = None
        self._read_s = 0.0
        self._window = FEWEST_STEPS

    def look(self) -> Look:
        """Return what has happened since the last look. Raises InputError if there is no recording."""
        before = self._processes
        processes = self._states()  # first: when all processes have ended, their last spans are there
        self._follower.read()
        steps, skipped = self._new_steps()
        changed: dict[int, Alarm] = {}
        for values in steps:
            changed |= {alarm.number: alarm for alarm in self.alarms.add(values)}
        hung = [each is not None and each.outcome == HANGS for each in (before, processes)]
        return Look(
            tuple(steps), tuple(changed.values()), skipped, processes,
            hang_began=hung == [False, True], hang_ended=hung == [True, False],
        )  # fmt: skip

    def _new_steps(self) -> tuple[list[StepValues], int]:
        settled, first_kept = self._follower.settled_step, self._follower.first_step
        last = self._last_step
        if last is not None and self._follower.latest_step < last:  # the training was started again
            self._last_step = last = None
        first = first_kept if last is None else max(last + 1, first_kept)
        if settled < first:
            return [], 0
        begin = max(first_kept, min(first - 1, settled - self._window + 1))
        timeline = merge_timelines([self._follower.timeline()])
        timeline = place_stages(align_timeline(timeline), Layout())
        chosen = within_steps(timeline, begin, settled + 1)
        found = measure_steps(chosen, first, settled)
        expected = settled - last if last is not None else len(found)
        self._last_step = settled
        spans_per_step = chosen.spans.height // (settled + 2 - begin) + 1
        self._window = max(1, min(FEWEST_STEPS, ENOUGH_SPANS // spans_per_step))
        self._follower.forget_before(settled - self._window)
        return found, max(0, expected - len(found))

    def _states(self) -> HangReport:
        known = self._processes
        many = known is not None and len(known.states) > FEW_RANKS
        if known is None or not many or time.monotonic() - self._read_s > STATES_EVERY_S:
            known = find_hang(read_process_states(self._directories), self._quiet_after_s)
            self._processes, self._read_s = known, time.monotonic()
        return known
