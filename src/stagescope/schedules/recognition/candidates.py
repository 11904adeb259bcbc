"""The orders of the catalog with which a measured order is compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stagescope.schedules.catalog import SCHEDULES, find_schedule
from stagescope.schedules.costs import Costs
from stagescope.schedules.orders.interleaved import group_size
from stagescope.schedules.recognition.encoding import EncodedOrder, encode_order
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
"""The options to try for schedules that have options. Group sizes come from the evidence."""

PEAKS: Mapping[str, Callable[[int], int]] = {
    "zb-1p": lambda p: p,
    "zb-2p": lambda p: 2 * p,
    "zb-v": lambda p: 2 * p,
    "v-half": lambda p: 2 * ((p + 2) // 2),
    "v-min": lambda p: 2 * ((p + 4) // 3),
    "1f1b-v": lambda p: 2 * ((2 * p + 3) // 3),
}
"""The peak activations of a rank in a searched order, as a function of p ranks, with enough micro-batches."""


@dataclass(frozen=True)
class Candidate:
    """One order of the catalog; `options` are those that differ from the defaults."""

    schedule: Schedule
    shape: Shape
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.schedule.name

    @property
    def searched(self) -> bool:
        """Whether the order is found by a search, which is slow for many actions."""
        if self.name == "zb-v":
            return self.shape.options["costs"] is not None
        return self.name in PEAKS and not self._is_h1

    @property
    def peak(self) -> int:
        """The peak activations of a rank; defined for searched orders."""
        return PEAKS[self.name](self.shape.ranks)

    @property
    def splits(self) -> bool:
        """Whether any backward is split into I and W."""
        return any(action.kind == "W" for actions in self.order.values() for action in actions)

    @property
    def _is_h1(self) -> bool:
        """Whether the order is that of zb-h1, which is built without a search.

        At unit costs the search of zb-1p finds zb-h1 whenever a rank cannot keep all micro-batches; a test compares
        the two.
        """
        return self.name == "zb-1p" and self.shape.microbatches > self.shape.ranks

    @cached_property
    def order(self) -> Order:
        """The order, built when it is first needed."""
        schedule = find_schedule("zb-h1") if self._is_h1 else self.schedule
        return schedule.build(self.shape)

    def encoded_orders(self, *, weights: bool) -> list[EncodedOrder]:
        """Return the encoded actions of every rank, by rank."""
        return [encode_order(actions, weights=weights) for actions in self.order.values()]


def list_candidates(
    arrangement: Arrangement, microbatches: int, sizes_of_groups: Sequence[int]
) -> list[Candidate]:
    """Return every order of the catalog with this placement and these sizes, in the order of the catalog.

    `sizes_of_groups` are the group sizes to try for interleaved schedules.
    """
    found: list[Candidate] = []
    for schedule in SCHEDULES:
        if _fits(schedule, arrangement):
            # Groups are tried in the order of evidence: the likeliest group size comes first among equals.
            # With one chunk per rank all group sizes give the same order, but not all of them are valid.
            groups = sizes_of_groups if arrangement.chunks > 1 else (microbatches,)
            found += _variants(schedule, arrangement, microbatches, groups)
    return found


def _fits(schedule: Schedule, arrangement: Arrangement) -> bool:
    """Return whether a schedule can have this placement; a loop with one chunk per rank is linear."""
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
        except ScheduleError:  # the schedule does not exist in these sizes
            continue
        # Schedules without groups have one order per option set.
        if "group_size" not in shape.options:
            yield Candidate(schedule, shape, options)
            continue
        # The default group size may equal one from the evidence: each size is built once.
        size = group_size(shape) if shape.chunks > 1 else 0
        if size not in seen:
            seen.add(size)
            yield Candidate(schedule, shape, {"group_size": size} if size else options)


def _options(schedule: Schedule, groups: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    yield from VARIANTS.get(schedule.name, ({},))
    if any(option.name == "group_size" for option in schedule.options):
        yield from ({"group_size": size} for size in groups)
