"""Timing evidence for deciding which action a mark is, where the order alone allows several.

If the choice is right, three things hold: an action starts as soon as its rank is free and its input has arrived, a
missing action fits into the idle time where it ran, and no action ends after its result was used. The time by which a
match violates this is the time that it leaves unexplained. Actions of other ranks are used only where they are already
identified and share the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagescope.ingest.ascend.plan import PlannedAction, PlannedMark

ActionKey = tuple[bool, int, int]
"""Whether the action is a forward, its stage, and its micro-batch."""

PRODUCTS = ("forward", "backward", "backward_input")
"""Kinds of action whose result is sent to another stage."""


class Interval(NamedTuple):
    """Start and end of an action."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepTiming:
    """Times of one group's marks and what else is known of its step (`Clues` of schedules/recognition/matching.py)."""

    times: Sequence[Interval]
    planned: Sequence[PlannedMark]
    stages: int
    usual_ns: Mapping[str, int]
    known: Mapping[ActionKey, Interval] = field(default_factory=dict)

    @property
    def margin_ns(self) -> int:
        """Half the typical length of an action."""
        return sorted(self.usual_ns.values())[len(self.usual_ns) // 2] // 2

    def unexplained_ns(self, seen: int, place: int, first_lost: int) -> int:
        """Return the time left unexplained if mark `seen` is entry `place`, with those from `first_lost` on missing."""
        # The first mark of a group has no predecessor: its rank may have been idle for any time.
        free_ns = self.times[seen - 1].end_ns if seen else None
        unexplained_ns = 0
        for lost in range(first_lost, min(place, len(self.planned))):
            ready_ns = self._ready_ns(lost, free_ns)
            if ready_ns is not None:
                free_ns = ready_ns + self._usual_ns(lost)
                unexplained_ns += self._late_ns(lost, free_ns)
        # Only missing actions are left, so there is no mark to compare.
        if seen == len(self.times):
            return unexplained_ns
        start_ns, end_ns = self.times[seen]
        return (
            unexplained_ns
            + self._start_error_ns(place, start_ns, free_ns)
            + self._late_ns(place, end_ns)
            + abs(end_ns - start_ns - self._usual_ns(place))
        )

    def _start_error_ns(self, place: int, start_ns: int, free_ns: int | None) -> int:
        """Return by how much an action started before or after it could have started.

        Where not all inputs are known, the action may have waited for an unknown one: then only starting too early
        counts.
        """
        ready_ns = self._ready_ns(place, free_ns)
        if ready_ns is None:
            return 0
        all_known = all(key in self.known for key in self._neighbors(place, -1) if 0 <= key[1] < self.stages)
        return abs(start_ns - ready_ns) if all_known else max(0, ready_ns - start_ns)

    def _usual_ns(self, place: int) -> int:
        return self.usual_ns.get(self.planned[place].mark.sort, 0)

    def _ready_ns(self, place: int, free_ns: int | None) -> int | None:
        """Return when an action could start: its rank is free and its known inputs have arrived."""
        needed = [self.known[key].end_ns for key in self._neighbors(place, -1) if key in self.known]
        known_ns = needed if free_ns is None else [free_ns, *needed]
        return max(known_ns, default=None)

    def _late_ns(self, place: int, end_ns: int) -> int:
        """Return by how much an action would end after its result was used."""
        used = [self.known[key].start_ns for key in self._neighbors(place, 1) if key in self.known]
        return max(0, end_ns - min(used)) if used else 0

    def _neighbors(self, place: int, direction: int) -> Iterator[ActionKey]:
        """Yield the keys of the actions whose results one needs (direction -1), or that need its result (1)."""
        for action in self.planned[place].parts:
            if action.kind in PRODUCTS:
                forward = action.kind == "forward"
                yield forward, action.stage + (direction if forward else -direction), action.microbatch


def usual_lengths(actions: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Return the median length per rank and sort of mark."""
    # The median: warm-up steps and preempted actions are many times longer than the rest.
    lengths = actions.group_by("rank", "sort").agg(
        (pl.col("end_ns") - pl.col("start_ns")).median().cast(pl.Int64)
    )
    found: dict[int, dict[str, int]] = {}
    for rank, sort, length_ns in lengths.sort("rank", "sort").iter_rows():
        found.setdefault(rank, {})[sort] = length_ns
    return found


def action_key(action: PlannedAction) -> ActionKey:
    """Return the key that identifies an action in the timing of other ranks."""
    return action.kind == "forward", action.stage, action.microbatch
