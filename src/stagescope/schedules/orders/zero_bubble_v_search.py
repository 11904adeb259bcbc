"""A search for ZB-V orders by costs, in the memory of 1F1B (2 p chunk activations).

Source: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6, with the decisions and tie-breaking of
`scheduler/zbv.py` in sail-sg/zero-bubble-pipeline-parallelism. Unlike the fixed order of `zb_v`, the result has no
holes with fewer than 2 p - 1 micro-batches, and W is placed by its cost. As in the source, the search uses one cost
per kind, the median over the stages.

    warm-up  1. F0 down the V; coming up again with F1, each rank and the ranks before it run more F0 while the rank
                would wait for its F1 and has memory for the rest of the warm-up
             2. ranks catch up with the previous rank, F0 and F1 alternating
    round    a backward on each rank (first the passes that go up, last rank first), then an F on each rank; both
             prefer the pass that comes up the V if its input has arrived
    W        is placed when memory runs out, while it fits into a wait, and one more if the wait is longer than
             the slack of the rank to the worst rank, before an I1 and before an F only if switched on

All combinations of the two switches are tried. An attempt is repeated with its own idle times as the slack while that
improves the worst rank. The first attempt with the least idle time on its worst rank is returned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, Order
from stagescope.schedules.orders.lane import DOWN
from stagescope.schedules.orders.searched_costs import stage_costs, upper_median

if TYPE_CHECKING:
    from stagescope.schedules.registry import Shape

F0, F1, I1, I0 = range(4)
"""The passes of a micro-batch through the V, in their order."""


@dataclass(frozen=True)
class VSearchInput:
    """The input of a search; costs are in one unit and the same on all stages."""

    ranks: int
    microbatches: int
    forward: int = 1
    backward_input: int = 1
    backward_weight: int = 1
    hop: int = 0


@dataclass(frozen=True)
class _Switches:
    """Whether a W may be placed before an I1, or before an F, although it delays that action."""

    before_input: bool
    before_forward: bool


def searched(shape: Shape) -> Order:
    """Return the best order for the option `costs` of a shape, or for unit costs without the option."""
    costs = stage_costs(shape, 2 * shape.ranks)
    turn = shape.ranks - 1  # at the foot of the V no message is sent, and none after the last stage
    hops = [hop for stage, hop in enumerate(costs.hop[:-1]) if stage != turn]
    return search_v_order(
        VSearchInput(
            shape.ranks,
            shape.microbatches,
            upper_median(costs.forward),
            upper_median(costs.backward_input),
            upper_median(costs.backward_weight),
            upper_median(hops or [0]),
        )
    )


def search_v_order(given: VSearchInput) -> Order:
    """Return the best order that the search finds; no rank keeps more than 2 p chunk activations."""
    attempts = (_repeated(given, _Switches(*choice)) for choice in product((True, False), repeat=2))
    return dict(enumerate(min(attempts, key=lambda attempt: attempt.worst_bubble).order))


def _repeated(given: VSearchInput, switches: _Switches) -> _Attempt:
    """Return the best attempt of a series in which each one uses the idle times of the previous one."""
    best = _Attempt(given, switches, [0] * given.ranks)
    while True:
        attempt = _Attempt(given, switches, best.bubble)
        if attempt.worst_bubble >= best.worst_bubble:
            return best
        best = attempt


class _Attempt:
    """An order under construction; all lists are per rank, for the actions placed so far.

    A bubble is idle time after the first action of a rank.
    """

    def __init__(self, given: VSearchInput, switches: _Switches, known_bubble: list[int]) -> None:
        self.given = given
        self.switches = switches
        self.ranks = given.ranks
        self.last = given.ranks - 1
        self.limit = 2 * given.ranks
        self.known_slack = [max(known_bubble) - bubble for bubble in known_bubble]
        self.order: list[list[Action]] = [[] for _ in range(self.ranks)]
        self.ends: list[list[list[int]]] = [[[] for _ in range(4)] for _ in range(self.ranks)]
        self.waiting: list[deque[Action]] = [deque() for _ in range(self.ranks)]
        self.clock = [0] * self.ranks
        self.held = [0] * self.ranks
        self.bubble = [0] * self.ranks
        self.worst_bubble = 0
        self.costs = (given.forward, given.forward, given.backward_input, given.backward_input)
        self._run()

    def _run(self) -> None:
        self._first_micro_batch()
        self._catch_up()
        for _ in range(2 * self.given.microbatches):
            self._put_backwards()
            for rank in range(self.ranks):
                self._put_next_forward(rank)
        for rank in range(self.ranks):
            while self.waiting[rank]:
                self.put_weight(rank)

    # Actions

    def put(self, passing: int, rank: int) -> None:
        """Place the next action of a pass on a rank."""
        cost = self.costs[passing]
        without_wait = self.clock[rank] + cost
        arrival = self.arrival(passing, rank)
        end = without_wait if arrival is None else max(without_wait, arrival + cost)
        # Idle time before the first action is unavoidable and does not count.
        if self.order[rank]:
            self.bubble[rank] += end - without_wait
            self.worst_bubble = max(self.worst_bubble, self.bubble[rank])
        microbatch, stage = self.count(passing, rank), self.stage(passing, rank)
        self.ends[rank][passing].append(end)
        self.clock[rank] = end
        if passing in (F0, F1):
            self.held[rank] += 1
            self.order[rank].append(Action("F", stage, microbatch))
        else:
            self.order[rank].append(Action("I", stage, microbatch))
            self.waiting[rank].append(Action("W", stage, microbatch))

    def put_weight(self, rank: int) -> None:
        """Place the oldest pending W of a rank."""
        self.order[rank].append(self.waiting[rank].popleft())
        self.clock[rank] += self.given.backward_weight
        self.held[rank] -= 1

    def put_after_filling(self, passing: int, rank: int, *, may_delay: bool) -> None:
        """Place an action after the W that fill the wait for it, and one more if that pays and is allowed."""
        arrival = self.arrival(passing, rank)
        if arrival is not None:
            while self.waiting[rank] and self.clock[rank] + self.given.backward_weight <= arrival:
                self.put_weight(rank)
            # A rank may wait this long without becoming the worst one.
            slack = max(self.worst_bubble, self.known_slack[rank]) - self.bubble[rank]
            if may_delay and self.waiting[rank] and arrival - self.clock[rank] > slack:
                self.put_weight(rank)
        self.put(passing, rank)

    def count(self, passing: int, rank: int) -> int:
        """Return the number of actions of a pass on a rank."""
        return len(self.ends[rank][passing])

    def stage(self, passing: int, rank: int) -> int:
        """Return the stage of a pass on a rank."""
        return rank if passing in (F0, I0) else 2 * self.ranks - 1 - rank

    def producer(self, passing: int, rank: int) -> int | None:
        """Return the rank that produces the input of a pass, None for the rank itself."""
        neighbor = rank - 1 if DOWN[passing] else rank + 1
        return neighbor if 0 <= neighbor < self.ranks else None

    def has_input(self, passing: int, rank: int) -> bool:
        """Return whether the input of the next action of a pass on a rank has been placed."""
        producer = self.producer(passing, rank)
        return producer is None or self.count(passing, producer) > self.count(passing, rank)

    def arrival(self, passing: int, rank: int) -> int | None:
        """Return the arrival of the input of the next action of a pass, None if the rank produces it itself."""
        producer = self.producer(passing, rank)
        if producer is None:
            return None
        return self.ends[producer][passing][self.count(passing, rank)] + self.given.hop

    # Warm-up

    def _first_micro_batch(self) -> None:
        for rank in range(self.ranks):
            self.put(F0, rank)
        for rank in reversed(range(self.ranks)):
            while self._would_wait_for_f1(rank):
                for earlier in range(rank + 1):
                    self.put(F0, earlier)
            self.put(F1, rank)

    def _would_wait_for_f1(self, rank: int) -> bool:
        """Return whether one more F0 fits before the first F1 of a rank, in time and in memory."""
        arrival = self.arrival(F1, rank)
        if arrival is None or self.count(F0, rank) >= self.given.microbatches:
            return False
        # 2 + 2 r activations are reserved for the rest of the warm-up.
        has_memory = self.held[rank] + 2 + 2 * rank <= self.limit
        return has_memory and self.clock[rank] + self.given.forward <= arrival

    def _catch_up(self) -> None:
        passing = F0
        for rank in range(1, self.ranks):
            while self._is_behind(rank):
                self._put_from(rank, passing)
                passing = F1 if passing == F0 else F0

    def _put_from(self, rank: int, passing: int) -> None:
        """Place an F of a pass on a rank and all later ranks, last rank first, if any is left."""
        for later in reversed(range(rank, self.ranks)):
            if self.count(passing, later) < self.given.microbatches:
                self.put(passing, later)

    def _is_behind(self, rank: int) -> bool:
        f0, f1 = self.count(F0, rank), self.count(F1, rank)
        f0_before, f1_before = self.count(F0, rank - 1), self.count(F1, rank - 1)
        return f0 + f1 < f0_before + f1_before or f1 <= f1_before < self.given.microbatches

    # Rounds

    def _put_backwards(self) -> None:
        going_up = [self._goes_up(rank) for rank in range(self.ranks)]
        for rank in reversed(range(self.ranks)):
            if going_up[rank]:
                self.put_after_filling(I0, rank, may_delay=True)
        for rank in range(self.ranks):
            if not going_up[rank]:
                self.put_after_filling(I1, rank, may_delay=self.switches.before_input)

    def _goes_up(self, rank: int) -> bool:
        """Return whether the next backward of a rank is an I0."""
        if self.count(I0, rank) >= self.count(I1, rank):
            return False
        return self.has_input(I0, rank) or self.count(I1, rank) >= self.given.microbatches

    def _put_next_forward(self, rank: int) -> None:
        passing = self._next_forward(rank)
        if passing is None:
            return
        while self.held[rank] + 1 > self.limit:
            self.put_weight(rank)
        self.put_after_filling(passing, rank, may_delay=self.switches.before_forward)

    def _next_forward(self, rank: int) -> int | None:
        """Return the pass of the next F of a rank: F1 if possible, otherwise F0 if possible."""
        f0, f1 = self.count(F0, rank), self.count(F1, rank)
        if f1 >= self.given.microbatches:
            return None
        if f1 < f0 and self.has_input(F1, rank):
            return F1
        if f1 >= f0:
            return F0
        return F0 if f0 < self.given.microbatches and self.has_input(F0, rank) else None
