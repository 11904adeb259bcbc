"""How short a step could be at best, whatever the order.

The bound keeps what an order cannot change: which actions there are, which rank runs them, and what each of
them waits for. For an action a let head(a) be the longest chain of jobs and messages that must have ended
before a can start, and tail(a) the longest that can only start when a has ended.

    rank bound   min head over the actions of rank r  +  work(r)  +  min tail over the actions of rank r
    chain bound  max over all actions of  head(a) + cost(a) + tail(a)

Proof. Rank r cannot start before the head of whichever action it runs first, then needs at least its work,
since it runs one action at a time, and behind whichever action it ends with, that action's tail is still to
run on other ranks: the minima cover every choice of first and last. A chain takes at least the sum of its
parts. With equal costs this is the bound fill + work + drain of the papers: the head of a rank is the way of
a micro-batch down to its lowest stage, the tail the way of the gradient back up to stage 0, and nothing where
the backward is split, since a weight gradient can be last. Overlapped pairs stay pairs: a pair counts once in
the work, and both its jobs last as long as the pair. The optimizer step of a rank follows its work; a barrier
before it lets the whole of the longest one follow. Queueing on links, blocking sends and gradient reductions
only lengthen a step, so the bound leaves them out and holds with them.

The bound is tight (equal to the simulated makespan) at unit costs for gpipe, 1f1b, eager-1f1b, looped-bfs,
zb-h1, zb-2p, interleaved and interleaved-zb with at least as many micro-batches as ranks, zb-v with at least
twice as many, and the overlapped forms of 1f1b and interleaved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action_index import NOBODY, index_actions
from stagescope.schedules.costs import Costs, action_costs, link_costs, per_stage
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Action, Order
    from stagescope.schedules.action_index import ActionIndex
    from stagescope.schedules.costs import ActionCosts, Cells

UNIT_COSTS = Costs()


class RankBound(NamedTuple):
    """What a rank must wait for, do and wait for again; `after_ns` is the longer of tail and optimizer step."""

    head_ns: int
    work_ns: int
    after_ns: int

    @property
    def total_ns(self) -> int:
        """The shortest step in which this rank gets its work done."""
        return self.head_ns + self.work_ns + self.after_ns


class LowerBound(NamedTuple):
    """No order of the same actions on the same ranks makes a step shorter than `makespan_ns`.

    `ranks` and `chain_ns` are its two parts; `optimizer_ns` is what follows a barrier, 0 without one.
    `balanced_ns` is the mean work of a rank, rounded up: a bound for any partition of the model as well.
    """

    makespan_ns: int
    ranks: dict[int, RankBound]
    chain_ns: int
    optimizer_ns: int
    balanced_ns: int

    @property
    def reason(self) -> str:
        """What the bound comes from: ``rank 3`` or ``one micro-batch``."""
        rank, bound = max(
            self.ranks.items(), key=lambda item: item[1].total_ns, default=(0, RankBound(0, 0, 0))
        )
        return f"rank {rank}" if bound.total_ns >= self.chain_ns else "one micro-batch"


def lower_bound(order: Order, costs: Costs = UNIT_COSTS) -> LowerBound:
    """Return how short a step of the same actions on the same ranks can be at best.

    Raises ScheduleError for a job that runs twice and for costs that do not cover the order. The order need
    not be one that can run: only its placement and its pairs count.

    >>> from stagescope.schedules.action import parse_action
    >>> order = {rank: [parse_action(f"{kind}{rank}.{j}") for kind in "FB" for j in range(4)] for rank in range(2)}
    >>> lower_bound(order).makespan_ns, lower_bound(order).reason, lower_bound(order).balanced_ns
    (15, 'rank 1', 12)
    """
    index = index_actions(order)
    lasting = _durations(order, action_costs(costs, index.stages, index.microbatches), index.microbatches)
    chains = _Chains(index, lasting, link_costs(costs, index.stages).least_ns)
    optimizer_ns = _optimizer_ns(order, costs, index.stages)
    joint_ns = max(optimizer_ns.values(), default=0) if costs.optimizer_barrier else 0
    own_ns = dict.fromkeys(order, 0) if costs.optimizer_barrier else optimizer_ns
    ranks, chain_ns, total_work_ns = {}, 0, 0
    for rank, actions in order.items():
        heads, tails, work_ns = [], [], 0
        for action in actions:
            head_ns, cost_ns, tail_ns = chains.around(action)
            chain_ns = max(chain_ns, head_ns + cost_ns + tail_ns)
            heads.append(head_ns)
            tails.append(tail_ns)
            work_ns += cost_ns
        after_ns = max(min(tails, default=0), own_ns[rank])
        ranks[rank] = RankBound(min(heads, default=0), work_ns, after_ns)
        total_work_ns += work_ns + optimizer_ns[rank]
    longest_ns = max((chain_ns, *(bound.total_ns for bound in ranks.values())))
    balanced_ns = -(-total_work_ns // len(order)) if order else 0
    return LowerBound(longest_ns + joint_ns, ranks, chain_ns, joint_ns, balanced_ns)


class _Durations(NamedTuple):
    """How long the jobs of each kind last, per (stage, micro-batch); 0 where the order has none."""

    forward: list[int]
    backward: list[int]
    weight: list[int]


def _durations(order: Order, costs: ActionCosts, width: int) -> _Durations:
    """Return how long every job of an order lasts; the two of a pair last as long as the pair."""
    cells = len(costs.forward)
    lasting = _Durations([0] * cells, [0] * cells, [0] * cells)
    tables = {
        "F": (costs.forward, lasting.forward),
        "B": (costs.backward, lasting.backward),
        "I": (costs.backward_input, lasting.backward),
        "W": (costs.backward_weight, lasting.weight),
    }
    for actions in order.values():
        for action in actions:
            jobs = action.parts
            places = [job.stage * width + job.microbatch for job in jobs]
            given = [tables[job.kind][0][cell] for job, cell in zip(jobs, places, strict=True)]
            together = costs.overlapped[places[0]] if action.partner else None
            duration = _sum(given) if together is None else together
            if duration is None:
                raise ScheduleError.no_cost(str(action))
            for job, cell in zip(jobs, places, strict=True):
                tables[job.kind][1][cell] = duration
    return lasting


def _sum(given: Cells) -> int | None:
    known = [cell for cell in given if cell is not None]
    return sum(known) if len(known) == len(given) else None


def _optimizer_ns(order: Order, costs: Costs, stages: int) -> dict[int, int]:
    """Return per rank the optimizer step of all stages of which it computes weight gradients."""
    cost_ns = per_stage("optimizer", costs.optimizer, stages)
    return {
        rank: sum(
            cost_ns[stage]
            for stage in {job.stage for action in actions for job in action.parts if job.kind in "BW"}
        )
        for rank, actions in order.items()
    }


class _Chains:
    """The longest chains before and after every job, job by job along the model: no order is needed for it."""

    def __init__(self, index: ActionIndex, lasting: _Durations, message_ns: list[int]) -> None:
        self.index = index
        self.lasting = lasting
        self.message_ns = message_ns
        cells = len(index.forward)
        self.before_forward = [0] * cells
        self.before_backward = [0] * cells
        self.after_forward = [0] * cells
        self.after_backward = [0] * cells
        self._go_down()
        self._come_back()

    def around(self, action: Action) -> tuple[int, int, int]:
        """Return head, cost and tail of an action in nanoseconds."""
        heads, tails, cost_ns = [], [], 0
        for kind, stage, microbatch, _ in action.parts:
            cell = stage * self.index.microbatches + microbatch
            if kind == "F":
                heads.append(self.before_forward[cell])
                tails.append(self.after_forward[cell])
                cost_ns = self.lasting.forward[cell]
            elif kind == "W":
                heads.append(self.before_backward[cell] + self.lasting.backward[cell])
                tails.append(0)
                cost_ns = self.lasting.weight[cell]
            else:
                heads.append(self.before_backward[cell])
                tails.append(self.after_backward[cell])
                cost_ns = self.lasting.backward[cell]
        return max(heads), cost_ns, max(tails)

    def _go_down(self) -> None:
        """Fill what comes before: forwards from the first stage on, then backwards from the last stage on."""
        width, lasting = self.index.microbatches, self.lasting
        for cell in range(width, len(self.before_forward)):
            above = cell - width
            self.before_forward[cell] = (
                self.before_forward[above] + lasting.forward[above] + self._message(self.index.forward, above)
            )
        for cell in reversed(range(len(self.before_backward))):
            own = self.before_forward[cell] + lasting.forward[cell]
            below = cell + width
            if below < len(self.before_backward):
                message_ns = self._message(self.index.backward, cell)
                own = max(own, self.before_backward[below] + lasting.backward[below] + message_ns)
            self.before_backward[cell] = own

    def _come_back(self) -> None:
        """Fill what comes after: behind backwards from the first stage on, then forwards from the last on."""
        width, lasting = self.index.microbatches, self.lasting
        for cell in range(len(self.after_backward)):
            above = cell - width
            weight_ns = lasting.weight[cell]
            if above >= 0:
                message_ns = self._message(self.index.backward, above)
                weight_ns = max(weight_ns, message_ns + lasting.backward[above] + self.after_backward[above])
            self.after_backward[cell] = weight_ns
        for cell in reversed(range(len(self.after_forward))):
            own = lasting.backward[cell] + self.after_backward[cell]
            below = cell + width
            if below < len(self.after_forward):
                message_ns = self._message(self.index.forward, cell)
                own = max(own, message_ns + lasting.forward[below] + self.after_forward[below])
            self.after_forward[cell] = own

    def _message(self, placed: list[int], cell: int) -> int:
        """Return what the message between a job and the one of the stage below costs, in either direction."""
        here, below = placed[cell], placed[cell + self.index.microbatches]
        return (
            0
            if NOBODY in (here, below) or here == below
            else self.message_ns[cell // self.index.microbatches]
        )
