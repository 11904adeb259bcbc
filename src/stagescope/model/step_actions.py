"""How many actions every step of a run has, when they ran, and which step is typical."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.large_tables import reduced
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable


def count_actions(spans: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per step that a span has: step, action_count, and start_ns and end_ns of its actions.

    Times are null without actions. `spans` may be in the form in which they are stored.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    start_ns, end_ns = (pl.col(name).filter(is_action) for name in ("start_ns", "end_ns"))
    return (
        spans.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(action_count=is_action.sum().cast(pl.Int64), start_ns=start_ns.min(), end_ns=end_ns.max())
    )


def join_counts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return what count_actions returns for a run, given that for its parts, of which there is at least one."""
    columns = (pl.sum("action_count"), pl.min("start_ns"), pl.max("end_ns"))
    return reduced(parts, lambda rows: rows.group_by("step").agg(columns)).sort("step")


def typical_step(counts: pl.DataFrame) -> int | None:
    """Return the step of median duration among those with the most common number of actions.

    `counts` is what count_actions returns. Without actions, it is the first step; None without steps.

    >>> counts = {"step": [0, 1, 2], "action_count": [8, 8, 4], "start_ns": [0, 9, 30], "end_ns": [5, 20, 31]}
    >>> typical_step(pl.DataFrame(counts))
    0
    """
    steps = counts.filter(pl.col("action_count") > 0)
    if steps.is_empty():
        return next(iter(counts["step"].sort()), None)
    usual = steps.filter(pl.col("action_count") == pl.col("action_count").mode().max())
    in_order = usual.sort(pl.col("end_ns") - pl.col("start_ns"), "step")["step"]
    return int(in_order[(usual.height - 1) // 2])
