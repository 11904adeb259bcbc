"""Orders of the theory as arrays, so that a step is simulated under many assumptions at once.

`schedules.simulate` runs one order with one set of costs. Here an order becomes a replay plan, and every column of the
costs is one assumption or one measured step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.actions import PARTNERS, Actions
from stagescope.analysis.graph.blocking_sends import no_blocking_sends
from stagescope.analysis.graph.replay import plan_replay, replay
from stagescope.schedules.dependencies import RULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.schedules.action import Order

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

LETTERS = "FBIW"
NONE = -1


class OrderCosts(NamedTuple):
    """Costs of an order; the last axis of every array is one assumption or one step.

    `actions` has a value per letter of LETTERS, stage and micro-batch (4 x stages x micro-batches), `hops` one per link
    between a stage and the next. `pairs` has the costs of overlapped pairs by the stage and micro-batch of their first
    part; None: the sum of their parts.
    """

    actions: Floats
    hops: Floats
    pairs: Floats | None = None


@dataclass(frozen=True)
class PlannedOrder:
    """An order as arrays. `action`, `letter`, `stage` and `microbatch` have one value per part, first parts first.

    `rank` is the position of the rank in the order, per action. `links` has the earlier stage of the two ends of every
    need; its hop counts where `is_remote`.
    """

    rank: Integers
    action: Integers
    letter: Integers
    stage: Integers
    microbatch: Integers
    links: Integers
    is_remote: NDArray[np.bool_]
    plan: ReplayPlan

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.rank[-1]) + 1

    @cached_property
    def stages(self) -> int:
        """The number of stages."""
        return int(self.stage.max()) + 1

    @cached_property
    def microbatches(self) -> int:
        """The number of micro-batches."""
        return int(self.microbatch.max()) + 1

    @cached_property
    def letters(self) -> frozenset[str]:
        """The kinds of actions in it."""
        return frozenset(LETTERS[code] for code in np.unique(self.letter))

    @property
    def has_pairs(self) -> bool:
        """Whether any action is an overlapped pair."""
        return len(self.action) > len(self.rank)

    @property
    def can_run(self) -> bool:
        """Whether no two actions wait for each other."""
        return not self.plan.diagnostics

    @cached_property
    def rank_of_cell(self) -> Integers:
        """The rank that runs the forward of every stage and micro-batch, NONE if there is none."""
        found = np.full((self.stages, self.microbatches), NONE, dtype=np.int64)
        is_forward = self.letter == LETTERS.index("F")
        found[self.stage[is_forward], self.microbatch[is_forward]] = self.rank[self.action[is_forward]]
        return found

    def makespans_ns(self, costs: OrderCosts) -> Floats:
        """Return the length of the step for every column of the costs."""
        lags = costs.hops[self.links] * self.is_remote[:, None]
        ends = replay(self.plan, self._durations(costs), lags)
        longest: Floats = ends.max(axis=0)
        return longest

    def works_ns(self, costs: OrderCosts) -> Floats:
        """Return the sum of the actions of every rank, per column of the costs."""
        work = np.zeros((self.ranks, costs.actions.shape[-1]))
        np.add.at(work, self.rank, self._durations(costs))
        return work

    def _durations(self, costs: OrderCosts) -> Floats:
        count = len(self.rank)
        durations: Floats = costs.actions[self.letter, self.stage, self.microbatch]
        lasting: Floats = durations[:count].copy()
        second = self.action[count:]
        if len(second):
            if costs.pairs is None:
                lasting[second] += durations[count:]
            else:
                lasting[second] = costs.pairs[self.stage[second], self.microbatch[second]]
        return lasting


def plan_order(order: Order) -> PlannedOrder:
    """Return an order as arrays; ranks are numbered in its own order."""
    firsts: list[tuple[int, int, int, int]] = []
    seconds: list[tuple[int, int, int, int]] = []
    for position, actions in enumerate(order.values()):
        for kind, stage, microbatch, partner in actions:
            if partner is not None:
                seconds.append((len(firsts), LETTERS.index(partner.kind), partner.stage, partner.microbatch))
            firsts.append((position, LETTERS.index(kind), stage, microbatch))
    rank, *own = np.array(firsts, dtype=np.int64).reshape(-1, 4).T
    action, *others = np.array(seconds, dtype=np.int64).reshape(-1, 4).T
    parts = [np.concatenate(pair) for pair in zip(own, others, strict=True)]
    action = np.concatenate([np.arange(len(rank)), action])
    return _with_plan(rank, action, *parts)


def _with_plan(
    rank: Integers, action: Integers, letter: Integers, stage: Integers, microbatch: Integers
) -> PlannedOrder:
    width, stages = int(microbatch.max()) + 1, int(stage.max()) + 1
    consumers, producers, links = [], [], []
    for rule in RULES:
        made = np.full((stages, width), NONE, dtype=np.int64)
        makes = np.isin(letter, [LETTERS.index(kind) for kind in rule.producers])
        made[stage[makes], microbatch[makes]] = action[makes]
        needs = np.isin(letter, [LETTERS.index(kind) for kind in rule.consumers])
        there = stage + rule.stage_offset
        rows = np.flatnonzero(needs & (there >= 0) & (there < stages))
        producer = made[there[rows], microbatch[rows]]
        known = (producer != NONE) & (producer != action[rows])
        consumers.append(action[rows][known])
        producers.append(producer[known])
        links.append(np.minimum(stage, there)[rows][known])
    consumer = np.concatenate(consumers)
    sequence = np.argsort(consumer, kind="stable")
    consumer, producer = consumer[sequence], np.concatenate(producers)[sequence]
    is_remote = rank[consumer] != rank[producer]
    begins = np.flatnonzero(np.diff(rank, prepend=NONE))
    place = np.arange(len(rank)) - np.repeat(begins, np.diff([*begins, len(rank)]))
    needed = pl.DataFrame({"action": consumer, "needs": producer, "is_remote": is_remote})
    table = pl.DataFrame({"place": place, "start_ns": np.zeros(len(rank), dtype=np.int64)})
    plan = plan_replay(Actions(table, needed, PARTNERS.empty(), ()), no_blocking_sends())
    return PlannedOrder(
        rank, action, letter, stage, microbatch, np.concatenate(links)[sequence], is_remote, plan
    )
