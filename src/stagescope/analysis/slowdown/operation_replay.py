"""Replays of all operations of a step: its actions and transfers, and what ranks do before and after them.

A transfer takes the time since both ends had posted it. Where the receive was posted only after the action of the same
kind before it on its rank, it is in replays as well. Delays between the operations are not replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.blocking_sends import no_blocking_sends
from stagescope.analysis.graph.replay import NONE, Needs, plan_replay
from stagescope.analysis.graph.replay import replay as replay_actions
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.slowdown.operations import AFTER, BEFORE, OUT_OF_ORDER_NS, find_operations
from stagescope.model.messages import match_messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.slowdown.operations import Operations
    from stagescope.model import Timeline

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

PAIR = "overlapped pair"


class Costs(NamedTuple):
    """How long everything takes in nanoseconds: actions, the transfers of needs, and the operations of each slot."""

    actions_ns: Floats
    transfers_ns: Floats
    operations_ns: list[Floats]


@dataclass(frozen=True)
class OperationReplay:
    """The operations of some steps in the form in which they are replayed.

    `ranks` has a row per rank and step, in the order of the actions: step, rank, pipeline, place (of the rank in its
    pipeline). `needs_message` marks the needs whose transfer was recorded.
    """

    actions: Actions
    groups: StepGroups
    plan: ReplayPlan
    operations: Operations
    ranks: pl.DataFrame
    measured: Costs
    needs_message: NDArray[np.bool_]

    @cached_property
    def row_of_action(self) -> Integers:
        """The row of `ranks` of every action."""
        lengths = np.diff([*self.groups.first_of_rank, self.groups.actions])
        return np.repeat(np.arange(len(lengths)), lengths)

    @cached_property
    def row_of_need(self) -> Integers:
        """The row of `ranks` of the receiver of every need."""
        rows: Integers = self.row_of_action[self.actions.needs["action"].to_numpy()]
        return rows

    def step_ns(self, costs: Costs) -> float:
        """Return the mean length of the steps at some costs."""
        begin_ns = self.operations.ends_ns(BEFORE, np.zeros(self.ranks.height), costs.operations_ns)
        lags_ns = np.concatenate([costs.transfers_ns, begin_ns])
        ends_ns = replay_actions(self.plan, costs.actions_ns, lags_ns)
        last_ns = np.maximum.reduceat(ends_ns, self.groups.first_of_rank)
        over_ns = self.operations.ends_ns(AFTER, last_ns, costs.operations_ns)
        steps = self.ranks.select("step").with_columns(over_ns=over_ns)
        return float(steps.group_by("step", maintain_order=True).agg(pl.max("over_ns"))["over_ns"].mean())  # type: ignore[arg-type]


def prepare_operation_replay(timeline: Timeline, pipelines: pl.DataFrame) -> OperationReplay | None:
    """Return the replay of all steps of a timeline; None without actions. `pipelines` is from find_pipelines."""
    actions = find_actions(timeline, pipelines)
    if actions.table.is_empty():
        return None
    groups = group_actions(actions.table)
    ranks = _number_ranks(actions.table, groups)
    operations = find_operations(timeline.spans, ranks)
    transfers = _measure_transfers(actions, match_messages(timeline.spans))
    duration_ns = (actions.table["end_ns"] - actions.table["start_ns"]).to_numpy().astype(np.float64)
    costs = Costs(duration_ns, transfers.duration_ns, [slot.cost_ns for slot in operations.slots])
    plan = _with_posts_and_begins(plan_replay(actions, no_blocking_sends()), transfers, groups)
    return OperationReplay(actions, groups, plan, operations, ranks, costs, transfers.is_recorded)


def _number_ranks(table: pl.DataFrame, groups: StepGroups) -> pl.DataFrame:
    """Return the ranks of every step with their place in the pipeline: the order of their first stages."""
    first = table.group_by("rank").agg(pl.min("stage"))
    last_ns = np.maximum.reduceat(table["end_ns"].to_numpy(), groups.first_of_rank)
    first_ns = table["start_ns"].to_numpy()[groups.first_of_rank]
    return (
        groups.ranks.with_columns(first_ns=first_ns, last_ns=last_ns)
        .join(first, on="rank", how="left", maintain_order="left")
        # Both ranks of a bidirectional schedule hold the same stages.
        .with_columns(
            place=pl.struct("stage", "rank").rank("ordinal").over("step", "pipeline").cast(pl.Int32) - 1
        )
    )


class _Transfers(NamedTuple):
    """Per need: the time since both ends were posted, and the action after which the receive was posted (else -1)."""

    duration_ns: Floats
    is_recorded: NDArray[np.bool_]
    posted_after: Integers


def _measure_transfers(actions: Actions, messages: pl.DataFrame) -> _Transfers:
    table, needs = actions.table, actions.needs
    rank = table["rank"]
    keys = ["direction", "source", "target", "sent_ns"]
    posted = messages.group_by("direction", "source", "target", sent_ns="send_start_ns").agg(
        pl.min("recv_start_ns")
    )
    known = needs.select(
        "action",
        "sent_ns",
        "arrived_ns",
        pl.col("direction").cast(pl.String),
        source=rank.gather(needs["needs"]),
        target=rank.gather(needs["action"]),
    ).join(posted, on=keys, how="left", maintain_order="left")
    both_ns = pl.max_horizontal("sent_ns", "recv_start_ns")
    took_ns = pl.col("arrived_ns") - both_ns
    found = known.select(
        is_recorded=pl.col("recv_start_ns").is_not_null() & pl.col("arrived_ns").is_not_null(),
        duration_ns=pl.when(took_ns > -OUT_OF_ORDER_NS).then(took_ns).otherwise(0).fill_null(0),
        posted_ns=pl.col("recv_start_ns").fill_null(0),
    )
    before = _previous_of_kind(table)[needs["action"].to_numpy()]
    is_late = found["posted_ns"].to_numpy() >= table["end_ns"].to_numpy()[before]
    return _Transfers(
        found["duration_ns"].to_numpy().astype(np.float64),
        found["is_recorded"].to_numpy(),
        np.where((before >= 0) & is_late & found["is_recorded"].to_numpy(), before, NONE),
    )


def _previous_of_kind(table: pl.DataFrame) -> Integers:
    """Return the action of the same kind before each action on its rank in the step; -1 without one, and for pairs."""
    alone = pl.col("action").cast(pl.Int64).shift(1).over("pipeline", "step", "rank", "kind", "is_pair")
    before = pl.when(pl.col("is_pair")).then(None).otherwise(alone).fill_null(NONE)
    found: Integers = table.select(before).to_series().to_numpy()
    return found


def _with_posts_and_begins(plan: ReplayPlan, transfers: _Transfers, groups: StepGroups) -> ReplayPlan:
    """Return a plan in which receives wait to be posted, and the first action of each rank for what is before it.

    The lags of the plan are those of the needs, followed by one per rank and step.
    """
    count = len(plan.order)
    place = np.empty(count, dtype=np.int32)
    place[plan.order] = np.arange(count, dtype=np.int32)
    posts = []
    for needs in plan.needs:
        after = np.where(needs.row == NONE, NONE, transfers.posted_after[needs.row])
        producer = np.where(after == NONE, count, place[after]).astype(np.int32)
        posts.append(Needs(producer, np.where(after == NONE, NONE, needs.row).astype(np.int32)))
    rows = np.full(count, NONE, dtype=np.int32)
    rows[place[groups.first_of_rank]] = len(transfers.duration_ns) + np.arange(len(groups.first_of_rank))
    begins = Needs(np.full(count, count, dtype=np.int32), rows)
    return replace(plan, needs=(*plan.needs, *posts, begins))
