"""One rank's time in unit slots, while the actions of a repeated pattern are pulled into earlier slots.

The V schedules of arXiv 2405.15362 start from a pattern repeated every six slots and then
pull actions forward, in the order of their slots, without raising the peak of memory in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PERIOD = 6
"""Slots per micro-batch in the steady phase: F, I and W of two chunks."""

FORWARDS = (0, 1)
"""The passes F0 (chunk 0, down the ranks) and F1 (chunk 1, up again); their backwards are the next two."""

DOWN = (True, False, True, False)
"""Whether a pass goes down the ranks: F0, F1, backward of chunk 1, backward of chunk 0."""


class SlotAction(NamedTuple):
    """A pass of a micro-batch on one rank; actions sort by their slot."""

    slot: int
    rank: int
    passing: int
    microbatch: int


class Lane:
    """The free slots of one rank before the slot that is looked at, and the memory in flight in each slot.

    Only slots up to the last one reached are known to be free or not; actions have to be taken in the order
    of their slots.
    """

    def __init__(self, changes: Iterable[tuple[int, int]], slots: int) -> None:
        """Start from what each action takes (or, negative, gives back) as (slot, amount)."""
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
        """Come to a action that covers `width` slots from `slot` on; those that were passed over are free."""
        self._free.extend(range(self._reached, slot))
        self._reached = slot + width

    def first_free(self, earliest: int, slot: int, width: int = 1) -> int:
        """Return the first of `width` free slots in a row from `earliest` on, or `slot` if none lies before it."""
        free = self._free
        for at in range(bisect_left(free, earliest), len(free) - width + 1):
            if free[at + width - 1] == free[at] + width - 1:
                return free[at]
        return slot

    def after_full(self, earliest: int, slot: int, limit: int) -> int:
        """Return the first slot from `earliest` on, from which to `slot` one activation more fits the limit."""
        start = slot
        while start > earliest and self.memory[start - 1] < limit:
            start -= 1
        return start

    def move(self, slot: int, to: int, width: int = 1) -> None:
        """Take the slots from `to` on for the action that covered those from `slot` on."""
        at = bisect_left(self._free, to)
        del self._free[at : at + width]
        self._free.extend(range(slot, slot + width))

    def hold(self, begin: int, end: int, amount: int) -> None:
        """Add to the memory in flight in the slots from `begin` to before `end`."""
        for slot in range(begin, end):
            self.memory[slot] += amount
