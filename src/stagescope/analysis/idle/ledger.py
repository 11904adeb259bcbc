"""The ledger: the time of every step as parts that sum to it to the nanosecond.

The measured order of every rank is replayed (`replay`) while one cause after the other is removed:

    T   the window: first start to last end of the actions of a pipeline in one step
    T11 measured durations, measured transfers, the explained delays of actions (delays.py), and what receivers did that
        began the step late, while others were blocked in sends to them (late_receivers.py)
    T10 no other work delays an action
    T9  no optimizer step, which reaches into this step from the one before, delays an action
    T8  no loading of data delays an action
    T7  no launch takes time
    T6  no send waits for its receiver, unless that still reduces the gradients of the step before: measured durations,
        transfers and reductions, and nothing else. If the sends
        of the run mostly waited for receivers, no send blocks its rank: with enough buffers, it would not
    TW  no rank waits in a reduction of gradients, or in a collective inside of an action, for the last replica
    T5  no gradients are reduced before a send or between two actions: measured durations and measured transfers
    T4  transfers take no time, no send blocks, and no action waits for a data-parallel collective inside of it, such
        as the gathering of its parameters
    T3  every action takes the mean of its class (rank, stage, kind; in this step) times the length of its micro-batch
    T2  every micro-batch has the same length, and every pipeline the same amount of data
    T1  every class takes the median over the pipelines that do the same work in this step
    T0  every kind takes the mean over the stages
    W   the mean over the ranks of their work at the costs of T1, which equals that at the costs of T0

    T = W  ideal work  +  (T0 - W) schedule bubble  +  (T1 - T0) stage imbalance  +  (T2 - T1) straggler
        + (T3 - T2) data imbalance  +  (T4 - T3) jitter  +  (T5 - T4) exposed communication
        + (TW - T5) gradient reduction  +  (T6 - TW) data-parallel wait  +  (T7 - T6) blocked on send
        +  (T8 - T7) launch overhead  +  (T9 - T8) data loading  +  (T10 - T9) optimizer
        + (T11 - T10) other work  +  (T - T11) unattributed

Without transfers a replay is never longer, so exposed communication is never negative. Jitter, data imbalance, stage
imbalance and straggler can be: a step whose long actions happened to be where nothing waited is shorter than one of
mean durations. Their sign is kept. The order of removal matters, and it is fixed. Unattributed is everything that a
replay does not model: delays for which nothing was recorded, and transfers and actions that were not recorded.

The idle time of rank r is divided in the same way, each part minus what that cause changes in the rank's own work: (T0
- w0) + (T1 - T0 - w1 + w0) + (T2 - T1 - w2 + w1) + ..., where w is its work at the costs of a replay. A slow rank
therefore has a negative straggler and imbalance part, because the others wait for it, and the parts sum to its idle
time. Their mean over the ranks is the idle ledger of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay_ranks
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.action_classes import FEWEST_PEERS
from stagescope.analysis.idle.action_costs import find_action_costs, split_durations
from stagescope.analysis.idle.losses import Between, measure_step_losses
from stagescope.analysis.idle.origins import ORIGINS, find_origins, list_removals
from stagescope.analysis.idle.removal_orders import REMOVAL_ORDERS, find_removal_orders
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import reduced, united_rows
from stagescope.model.lazy import parts_of
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import CAUSE_COLUMNS, CAUSES, MAY_BE_UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.idle.action_classes import ActionClasses
    from stagescope.analysis.idle.action_costs import ActionCosts, Durations
    from stagescope.analysis.idle.delays import Delays

    Integers = NDArray[np.int64]
    Times = NDArray[np.float64] | NDArray[np.int64]

DENOMINATOR = "window: first start to last end of the pipeline's actions, per step"

LEDGER = Table(
    "ledger",
    "one step of one pipeline; ideal_work_ns and the causes sum to window_ns",
    ("pipeline", "step"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("ranks", pl.UInt32, "", "Ranks of the pipeline with an action in the step."),
        Column(
            "peers",
            pl.UInt32,
            "",
            "Pipelines that do the same work in this step, itself included; 1: stragglers cannot be measured.",
        ),
        Column(
            "window_ns",
            pl.Int64,
            "ns",
            "First start to last end of the actions: the denominator of all fractions.",
        ),
        Column("ideal_work_ns", pl.Int64, "ns", "Mean work of a rank at the costs of its peers."),
        *(
            Column(cause.column, pl.Int64, "ns", cause.meaning, nullable=cause.column in MAY_BE_UNRECORDED)
            for cause in CAUSES
        ),
        Column(
            "busy_ns",
            pl.Int64,
            "ns",
            "Mean measured work of a rank; window_ns - busy_ns is the mean idle time.",
        ),
        Column(
            "straggler_idle_ns",
            pl.Int64,
            "ns",
            "Part of straggler_ns that is idle time, as the mean over the ranks.",
        ),
    ),
)

IDLE_LEDGER = Table(
    "idle ledger",
    "one rank in one step; the causes sum to idle_ns",
    ("pipeline", "step", "rank"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("window_ns", pl.Int64, "ns", "Window of the pipeline: the denominator."),
        Column("busy_ns", pl.Int64, "ns", "Sum of its actions; in a report, all compute (other_compute.py)."),
        Column("idle_ns", pl.Int64, "ns", "window_ns - busy_ns."),
        *(Column(cause.column, pl.Int64, "ns", cause.meaning) for cause in CAUSES),
    ),
)  # fmt: skip


PEERS = 3
"""The place of the costs of peers among the costs of the replays."""


@dataclass(frozen=True)
class Ledger:
    """The tables LEDGER, IDLE_LEDGER, ORIGINS and REMOVAL_ORDERS, and diagnostics about what they could not attribute.

    `losses` has the same rows and columns as the table LEDGER, with causes removed in the order of losses.py; `orders`
    is REMOVAL_ORDERS. `classes` and `delays` are what the costs of the replays were made of, for all actions.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    losses: pl.DataFrame
    origins: pl.DataFrame
    orders: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    classes: ActionClasses
    delays: Delays

    @cached_property
    def members(self) -> pl.DataFrame:
        """The ranks of each pipeline: rank and pipeline. Of a large run, `ranks` is read from files for it, once."""
        return united_rows(parts_of(self, "ranks"), ["rank", "pipeline"]).sort("rank", "pipeline")

    @cached_property
    def summed_origins(self) -> pl.DataFrame:
        """The table ORIGINS summed over all steps: without step. Of a large run, it is read from files for it, once."""
        keys = [name for name in ORIGINS.names if name not in ("step", "added_ns")]
        added = pl.sum("added_ns")
        return reduced(parts_of(self, "origins"), lambda rows: rows.group_by(keys).agg(added)).sort(keys)


def build_ledger(
    actions: Actions,
    basis: ReplayBasis | None = None,
    spans: pl.DataFrame | None = None,
    costs: ActionCosts | None = None,
    *,
    with_origins: bool = False,
) -> Ledger:
    """Return the ledger of every pipeline and step, and the idle ledger of every rank.

    `basis` is from find_replay_basis for these actions; None: it is computed here. `spans` are those of the run, which
    show why an action was delayed; without them a delay is launch overhead or unattributed. Only other pipelines in
    the same step can separate a straggler from stage imbalance: with a single pipeline its part is 0, and a diagnostic
    states it. Transfers that were not recorded count as taking no time. `costs` are from find_action_costs; None: they
    are found here. Unless asked for, the tables of origins and orders are empty and the losses are those of the ledger.
    """
    table, measured = actions.table, split_durations(actions)
    groups = group_actions(table)
    basis = basis or find_replay_basis(actions)
    classes, delays, usual = costs or find_action_costs(actions, basis, spans)
    costs_ns: list[Times] = [measured.computing_ns, classes.fitted_ns()]
    costs_ns += [classes.costs_ns(name) for name in ("balanced_ns", "peer_ns", "stage_ns")]
    *delayed, prompt, joined, apart = _delayed(measured, delays)
    replays = [ReplayCosts(*each) for each in zip(delayed, _delayed_lags(basis), strict=True)]
    replays += [ReplayCosts(prompt, basis.prompt_ns), ReplayCosts(joined, basis.joined_ns)]
    replays += [ReplayCosts(apart, basis.apart_ns)]
    replays += [ReplayCosts(cost_ns, basis.free_ns) for cost_ns in costs_ns]
    spans_ns = [groups.window_ns(table), *_replayed(basis, groups, replays)]
    works_ns = _works_ns(groups, [*measured[:2], *costs_ns])
    peers = classes.table.group_by("pipeline", "step", maintain_order=True).agg(pl.min("peers"))
    steps = groups.steps.with_columns(peers=peers["peers"])
    steps = _with_causes(steps, spans_ns).with_columns(
        window_ns=spans_ns[0],
        ideal_work_ns=_whole(groups.mean_over_ranks(groups.work_ns(costs_ns[PEERS]))),
        busy_ns=_whole(groups.mean_over_ranks(works_ns[0])),
    )
    steps = steps.with_columns(schedule_bubble_ns=pl.col("schedule_bubble_ns") - pl.col("ideal_work_ns"))
    diagnostics = (*basis.diagnostics, *_peer_diagnostics(steps))
    ranks = _idle_ledger(groups, spans_ns, works_ns)
    steps = _with_straggler_idle(steps).select(LEDGER.names)
    origins, orders, losses = ORIGINS.empty(), REMOVAL_ORDERS.empty(), steps
    if with_origins:
        delayed_ns = (apart - measured.computing_ns, delays.gradient_reduction_ns)
        between = Between(measured.computing_ns, *delayed_ns, spans_ns[-len(costs_ns) - 2], spans_ns[-1])
        losses = steps.with_columns(measure_step_losses(basis, groups, classes, between))
        every = ReplayCosts(replays[0].duration_ns + delays.unexplained_ns, basis.lag_ns)
        removals = list_removals([every, *replays], spans_ns)
        origins = find_origins(actions, basis, groups, removals, usual.receivers)
        orders = find_removal_orders(basis.plan, groups, removals, replays)
    return Ledger(steps, ranks, losses, origins, orders, diagnostics, classes, delays)


def _works_ns(groups: StepGroups, costs: Sequence[Times]) -> list[Integers]:
    """Return the work of every rank in every step at these costs; the same costs are summed once."""
    found: list[Integers] = []
    for number, cost_ns in enumerate(costs):
        same = number and cost_ns is costs[number - 1]
        found.append(found[-1] if same else _whole(groups.work_ns(cost_ns)))
    return found


def _delayed(measured: Durations, delays: Delays) -> list[Integers]:
    """Return the durations with all explained delays, and with fewer and fewer of them, the last cause first."""
    wait_ns = delays.data_parallel_wait_ns
    if measured.joined_ns is not measured.measured_ns:
        wait_ns = wait_ns + measured.measured_ns - measured.joined_ns
    kept = [measured.joined_ns + delays.sends_ns if delays.sends_ns.any() else measured.joined_ns]
    for delay_ns in (
        delays.gradient_reduction_ns,
        wait_ns,
        delays.blocked_on_send_ns,
        delays.launch_overhead_ns,
        delays.data_loading_ns,
        delays.optimizer_ns,
        delays.other_work_ns,
    ):
        # Most runs have few of these causes: the same durations take no memory and are not replayed again.
        kept.append(kept[-1] + delay_ns if delay_ns.any() else kept[-1])
    return kept[::-1]


def _delayed_lags(basis: ReplayBasis) -> list[Integers]:
    """Return the measured lags without what late receivers did, for the first of these durations."""
    explained = basis.without_late(basis.lag_ns, "unattributed")
    no_other = basis.without_late(explained, "other_work")
    no_optimizer = basis.without_late(no_other, "optimizer")
    no_loading = basis.without_late(no_optimizer, "data_loading")
    return [explained, no_other, no_optimizer, no_loading, no_loading]


def _replayed(basis: ReplayBasis, groups: StepGroups, replays: Sequence[ReplayCosts]) -> list[Integers]:
    """Return the length of every step in every replay. Equal consecutive replays run once."""
    found: list[Integers] = []
    before: ReplayCosts | None = None
    for costs in replays:
        if before is not None and before.lag_ns is costs.lag_ns and _is_same(before[0], costs[0]):
            found.append(found[-1])
        else:
            found.append(_whole(groups.last_of_ranks(replay_ranks(basis.plan, *costs))))
        before = costs
    return found


def _is_same(first: Times, second: Times) -> bool:
    return first is second or np.array_equal(first, second)


def _whole(times: NDArray[np.float64] | Integers) -> Integers:
    whole: Integers = np.rint(times).astype(np.int64)
    return whole


def _with_causes(frame: pl.DataFrame, totals_ns: Sequence[Integers]) -> pl.DataFrame:
    """Return a frame with the causes as columns, given the totals that remain while they are removed, last cause first.

    The schedule bubble, which cannot be removed, is what remains at the end.
    """
    *removed, left = [
        *(before - after for before, after in pairwise(totals_ns)),
        totals_ns[-1],
    ]
    return frame.with_columns(
        pl.Series(name, part, dtype=pl.Int64)
        for name, part in zip(CAUSE_COLUMNS, [left, *reversed(removed)], strict=True)
    )


def _idle_ledger(
    groups: StepGroups, spans_ns: Sequence[Integers], works_ns: Sequence[Integers]
) -> pl.DataFrame:
    """Return the idle time of every rank by cause: the time of each replay in which the rank does not work."""
    # Until waits for replicas are removed, all totals have the measured durations; then two are without these waits.
    measured, joined, *without = works_ns
    works_ns = [*[measured] * (len(spans_ns) - len(without) - 2), joined, joined, *without]
    step = groups.step_of_rank
    idle_ns = [span_ns[step] - work_ns for span_ns, work_ns in zip(spans_ns, works_ns, strict=True)]
    return (
        _with_causes(groups.ranks, idle_ns)
        .with_columns(window_ns=spans_ns[0][step], busy_ns=works_ns[0], idle_ns=idle_ns[0])
        .select(IDLE_LEDGER.names)
    )


def _with_straggler_idle(steps: pl.DataFrame) -> pl.DataFrame:
    more_work_ns = pl.col("busy_ns") - pl.col("ideal_work_ns")
    return steps.with_columns(straggler_idle_ns=pl.col("straggler_ns") - more_work_ns)


def _peer_diagnostics(steps: pl.DataFrame) -> list[Diagnostic]:
    alone = int((steps["peers"] < FEWEST_PEERS).sum())
    if not alone:
        return []
    message = (
        "no data-parallel replicas: a slow device cannot be distinguished from a slow stage "
        "and is counted as stage imbalance"
    )
    return [Diagnostic("info", message, count=alone, code="replicas.none")]
