"""Fixes: what is broken or slow works as well as its peers, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.prediction.changes import FreeTransfers, Slower
from stagescope.analysis.prediction.what_if import predict_steps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.prediction.changes import Combination

MOST_STRAGGLERS = 3


def find_fixes(
    actions: Actions, stragglers: pl.DataFrame, steps: Collection[int], basis: ReplayBasis | None = None
) -> pl.DataFrame:
    """Return columns of IMPROVEMENTS for free transfers and for each claimed slow rank at the speed of its peers.

    A stage that takes longer than the others has more work; making it faster is no fix but another division of the
    model.
    """
    changes: list[Combination] = [(FreeTransfers(),)]
    changes += [(each,) for each in _as_fast_as_peers(stragglers)]
    return predict_steps(actions, changes, steps, basis).table


def _as_fast_as_peers(stragglers: pl.DataFrame) -> Iterator[Slower]:
    is_slow = pl.col("is_claimed") & (pl.col("finding") == "slow") & (pl.col("subject") == "rank")
    for row in stragglers.filter(is_slow).head(MOST_STRAGGLERS).iter_rows(named=True):
        yield Slower(factor=1 / (1 + row["excess_fraction"]), rank=row["rank"])
