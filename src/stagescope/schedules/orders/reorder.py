"""Moving of actions on a V to earlier slots without raising the peak of memory, for V-Half and V-Min.

Source: arXiv 2405.15362, section 2, as a greedy pass that visits each action once, in the order of slots. Memory counts
activations of one chunk: F allocates one, W frees one, I changes nothing.
"""

from __future__ import annotations

from bisect import insort
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from stagescope.schedules.orders.lane import DOWN, FORWARDS, Lane, SlotAction

if TYPE_CHECKING:
    from collections.abc import Iterator

Slots = list[list[list[int]]]
"""The slot by rank, pass and micro-batch; the passes are F0, F1, I1, I0 and, if present, W in slot order."""

_INPUTS = (2, 3)
_WEIGHTS = 4
"""The other passes: I1 and I0, then W."""


class _Phase(Enum):
    """The phase of the order: until rank 0 starts its first I0, from there to its last F0, after that."""

    WARM_UP = 0
    STEADY = 1
    COOLDOWN = 2


def weights_in_turn(passes: list[list[int]]) -> list[int]:
    """Return the slots of the W of a rank: each free slot takes the oldest pending one."""
    return _fill_in(passes, dict.fromkeys(_INPUTS, 0))[0]


def weights_by_chunk(passes: list[list[int]]) -> list[list[int]]:
    """Return the slots of W1 and W0 of a rank: each free slot takes a W1 if one is pending, otherwise a W0."""
    return _fill_in(passes, {passing: queue for queue, passing in enumerate(_INPUTS)})


def _fill_in(passes: list[list[int]], queue_of: dict[int, int]) -> list[list[int]]:
    """Return the slots of the W of each queue; a free slot takes from the first queue that is not empty."""
    taken = {slot: passing for passing, times in enumerate(passes) for slot in times}
    placed: list[list[int]] = [[], []]
    waiting = [0, 0]
    slot, left = 0, len(taken)
    while left or any(waiting):
        if slot in taken:
            left -= 1
            queue = queue_of.get(taken[slot])
            if queue is not None:
                waiting[queue] += 1
        elif any(waiting):
            queue = 0 if waiting[0] else 1
            waiting[queue] -= 1
            placed[queue].append(slot)
        slot += 1
    return placed


def pull_with_weights(slots: Slots) -> Slots:
    """Return F and I moved forward in warm-up and cool-down, where W occupy slots like other actions."""
    slots = [[*map(list, passes), weights_in_turn(passes)] for passes in slots]
    lanes = [_lane(passes) for passes in slots]
    inputs_done = [sorted(chain.from_iterable(passes[each] for each in _INPUTS)) for passes in slots]
    limit = max(max(lane.memory) for lane in lanes)
    for action, phase in _in_phases(slots):
        lane, passes = lanes[action.rank], slots[action.rank]
        lane.reach(action.slot)
        if phase is _Phase.STEADY:
            continue
        earliest = _earliest(slots, action)
        # The n-th W of a rank needs its n-th completed I.
        if action.passing == _WEIGHTS:
            earliest = max(earliest, inputs_done[action.rank][action.microbatch] + 1)
        if action.passing in FORWARDS:
            earliest = lane.after_full(earliest, action.slot, limit)
        slot = lane.first_free(earliest, action.slot)
        if slot == action.slot:
            continue
        lane.move(action.slot, slot)
        passes[action.passing][action.microbatch] = slot
        if action.passing in _INPUTS:
            # Sorted by slot, so that the index of a W finds its I after any move.
            inputs_done[action.rank].remove(action.slot)
            insort(inputs_done[action.rank], slot)
        else:
            lane.hold(slot, action.slot, -1 if action.passing == _WEIGHTS else 1)
    return _without_weights(squeeze(slots))


def pull_around_weights(slots: Slots) -> Slots:
    """Return F and I moved forward in the cool-down, with W in the remaining slots."""
    slots = [[*map(list, passes)] for passes in slots]
    lanes = [_YieldingLane(passes) for passes in slots]
    limit = max(lane.peak() for lane in lanes)
    for action, phase in _in_phases(slots):
        if phase is _Phase.COOLDOWN:
            slot = lanes[action.rank].pull(action, _earliest(slots, action), limit)
            slots[action.rank][action.passing][action.microbatch] = slot
    return _without_weights(squeeze([[*passes, weights_in_turn(passes)] for passes in slots]))


def squeeze(slots: Slots) -> Slots:
    """Return every action as early as its input and its rank allow, without changing the order of a rank."""
    squeezed = [[[0] * len(times) for times in passes] for passes in slots]
    rank_end = [0] * len(slots)
    for action in _sorted_actions(slots):
        slot = max(rank_end[action.rank], _input_end(squeezed, action))
        squeezed[action.rank][action.passing][action.microbatch] = slot
        rank_end[action.rank] = slot + 1
    return squeezed


def _without_weights(slots: Slots) -> Slots:
    return [passes[:_WEIGHTS] for passes in slots]


class _YieldingLane:
    """A rank whose W always make way: each takes the first slot without F or I, oldest first."""

    def __init__(self, passes: list[list[int]]) -> None:
        self._taken: list[int | None] = [None] * (max(times[-1] for times in passes) + 1)
        for passing, times in enumerate(passes):
            for slot in times:
                self._taken[slot] = passing
        self._states = [(0, 0)]  # memory and pending W before each slot, as far as computed

    def peak(self) -> int:
        """Return the peak of memory."""
        self._compute_states(len(self._taken))
        return max(held for held, _ in self._states)

    def pull(self, action: SlotAction, earliest: int, limit: int) -> int:
        """Move an action to the first slot from `earliest` on that keeps memory within the limit; return that slot."""
        self._compute_states(action.slot)
        for slot in range(earliest, action.slot):
            if self._taken[slot] is None and self._fits(action, slot, limit):
                self._taken[slot], self._taken[action.slot] = action.passing, None
                # States after the new slot are outdated.
                del self._states[slot + 1 :]
                return slot
        return action.slot

    def _fits(self, action: SlotAction, slot: int, limit: int) -> bool:
        """Return whether memory stays within the limit; after the old slot of the action it cannot grow."""
        state = _after(action.passing, *self._states[slot])
        for passing in self._taken[slot + 1 : action.slot]:
            if state[0] > limit:
                return False
            state = _after(passing, *state)
        return state[0] <= limit

    def _compute_states(self, slot: int) -> None:
        for passing in self._taken[len(self._states) - 1 : slot]:
            self._states.append(_after(passing, *self._states[-1]))


def _after(passing: int | None, held: int, waiting: int) -> tuple[int, int]:
    """Return memory and pending W after a slot with this pass; an empty slot takes a pending W."""
    if passing is None:
        return (held - 1, waiting - 1) if waiting else (held, 0)
    return (held + 1, waiting) if passing in FORWARDS else (held, waiting + 1)


def _lane(passes: list[list[int]]) -> Lane:
    allocated = [(slot, 1) for each in FORWARDS for slot in passes[each]]
    freed = [(slot, -1) for slot in passes[_WEIGHTS]]
    return Lane([*allocated, *freed], max(times[-1] for times in passes) + 1)


def _sorted_actions(slots: Slots) -> list[SlotAction]:
    return sorted(
        SlotAction(slot, rank, passing, microbatch)
        for rank, passes in enumerate(slots)
        for passing, times in enumerate(passes)
        for microbatch, slot in enumerate(times)
    )


def _in_phases(slots: Slots) -> Iterator[tuple[SlotAction, _Phase]]:
    """Yield every action with its phase, in the order of the original slots."""
    phase = _Phase.WARM_UP
    last = len(slots[0][0]) - 1
    for action in _sorted_actions(slots):
        if phase is _Phase.WARM_UP and action.rank == 0 and action.passing == _INPUTS[1]:
            phase = _Phase.STEADY
        yield action, phase
        if phase is _Phase.STEADY and action.passing == 0 and action.microbatch == last:
            phase = _Phase.COOLDOWN


def _earliest(slots: Slots, action: SlotAction) -> int:
    """Return the first slot that the input of an action and the same pass of the previous micro-batch allow."""
    before = slots[action.rank][action.passing][action.microbatch - 1] + 1 if action.microbatch else 0
    return max(before, _input_end(slots, action))


def _input_end(slots: Slots, action: SlotAction) -> int:
    """Return the first slot after the inputs of an action; 0 for W, whose input is looked up by its caller."""
    if action.passing == _WEIGHTS:
        return 0
    neighbor = action.rank - 1 if DOWN[action.passing] else action.rank + 1
    end = slots[neighbor][action.passing][action.microbatch] + 1 if 0 <= neighbor < len(slots) else 0
    before = slots[action.rank][action.passing - 1][action.microbatch] + 1 if action.passing else 0
    return max(end, before)
