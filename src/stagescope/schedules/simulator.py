"""The exact simulation of an order: every action starts as soon as its rank is free and its inputs have arrived.

Each rank runs its actions in program order; `dependencies` states what an action needs. An overlapped pair starts when
both of its parts can start, and both end with it. An input comes from whichever rank ran the producer, so placements
do not appear here: the input costs a message if that is another rank.

There are no time steps and no event queue. A rank runs until an input is missing, and the action that produces this
input wakes the rank up, so every action is looked at once or twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import read_actions
from stagescope.schedules.action_index import NO_RANK, index_actions
from stagescope.schedules.costs import Costs, action_costs, link_costs
from stagescope.schedules.deadlock import diagnose_deadlock
from stagescope.schedules.dependencies import ACTIVATION, GRADIENT, RULES
from stagescope.schedules.simulation import Simulation
from stagescope.schedules.step_end import gradients_complete, reduce_gradients, step_optimizers
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.schedules.action import Action, Order
    from stagescope.schedules.action_index import ActionIndex

MISSING = -1
UNIT_COSTS = Costs()


def simulate(order: Mapping[int, Sequence[Action | str]], costs: Costs = UNIT_COSTS) -> Simulation:
    """Return the start and end of every action of an order; the default costs are F = I = W = 1, B = 2.

    `order` maps each rank to its actions, as `Action` or as text such as ``F0.3``. Raises ScheduleError for an order
    that deadlocks (the message shows the cycle), that lacks a producer or repeats an action, and for costs that do
    not cover it.

    >>> step = simulate({0: ["F0.0", "B0.0"], 1: ["F1.0", "B1.0"]}, Costs(forward=10, backward=20, hop=1))
    >>> [f"{each}@{each.start_ns}" for each in step.actions], step.makespan_ns
    (['F0.0@0', 'B0.0@42', 'F1.0@11', 'B1.0@21'], 62)
    """
    actions = {rank: read_actions(row) for rank, row in order.items()}
    engine = _Engine(actions, costs)
    engine.run()
    stages = engine.index.stages
    complete = gradients_complete(actions, engine.ends_ns) if costs.grad_reduce or costs.optimizer else {}
    reductions = reduce_gradients(complete, costs, stages)
    return Simulation(
        actions,
        costs,
        engine.index,
        engine.starts_ns,
        engine.ends_ns,
        reductions,
        step_optimizers(complete, reductions, engine.ends_ns, costs, stages),
        engine.inputs_of_rule(RULES.index(ACTIVATION)),
        engine.inputs_of_rule(RULES.index(GRADIENT)),
    )


class _Output(NamedTuple):
    """Where an action records its end as an input of other actions."""

    first_slot: int
    cell_offset: int
    receivers: list[int] | None
    """The rank per consumer cell; None if the consumer is on the same stage, which needs no message."""


def _outputs(index: ActionIndex, cells: int) -> dict[str, tuple[_Output, ...]]:
    """Return per kind of action what consumers it has, by the dependency rule."""
    return {
        kind: tuple(
            _Output(
                number * cells,
                -rule.stage_offset * index.microbatches,
                index.by_kind[rule.consumers[0]] if rule.crosses_stages else None,
            )
            for number, rule in reversed(
                list(enumerate(RULES))
            )  # the own stage first, before a blocking send
            if kind in rule.producers
        )
        for kind in "FBIW"
    }


class _Engine:
    """The state of a running simulation.

    `times_ns` has one slot per dependency rule and consumer cell (stage, micro-batch), rule by rule: when the input
    arrives, MISSING until that is known. A rank that needs a missing input enters itself in `waiting` under the slot
    and pauses. Only one action needs each slot, so only one rank waits for it.
    """

    def __init__(self, order: Order, costs: Costs) -> None:
        self.order = order
        self.index = index_actions(order)
        self.width = self.index.microbatches
        self.cells = cells = self.index.stages * self.width
        self.times_ns = [MISSING] * (len(RULES) * cells)
        for number, rule in enumerate(RULES):
            if rule.stage_offset < 0:  # the first stage needs no activation
                self.times_ns[number * cells : number * cells + self.width] = [0] * self.width
            elif rule.stage_offset > 0:  # the last stage needs no gradient
                self.times_ns[(number + 1) * cells - self.width : (number + 1) * cells] = [0] * self.width
        self.first_slots = {
            kind: [number * cells for number, rule in enumerate(RULES) if kind in rule.consumers]
            for kind in "FBIW"
        }
        self.outputs = _outputs(self.index, cells)
        self.starts_ns: dict[int, list[int]] = {rank: [] for rank in order}
        self.ends_ns: dict[int, list[int]] = {rank: [] for rank in order}
        self.free_ns = dict.fromkeys(order, 0)
        self.link_free_ns: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[int, int] = {}
        # A stack: popping from the end starts with the first rank, which usually holds stage 0.
        self.runnable = list(reversed(order))
        durations = action_costs(costs, self.index.stages, self.width)
        self.cost_ns = {
            "F": durations.forward,
            "B": durations.backward,
            "I": durations.backward_input,
            "W": durations.backward_weight,
        }
        self.overlapped_ns = durations.overlapped
        self.links = link_costs(costs, self.index.stages)
        self.blocking = costs.blocking

    def inputs_of_rule(self, number: int) -> list[int]:
        """Return when the input by one dependency rule arrived, per consumer cell."""
        return self.times_ns[number * self.cells : (number + 1) * self.cells]

    def run(self) -> None:
        """Run every rank to its end; raises ScheduleError for a deadlock."""
        while self.runnable:
            self._advance(self.runnable.pop())
        done = {rank: len(ends) for rank, ends in self.ends_ns.items()}
        if any(done[rank] < len(actions) for rank, actions in self.order.items()):
            raise diagnose_deadlock(self.order, done)

    def _advance(self, rank: int) -> None:
        """Run actions of a rank until none is left or an input is missing."""
        actions, starts_ns, ends_ns = self.order[rank], self.starts_ns[rank], self.ends_ns[rank]
        width, cost_ns, free_ns = self.width, self.cost_ns, self.free_ns[rank]
        for position in range(len(ends_ns), len(actions)):
            kind, stage, microbatch, partner = action = actions[position]
            cell = stage * width + microbatch
            # Both parts of a pair must be ready before either is committed: the rank pauses on the first missing input.
            start_ns = self._ready(kind, cell, rank, free_ns)
            if partner is not None and start_ns != MISSING:
                start_ns = self._ready(
                    partner.kind, partner.stage * width + partner.microbatch, rank, start_ns
                )
            if start_ns == MISSING:
                break
            duration_ns = cost_ns[kind][cell] if partner is None else self._pair_ns(action)
            # Checked here and not up front, so that costs need to cover only the actions that the order has.
            if duration_ns is None:
                raise ScheduleError.no_cost(str(action))
            end_ns = start_ns + duration_ns
            starts_ns.append(start_ns)
            ends_ns.append(end_ns)
            free_ns = self._finish(kind, cell, rank, end_ns)
            if partner is not None:
                cell = partner.stage * width + partner.microbatch
                free_ns = max(free_ns, self._finish(partner.kind, cell, rank, end_ns))
        self.free_ns[rank] = free_ns

    def _ready(self, kind: str, cell: int, rank: int, free_ns: int) -> int:
        """Return when an action can start on a rank that is free from `free_ns` on, MISSING if an input is."""
        times_ns = self.times_ns
        for first_slot in self.first_slots[kind]:
            ready_ns = times_ns[first_slot + cell]
            if ready_ns == MISSING:
                self.waiting[first_slot + cell] = rank
                return MISSING
            if ready_ns > free_ns:  # noqa: PLR1730  # runs per action; max() costs twice as much
                free_ns = ready_ns
        return free_ns

    def _pair_ns(self, pair: Action) -> int | None:
        first, second = pair.parts
        together_ns = self.overlapped_ns[first.stage * self.width + first.microbatch]
        if together_ns is not None:
            return together_ns
        alone = [
            self.cost_ns[part.kind][part.stage * self.width + part.microbatch] for part in (first, second)
        ]
        return None if alone[0] is None or alone[1] is None else alone[0] + alone[1]

    def _finish(self, kind: str, cell: int, rank: int, end_ns: int) -> int:
        """Pass on the result of an action; returns when its rank is free again."""
        free_ns = end_ns
        for first_slot, cell_offset, receivers in self.outputs[kind]:
            consumer = cell + cell_offset
            if receivers is None:
                self._arrive(first_slot + consumer, end_ns)
            elif 0 <= consumer < self.cells:
                # A message goes over the link between two stages, which is numbered by the earlier one.
                link = min(cell, consumer) // self.width
                free_ns = self._send(first_slot + consumer, (rank, receivers[consumer]), link, end_ns)
        return free_ns

    def _send(self, slot: int, ranks: tuple[int, int], link: int, end_ns: int) -> int:
        """Deliver a result from one rank to another; returns when the sender is free again.

        Messages of one sender to one receiver queue for the wire in the order in which they were produced. A rank
        produces in program order, so the queue needs no sorting.
        """
        sender, receiver = ranks
        # NO_RANK: the order lacks the consumer, which `validate` reports; simulation of partial orders is allowed.
        if receiver in (sender, NO_RANK):
            self._arrive(slot, end_ns)
            return end_ns
        wire_ns = self.links.wire_ns[link]
        sent_ns = end_ns
        if wire_ns:
            sent_ns = max(end_ns, self.link_free_ns[ranks]) + wire_ns
            self.link_free_ns[ranks] = sent_ns
        arrival_ns = sent_ns + self.links.hop_ns[link]
        self._arrive(slot, arrival_ns)
        return arrival_ns if self.blocking else end_ns

    def _arrive(self, slot: int, time_ns: int) -> None:
        self.times_ns[slot] = time_ns
        if slot in self.waiting:
            self.runnable.append(self.waiting.pop(slot))
