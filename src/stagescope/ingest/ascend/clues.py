"""What the times say about a mark that could be several actions.

Under the right hypothesis a action begins as soon as its rank is free and its input is there, a lost action fits into
the gap that it left, and nothing ends after what it made was used. The time by which a match breaks this is what it
leaves unexplained. Actions of other ranks count only where their names are sure and their clock is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagescope.ingest.ascend.plan import Due, PlannedAction

Key = tuple[bool, int, int]
"""Whether a action is a forward, its stage, its micro-batch."""

PRODUCTS = ("forward", "backward", "backward_input")
"""The kinds whose result goes to another stage."""


class When(NamedTuple):
    """From when to when a action ran."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepClues:
    """The times of one group, and what else is known of its step (`Clues` of schedules/recognition/matching.py)."""

    times: Sequence[When]
    due: Sequence[Due]
    stages: int
    usual_ns: Mapping[str, int]
    known: Mapping[Key, When] = field(default_factory=dict)

    @property
    def margin_ns(self) -> int:
        """Half the time of a usual action."""
        return sorted(self.usual_ns.values())[len(self.usual_ns) // 2] // 2

    def unexplained_ns(self, seen: int, place: int, first_lost: int) -> int:
        """Return the time left unexplained if mark `seen` is `place` of the plan, those from `first_lost` on lost."""
        free_ns = self.times[seen - 1].end_ns if seen else None
        unexplained_ns = 0
        for lost in range(first_lost, min(place, len(self.due))):
            ready_ns = self._ready_ns(lost, free_ns)
            if ready_ns is not None:
                free_ns = ready_ns + self._usual_ns(lost)
                unexplained_ns += self._late_ns(lost, free_ns)
        if seen == len(self.times):
            return unexplained_ns
        start_ns, end_ns = self.times[seen]
        return (
            unexplained_ns
            + self._apart_ns(place, start_ns, free_ns)
            + self._late_ns(place, end_ns)
            + abs(end_ns - start_ns - self._usual_ns(place))
        )

    def _apart_ns(self, place: int, start_ns: int, free_ns: int | None) -> int:
        """Return by how much a action began before or after it could.

        Where not all that it needs is known, it may have waited for that: then only too early is wrong.
        """
        ready_ns = self._ready_ns(place, free_ns)
        if ready_ns is None:
            return 0
        all_known = all(key in self.known for key in self._neighbors(place, -1) if 0 <= key[1] < self.stages)
        return abs(start_ns - ready_ns) if all_known else max(0, ready_ns - start_ns)

    def _usual_ns(self, place: int) -> int:
        return self.usual_ns.get(self.due[place].mark.sort, 0)

    def _ready_ns(self, place: int, free_ns: int | None) -> int | None:
        """Return when a action could begin: its rank is free, and what it needs is there."""
        needed = [self.known[key].end_ns for key in self._neighbors(place, -1) if key in self.known]
        known_ns = needed if free_ns is None else [free_ns, *needed]
        return max(known_ns, default=None)

    def _late_ns(self, place: int, end_ns: int) -> int:
        """Return by how much a action would end after what it made was used."""
        used = [self.known[key].start_ns for key in self._neighbors(place, 1) if key in self.known]
        return max(0, end_ns - min(used)) if used else 0

    def _neighbors(self, place: int, direction: int) -> Iterator[Key]:
        """Yield the actions that one needs (direction -1) or is needed by (1): on the stage before and after it."""
        for action in self.due[place].parts:
            if action.kind in PRODUCTS:
                forward = action.kind == "forward"
                yield forward, action.stage + (direction if forward else -direction), action.microbatch


def usual_lengths(actions: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Return per rank and sort of mark how long it usually takes."""
    lengths = actions.group_by("rank", "sort").agg(
        (pl.col("end_ns") - pl.col("start_ns")).median().cast(pl.Int64)
    )
    found: dict[int, dict[str, int]] = {}
    for rank, sort, length_ns in lengths.sort("rank", "sort").iter_rows():
        found.setdefault(rank, {})[sort] = length_ns
    return found


def key_of(action: PlannedAction) -> Key:
    """Return what a action is known by in other ranks' clues."""
    return action.kind == "forward", action.stage, action.microbatch
