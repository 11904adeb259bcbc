"""What if: how long a step would take if something about it were different.

Changes of costs are replayed in the measured order. The launch gap of every action (its start less the moment
at which it could have started) stays as it was, so that the replay without any change gives the measured step. What
a change saves is the difference between the two replays. Another schedule cannot be replayed: it and the measured
order are simulated with the same costs, and the difference of the two simulations is what it saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.measured_order import measured_order
from stagescope.analysis.graph.replay import ready_times, replay
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.action_classes import find_action_classes
from stagescope.analysis.prediction.mean_costs import find_mean_costs
from stagescope.analysis.prediction.other_schedule import Saving, simulate_saving
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.prediction.mean_costs import MeanCosts
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.schedules.action import Order

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

WHAT_IF = Table(
    "what if",
    "one assumption, and the step time that it gives",
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
            "The same under the assumption; null: not known.",
            nullable=True,
        ),
        Column(
            "gain_ns",
            pl.Float64,
            "ns",
            "Measured less predicted; negative: it would take longer.",
            nullable=True,
        ),
        Column("gain_fraction", pl.Float64, "", "gain_ns / measured_step_ns.", nullable=True),
        Column("method", pl.String, "", "replay: of the measured order; simulation: of another schedule."),
        Column(
            "condition", pl.String, "", "What must hold for it and was not measured: if ...; empty: nothing."
        ),
        Column("note", pl.String, "", "How it was found, or why it is not known.", nullable=True),
    ),
)


class Slower(NamedTuple):
    """Actions take (1 + fraction) of their time: all, or those of one stage, rank or kind. Negative: faster.

    10 % faster is 10 % less time.
    """

    fraction: float
    stage: int | None = None
    rank: int | None = None
    kind: str | None = None

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in zip(self._fields[1:], self[1:], strict=True)
            if value is not None
        ]
        word = "slower" if self.fraction > 0 else "faster"
        return f"{' '.join(where) or 'everything'} {abs(100 * self.fraction):.3g} % {word}"


class Balanced(NamedTuple):
    """Every stage costs the mean over the stages, kind by kind; the spread around its mean stays in proportion."""

    def __str__(self) -> str:
        return "all stages equal"


class NoCommunication(NamedTuple):
    """Transfers take no time."""

    def __str__(self) -> str:
        return "transfers take no time"


class OtherSchedule(NamedTuple):
    """The actions run in another order, with the measured mean costs of every stage."""

    name: str

    def __str__(self) -> str:
        return f"schedule {self.name}"


Change = Slower | Balanced | NoCommunication | OtherSchedule
Assumption = tuple[Change, ...]
"""Changes that hold together."""


class WhatIf(NamedTuple):
    """The table WHAT_IF, a row per assumption in the order in which they were given, and what it does not rest on."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def predict_steps(
    actions: Actions,
    assumptions: Sequence[Assumption],
    steps: Collection[int] | None = None,
    basis: ReplayBasis | None = None,
) -> WhatIf:
    """Return how long the steps would take under each assumption, all steps counted unless `steps` says which.

    `basis` is what find_replay_basis returns for these actions (it is asked when None is given).
    A prediction is null where it cannot be made, and the note says why. Raises ScheduleError for a schedule that
    does not exist, or not for as many ranks and micro-batches as were measured.
    """
    basis = basis or find_replay_basis(actions)
    measured = _measure(actions, basis, steps)
    step_ns = measured.step_ns(measured.groups.window_ns(actions.table))
    base_ns = measured.replayed_ns(measured.duration_ns, measured.lag_ns)
    rows = []
    for assumption in assumptions:
        duration_ns, lag_ns = measured.changed(assumption)
        schedules = [change.name for change in assumption if isinstance(change, OtherSchedule)]
        nowhere = [change for change in assumption if not measured.has(change)]
        if nowhere:
            saving = Saving(None, "no action that counts is of that stage, rank or kind")
        elif schedules:
            saving = measured.simulated_saving(schedules[-1], duration_ns, lag_ns)
        else:
            saving = Saving(base_ns - measured.replayed_ns(duration_ns, lag_ns), "")
        gain_ns = saving.saved_ns
        rows.append({
            "change": "; ".join(map(str, assumption)),
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
class _Measured:
    """What was measured, in the form in which it is replayed; `counted` says which of the steps count."""

    actions: Actions
    plan: ReplayPlan
    groups: StepGroups
    counted: pl.Series
    duration_ns: Floats
    gap_ns: Floats
    lag_ns: Integers

    def step_ns(self, makespan_ns: Floats | Integers) -> float:
        """Return the mean over the counted steps of the longest of their pipelines; 0 without any."""
        steps = self.groups.steps.with_columns(makespan_ns=makespan_ns).filter(self.counted)
        longest = steps.group_by("step").agg(pl.max("makespan_ns"))["makespan_ns"]
        return float(longest.sum()) / max(len(longest), 1)

    def replayed_ns(self, duration_ns: Floats, lag_ns: Floats | Integers) -> float:
        """Return the same of a replay; launch gaps stay."""
        return self.step_ns(self.groups.makespan_ns(replay(self.plan, duration_ns + self.gap_ns, lag_ns)))

    def has(self, change: Change) -> bool:
        """Return whether a change concerns anything in the steps that count."""
        if not isinstance(change, Slower) or change == Slower(change.fraction):
            return True
        counted = self.counted.to_numpy()[self.groups.step_of_action()]
        return bool(_share(self.actions, change)[counted].any())

    def changed(self, assumption: Assumption) -> tuple[Floats, Floats | Integers]:
        """Return how long actions and transfers take once the changes of an assumption are made, in turn."""
        duration_ns, lag_ns = self.duration_ns, self.lag_ns
        for change in assumption:
            if isinstance(change, Slower):
                duration_ns = duration_ns * (1 + change.fraction * _share(self.actions, change))
            elif isinstance(change, Balanced):
                duration_ns = duration_ns * _balance(self.actions, duration_ns)
            elif isinstance(change, NoCommunication):
                lag_ns = np.minimum(lag_ns, 0)
        return duration_ns, lag_ns

    def simulated_saving(self, name: str, duration_ns: Floats, lag_ns: Floats | Integers) -> Saving:
        """Return what a schedule saves beside the measured order, at changed costs."""
        if not self.counted.any():
            return Saving(None, "no step counts")
        as_measured = duration_ns is self.duration_ns and lag_ns is self.lag_ns
        after = self.mean_costs if as_measured else self._mean_costs(duration_ns, lag_ns)
        return simulate_saving(self.order, self.mean_costs, after, name)

    @cached_property
    def order(self) -> Order:
        """The order of the first step that counts, which stands for all of them."""
        first = self.groups.steps.filter(self.counted).row(0, named=True)
        return measured_order(self.actions, first["pipeline"], first["step"])

    @cached_property
    def mean_costs(self) -> MeanCosts:
        """The mean costs as they were measured: other schedules are all simulated with them."""
        return self._mean_costs(self.duration_ns, self.lag_ns)

    def _mean_costs(self, duration_ns: Floats, lag_ns: Floats | Integers) -> MeanCosts:
        is_counted = self.counted.to_numpy()[self.groups.step_of_action()]
        columns = {"duration_ns": duration_ns, "gap_ns": self.gap_ns, "is_counted": is_counted}
        return find_mean_costs(self.actions, pl.DataFrame(columns), pl.Series(lag_ns))


def _measure(actions: Actions, basis: ReplayBasis, steps: Collection[int] | None) -> _Measured:
    table = actions.table
    groups = group_actions(table)
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    first_ns = groups.first_start_ns(table)[groups.step_of_action()]
    # Without anything before it an action could have started with the step.
    ready_ns = np.maximum(ready_times(basis.plan, end_ns, basis.lag_ns), first_ns)
    every = pl.Series([True]).new_from_index(0, groups.steps.height)
    return _Measured(
        actions,
        basis.plan,
        groups,
        every if steps is None else groups.steps["step"].is_in(list(steps)),
        (end_ns - start_ns).astype(np.float64),
        np.maximum(start_ns - ready_ns, 0).astype(np.float64),
        basis.lag_ns,
    )


def _share(actions: Actions, change: Slower) -> Floats:
    """Return what share of every action a change concerns: 1, 0, or half of a pair of which one action matches."""
    table = actions.table
    share: Floats = table.select(_matches(change)).to_series().cast(pl.Float64).to_numpy().copy()
    partners = actions.partners
    if len(partners):
        at = partners["action"].to_numpy()
        second = partners.with_columns(rank=table["rank"].gather(partners["action"]))
        share[at] = (share[at] + second.select(_matches(change)).to_series().to_numpy()) / 2
    return share


def _matches(change: Slower) -> pl.Expr:
    """Return whether a action is one that a change concerns."""
    asked = {
        name: value
        for name, value in (("stage", change.stage), ("rank", change.rank), ("kind", change.kind))
        if value is not None
    }
    return pl.all_horizontal(
        pl.lit(value=True), *(pl.col(name) == value for name, value in asked.items())
    ).alias("matches")


def _balance(actions: Actions, duration_ns: Floats) -> Floats:
    """Return by what the duration of every action is multiplied so that all stages cost the same."""
    classes = find_action_classes(actions, duration_ns)
    same_kind = ["pipeline", "step", "kind", "partner_kind"]
    mean_ns, count = pl.col("mean_ns"), pl.col("action_count")
    over_stages_ns = (mean_ns * count).sum().over(same_kind) / count.sum().over(same_kind)
    factor = pl.when(mean_ns > 0).then(over_stages_ns / mean_ns).otherwise(1.0)
    factors: Floats = classes.table.select(factor).to_series().to_numpy()[classes.of_action]
    return factors
