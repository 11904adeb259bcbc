"""The heuristic search for zero-bubble orders with given costs and a memory limit.

Source: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1, with the decisions and tie-breaking of
`scheduler/zb.py` in sail-sg/zero-bubble-pipeline-parallelism, without its integer program. B in the paper is the input
gradient, I here.

The heuristic builds the order in rounds and has three switches. All eight combinations are tried, and the first one
with the smallest own span (first to last action of a stage, largest over all stages) is returned:

    warm-up    F on all stages, then more F on each stage within the memory limit, up to the arrival of the
               first gradient (`fit_first`: the last of them must not delay the first I); an earlier stage runs
               more than a later one
    round i    one F on each stage with any left (`input_first`: a stage that is two ahead of the next one may
               skip it if the next one benefits more from a gradient), then I of micro-batch i, last stage first
    W          is deferred until memory runs out or a stage would otherwise wait: as many as fit into the
               wait, and one more if the wait is longer than the slack to the worst stage (`greedy`: always)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, Order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagescope.schedules.orders.searched_costs import StageCosts


@dataclass(frozen=True)
class SearchInput:
    """The input of a search; memory is one value per stage, all in the same unit.

    An F allocates `activation`; its W frees `held_for_weight` of it and its I the rest.
    """

    microbatches: int
    costs: StageCosts
    activation: Sequence[int]
    held_for_weight: Sequence[int]
    memory_limit: Sequence[int]


@dataclass(frozen=True)
class _Switches:
    """The three switches of the heuristic, see the module docstring."""

    fit_first: bool
    input_first: bool
    greedy: bool

    def turned_off(self) -> Iterator[str]:
        """Yield the names of the switches that are off."""
        return (name for name, is_on in vars(self).items() if not is_on)


def search_order(given: SearchInput) -> Order:
    """Return the best order that the heuristic finds; no stage exceeds its memory limit."""
    attempts: list[_Attempt] = []
    for choice in product((True, False), repeat=3):
        switches = _Switches(*choice)
        if not any(attempt.has_order_of(switches) for attempt in attempts):
            attempts.append(_Attempt(given, switches))
            attempts[-1].run()
    return dict(enumerate(min(attempts, key=_Attempt.longest_stage).order))


class _Attempt:
    """An order under construction; all lists are per stage, for the actions placed so far.

    `decisive` are the switches that are on and without which an action would have been placed differently.
    """

    def __init__(self, given: SearchInput, switches: _Switches) -> None:
        self.given = given
        self.costs = given.costs
        self.switches = switches
        self.stages = len(given.costs.forward)
        self.order: list[list[Action]] = [[] for _ in range(self.stages)]
        self.forward_ends: list[list[int]] = [[] for _ in range(self.stages)]
        self.input_ends: list[list[int]] = [[] for _ in range(self.stages)]
        self.weights = [0] * self.stages
        self.clock: list[int] = [0] * self.stages
        self.memory: list[int] = [0] * self.stages
        self.bubble: list[int] = [0] * self.stages
        self.worst_bubble: int = 0
        self.decisive: set[str] = set()

    def run(self) -> None:
        """Place all actions of all stages."""
        self.warm_up()
        for microbatch in range(1, self.given.microbatches):
            self.put_forwards()
            for stage in reversed(range(self.stages)):
                self.put_input_of(stage, microbatch)
        for stage in range(self.stages):
            self.flush_weights(stage, self.given.microbatches)

    def has_order_of(self, other: _Switches) -> bool:
        """Return whether other switches are known to give the same order: they turn off what decided nothing."""
        off, off_here = set(other.turned_off()), set(self.switches.turned_off())
        return off_here <= off and not (off - off_here) & self.decisive

    def longest_stage(self) -> int:
        """Return the largest time from the first to the last action of a stage."""
        begins = (ends[0] - cost for ends, cost in zip(self.forward_ends, self.costs.forward, strict=True))
        return max(end - begin for end, begin in zip(self.clock, begins, strict=True))

    # Actions

    def put_forward(self, stage: int) -> None:
        """Place the next F of a stage."""
        microbatch = len(self.forward_ends[stage])
        first = microbatch == 0
        end = self._advance(stage, self.costs.forward[stage], self.forward_arrival(stage), counted=not first)
        self.forward_ends[stage].append(end)
        self.memory[stage] += self.given.activation[stage]
        self.order[stage].append(Action("F", stage, microbatch))

    def put_input(self, stage: int) -> None:
        """Place the next I of a stage."""
        microbatch = len(self.input_ends[stage])
        arrival = self.gradient_arrival(stage, microbatch)
        end = self._advance(stage, self.costs.backward_input[stage], arrival, counted=True)
        self.input_ends[stage].append(end)
        self.memory[stage] -= self.given.activation[stage] - self.given.held_for_weight[stage]
        self.order[stage].append(Action("I", stage, microbatch))

    def put_weight(self, stage: int) -> None:
        """Place the next W of a stage."""
        self.clock[stage] += self.costs.backward_weight[stage]
        self.memory[stage] -= self.given.held_for_weight[stage]
        self.order[stage].append(Action("W", stage, self.weights[stage]))
        self.weights[stage] += 1

    def _advance(self, stage: int, cost: int, arrival: int, *, counted: bool) -> int:
        """Run an action as soon as the stage is free and its input has arrived; return its end and count the wait."""
        without_wait = self.clock[stage] + cost
        end = max(without_wait, arrival + cost)
        if counted:
            self.bubble[stage] += end - without_wait
            self.worst_bubble = max(self.worst_bubble, self.bubble[stage])
        self.clock[stage] = end
        return end

    def forward_arrival(self, stage: int) -> int:
        """Return the arrival time of the input of the next F of a stage."""
        if stage == 0:
            return 0
        return self.forward_ends[stage - 1][len(self.forward_ends[stage])] + self.costs.hop[stage - 1]

    def gradient_arrival(self, stage: int, microbatch: int) -> int:
        """Return the arrival time of the gradient that an I needs."""
        if stage == self.stages - 1:
            return 0
        return self.input_ends[stage + 1][microbatch] + self.costs.hop[stage]

    # Weight gradients

    def pending(self, stage: int) -> bool:
        """Return whether the stage has a W that could run now."""
        return self.weights[stage] < len(self.input_ends[stage])

    def flush_weights(self, stage: int, upto: int) -> None:
        """Place the W of all micro-batches before `upto`."""
        while self.weights[stage] < upto:
            self.put_weight(stage)

    def fill_wait(self, stage: int, arrival: int) -> None:
        """Fill the wait for an arrival with W: all that fit, and one more if that pays."""
        cost = self.costs.backward_weight[stage]
        while self.pending(stage) and self.clock[stage] + cost <= arrival:
            self.put_weight(stage)
        wait = arrival - self.clock[stage]
        if wait <= 0 or not self.pending(stage):
            return
        # A wait within the slack does not lengthen the worst stage, so the W is better kept for a longer wait.
        harmless = wait <= self.worst_bubble - self.bubble[stage]
        if self.switches.greedy or not harmless:
            self.put_weight(stage)
        if harmless:
            self.decisive.add("greedy")

    def free_memory(self, stage: int) -> None:
        """Place W until one more activation fits; an empty stage always has enough memory for one."""
        while self.memory[stage] + self.given.activation[stage] > self.given.memory_limit[stage]:
            self.put_weight(stage)

    # Warm-up

    def warm_up(self) -> None:
        """Place all actions up to the first I of each stage."""
        for stage in range(self.stages):
            self.put_forward(stage)
        extra = self.extra_forwards()
        for stage in range(1, self.stages):
            # An earlier stage runs more forwards, unless all micro-batches are in flight already.
            all_done = 1 + extra[stage] == self.given.microbatches
            extra[stage] = max(0, min(extra[stage], extra[stage - 1] - (not all_done)))
        for stage in range(self.stages):
            for _ in range(extra[stage]):
                self.put_forward(stage)
        for stage in reversed(range(self.stages)):
            self.put_input(stage)

    def extra_forwards(self) -> list[int]:
        """Return how many more F each stage could run before its first I, regardless of other stages."""
        costs, last = self.costs, self.stages - 1
        extra = [0] * self.stages
        first_input_end = self.forward_ends[last][0] + costs.backward_input[last]
        # From the last stage back: the gradient of a stage arrives after the first I of the next one.
        for stage in reversed(range(last)):
            arrival = first_input_end + costs.hop[stage]
            extra[stage], clock = self._forwards_before(stage, arrival)
            first_input_end = max(clock, arrival) + costs.backward_input[stage]
        return extra

    def _forwards_before(self, stage: int, arrival: int) -> tuple[int, int]:
        """Return how many more F a stage runs before its first gradient arrives, and when they end."""
        count, clock, memory = 0, self.clock[stage], self.memory[stage]
        cost, size = self.costs.forward[stage], self.given.activation[stage]
        while 1 + count < self.given.microbatches and memory + size <= self.given.memory_limit[stage]:
            fits, is_early = clock + cost <= arrival, clock < arrival
            if fits != is_early:
                self.decisive.add("fit_first")
            if not (fits if self.switches.fit_first else is_early):
                break
            count, clock, memory = count + 1, clock + cost, memory + size
        return count, clock

    # Rounds

    def put_forwards(self) -> None:
        """Place the F of one round, at most one per stage."""
        wanted = [self.wants_forward(stage) for stage in range(self.stages)]
        for stage in reversed(range(self.stages - 1)):
            wanted[stage] = wanted[stage] and wanted[stage + 1]
        for stage in range(self.stages):
            if wanted[stage]:
                self.free_memory(stage)
                self.fill_wait(stage, self.forward_arrival(stage))
                self.put_forward(stage)

    def wants_forward(self, stage: int) -> bool:
        """Return whether a stage would run an F in this round, regardless of other stages."""
        done = len(self.forward_ends[stage])
        if done >= self.given.microbatches:
            return False
        last = stage == self.stages - 1
        if last or not self.switches.input_first or done < len(self.forward_ends[stage + 1]) + 2:
            return True
        waits = self._prefers_to_wait(stage)
        if waits:
            self.decisive.add("input_first")
        return not waits

    def _prefers_to_wait(self, stage: int) -> bool:
        """Return whether skipping an F makes the next gradient earlier and costs no more than the slack."""
        costs, later = self.costs, stage + 1
        gradient = self.clock[later] + costs.forward[later] + costs.backward_input[later] + costs.hop[stage]
        clock = self.clock[stage]
        if clock >= gradient:
            return True
        if clock + costs.forward[stage] + self._time_to_free_memory(stage) <= gradient:
            return False
        return gradient - clock <= self.worst_bubble - self.bubble[stage]

    def _time_to_free_memory(self, stage: int) -> int:
        """Return the duration of the W that must run before one more F fits into memory."""
        given = self.given
        count, memory = 0, self.memory[stage] + given.activation[stage]
        ready = len(self.input_ends[stage]) - self.weights[stage]
        while memory > given.memory_limit[stage] and count < ready:
            count, memory = count + 1, memory - given.held_for_weight[stage]
        return count * self.costs.backward_weight[stage]

    def put_input_of(self, stage: int, microbatch: int) -> None:
        """Place the I of a round, after W that fill the wait for its gradient."""
        self.fill_wait(stage, self.gradient_arrival(stage, microbatch))
        # As in the source: after its last F, stage 0 places all pending W before each I.
        if stage == 0 and len(self.forward_ends[0]) == self.given.microbatches:
            self.flush_weights(0, microbatch)
        self.put_input(stage)
