"""What a cause costs if it is removed before all others, or after them.

The ledger removes causes in one fixed order. Where causes interact, as when a slow stage hides jitter elsewhere,
another order gives other parts. The two extremes bound what is a matter of the order: removed first, everything else is
as measured; removed last, it is the only cause left. Costs are added and subtracted per action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay_ranks
from stagescope.analysis.idle.origins import UNATTRIBUTED, CauseType
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.idle.origins import Removal

LEAST_FRACTION = 0.01
"""Smaller causes of a step have no row: their parts differ by no more than a point that could be shown."""

FEWEST_CAUSES = 2

REMOVAL_ORDERS = Table(
    "removal orders",
    "what one cause adds to one step of a pipeline, depending on when it is removed",
    ("pipeline", "step", "cause"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("cause", CauseType, "", "Name of the cause, if it is 1 % of the step or more."),
        Column("first_ns", pl.Float64, "ns", "Its time if it is removed first."),
        Column("last_ns", pl.Float64, "ns", "Its time if it is removed last."),
    ),
)


def find_removal_orders(
    plan: ReplayPlan, groups: StepGroups, removals: Sequence[Removal], replays: Sequence[ReplayCosts]
) -> pl.DataFrame:
    """Return the table REMOVAL_ORDERS; `replays` are those of the ledger, `removals` from list_removals.

    A step with a single cause has no rows.
    """
    explained = [each for each in removals if each.cause != UNATTRIBUTED]
    causes = sum((each.reaches(LEAST_FRACTION) for each in explained), np.zeros(groups.steps.height))
    interact = causes >= FEWEST_CAUSES
    if not interact.any():
        return REMOVAL_ORDERS.empty()
    every, bare = replays[0], replays[-1]
    most_ns, least_ns = (_spans_ns(plan, groups, each) for each in (every, bare))
    parts = []
    for each in explained:
        cause, more, less, *_ = each
        has = each.reaches(LEAST_FRACTION) & interact
        if not has.any():
            continue
        extra_ns = more.duration_ns - less.duration_ns
        lag_ns, bare_lag_ns = every.lag_ns, bare.lag_ns
        if more.lag_ns is not less.lag_ns:
            extra_lag_ns = more.lag_ns - less.lag_ns
            lag_ns, bare_lag_ns = lag_ns - extra_lag_ns, bare_lag_ns + extra_lag_ns
        without = ReplayCosts(np.maximum(every.duration_ns - extra_ns, 0), lag_ns)
        alone = ReplayCosts(np.maximum(bare.duration_ns + extra_ns, 0), bare_lag_ns)
        parts.append(
            groups.steps.select("pipeline", "step")
            .with_columns(
                cause=pl.lit(cause, CauseType),
                first_ns=pl.Series(most_ns - _spans_ns(plan, groups, without)),
                last_ns=pl.Series(_spans_ns(plan, groups, alone) - least_ns),
            )
            .filter(pl.Series(has))
        )
    return pl.concat(parts).sort(REMOVAL_ORDERS.order)


def _spans_ns(plan: ReplayPlan, groups: StepGroups, costs: ReplayCosts) -> NDArray[np.float64]:
    return groups.last_of_ranks(replay_ranks(plan, *costs)).astype(np.float64)
