"""What other work is, by the names of what ranks did and of the collectives that they met at between actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import LOADING_NAMES
from stagescope.model.collectives import ASYNCHRONOUS, SEPARATOR
from stagescope.model.coverage import covered_ns

if TYPE_CHECKING:
    from collections.abc import Collection

DOMINANT = 0.5
"""What takes at least this part of the other work is named."""

COLLECTIVE = "collective"
LONGEST_NAME = 60


def find_other_work(spans: pl.DataFrame, computed: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank did what outside of its actions: rank, kind, name and ns.

    `computed` is the union of all spans on the compute lane, also of other steps: what begins at the end of a step may
    go on while the next one computes. `kind` is that of the spans, ``other`` or ``collective``; of a collective, the
    name is its operation.
    """
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
        .pipe(sum_other_work)
    )


def sum_other_work(work: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of what each rank did."""
    return work.group_by("rank", "kind", "name").agg(pl.sum("ns")).sort("rank", "kind", "name")


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
