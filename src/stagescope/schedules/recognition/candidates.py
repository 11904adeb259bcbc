"""Which orders of the catalog a measured one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stagescope.schedules.catalog import SCHEDULES, find_schedule
from stagescope.schedules.costs import Costs
from stagescope.schedules.orders.interleaved import group_size
from stagescope.schedules.recognition.lines import Line, write_line
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stagescope.schedules.action import Order
    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.registry import Schedule, Shape

VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "gpipe": ({}, {"lifo": True}),
    "zb-v": ({}, {"costs": Costs()}),
    "dualpipev": ({}, {"split_cooldown": False}),
}
"""The options that are tried for schedules that have any; group sizes come from the evidence."""

PEAKS: Mapping[str, Callable[[int], int]] = {
    "zb-1p": lambda p: p,
    "zb-2p": lambda p: 2 * p,
    "zb-v": lambda p: 2 * p,
    "v-half": lambda p: 2 * ((p + 2) // 2),
    "v-min": lambda p: 2 * ((p + 4) // 3),
    "1f1b-v": lambda p: 2 * ((2 * p + 3) // 3),
}
"""The activations that a rank keeps at most in a searched order of enough micro-batches, on p ranks."""


@dataclass(frozen=True)
class Candidate:
    """One order that the measured one may be; `options` are those that differ from the defaults."""

    schedule: Schedule
    shape: Shape
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name

    @property
    def searched(self) -> bool:
        """Whether the order is found by a search, which takes long where there are many actions."""
        if self.name == "zb-v":
            return self.shape.options["costs"] is not None
        return self.name in PEAKS and not self._is_h1

    @property
    def peak(self) -> int:
        """The most activations that a rank keeps in a searched order."""
        return PEAKS[self.name](self.shape.ranks)

    @property
    def splits(self) -> bool:
        """Whether any backward comes as I and W."""
        return any(action.kind == "W" for actions in self.order.values() for action in actions)

    @property
    def _is_h1(self) -> bool:
        """Whether the order is that of zb-h1.

        At unit costs the search of zb-1p finds that wherever a rank cannot keep all micro-batches.
        """
        return self.name == "zb-1p" and self.shape.microbatches > self.shape.ranks

    @cached_property
    def order(self) -> Order:
        """The order itself, built when it is first needed."""
        schedule = find_schedule("zb-h1") if self._is_h1 else self.schedule
        return schedule.build(self.shape)

    def lines(self, *, weights: bool) -> list[Line]:
        """Return the actions of every rank, in the order of ranks."""
        return [write_line(actions, weights=weights) for actions in self.order.values()]


def list_candidates(
    arrangement: Arrangement, microbatches: int, sizes_of_groups: Sequence[int]
) -> list[Candidate]:
    """Return every order of the catalog that has this placement and these sizes, relatives side by side.

    `sizes_of_groups` are the group sizes to try for interleaved schedules.
    """
    found: list[Candidate] = []
    for schedule in SCHEDULES:
        if _fits(schedule, arrangement):
            # With one chunk per rank all group sizes are the same order, but not all are allowed.
            groups = sizes_of_groups if arrangement.chunks > 1 else (microbatches,)
            found += _variants(schedule, arrangement, microbatches, groups)
    return found


def _fits(schedule: Schedule, arrangement: Arrangement) -> bool:
    """Tell whether a schedule can have a placement; a loop with one chunk per rank is linear."""
    if schedule.placement == "loop" and arrangement.placement == "linear":
        return schedule.least_chunks == 1
    return schedule.placement == arrangement.placement


def _variants(
    schedule: Schedule, arrangement: Arrangement, microbatches: int, groups: Sequence[int]
) -> Iterator[Candidate]:
    seen: set[int] = set()
    for options in _options(schedule, groups):
        try:
            shape = schedule.shape(arrangement.ranks, microbatches, arrangement.chunks, options)
        except ScheduleError:
            continue
        if "group_size" not in shape.options:
            yield Candidate(schedule, shape, options)
            continue
        size = group_size(shape) if shape.chunks > 1 else 0
        if size not in seen:
            seen.add(size)
            yield Candidate(schedule, shape, {"group_size": size} if size else options)


def _options(schedule: Schedule, groups: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    yield from VARIANTS.get(schedule.name, ({},))
    if any(option.name == "group_size" for option in schedule.options):
        yield from ({"group_size": size} for size in groups)
