"""The unit time slots of one rank, while actions of a repeated pattern are moved to earlier slots.

The V schedules of arXiv 2405.15362 start from a pattern that repeats every six slots. Then actions are moved forward,
in the order of their slots, without raising the peak of memory in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PERIOD = 6
"""Slots per micro-batch in the steady phase: F, I and W of two chunks."""

FORWARDS = (0, 1)
"""The passes F0 (chunk 0, down the ranks) and F1 (chunk 1, up the ranks). Their backwards are passes 2 and 3."""

DOWN = (True, False, True, False)
"""Whether each pass goes down the ranks, for F0, F1, the backward of chunk 1 and the backward of chunk 0."""


class SlotAction(NamedTuple):
    """A pass of a micro-batch on one rank; actions sort by their slot."""

    slot: int
    rank: int
    passing: int
    microbatch: int


class Lane:
    """The free slots of one rank before the current slot, and the memory in flight in each slot.

    Slots are known to be free or occupied only up to the current one, so actions must be processed in the order of
    their slots.
    """

    def __init__(self, changes: Iterable[tuple[int, int]], slots: int) -> None:
        """Start from the memory that each action allocates (or frees, if negative) as (slot, amount)."""
        self.memory = [0] * slots
        for slot, amount in changes:
            self.memory[slot] += amount
        held = 0
        for slot in range(slots):
            held += self.memory[slot]
            self.memory[slot] = held
        self._free: list[int] = []
        self._reached = 0

    def reach(self, slot: int, width: int = 1) -> None:
        """Advance to an action that occupies `width` slots from `slot` on; skipped slots are free."""
        self._free.extend(range(self._reached, slot))
        self._reached = slot + width

    def first_free(self, earliest: int, slot: int, width: int = 1) -> int:
        """Return the first of `width` contiguous free slots from `earliest` on, or `slot` if none is before it."""
        free = self._free
        for at in range(bisect_left(free, earliest), len(free) - width + 1):
            if free[at + width - 1] == free[at] + width - 1:
                return free[at]
        return slot

    def after_full(self, earliest: int, slot: int, limit: int) -> int:
        """Return the first slot from `earliest` on after which one more activation fits the limit until `slot`."""
        start = slot
        while start > earliest and self.memory[start - 1] < limit:
            start -= 1
        return start

    def move(self, slot: int, to: int, width: int = 1) -> None:
        """Move the action at `slot` to the slots from `to` on."""
        at = bisect_left(self._free, to)
        del self._free[at : at + width]
        self._free.extend(range(slot, slot + width))

    def hold(self, begin: int, end: int, amount: int) -> None:
        """Add an amount to the memory in flight in the slots from `begin` to before `end`."""
        for slot in range(begin, end):
            self.memory[slot] += amount
