"""What other work is, by the names of what ranks did and of the collectives that they met at between actions.

An optimizer step that reaches into the next step of its pipeline delays the first actions of its rank there. Within the
window that is other work, which is named after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import LOADING_NAMES
from stagescope.model.collectives import ASYNCHRONOUS, SEPARATOR
from stagescope.model.coverage import covered_ns, unite
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Collection

DOMINANT = 0.5
"""What takes at least this part of the other work is named."""

COLLECTIVE, OPTIMIZER = "collective", "optimizer"
OPTIMIZER_STEP = "optimizer step"
LONGEST_NAME = 60
SCHEMA = {"rank": pl.Int32, "kind": pl.String, "name": pl.String, "ns": pl.Int64}


def find_other_work(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank did what outside of its actions: rank, kind, name and ns.

    `kind` is that of the spans, ``other``, ``collective`` or ``optimizer``; of a collective, the name is its operation.
    Of optimizer steps, only what is between the start of a window of the pipeline and the first action of the rank in
    it counts. `windows` is from step_bubbles.
    """
    return pl.concat([_beside_actions(spans), _late_optimizers(spans, windows)]).sort("rank", "kind", "name")


def _beside_actions(spans: pl.DataFrame) -> pl.DataFrame:
    computed = unite(spans.filter(pl.col("lane") == COMPUTE))
    loads = (pl.col("kind") == "other") & pl.col("name").str.contains(LOADING_NAMES)
    named = spans.filter(pl.col("kind").is_in(("other", COLLECTIVE)) & ~loads.fill_null(value=False))
    bounds = named.select("rank", window_start_ns="start_ns", window_end_ns="end_ns")
    operation = pl.col("name").str.split(SEPARATOR).list.first().str.strip_suffix(ASYNCHRONOUS)
    return (
        named.select(
            "rank",
            kind=pl.col("kind").cast(pl.String),
            name=pl.when(pl.col("kind") == COLLECTIVE).then(operation).otherwise("name"),
            ns=pl.col("end_ns") - pl.col("start_ns") - covered_ns(bounds, computed),
        )
        .filter(pl.col("ns") > 0)
        .group_by("rank", "kind", "name")
        .agg(pl.sum("ns"))
    )


def _late_optimizers(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    optimizers = spans.filter(pl.col("kind") == OPTIMIZER)
    if optimizers.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    is_action = pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null()
    first = spans.filter(is_action).group_by("rank", "step").agg(first_ns=pl.min("start_ns"))
    before = windows.join(first, on=["rank", "step"]).select(
        "rank", "window_start_ns", window_end_ns="first_ns"
    )
    return (
        before.select(
            "rank",
            kind=pl.lit(OPTIMIZER),
            name=pl.lit(OPTIMIZER_STEP),
            ns=covered_ns(before, unite(optimizers)),
        )
        .group_by("rank", "kind", "name")
        .agg(pl.sum("ns"))
        .filter(pl.col("ns") > 0)
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
    )


def name_of_other_work(
    work: pl.DataFrame, *, ranks: Collection[int] | None = None, is_collective: bool = False
) -> str | None:
    """Return what most of the other work is, of `ranks` or of all; None if nothing is most of it.

    `work` is from find_other_work; what has no name counts. With `is_collective`, the operation of most collectives.
    """
    chosen = work.filter((pl.col("kind") == COLLECTIVE) == is_collective)
    if ranks is not None:
        chosen = chosen.filter(pl.col("rank").is_in(list(ranks)))
    sums = chosen.group_by("name").agg(pl.sum("ns")).sort("ns", "name", descending=[True, False])
    if sums.is_empty() or sums["ns"][0] < DOMINANT * int(sums["ns"].sum()):
        return None
    name: str | None = sums["name"][0]
    return name if name and len(name) <= LONGEST_NAME else None
