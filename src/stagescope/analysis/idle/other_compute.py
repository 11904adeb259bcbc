"""Compute of a rank that is no action of its pipeline, such as a loss or an optimizer step, inside of its window.

The ledger (ledger.py) knows actions only: to it a rank is idle meanwhile. Before the first and after the last action of
the rank, that would be time of the schedule bubble, and so it is where the rank would wait for others anyway. What
delays its next action is an optimizer step or other work: idle time of the ranks that wait for it, and not of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import covered_ns, unite

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions

KEYS = ["step", "rank"]
BUBBLE, OPTIMIZER, OTHER = "schedule_bubble_ns", "optimizer_ns", "other_work_ns"


def without_other_compute(
    ranks: pl.DataFrame, actions: Actions, bubbles: pl.DataFrame, busy: pl.DataFrame, spans: pl.DataFrame
) -> pl.DataFrame:
    """Return the table IDLE_LEDGER in which ranks are busy during all compute.

    `bubbles` is from step_bubbles, `busy` the union of all `spans` on the compute lane.
    """
    known = ranks.select(*KEYS, acting_ns="busy_ns").join(
        bubbles.select(*KEYS, "window_start_ns", "window_end_ns", computing_ns="busy_ns"),
        on=KEYS,
        maintain_order="left",
    )
    known = known.with_columns(more_ns=(pl.col("computing_ns") - pl.col("acting_ns")).clip(lower_bound=0))
    if not (known["more_ns"] > 0).any():
        return ranks
    known = known.filter(pl.col("more_ns") > 0)
    bounds = actions.table.group_by(KEYS).agg(first_ns=pl.min("start_ns"), last_ns=pl.max("end_ns"))
    known = known.join(bounds, on=KEYS, maintain_order="left")
    before = known.select("rank", "window_start_ns", window_end_ns="first_ns")
    after = known.select("rank", "window_end_ns", window_start_ns="last_ns")
    around_ns = covered_ns(before, busy) + covered_ns(after, busy)
    steps = spans.filter(pl.col("kind") == "optimizer")
    optimizing = unite(steps.select("rank", "start_ns", "end_ns"))
    between = known.select("rank", window_start_ns="first_ns", window_end_ns="last_ns")
    more = known.select(
        *KEYS,
        "more_ns",
        around_ns=pl.min_horizontal("more_ns", pl.lit(around_ns)),
        steps_ns=covered_ns(between, optimizing),
    )
    more_ns, around_ns, steps_ns = (
        pl.col(name).fill_null(0) for name in ("more_ns", "around_ns", "steps_ns")
    )
    inside_ns = more_ns - around_ns
    optimizer_ns = pl.min_horizontal(inside_ns, steps_ns, pl.col(OPTIMIZER).clip(lower_bound=0))
    other_ns = pl.min_horizontal(inside_ns - optimizer_ns, pl.col(OTHER).clip(lower_bound=0))
    return (
        ranks.join(more, on=KEYS, how="left", maintain_order="left")
        .with_columns(
            pl.col(BUBBLE) - (more_ns - optimizer_ns - other_ns),
            pl.col(OPTIMIZER) - optimizer_ns,
            pl.col(OTHER) - other_ns,
            busy_ns=pl.col("busy_ns") + more_ns,
            idle_ns=pl.col("idle_ns") - more_ns,
        )
        .select(ranks.columns)
    )
