"""Ranks whose stage takes longer than the others and that no replica runs: their devices may be slow.

Whether it is the device or the work is not in the recording. So what equal devices would gain is a bound, and comes
after the fixes of known causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.idle.action_classes import WORK
from stagescope.analysis.prediction.slow_devices import UNKNOWN
from stagescope.vocabulary.number_ranges import listed_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CONDITION = "if their devices are slow, which no replica can show"
CONDITION_OF_ONE = "if its device is slow, which no replica can show"
CONDITIONS = (CONDITION, CONDITION_OF_ONE)


def unknown_devices(stragglers: pl.DataFrame) -> list[int]:
    """Return the ranks that are claimed to take longer for one of these reasons, the costliest first."""
    claimed = stragglers.filter("is_claimed", pl.col("finding") == UNKNOWN).drop_nulls("rank")
    ranks: list[int] = claimed["rank"].unique(maintain_order=True).to_list()
    return ranks


def device_change(ranks: Sequence[int]) -> tuple[str, str]:
    """Return what the change is, and its condition."""
    change = f"{listed_numbers('rank', ranks)} as fast as the ranks of other stages"
    return change, CONDITION_OF_ONE if len(ranks) == 1 else CONDITION


def factors_as_others(table: pl.DataFrame, ranks: Sequence[int]) -> Floats:
    """Return by how much each class of actions is shorter or longer if these ranks cost what the others do.

    `table` is that of ActionClasses. Others are the ranks of other stages in the same step and kind of action.
    """
    work = ["step", *(name for name in WORK if not name.endswith("stage"))]
    is_slow = pl.col("rank").is_in(list(ranks))
    usual = table.filter(~is_slow).group_by(work).agg(usual_ns=pl.median("balanced_ns"))
    known = table.join(usual, on=work, how="left", nulls_equal=True, maintain_order="left")
    faster = (pl.col("usual_ns") / pl.max_horizontal("balanced_ns", 1)).fill_null(1.0)
    return known.select(pl.when(is_slow).then(faster).otherwise(1.0)).to_series().to_numpy()
