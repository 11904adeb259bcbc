"""Convert identified actions to rows of the spans table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD, OVERLAP, WEIGHT
from stagescope.ingest.ascend.plan import LOGITS
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from stagescope.ingest.ascend.plan_matching import FittedPlan

PARTS = pl.DataFrame(
    [
        (FORWARD, 0, "forward"),
        (BACKWARD, 0, "backward"),
        (WEIGHT, 0, "backward_weight"),
        (LOGITS, 0, "loss"),
        (OVERLAP, 0, "forward"),
        (OVERLAP, 1, "backward"),
    ],
    schema={"sort": pl.String, "part": pl.Int32, "kind": pl.String},
    orient="row",
)
"""The actions that a mark of unknown place represents: two for an overlapped mark."""

NUMBERS = ("chunk", "stage", "microbatch")
NULL_COLUMNS = [pl.lit(None, pl.Int32).alias(name) for name in NUMBERS]


def spans_of_actions(actions: pl.DataFrame, fitted: FittedPlan | None = None) -> pl.DataFrame:
    """Return the declared spans of actions; with `fitted`, `place` is the index of each in its rank's plan."""
    numbered = actions.with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    if fitted is None:
        absent = [
            null for name, null in zip(NUMBERS, NULL_COLUMNS, strict=True) if name not in numbered.columns
        ]
        spans = _unplaced(numbered.with_columns(absent))
    else:
        placed = numbered.drop_nulls("place").join(_plan_table(fitted), on=["pp", "place"], how="left")
        unplaced = _unplaced(numbered.filter(pl.col("place").is_null()).with_columns(NULL_COLUMNS))
        spans = pl.concat([placed, unplaced], how="diagonal_relaxed")
    # The row number is unique per mark, so it identifies the two actions of an overlapped one.
    is_pair = pl.col("marker") == OVERLAP
    return conform(
        spans.sort("row", "part").with_columns(
            lane=pl.lit(COMPUTE),
            pair=pl.when(is_pair).then("row"),
            name=pl.when(pl.col("kind") == "loss").then(pl.lit(LOGITS)).otherwise("message"),
        ),
        SPANS,
    )


def _plan_table(fitted: FittedPlan) -> pl.DataFrame:
    rows = [
        (pp, place, part, *action)
        for pp, row in fitted.rows.items()
        for place, planned in enumerate(row)
        for part, action in enumerate(planned.parts)
    ]
    columns = ("kind", "stage", "chunk", "microbatch")
    schema = dict.fromkeys(("pp", "place", "part", *columns), pl.Int32) | {"kind": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _unplaced(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions of unknown place; a backward directly before a weight gradient is an input gradient."""
    follows = pl.col("sort").shift(-1).over("group") == WEIGHT
    kinds = actions.with_columns(splits=follows.fill_null(value=False)).join(PARTS, on="sort", how="left")
    split = (pl.col("sort") == BACKWARD) & pl.col("splits")
    kind = pl.when(split).then(pl.lit("backward_input")).otherwise("kind")
    return kinds.with_columns(kind=kind).drop("splits")
