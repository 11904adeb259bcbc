"""Outlier actions: those that took far longer than the same work of the same rank usually does, and what they cost.

Durations are divided by the length of their micro-batch and compared with the median of their class: rank, stage and
kind, over all steps. The logarithm of an outlier is more than z deviations above that median, where the deviation is
1.4826 times the median absolute one, and z leaves one false outlier in 1000 runs of log-normal noise, however many
actions they have. It also takes at least 1.5 times as long as usual, and half a percent of its step longer. If a rank
is slow in a whole step, its actions in that step are compared with each other: a slow step is no outlier action. A
micro-batch that takes long on all ranks is data imbalance and no outlier either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from scipy.special import ndtri  # type: ignore[import-untyped]

from stagescope.analysis.graph.replay import ready_times, replay_ranks
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.usual_costs import FEWEST_ACTIONS, OUTLIER_RATIO
from stagescope.analysis.statistics.outlier_activities import name_activities_inside
from stagescope.model.tables import Column, KindType, Table

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups

OUTLIER_ACTIONS = Table(
    "outlier_actions",
    "one action that took far longer than usual, the largest excess first",
    (),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("stage", pl.Int32, "", "Global stage."),
        Column("kind", KindType, "", "Kind; of a pair, of its first action."),
        Column("microbatch", pl.Int32, "", "Micro-batch."),
        Column(
            "row",
            pl.UInt32,
            "",
            "Row in the spans of the run; null: the run was analyzed in ranges of steps.",
            nullable=True,
        ),
        Column("start_ns", pl.Int64, "ns", "Start."),
        Column("duration_ns", pl.Int64, "ns", "Duration, without waits for data-parallel collectives inside of it."),
        Column("usual_ns", pl.Float64, "ns", "What it usually takes, for the length of its micro-batch."),
        Column("excess_ns", pl.Float64, "ns", "duration_ns - usual_ns."),
        Column("deviations", pl.Float64, "", "Robust deviations of its logarithm above the median of its class."),
        Column(
            "cost_ns",
            pl.Int64,
            "ns",
            "How much longer it made the window of its step, without the larger ones of the step; null: it has eight.",
            nullable=True,
        ),
        Column(
            "activity",
            pl.String,
            "",
            "What the rank was recorded to do for at least half of the excess, such as a garbage collection.",
            nullable=True,
        ),
        Column("activity_ns", pl.Int64, "ns", "How long it did that within the action.", nullable=True),
    ),
)  # fmt: skip

FALSE_RUNS = 1e-3
"""Share of runs of nothing but noise in which an outlier is found."""

LEAST_STEP_FRACTION = 0.005
FEWEST_OF_CLASS = 8
LEAST_DEVIATION = 0.01
"""Durations that hardly vary still have a resolution: the deviation of their logarithm counts as at least this."""

DEVIATION_OF_NORMAL = 1.4826
MOST_PER_STEP = 8
SHARED_FRACTION = 0.5
"""If the other ranks exceed what is usual by this fraction of the excess, the micro-batch is long and no outlier."""

CLASS = ["rank", "stage", "kind", "is_pair"]
CELL = ["pipeline", "step", "microbatch"]


class TimedActions(NamedTuple):
    """Actions, and the length of the micro-batch of each of them, relative to the mean."""

    actions: Actions
    lengths: NDArray[np.float64]

    def values(self, steps: Collection[int]) -> pl.LazyFrame:
        """Return the actions of some steps with duration_ns, length and value, the logarithm of their ratio."""
        duration_ns = pl.Series(self.actions.computing_ns())
        return (
            self.actions.table.lazy()
            .with_columns(duration_ns=duration_ns, length=pl.Series(self.lengths))
            .filter((pl.col("duration_ns") > 0) & pl.col("step").is_in(list(steps)))
            .with_columns(value=(pl.col("duration_ns") / pl.col("length")).log())
        )


class UsualDurations(NamedTuple):
    """How long the actions of a run usually take, and how many it has.

    `classes` has the columns of CLASS, middle and apart (the median of the logarithms, and of how far they are from
    it), and mean_ns, of classes with at least eight actions.
    """

    classes: pl.DataFrame
    actions: float


def learn_durations(timed: TimedActions, steps: Collection[int], ratio: float = 1.0) -> UsualDurations:
    """Return how long actions of `steps` usually take; the run has `ratio` times as many of them."""
    every = timed.values(steps)
    known = every.group_by(CLASS).agg(count=pl.len() * ratio, mean_ns=pl.col("duration_ns").mean())
    enough = known.filter(pl.col("count") >= FEWEST_OF_CLASS).drop("count")
    middle = pl.col("value").median()
    classes = every.join(enough.select(CLASS), on=CLASS, how="semi").group_by(CLASS)
    middles = classes.agg(middle=middle, apart=(pl.col("value") - middle).abs().median())
    return UsualDurations(
        middles.join(enough, on=CLASS).sort(CLASS).collect(), timed.actions.table.height * ratio
    )


def find_outlier_actions(
    timed: TimedActions,
    basis: ReplayBasis,
    usual: UsualDurations,
    steps: Collection[int],
    spans: pl.DataFrame,
) -> pl.DataFrame:
    """Return the table OUTLIER_ACTIONS of `steps`; what explains them is looked for in `spans`.

    `usual` is from learn_durations. Classes of fewer than eight actions have no outliers: it is unknown what is usual.
    """
    actions = timed.actions
    outliers = _unusual(timed.values(steps), usual)
    if outliers.is_empty():
        return OUTLIER_ACTIONS.empty()
    groups = group_actions(actions.table)
    window_ns = pl.Series(groups.window_ns(actions.table))[
        groups.step_of_action()[outliers["action"].to_numpy()]
    ]
    outliers = outliers.filter(outliers["excess_ns"] >= LEAST_STEP_FRACTION * window_ns)
    costs = _costs(actions, basis, groups, outliers)
    activities = name_activities_inside(outliers, spans, actions.inside.last)
    return outliers.with_columns(costs, *activities).select(OUTLIER_ACTIONS.names)


def _unusual(every: pl.LazyFrame, usual: UsualDurations) -> pl.DataFrame:
    """Return the rows of actions that took unusually long, with what is usual, the largest excess first."""
    limit = float(-ndtri(FALSE_RUNS / max(usual.actions, 1)))
    is_far = pl.col("duration_ns") > OUTLIER_RATIO * pl.col("usual_ns")
    found = _compared(every, usual).filter(is_far, pl.col("deviations") > limit).collect()
    if found.is_empty():
        return found
    return _of_one_rank(found, every, usual).sort("excess_ns", "action", descending=[True, False])


def _compared(every: pl.LazyFrame, usual: UsualDurations) -> pl.LazyFrame:
    """Return the actions that may be outliers with what is usual, and how far each of them is above it."""
    # Only the few actions that are far from the mean of their class can be outliers: medians take long.
    far = pl.col("duration_ns") > (1 + (OUTLIER_RATIO - 1) / 2) * pl.col("mean_ns")
    rows = every.join(usual.classes.lazy(), on=CLASS).filter(far)
    of_step = [*CLASS, "step"]
    others = every.join(rows.select(of_step).unique(), on=of_step, how="semi").group_by(of_step)
    in_step = others.agg(in_step=pl.when(pl.len() >= FEWEST_ACTIONS).then(pl.col("value").median()))
    return (
        rows.join(in_step, on=of_step, how="left")
        .with_columns(
            usual=pl.max_horizontal("middle", "in_step"),
            deviation=pl.max_horizontal(DEVIATION_OF_NORMAL * pl.col("apart"), LEAST_DEVIATION),
        )
        .with_columns(
            usual_ns=pl.col("usual").exp() * pl.col("length"),
            deviations=(pl.col("value") - pl.col("usual")) / pl.col("deviation"),
        )
        .with_columns(excess_ns=pl.col("duration_ns") - pl.col("usual_ns"))
    )


def _of_one_rank(found: pl.DataFrame, every: pl.LazyFrame, usual: UsualDurations) -> pl.DataFrame:
    """Return the outliers without those of micro-batches that take long on other ranks as well: those are long data."""
    touched = found.select(CELL).unique()
    others = (
        every.join(touched.lazy(), on=CELL, how="semi")
        .join(usual.classes.lazy(), on=CLASS)
        .with_columns(excess=pl.col("value") - pl.col("middle"))
        .group_by(*CELL, "rank")
        .agg(pl.median("excess"))
        .join(found.lazy().select(*CELL, "action", finder="rank"), on=CELL)
        .filter(pl.col("rank") != pl.col("finder"))
        .group_by("action")
        .agg(others=pl.median("excess"))
        .collect()
    )
    own = pl.col("value") - pl.col("usual")
    joined = found.join(others, on="action", how="left")
    return joined.filter((pl.col("others") < SHARED_FRACTION * own).fill_null(value=True))


def _costs(actions: Actions, basis: ReplayBasis, groups: StepGroups, outliers: pl.DataFrame) -> pl.Series:
    """Return how much shorter the step of each outlier were without its excess, everything else as measured.

    Each replay removes one more outlier of every step, the largest first, so that the costs of a step sum to what all
    of them cost together.
    """
    table = actions.table
    start_ns, end_ns = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    step = groups.step_of_action()
    first_ns = groups.first_start_ns(table)[step]
    ready_ns = np.clip(ready_times(basis.plan, end_ns, basis.lag_ns), first_ns, start_ns)
    lasting_ns = end_ns - ready_ns
    before_ns = groups.last_of_ranks(replay_ranks(basis.plan, lasting_ns, basis.lag_ns))
    action = outliers["action"].to_numpy()
    excess_ns = np.rint(outliers["excess_ns"].to_numpy()).astype(np.int64)
    number = outliers.select(pl.int_range(pl.len()).over("pipeline", "step")).to_series().to_numpy()
    cost_ns = np.full(len(action), -1, dtype=np.int64)
    without_ns = lasting_ns.copy()
    for turn in range(min(int(number.max(initial=-1)) + 1, MOST_PER_STEP)):
        chosen = number == turn
        without_ns[action[chosen]] -= excess_ns[chosen]
        after_ns = groups.last_of_ranks(replay_ranks(basis.plan, without_ns, basis.lag_ns))
        cost_ns[chosen] = (before_ns - after_ns)[step[action[chosen]]]
        before_ns = after_ns
    costs = pl.Series("cost_ns", cost_ns)
    return costs.set(costs < 0, None)
