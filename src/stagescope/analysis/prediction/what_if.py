"""Predicted step times under changes.

Changes of costs are replayed in the measured order. The launch delay of every action, its start minus the time at
which it could have started, stays as measured, so that a replay without changes gives exactly the measured step. The
gain of a change is the difference between the two replays. Another schedule changes the order and cannot be replayed:
both it and the measured order are simulated with the same mean costs, and the gain is the difference between the two
simulations. What no simulation models, such as jitter and reductions inside of a step, is then missing on both sides.

A pipeline that waits for its replicas in a reduction would do so for another time if they were faster. These waits are
left out of all replays, with and without a change: the pipeline that the others wait for sets the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.measured_order import measured_order
from stagescope.analysis.graph.pair_shares import share_pairs
from stagescope.analysis.graph.replay import ready_times, replay_ranks
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.action_classes import find_action_classes
from stagescope.analysis.idle.action_costs import split_durations
from stagescope.analysis.prediction.changes import EqualStages, FreeTransfers, OtherSchedule, Slower
from stagescope.analysis.prediction.mean_costs import find_mean_costs
from stagescope.analysis.prediction.other_schedule import MeasuredOrder, Saving, simulate_mean_saving
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.prediction.changes import Change, Combination
    from stagescope.analysis.prediction.mean_costs import MeanCosts
    from stagescope.analysis.prediction.slow_devices import SlowDevice
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.schedules.action import Order

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

WHAT_IF = Table(
    "what if",
    "one change, or several made together, and the predicted step time",
    (),
    (
        Column("change", pl.String, "", "What is changed."),
        Column(
            "measured_step_ns", pl.Float64, "ns", "Mean over the steps of the longest window of a pipeline."
        ),
        Column(
            "predicted_step_ns",
            pl.Float64,
            "ns",
            "The same with the change; null: not known.",
            nullable=True,
        ),
        Column(
            "gain_ns",
            pl.Float64,
            "ns",
            "Measured minus predicted; negative: the step would take longer.",
            nullable=True,
        ),
        Column("gain_fraction", pl.Float64, "", "gain_ns / measured_step_ns.", nullable=True),
        Column("method", pl.String, "", "replay of the measured order, or simulation of another schedule."),
        Column(
            "condition",
            pl.String,
            "",
            "What the prediction assumes beyond the measurement, as a clause with if; empty: nothing.",
        ),
        Column("note", pl.String, "", "How it was predicted, or why it is unknown.", nullable=True),
    ),
)


IMPOSSIBLE = "timestamps contradict the order of the actions"
"""Why a prediction is unknown, if clocks or labels are wrong, or it would be zero or less."""


class WhatIf(NamedTuple):
    """The table WHAT_IF, one row per combination in the given order, and diagnostics of the measured actions."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def predict_steps(
    actions: Actions,
    combinations: Sequence[Combination],
    steps: Collection[int] | None = None,
    basis: ReplayBasis | None = None,
    devices: Sequence[SlowDevice] = (),
) -> WhatIf:
    """Return the predicted mean step time for each combination of changes, over `steps` or all steps.

    `basis` is what find_replay_basis returns for these actions; None: it is computed here. `devices` are slow ones,
    which conditions of other schedules name. A prediction that cannot be made is null, with the reason in `note`.
    Raises ScheduleError for an unknown schedule, and for one that does not support the measured numbers of ranks and
    micro-batches.
    """
    basis = basis or find_replay_basis(actions)
    measured = measure_replays(actions, basis, steps)
    step_ns = measured.step_ns(measured.groups.window_ns(actions.table))
    rows = []
    for combination in combinations:
        duration_ns, lag_ns = measured.changed(combination)
        schedules = [change.name for change in combination if isinstance(change, OtherSchedule)]
        unknown = next(filter(None, map(measured.why_unknown, combination)), None)
        if unknown:
            saving = Saving(None, unknown)
        elif schedules:
            saving = measured.simulated_saving(schedules[-1], duration_ns, lag_ns, devices)
        else:
            saving = Saving(measured.base_ns - measured.replayed_ns(duration_ns, lag_ns), "")
        if actions.is_contradictory or (saving.saved_ns or 0) >= step_ns > 0:
            saving = Saving(None, IMPOSSIBLE)
        gain_ns = saving.saved_ns
        rows.append({
            "change": "; ".join(map(str, combination)),
            "measured_step_ns": step_ns,
            "predicted_step_ns": None if gain_ns is None else step_ns - gain_ns,
            "gain_ns": gain_ns,
            "gain_fraction": None if gain_ns is None or not step_ns else gain_ns / step_ns,
            "method": "simulation" if schedules else "replay",
            "condition": saving.condition,
            "note": saving.note or None,
        })  # fmt: skip
    return WhatIf(pl.DataFrame(rows, schema=dict(WHAT_IF.schema)), basis.diagnostics)


@dataclass(frozen=True)
class Measured:
    """The measurement in the form in which it is replayed; `counted` marks the steps that count.

    `duration_ns` are the durations of actions, without waits for replicas. `launch_delay_ns` is how long after it could
    have started each action did, for whatever reason but waits for replicas; `reduction_ns` is the part of it in which
    its rank waited for a reduction. `lag_ns` are the lags of
    replays, as measured, without waits for replicas.
    """

    actions: Actions
    plan: ReplayPlan
    groups: StepGroups
    counted: pl.Series
    duration_ns: Floats
    launch_delay_ns: Floats
    reduction_ns: Integers
    lag_ns: Integers
    basis: ReplayBasis

    def step_ns(self, makespan_ns: Floats | Integers) -> float:
        """Return the mean makespan of the longest pipeline over the counted steps; 0 without steps."""
        steps = self.groups.steps.with_columns(makespan_ns=makespan_ns).filter(self.counted)
        longest = steps.group_by("step", maintain_order=True).agg(pl.max("makespan_ns"))["makespan_ns"]
        return float(longest.sum()) / max(len(longest), 1)

    def replayed_ns(self, duration_ns: Floats, lag_ns: Floats | Integers) -> float:
        """Return the same for a replay; launch delays stay as measured."""
        return self.step_ns(
            self.groups.last_of_ranks(replay_ranks(self.plan, duration_ns + self.launch_delay_ns, lag_ns))
        )

    @cached_property
    def base_ns(self) -> float:
        """The same for the replay without changes; cached, because every change is compared with it."""
        return self.replayed_ns(self.duration_ns, self.lag_ns)

    def why_unknown(self, change: Change) -> str | None:
        """Return why a change cannot be predicted; None if it can."""
        if isinstance(change, FreeTransfers) and not self.actions.has_transfers:
            return "transfers were not recorded, so their time is unknown"
        if not isinstance(change, Slower) or not change.selectors:
            return None
        counted = self.counted.to_numpy()[self.groups.step_of_action()]
        has_any = _share(self.actions, change)[counted].any()
        return None if has_any else "no counted action has that stage, rank or kind"

    def changed(self, combination: Combination) -> tuple[Floats, Floats | Integers]:
        """Return the durations of actions and transfers after applying the changes in order."""
        duration_ns, lag_ns = self.duration_ns, self.lag_ns
        for change in combination:
            if isinstance(change, Slower):
                duration_ns = duration_ns * (1 + (change.factor - 1) * _share(self.actions, change))
            elif isinstance(change, EqualStages):
                duration_ns = duration_ns * _balance(self.actions, duration_ns)
            elif isinstance(change, FreeTransfers):
                duration_ns = duration_ns - self.actions.inner.reduction_ns
                lag_ns = self.basis.unblocked(self.basis.free_ns)
        return duration_ns, lag_ns

    def simulated_saving(
        self, name: str, duration_ns: Floats, lag_ns: Floats | Integers, devices: Sequence[SlowDevice] = ()
    ) -> Saving:
        """Return what a schedule with changed costs saves compared with the measured order."""
        if not self.counted.any():
            return Saving(None, "no step is counted")
        as_measured = duration_ns is self.duration_ns and lag_ns is self.lag_ns
        after = self.mean_costs if as_measured else self._mean_costs(duration_ns, lag_ns)
        return simulate_mean_saving(self.orders, self.mean_costs, after, name, devices)

    @property
    def order(self) -> Order:
        """The order of most counted steps."""
        return self.orders[0].order

    @cached_property
    def orders(self) -> list[MeasuredOrder]:
        """The order of the first counted step of each size, those of most steps first.

        Steps with as many micro-batches and the same kinds of actions are assumed to have the same order.
        """
        steps = self.groups.steps.with_row_index("group").filter(self.counted)
        steps = steps.unique("step", keep="first", maintain_order=True)
        sizes = pl.DataFrame(
            {"group": self.groups.step_of_action()}, schema={"group": pl.UInt32}
        ).with_columns(self.actions.table.select("microbatch", "kind"))
        sizes = sizes.group_by("group").agg(pl.col("microbatch", "kind").n_unique())
        every = steps.join(sizes, on="group", maintain_order="left")
        firsts = every.group_by("microbatch", "kind", maintain_order=True).agg(
            pl.first("pipeline", "step"), share=pl.len() / every.height
        )
        return [
            MeasuredOrder(measured_order(self.actions, pipeline, step), share)
            for pipeline, step, share in firsts.sort("share", descending=True, maintain_order=True)
            .select("pipeline", "step", "share")
            .iter_rows()
        ]

    @cached_property
    def mean_costs(self) -> MeanCosts:
        """The measured mean costs; cached, because every simulated schedule needs them."""
        return self._mean_costs(self.duration_ns, self.lag_ns)

    def mean_costs_without(self, ranks: Collection[int], rows: Collection[int] = ()) -> MeanCosts:
        """Return the measured mean costs without these ranks and actions, by `row`, where others ran the same stage."""
        if not ranks and not rows:
            return self.mean_costs
        table = self.actions.table
        kept = (~(table["rank"].is_in(list(ranks)) | table["row"].is_in(list(rows)))).to_numpy()
        others = self._mean_costs(self.duration_ns, self.lag_ns, kept)
        lasting_ns = {
            letter: {**each, **others.lasting_ns.get(letter, {})}
            for letter, each in self.mean_costs.lasting_ns.items()
        }
        return replace(self.mean_costs, lasting_ns=lasting_ns)

    def _mean_costs(
        self, duration_ns: Floats, lag_ns: Floats | Integers, kept: NDArray[np.bool_] | None = None
    ) -> MeanCosts:
        is_counted = self.counted.to_numpy()[self.groups.step_of_action()]
        if kept is not None:
            is_counted = is_counted & kept
        columns = {
            "duration_ns": duration_ns,
            "launch_delay_ns": self.launch_delay_ns - self.reduction_ns,
            "is_counted": is_counted,
        }
        travel_ns = self.basis.travel_ns if lag_ns is self.lag_ns else self.basis.free_ns
        travel_ns = travel_ns[: self.actions.needs.height]
        return find_mean_costs(self.actions, pl.DataFrame(columns), pl.Series(travel_ns))


def measure_replays(actions: Actions, basis: ReplayBasis, steps: Collection[int] | None) -> Measured:
    """Return the measurement as replays need it, to count `steps`, or all steps."""
    table = actions.table
    groups = group_actions(table)
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    first_ns = groups.first_start_ns(table)[groups.step_of_action()]
    # An action without a predecessor could have started when the step began.
    ready_ns = np.maximum(ready_times(basis.plan, end_ns, basis.lag_ns), first_ns)
    waits = actions.reductions.in_intervals(table["rank"], np.minimum(ready_ns, start_ns), start_ns)
    every = pl.Series([True]).new_from_index(0, groups.steps.height)
    return Measured(
        actions,
        basis.plan,
        groups,
        every if steps is None else groups.steps["step"].is_in(list(steps)),
        split_durations(actions).joined_ns.astype(np.float64),
        (np.maximum(start_ns - ready_ns, 0) - waits.replicas_ns).astype(np.float64),
        waits.reduction_ns,
        basis.without_replicas(basis.lag_ns),
        basis,
    )


def _share(actions: Actions, change: Slower) -> Floats:
    """Return the share of every action that a change applies to: 1, 0, or that of the matching action of a pair."""
    table = actions.table
    share: Floats = table.select(_matches(change)).to_series().cast(pl.Float64).to_numpy().copy()
    partners = actions.partners
    if len(partners):
        at = partners["action"].to_numpy()
        second = partners.with_columns(rank=table["rank"].gather(partners["action"]))
        matches = second.select(_matches(change)).to_series().to_numpy()
        first = share_pairs(actions)
        share[at] = share[at] * first + matches * (1 - first)
    return share


def _matches(change: Slower) -> pl.Expr:
    """Return an expression for whether a change applies to a row."""
    return pl.all_horizontal(
        pl.lit(value=True), *(pl.col(name) == value for name, value in change.selectors.items())
    ).alias("matches")


def _balance(actions: Actions, duration_ns: Floats) -> Floats:
    """Return the factor per action that makes all stages cost the same."""
    classes = find_action_classes(actions, duration_ns)
    same_kind = ["pipeline", "step", "kind", "partner_kind"]
    mean_ns, count = pl.col("mean_ns"), pl.col("action_count")
    over_stages_ns = (mean_ns * count).sum().over(same_kind) / count.sum().over(same_kind)
    factor = pl.when(mean_ns > 0).then(over_stages_ns / mean_ns).otherwise(1.0)
    factors: Floats = classes.table.select(factor).to_series().to_numpy()[classes.of_action]
    return factors
