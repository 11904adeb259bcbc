"""Columns of the operators of a trace, without nested ones from which nothing about an action follows.

Nine tenths of the operators of a model are nested. Dropping them one by one, while events are sorted by category, takes
half of the time that columns of all operators take, from which the nested ones are dropped afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.ingest.kineto.event_types import OPERATORS, TraceEvent
from stagescope.ingest.kineto.operator_classes import CALL, OTHER, operator_class

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_LISTED = 1 << 14
"""As many operators are kept as Python objects before they become columns."""

MOST_US = 4e15
"""More than a century since the epoch: a later timestamp is invalid."""

NO_OPERATOR = (0.0, -MOST_US)


@dataclass
class OuterOperators:
    """Operators that are not nested, or not of class OTHER; `threads` numbers the ids of threads.

    `latest` has start and end of the operator of a thread that ends last, in which later ones may be nested.
    """

    threads: Mapping[Any, int]
    classes: dict[str, int] = field(default_factory=dict)
    latest: dict[Any, tuple[float, float]] = field(default_factory=dict)
    listed: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))
    parts: list[dict[str, Any]] = field(default_factory=list)
    _type: type = object

    def take(self, piece: Sequence[Any], others: Mapping[str, list[Any]]) -> list[Any]:
        """Add the operators of a piece, and every other event to the list of its category.

        Returns the operators that describe collectives.
        """
        calls: list[Any] = []
        operators, latest, classes, most_us = self._type, self.latest, self.classes, MOST_US
        add_class, add_thread, add_ts, add_dur = (column.append for column in self.listed)
        thread, number, (first, last) = None, -1, NO_OPERATOR
        for event in piece:
            if type(event) is not operators:
                if event.cat != OPERATORS:
                    others[event.cat].append(event)
                    continue
                if type(event) is not TraceEvent:
                    self._type = operators = type(event)
            ts = event.ts
            end = ts + event.dur
            try:
                what = classes[event.name]
            except KeyError:
                what = classes[event.name] = operator_class(event.name)
            if event.tid != thread:
                latest[thread] = first, last
                thread = event.tid
                number, (first, last) = self.threads[thread], latest.get(thread, NO_OPERATOR)
            if end <= last and ts >= first and what == OTHER:
                continue
            # Impossible times, which are counted later, would contain all that follows.
            if last <= end < most_us and ts > -most_us:
                first, last = ts, end
            if what == CALL:
                calls.append(event)
                what = OTHER
            add_class(what)
            add_thread(number)
            add_ts(ts)
            add_dur(event.dur)
        latest[thread] = first, last
        if len(self.listed[0]) > MOST_LISTED:
            self._make_columns()
        return calls

    def columns(self) -> list[dict[str, Any]]:
        """Return the columns of all operators that were added, in parts."""
        self._make_columns()
        return self.parts

    def _make_columns(self) -> None:
        what, thread, ts, dur = self.listed
        if what:
            count = len(what)
            self.parts.append(
                {
                    "what": np.fromiter(what, np.int8, count),
                    "thread": np.fromiter(thread, np.int32, count),
                    "ts": np.fromiter(ts, np.float64, count),
                    "dur": np.fromiter(dur, np.float64, count),
                }
            )
            self.listed = ([], [], [], [])
