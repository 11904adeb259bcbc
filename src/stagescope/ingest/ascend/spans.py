"""Actions with their places become rows of the spans table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD, OVERLAP, WEIGHT
from stagescope.ingest.ascend.plan import LOGITS
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from stagescope.ingest.ascend.placing import Fitted

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
"""What a mark of unknown place stands for; an overlapped one for two actions."""

NUMBERS = ("chunk", "stage", "microbatch")
NULLS = [pl.lit(None, pl.Int32).alias(name) for name in NUMBERS]


def spans_of_actions(actions: pl.DataFrame, fitted: Fitted | None = None) -> pl.DataFrame:
    """Return the declared spans of actions; with `fitted`, `place` says which entry of its rank's plan each is."""
    numbered = actions.with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    if fitted is None:
        absent = [null for name, null in zip(NUMBERS, NULLS, strict=True) if name not in numbered.columns]
        spans = _unplaced(numbered.with_columns(absent))
    else:
        placed = numbered.drop_nulls("place").join(_plan_table(fitted), on=["pp", "place"], how="left")
        unplaced = _unplaced(numbered.filter(pl.col("place").is_null()).with_columns(NULLS))
        spans = pl.concat([placed, unplaced], how="diagonal_relaxed")
    is_pair = pl.col("marker") == OVERLAP
    return conform(
        spans.sort("row", "part").with_columns(
            lane=pl.lit(COMPUTE),
            pair=pl.when(is_pair).then("row"),
            name=pl.when(pl.col("kind") == "loss").then(pl.lit(LOGITS)).otherwise("message"),
        ),
        SPANS,
    )


def _plan_table(fitted: Fitted) -> pl.DataFrame:
    rows = [
        (pp, place, part, *action)
        for pp, row in fitted.rows.items()
        for place, due in enumerate(row)
        for part, action in enumerate(due.parts)
    ]
    columns = ("kind", "stage", "chunk", "microbatch")
    schema = dict.fromkeys(("pp", "place", "part", *columns), pl.Int32) | {"kind": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _unplaced(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions of unknown place: a backward right before a weight gradient of its step is an input gradient."""
    follows = pl.col("sort").shift(-1).over("group") == WEIGHT
    kinds = actions.with_columns(splits=follows.fill_null(value=False)).join(PARTS, on="sort", how="left")
    split = (pl.col("sort") == BACKWARD) & pl.col("splits")
    kind = pl.when(split).then(pl.lit("backward_input")).otherwise("kind")
    return kinds.with_columns(kind=kind).drop("splits")
