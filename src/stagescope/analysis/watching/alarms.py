"""Alarms of a running training: conditions that hold for long enough, and level shifts that exceed the noise.

Shifts are searched for in the iteration, in each cause of lost time, in the actions of each rank and in the messages of
each link. Ranks and links are compared with the median of all ranks or links in the same step, so that what all have in
common, such as longer data, is a change of the iteration and not of a rank.

A slow rank makes the iteration longer as well. Changes that began at nearly the same step are therefore one alarm,
named after the most specific one. An alarm ends when its values have returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stagescope.analysis.watching.level_shifts import FEWEST_REFERENCE, SHORTEST, find_shifts
from stagescope.analysis.watching.series_history import FIRST, SEARCHED, SeriesHistory
from stagescope.analysis.watching.step_values import ITERATION, PART, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.watching.level_shifts import Shift
    from stagescope.analysis.watching.step_values import StepValues
    from stagescope.vocabulary.conditions import LastingCondition

LEAST_CHANGE = 0.05
"""The smallest change that is an alarm, relative to the value, or of a cause relative to the iteration."""

LEAST_STATED = 0.2
"""A cause or the iteration is an alarm only if the increase that the alarm states is at least this share of the
smallest change. Ranks and links are compared with the others, and may take as long as before."""

SAME_STEPS = 10
"""Changes that begin so close together are one alarm."""

RETURNED = 1 / 3
"""A value has returned if no more than this share of its change is left."""


@dataclass(frozen=True)
class Change:
    """A subject whose level rose: from which step on, and its medians before and after, in nanoseconds.

    `usual` is that of the last `FEWEST_REFERENCE` steps before, `now` that of the first `SHORTEST` steps of it.

    `size` is the difference of the two, relative to `usual`, and for a cause relative to the usual iteration.
    `relative_size` is by how much a rank or link became slower relative to the median of all, None if there are too few
    to compare with. It is larger than `size` if the others became faster.
    """

    subject: Subject
    step: int
    size: float
    usual: float
    now: float
    relative_size: float | None = None


@dataclass
class Alarm:
    """One alarm, of a condition or of changes, the most specific change first.

    `step` is the first step with it, `found_step` the one at which the condition, or the first of the changes, was
    found, `end_step` the one at which it was found to be over, None as long as it lasts. `value` is that of the
    condition's quantity when it was found.
    """

    number: int
    step: int
    found_step: int
    condition: LastingCondition | None = None
    value: float | None = None
    changes: list[Change] = field(default_factory=list)
    end_step: int | None = None


@dataclass
class _Streak:
    """For how many steps in a row a condition has held, and since which one."""

    length: int = 0
    first: int = FIRST

    def add(self, step: int, *, holds: bool) -> None:
        """Add a step in which the condition holds, or does not."""
        if holds and not self.length:
            self.first = step
        self.length = self.length + 1 if holds else 0


@dataclass
class _Level:
    """The row of a change in the history, and the level before it, to find out when it returns."""

    row: int
    shift: Shift
    change: Change


class Alarms:
    """The alarms of one training, from the values of its steps in their order."""

    def __init__(
        self, conditions: Iterable[LastingCondition] = (), least_change: float = LEAST_CHANGE
    ) -> None:
        """Watch for these conditions, and for changes of at least `least_change`; for no changes if that is 0."""
        self.all: list[Alarm] = []
        self.history = SeriesHistory()
        self._streaks = {condition: _Streak() for condition in conditions}
        self._of_condition: dict[LastingCondition, Alarm] = {}
        self._least_change = least_change
        self._levels: dict[int, list[_Level]] = {}

    def restart(self) -> None:
        """Begin again without history, because the training was restarted. All alarms are over."""
        for alarm in self.active:
            alarm.end_step = self.history.last_step
        self.history = SeriesHistory()
        self._streaks = {condition: _Streak() for condition in self._streaks}
        self._of_condition.clear()
        self._levels.clear()

    @property
    def active(self) -> list[Alarm]:
        """The alarms that have not ended."""
        return [alarm for alarm in self.all if alarm.end_step is None]

    def add(self, values: StepValues) -> list[Alarm]:
        """Add the values of the next step; return the alarms that began, became more specific, or ended."""
        self.history.add(values)
        found = self._judge(values)
        if self._least_change > 0:
            levels = self.history.levels()
            found += self._end_returned(values.step, levels)
            least = np.where(
                self.history.groups == SEARCHED.index(PART), self._least_change, np.log1p(self._least_change)
            )
            shifts = find_shifts(levels, self.history.groups, least)
            for shift in sorted(shifts, key=lambda each: self.history.groups[each.row]):
                found += self._take(shift, values.step)
        return list({alarm.number: alarm for alarm in found}.values())

    def _judge(self, values: StepValues) -> list[Alarm]:
        """Return the alarms of conditions that have held for long enough or no longer hold; skip unknown values."""
        changed = []
        for lasting, streak in self._streaks.items():
            value = values.quantity(lasting.condition.quantity)
            if value is None:
                continue
            holds = lasting.condition.holds(value)
            streak.add(values.step, holds=holds)
            alarm = self._of_condition.get(lasting)
            if alarm is None and streak.length >= lasting.steps:
                alarm = Alarm(len(self.all) + 1, streak.first, values.step, lasting, value)
                self._of_condition[lasting] = alarm
                self.all.append(alarm)
                changed.append(alarm)
            elif alarm is not None and not holds:
                alarm.end_step = values.step
                del self._of_condition[lasting]
                changed.append(alarm)
        return changed

    def _take(self, shift: Shift, step: int) -> list[Alarm]:
        """Add a change to the alarm that it belongs to; return that alarm if it is new or became more specific.

        A level that was not higher in its first steps is no alarm yet: if it stays, it is found again later.
        """
        first = self.history.step_ago(shift.length)
        subject = self.history.subjects[shift.row]
        change = self._change(subject, first)
        if subject.kind in (ITERATION, PART) and change.size < LEAST_STATED * self._least_change:
            return []
        self.history.hide(shift.row, FIRST, first - 1)
        same = (each for each in self.active if each.changes and abs(each.step - first) <= SAME_STEPS)
        alarm = next(same, None)
        if alarm is None:
            alarm = Alarm(len(self.all) + 1, first, step)
            self.all.append(alarm)
        before = alarm.changes[:1]
        alarm.changes = sorted([*alarm.changes, change], key=_specific_first)
        alarm.step = min(alarm.step, first)
        self._levels.setdefault(alarm.number, []).append(_Level(shift.row, shift, change))
        if alarm.changes[:1] != before:
            alarm.found_step = step
        is_specific = not before or alarm.changes[0].subject.kind != before[0].subject.kind
        return [alarm] if is_specific else []

    def _change(self, subject: Subject, first: int) -> Change:
        """Return what has changed in the values of a subject, which are not relative to other ranks or links.

        Only steps near the first one count: who began to watch later, as the page does, and found the change later,
        states the same values.
        """
        usual = self.history.usual(subject, before=first, most=FEWEST_REFERENCE)
        now = self.history.usual(subject, since=first, before=first + SHORTEST)
        iteration = self.history.usual(Subject(ITERATION), before=first, most=FEWEST_REFERENCE)
        whole = iteration if subject.kind == PART else usual
        relative_size = None
        if self.history.is_relative(subject.kind):
            earlier = self.history.usual_ratio(subject, before=first, most=FEWEST_REFERENCE)
            later = self.history.usual_ratio(subject, since=first, before=first + SHORTEST)
            relative_size = later / earlier - 1
        return Change(subject, first, (now - usual) / whole, usual, now, relative_size)

    def _end_returned(
        self, step: int, levels: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    ) -> list[Alarm]:
        """Return the alarms whose first change is over, and forget the steps in which they lasted."""
        ended = []
        for alarm in self.active:
            of_alarm = self._levels.get(alarm.number, [])
            main = next((each for each in of_alarm if each.change is alarm.changes[0]), None)
            if main is None or not _has_returned(main, levels[main.row, -SHORTEST:]):
                continue
            alarm.end_step = step
            ended.append(alarm)
            for each in self._levels.pop(alarm.number):
                self.history.show(each.row, FIRST, each.change.step - 1)
                self.history.hide(each.row, each.change.step, self.history.step_ago(SHORTEST + 1))
        return ended


def _specific_first(change: Change) -> tuple[int, float]:
    return SEARCHED.index(change.subject.kind), -change.size


def _has_returned(level: _Level, last: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    known = last[np.isfinite(last)]
    before = level.shift.before
    return len(known) == SHORTEST and float(np.median(known)) <= before + RETURNED * level.shift.size
