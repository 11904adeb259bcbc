"""Groups of ranks that take part in the same iterations: what all ranks of a group wait for is known once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable


class Attendance(NamedTuple):
    """Which ranks take part in which steps.

    `groups` has the ranks of each group (group and rank), `steps` the steps in which a group takes part (group and
    step). Every rank is in one group.
    """

    groups: pl.DataFrame
    steps: pl.DataFrame


def find_attendance(iterations: Iterable[pl.DataFrame], ranks: pl.Series, steps: pl.Series) -> Attendance:
    """Return which of some ranks take part in which of some steps, given parts of the table ITERATIONS.

    In memory is a byte for each rank and step.
    """
    ranks, steps = ranks.unique().sort(), steps.unique().sort()
    attends = np.zeros((ranks.len(), steps.len()), dtype=np.bool_)
    known, asked = ranks.to_numpy(), steps.to_numpy()
    for rows in iterations:
        some = rows.filter(pl.col("step").is_in(steps.implode()), pl.col("rank").is_in(ranks.implode()))
        rank, step = some["rank"].to_numpy(), some["step"].to_numpy()
        attends[np.searchsorted(known, rank), np.searchsorted(asked, step)] = True
    alike, group = np.unique(attends, axis=0, return_inverse=True)
    groups, columns = np.nonzero(alike)
    return Attendance(
        pl.DataFrame({"group": group.reshape(-1), "rank": ranks}, schema_overrides={"group": pl.UInt32}),
        pl.DataFrame({"group": groups, "step": steps.gather(columns)}, schema_overrides={"group": pl.UInt32}),
    )
