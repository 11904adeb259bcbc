"""Watch a training while it runs: the values of its steps, alarms, and what its processes are doing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.hangs.conditions import QUIET_AFTER_S
from stagescope.analysis.hangs.culprits import IS_OVER, find_hang
from stagescope.analysis.watching.alarms import LEAST_CHANGE, Alarms
from stagescope.analysis.watching.step_values import QUANTITIES, measure_steps, within_steps
from stagescope.api.analyses import sorted_diagnostics
from stagescope.api.awaited_restart import RESTART_GRACE_S, AwaitedRestart
from stagescope.api.reading import align_timeline
from stagescope.ingest.layout import Layout
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.recording.following import MOST_BYTES, Follower
from stagescope.ingest.recording.latest import read_process_states
from stagescope.ingest.stages import place_stages
from stagescope.vocabulary.conditions import parse_lasting_condition

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from stagescope.analysis.hangs.culprits import HangReport
    from stagescope.analysis.watching.alarms import Alarm
    from stagescope.analysis.watching.step_values import DataRate, StepValues
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

FEWEST_STEPS = 8
ENOUGH_SPANS = 100_000
"""So many steps are analyzed together, because what is usual for an action is known from several steps; fewer steps if
they have so many spans."""

MOST_AT_ONCE = 50_000
"""Spans of new steps that are measured at once, if only the latest are wanted."""

REPORTED = ("error", "warning")
STILL_RUNNING = "recording.no_end"
"""The diagnostic of a recording that has not ended, as none has while it is watched."""

DROPPED_SPANS = "spans.dropped"

FEW_RANKS = 16
STATES_EVERY_S, FEW_STATES_EVERY_S = 5.0, 0.5
"""How often the states of many and of few processes are read: each is in the last megabyte of a file."""


class NewSteps(NamedTuple):
    """Complete steps that were measured, how many others there are, and diagnostics that were not there before."""

    steps: tuple[StepValues, ...]
    skipped: int
    diagnostics: tuple[Diagnostic, ...]


NOTHING_NEW = NewSteps((), 0, ())


@dataclass(frozen=True)
class Update:
    """What is new in a training since the last update.

    steps
        The values of the steps that are now complete, in their order.
    alarms
        Alarms that began, became more specific, or ended in these steps.
    skipped
        How many complete steps could not be measured: their spans came faster than they can be analyzed, not all ranks
        recorded them, or they have no actions.
    diagnostics
        Errors and warnings about the recordings and the alignment of their clocks that no earlier update had.
    processes
        What the processes are doing, and why the training hangs, if it does.
    stopped, continues
        Whether the training has hung or crashed since the last update, or continues after that.
    is_restarted
        Whether a new attempt has begun since the last update: another process records a rank.
    restart_wait_s
        How many seconds longer a launcher may take to start the training again, which has failed and is over; 0 if it
        is not, or if no new attempt is expected.
    has_more
        Whether there is more to read: recordings that exist already are read in parts.
    stages
        Of each rank whose place in its pipeline is known, that place.
    data_rates
        Of new steps with counted data, tokens or samples per second of the iteration, by step.
    dropped_spans
        How many spans the recorder dropped so far, as the recordings of the present attempt state it; None before the
        first step.
    clock_error_ns
        Largest guaranteed error of timestamps of different machines, in nanoseconds; None if it is not bounded, or
        before the first step.
    timeline
        What was recorded in the new steps, on one clock; None without any.
    """

    steps: tuple[StepValues, ...]
    alarms: tuple[Alarm, ...]
    skipped: int
    diagnostics: tuple[Diagnostic, ...]
    processes: HangReport
    stopped: bool
    continues: bool
    is_restarted: bool
    restart_wait_s: float
    has_more: bool
    stages: Mapping[int, int]
    data_rates: Mapping[int, DataRate]
    dropped_spans: int | None
    clock_error_ns: int | None
    timeline: Timeline | None = None

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended and everything was read."""
        return self.processes.outcome == IS_OVER and not self.has_more


class Watcher:
    """Follow the recordings of a running training; `update` returns what is new.

    `directories` are those of its recordings. `alerts` are conditions such as ``"bubble>0.35 for 20 steps"``, on one of
    QUANTITIES. `least_change` is the smallest change of level that is an alarm, relative to the value; 0 for none. A
    rank has stopped if it has recorded nothing for `quiet_after_s` seconds and three times its longest earlier pause.

    Of all spans and counters, at most `most_bytes` are in memory. After a crash, a new attempt is expected for
    `restart_grace_s` seconds.

    Raises UsageError for a malformed alert.
    """

    def __init__(
        self,
        *directories: str | os.PathLike[str],
        alerts: Iterable[str] = (),
        least_change: float = LEAST_CHANGE,
        quiet_after_s: float = QUIET_AFTER_S,
        most_bytes: int = MOST_BYTES,
        restart_grace_s: float = RESTART_GRACE_S,
    ) -> None:
        """Watch the training that writes to these directories."""
        conditions = [parse_lasting_condition(text, QUANTITIES, "--alert") for text in alerts]
        self.alarms = Alarms(conditions, least_change)
        self._directories = directories
        self._quiet_after_s = quiet_after_s
        self._follower = Follower(directories, most_bytes)
        self._last_step = self._complete_step = -1
        self._restarts, self._is_restarting = 0, False
        self._restarts_awaited = AwaitedRestart(restart_grace_s)
        self._reported: set[tuple[object, ...]] = set()
        self._processes: HangReport | None = None
        self._had_stopped = False
        self._read_s = 0.0
        self._window = FEWEST_STEPS
        self._spans_per_step = 0
        self._stages: dict[int, int] = {}
        self._dropped_spans: int | None = None
        self._clock_error_ns: int | None = None
        self._new: Timeline | None = None
        self._rates: Mapping[int, DataRate] = {}

    @property
    def position(self) -> int:
        """How many bytes of the recordings were read so far; `recent` changes with it."""
        return self._follower.position

    @property
    def complete_step(self) -> int:
        """The last step of which all spans had arrived at the last update; -1 before the first."""
        return self._complete_step

    @property
    def restarts(self) -> int:
        """How often the process of a rank was replaced by another one."""
        return self._restarts

    def recent(self, after_step: int) -> Timeline | None:
        """Return what is in memory on one clock, also of steps that are not complete; None without any recording.

        Of steps up to `after_step`, at most a part is there.
        """
        if not self._follower.has_processes:
            return None
        timeline = merge_timelines([self._follower.timeline(after_step)])
        return place_stages(align_timeline(timeline), Layout())

    def update(self, *, measure: bool = True, latest_only: bool = False) -> Update:
        """Return what has happened since the last update.

        Without `measure`, no step is measured, and all that are complete by then will be in the next update with it.
        Processes are not looked at then, which takes longer than the rest for many of them: `look_at_processes` does.
        With `latest_only`, only as many of the latest steps are measured as are analyzed together, and others are
        skipped: that bounds the time that an update takes.

        Raises InputError if there is no recording, or if one cannot be read.
        """
        # First: when all processes have ended, their last spans are there.
        if measure or self._processes is None:
            processes = self.look_at_processes(latest_only=latest_only)
        else:
            processes = self._processes
        has_more = self._follower.read()
        is_replaced = self._follower.restarts > self._restarts
        is_restarted, self._is_restarting = (
            is_replaced and not self._is_restarting,
            is_replaced or (self._is_restarting and bool(processes.awaited)),
        )
        if is_replaced:
            self._restarts, self._last_step = self._follower.restarts, -1
            self.alarms.restart()
        complete = self._follower.complete_step(is_over=processes.outcome == IS_OVER and not has_more)
        self._complete_step, self._new, self._rates = complete, None, {}
        steps, skipped, diagnostics = (
            self._new_steps(complete, latest_only=latest_only)
            if measure and not processes.awaited  # without these ranks, no step is complete
            else NOTHING_NEW
        )
        self._forget(complete, latest_only=latest_only)
        changed: dict[int, Alarm] = {}
        for values in steps:
            changed |= {alarm.number: alarm for alarm in self.alarms.add(values)}
        has_not_recovered = self._had_stopped and bool(processes.awaited or processes.failed)
        stopped = [self._had_stopped, processes.has_stopped or has_not_recovered]
        self._had_stopped = stopped[1]
        return Update(
            steps, tuple(changed.values()), skipped, diagnostics, processes,
            stopped=stopped == [False, True], continues=stopped == [True, False],
            is_restarted=is_restarted, restart_wait_s=self._restarts_awaited.wait_s(processes), has_more=has_more,
            stages=self._stages, data_rates=self._rates, dropped_spans=self._dropped_spans,
            clock_error_ns=self._clock_error_ns, timeline=self._new,
        )  # fmt: skip

    def look_at_processes(self, *, latest_only: bool = False) -> HangReport:
        """Return what all processes are doing; of few processes, as it was lately only for a page that looks often.

        Raises InputError as `update` does.
        """
        known = self._processes
        many = known is not None and len(known.states) > FEW_RANKS
        fresh_s = STATES_EVERY_S if many else FEW_STATES_EVERY_S if latest_only else 0.0
        if known is None or time.monotonic() - self._read_s > fresh_s:
            known = find_hang(read_process_states(self._directories), self._quiet_after_s)
            self._processes, self._read_s = known, time.monotonic()
        return known

    def _new_steps(self, complete: int, *, latest_only: bool) -> NewSteps:
        """Return the values of complete steps, how many could not be measured, and new diagnostics."""
        first_kept = self._follower.first_step
        first = max(self._last_step + 1, first_kept, complete - self._latest + 1 if latest_only else 0)
        if complete < first:
            return NOTHING_NEW
        begin = max(first_kept, min(first - 1, complete - self._window + 1))
        timeline = merge_timelines([self._follower.timeline()])
        timeline = place_stages(align_timeline(timeline), Layout())
        self._note_state(timeline)
        chosen = within_steps(timeline, begin, complete + 1)
        found, self._rates = measure_steps(chosen, first, complete)
        self._new = within_steps(chosen, first, complete) if found else None
        before = self._last_step if self._last_step >= 0 else self._follower.begin_step - 1
        skipped = complete - before - len(found)
        self._last_step = complete
        self._spans_per_step = chosen.spans.height // (complete + 2 - begin) + 1
        self._window = max(1, min(FEWEST_STEPS, ENOUGH_SPANS // self._spans_per_step))
        return NewSteps(tuple(found), max(0, skipped), self._new_diagnostics(timeline))

    @property
    def _latest(self) -> int:
        """How many steps are measured at once, if only the latest are wanted."""
        return (
            max(self._window, MOST_AT_ONCE // self._spans_per_step) if self._spans_per_step else self._window
        )

    def _forget(self, complete: int, *, latest_only: bool) -> None:
        """Forget the steps that are not needed for the next ones."""
        if self._spans_per_step:
            needed = complete - self._latest if latest_only else self._last_step
            self._follower.forget_before(needed - self._window)

    def _note_state(self, timeline: Timeline) -> None:
        self._stages = dict(timeline.ranks.drop_nulls("pp").select("rank", "pp").iter_rows())
        dropped = timeline.diagnostics.filter(pl.col("code") == DROPPED_SPANS)
        self._dropped_spans = int(dropped["count"].sum())
        errors = timeline.clocks.select(-pl.col("error_lo_ns"), "error_hi_ns")
        worst = errors.max().max_horizontal().item() if errors.height else None
        is_bounded = not any(errors.null_count().row(0))
        self._clock_error_ns = worst if is_bounded else None

    def _new_diagnostics(self, timeline: Timeline) -> tuple[Diagnostic, ...]:
        found = []
        for one in sorted_diagnostics(timeline):
            key = (one.code, one.rank, one.source)
            if one.severity in REPORTED and one.code != STILL_RUNNING and key not in self._reported:
                self._reported.add(key)
                found.append(one)
        return tuple(found)
