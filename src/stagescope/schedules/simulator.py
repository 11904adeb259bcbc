"""The exact simulation of an order: every action starts as soon as its rank is free and its inputs are there.

Each rank runs its actions in program order. What an action waits for (golden rule of the whole package):
F(s, j) for the activation of F(s-1, j); B or I(s, j) for F(s, j) and the gradient of B or I(s+1, j);
W(s, j) for I(s, j). An overlapped pair starts when both of its jobs can and ends both together. An input comes
from whatever rank ran its producer, so placements need no mention: it costs a message where that is another
rank. There are no time steps and no event queue: a rank runs on until an input is missing, and whoever
produces that input wakes it up, so every action is looked at once or twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from stagescope.schedules.action import read_actions
from stagescope.schedules.action_index import NOBODY, index_actions
from stagescope.schedules.costs import Costs, action_costs, link_costs
from stagescope.schedules.deadlock import stuck
from stagescope.schedules.simulation import Simulation
from stagescope.schedules.step_end import gradients_complete, reduce_gradients, step_optimizers
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.schedules.action import Action, Order

MISSING = -1
UNIT_COSTS = Costs()


def simulate(order: Mapping[int, Sequence[Action | str]], costs: Costs = UNIT_COSTS) -> Simulation:
    """Return when every action of an order runs with these costs; the defaults are F = I = W = 1, B = 2.

    `order` has a row of actions per rank, as `Action` or in its notation.
    Raises ScheduleError for an order that deadlocks (the circle is named), that lacks the producer of an input
    or holds a job twice, and for costs that do not cover it.

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
        engine.times_ns[: engine.cells],
        engine.times_ns[2 * engine.cells : 3 * engine.cells],
    )


class _Engine:
    """The state of a running simulation.

    `times_ns` holds four values per (stage, micro-batch), MISSING until they are known: the arrival of the
    activation, the end of the forward, the arrival of the gradient, the end of the input-gradient backward.
    A rank that needs a missing one notes it in `waiting` and sleeps; one job waits for each, so one rank does.
    """

    def __init__(self, order: Order, costs: Costs) -> None:
        self.order = order
        self.index = index_actions(order)
        self.width = self.index.microbatches
        self.cells = cells = self.index.stages * self.width
        self.times_ns = [MISSING] * (4 * cells)
        self.times_ns[: self.width] = [0] * self.width
        self.times_ns[3 * cells - self.width : 3 * cells] = [0] * self.width
        self.starts_ns: dict[int, list[int]] = {rank: [] for rank in order}
        self.ends_ns: dict[int, list[int]] = {rank: [] for rank in order}
        self.free_ns = dict.fromkeys(order, 0)
        self.link_free_ns: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting: dict[int, int] = {}
        self.runnable = list(reversed(order))
        jobs = action_costs(costs, self.index.stages, self.width)
        self.cost_ns = {
            "F": jobs.forward,
            "B": jobs.backward,
            "I": jobs.backward_input,
            "W": jobs.backward_weight,
        }
        self.overlapped_ns = jobs.overlapped
        self.links = link_costs(costs, self.index.stages)
        self.blocking = costs.blocking

    def run(self) -> None:
        """Run every rank to its end; raises ScheduleError if that cannot be reached."""
        while self.runnable:
            self._advance(self.runnable.pop())
        done = {rank: len(ends) for rank, ends in self.ends_ns.items()}
        if any(done[rank] < len(actions) for rank, actions in self.order.items()):
            raise stuck(self.order, done)

    def _advance(self, rank: int) -> None:
        """Run actions of a rank until it is through or an input is missing."""
        actions, starts_ns, ends_ns = self.order[rank], self.starts_ns[rank], self.ends_ns[rank]
        width, cost_ns, free_ns = self.width, self.cost_ns, self.free_ns[rank]
        for position in range(len(ends_ns), len(actions)):
            kind, stage, microbatch, partner = action = actions[position]
            cell = stage * width + microbatch
            start_ns = self._ready(kind, cell, rank, free_ns)
            if partner is not None and start_ns != MISSING:
                start_ns = self._ready(
                    partner.kind, partner.stage * width + partner.microbatch, rank, start_ns
                )
            if start_ns == MISSING:
                break
            duration_ns = cost_ns[kind][cell] if partner is None else self._pair_ns(action)
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
        """Return when a job can start on a rank that is free from then on, MISSING if an input is."""
        cells = self.cells
        slot = cell if kind == "F" else 3 * cells + cell if kind == "W" else 2 * cells + cell
        ready_ns = self.times_ns[slot]
        if slot >= cells and kind != "W" and ready_ns != MISSING:  # a backward needs its own forward too
            gradient_ns = ready_ns
            slot = cells + cell
            ready_ns = self.times_ns[slot]
            if gradient_ns > ready_ns != MISSING:
                ready_ns = gradient_ns
        if ready_ns == MISSING:
            self.waiting[slot] = rank
            return MISSING
        return ready_ns if ready_ns > free_ns else free_ns  # noqa: FURB136  # runs per action; max() costs twice as much

    def _pair_ns(self, pair: Action) -> int | None:
        first, second = pair.parts
        together_ns = self.overlapped_ns[first.stage * self.width + first.microbatch]
        if together_ns is not None:
            return together_ns
        alone = [self.cost_ns[job.kind][job.stage * self.width + job.microbatch] for job in (first, second)]
        return None if alone[0] is None or alone[1] is None else alone[0] + alone[1]

    def _finish(self, kind: str, cell: int, rank: int, end_ns: int) -> int:
        """Hand on what a job has produced; returns when its rank is free again."""
        cells, width = self.cells, self.width
        if kind == "F":
            self._arrive(cells + cell, end_ns)
            consumer = cell + width
            if consumer >= cells:
                return end_ns
            return self._send(consumer, self.index.forward[consumer], cell // width, rank, end_ns)
        if kind == "W":
            return end_ns
        self._arrive(3 * cells + cell, end_ns)
        consumer = cell - width
        if consumer < 0:
            return end_ns
        return self._send(
            2 * cells + consumer, self.index.backward[consumer], consumer // width, rank, end_ns
        )

    def _send(self, slot: int, receiver: int, link: int, sender: int, end_ns: int) -> int:
        """Carry a result to the rank that waits for it; returns when the sender is free again.

        Messages of one sender to one receiver queue for the wire in the order in which they were produced, and
        a rank produces in program order, so that no other event can come between.
        """
        if receiver in (sender, NOBODY):
            self._arrive(slot, end_ns)
            return end_ns
        wire_ns = self.links.wire_ns[link]
        sent_ns = end_ns
        if wire_ns:
            sent_ns = max(end_ns, self.link_free_ns[sender, receiver]) + wire_ns
            self.link_free_ns[sender, receiver] = sent_ns
        arrival_ns = sent_ns + self.links.hop_ns[link]
        self._arrive(slot, arrival_ns)
        return arrival_ns if self.blocking else end_ns

    def _arrive(self, slot: int, time_ns: int) -> None:
        self.times_ns[slot] = time_ns
        if slot in self.waiting:
            self.runnable.append(self.waiting.pop(slot))
