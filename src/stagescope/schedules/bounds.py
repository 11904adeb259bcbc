"""A lower bound of the step time, whatever the order of the actions.

The bound keeps what an order cannot change: the actions, the rank that runs each of them, and what each of them needs
(`dependencies`). For an action a, let head(a) be the longest chain of actions and messages that must have ended before
a can start, and tail(a) the longest chain that can only start after a has ended.

    rank bound   min head over the actions of rank r  +  work(r)  +  min tail over the actions of rank r
    chain bound  max over all actions of  head(a) + cost(a) + tail(a)

Proof. Rank r cannot start before the head of the action that it runs first. It then needs at least its work, since it
runs one action at a time, and the tail of the action that it runs last still has to run on other ranks. The minima
cover every choice of first and last action. A chain takes at least the sum of its parts.

With equal costs this is the bound fill + work + drain of the papers: the head of a rank is the way of a micro-batch
down to its lowest stage, the tail is the way of the gradient back up to stage 0. The tail is 0 where the backward is
split, since a weight gradient can be last. An overlapped pair counts once in the work, and both of its parts last as
long as the pair. The optimizer step of a rank follows its work; with a barrier, the longest optimizer step follows the
whole step. Queueing on links, blocking sends and gradient reductions only lengthen a step, so the bound ignores them
and holds with them.

The bound is tight (equal to the simulated makespan) at unit costs for gpipe, 1f1b, eager-1f1b, looped-bfs, zb-h1,
zb-2p, interleaved and interleaved-zb with at least as many micro-batches as ranks, zb-v with at least twice as many,
and the overlapped forms of 1f1b and interleaved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action_index import NO_RANK, index_actions
from stagescope.schedules.costs import Costs, action_costs, link_costs, per_stage
from stagescope.schedules.dependencies import RULES
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Action, Order
    from stagescope.schedules.action_index import ActionIndex
    from stagescope.schedules.costs import ActionCosts, Cells
    from stagescope.schedules.dependencies import Rule

UNIT_COSTS = Costs()


class RankBound(NamedTuple):
    """The three parts of the bound of one rank; `after_ns` is the longer of its tail and its optimizer step."""

    head_ns: int
    work_ns: int
    after_ns: int

    @property
    def total_ns(self) -> int:
        """The shortest step in which this rank can finish its work."""
        return self.head_ns + self.work_ns + self.after_ns


class LowerBound(NamedTuple):
    """The shortest possible step of the same actions on the same ranks is `makespan_ns`.

    `ranks` has the rank bounds and `chain_ns` the chain bound. `optimizer_ns` is the optimizer time after a barrier, 0
    without a barrier. `balanced_ns` is the mean work of a rank, rounded up: a bound for every partition of the model.
    """

    makespan_ns: int
    ranks: dict[int, RankBound]
    chain_ns: int
    optimizer_ns: int
    balanced_ns: int

    @property
    def reason(self) -> str:
        """What limits the step: ``rank 3`` or ``one micro-batch``."""
        rank, bound = max(
            self.ranks.items(), key=lambda item: item[1].total_ns, default=(0, RankBound(0, 0, 0))
        )
        return f"rank {rank}" if bound.total_ns >= self.chain_ns else "one micro-batch"


def lower_bound(order: Order, costs: Costs = UNIT_COSTS) -> LowerBound:
    """Return a lower bound of the step time for the actions of `order` on their ranks, in any sequence.

    The sequence is not used, only the placement and the pairs, so the order need not be able to run. Raises
    ScheduleError for an action that occurs twice and for costs that do not cover the order.

    >>> from stagescope.schedules.action import parse_action
    >>> actions = {rank: [parse_action(f"{kind}{rank}.{j}") for kind in "FB" for j in range(4)] for rank in range(2)}
    >>> lower_bound(actions).makespan_ns, lower_bound(actions).reason, lower_bound(actions).balanced_ns
    (15, 'rank 1', 12)
    """
    index = index_actions(order)
    durations_ns = _durations(
        order, action_costs(costs, index.stages, index.microbatches), index.microbatches
    )
    chains = _Chains(index, durations_ns, link_costs(costs, index.stages).least_ns)
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
        # The optimizer step of the rank and its tail on other ranks run at the same time.
        after_ns = max(min(tails, default=0), own_ns[rank])
        ranks[rank] = RankBound(min(heads, default=0), work_ns, after_ns)
        total_work_ns += work_ns + optimizer_ns[rank]
    longest_ns = max((chain_ns, *(bound.total_ns for bound in ranks.values())))
    balanced_ns = -(-total_work_ns // len(order)) if order else 0
    return LowerBound(longest_ns + joint_ns, ranks, chain_ns, joint_ns, balanced_ns)


class _Durations(NamedTuple):
    """One time per (stage, micro-batch) for each sort of action; 0 where the order lacks the action."""

    forward: list[int]
    backward: list[int]
    weight: list[int]

    @property
    def by_kind(self) -> dict[str, list[int]]:
        """The list of each kind: B and I share one, since an order has either of them in one place."""
        return {"F": self.forward, "B": self.backward, "I": self.backward, "W": self.weight}


def _durations(order: Order, costs: ActionCosts, width: int) -> _Durations:
    """Return the duration of every action of an order; both parts of a pair last as long as the pair."""
    cells = len(costs.forward)
    durations_ns = _Durations([0] * cells, [0] * cells, [0] * cells)
    by_kind = durations_ns.by_kind
    cost_ns = {
        "F": costs.forward,
        "B": costs.backward,
        "I": costs.backward_input,
        "W": costs.backward_weight,
    }
    for actions in order.values():
        for action in actions:
            parts = [(part.kind, part.stage * width + part.microbatch) for part in action.parts]
            # The cost of a pair is looked up at its first part, as in the simulation.
            together_ns = costs.overlapped[parts[0][1]] if action.partner else None
            if together_ns is None:
                together_ns = _sum([cost_ns[kind][cell] for kind, cell in parts])
            if together_ns is None:
                raise ScheduleError.no_cost(str(action))
            for kind, cell in parts:
                by_kind[kind][cell] = together_ns
    return durations_ns


def _sum(amounts: Cells) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _optimizer_ns(order: Order, costs: Costs, stages: int) -> dict[int, int]:
    """Return per rank the optimizer time of all stages whose weight gradients it computes."""
    cost_ns = per_stage("optimizer", costs.optimizer, stages)
    return {
        rank: sum(
            cost_ns[stage]
            for stage in {part.stage for action in actions for part in action.parts if part.kind in "BW"}
        )
        for rank, actions in order.items()
    }


class _Chains:
    """The longest chains before and after every action, from the dependency rule alone: no order is needed."""

    def __init__(self, index: ActionIndex, durations_ns: _Durations, message_ns: list[int]) -> None:
        self.index = index
        self.width = index.microbatches
        self.durations_ns = durations_ns.by_kind
        self.message_ns = message_ns
        cells = len(index.forward)
        self.heads_ns = _Durations([0] * cells, [0] * cells, [0] * cells).by_kind
        self.tails_ns = _Durations([0] * cells, [0] * cells, [0] * cells).by_kind
        # Producers before consumers: forwards down the model, backwards up the model, then weight gradients.
        walk = (("F", range(cells)), ("B", range(cells - 1, -1, -1)), ("W", range(cells)))
        # Within a kind, inputs of the same stage are complete before the pass over the stages carries them on.
        rules = sorted(RULES, key=lambda rule: rule.crosses_stages)
        for kind, cells_of_kind in walk:
            for rule in rules:
                if kind in rule.consumers:
                    self._extend_heads(kind, rule, cells_of_kind)
        for kind, cells_of_kind in reversed(walk):
            for rule in rules:
                if kind in rule.producers:
                    self._extend_tails(kind, rule, cells_of_kind[::-1])

    def around(self, action: Action) -> tuple[int, int, int]:
        """Return head, cost and tail of an action in nanoseconds."""
        parts = [(part.kind, part.stage * self.width + part.microbatch) for part in action.parts]
        heads, costs, tails = (
            [tables[kind][cell] for kind, cell in parts]
            for tables in (self.heads_ns, self.durations_ns, self.tails_ns)
        )
        return max(heads), costs[0], max(tails)

    def _extend_heads(self, kind: str, rule: Rule, cells: range) -> None:
        """Let the actions of a kind start no earlier than their inputs by one rule."""
        producer = rule.producers[0]
        own_ns, before_ns, lasting_ns = (
            self.heads_ns[kind],
            self.heads_ns[producer],
            self.durations_ns[producer],
        )
        message_ns = self._messages(rule)
        offset = rule.stage_offset * self.width
        for cell in cells:
            other = cell + offset
            if 0 <= other < len(own_ns):
                head_ns = before_ns[other] + lasting_ns[other] + message_ns[cell]
                own_ns[cell] = max(own_ns[cell], head_ns)

    def _extend_tails(self, kind: str, rule: Rule, cells: range) -> None:
        """Let the actions of a kind be followed by their consumers by one rule."""
        consumer = rule.consumers[0]
        own_ns, after_ns, lasting_ns = (
            self.tails_ns[kind],
            self.tails_ns[consumer],
            self.durations_ns[consumer],
        )
        message_ns = self._messages(rule)
        offset = -rule.stage_offset * self.width
        for cell in cells:
            other = cell + offset
            if 0 <= other < len(own_ns):
                tail_ns = message_ns[other] + lasting_ns[other] + after_ns[other]
                own_ns[cell] = max(own_ns[cell], tail_ns)

    def _messages(self, rule: Rule) -> list[int]:
        """Return per consumer what the message that brings its input by one rule costs, 0 within a rank."""
        ranks = self.index.by_kind[rule.consumers[0]]
        costs_ns = [0] * len(ranks)
        if not rule.crosses_stages or not any(self.message_ns):
            return costs_ns
        offset = rule.stage_offset * self.width
        for cell, rank in enumerate(ranks):
            other = cell + offset
            if 0 <= other < len(ranks) and NO_RANK not in (rank, ranks[other]) and rank != ranks[other]:
                costs_ns[cell] = self.message_ns[min(cell, other) // self.width]
        return costs_ns
