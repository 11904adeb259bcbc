"""Idle intervals as the viewer reads them: by row and time; shorter in a page, whose reader has all spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.viewer.columns import encode_columns
from stagescope.viewer.span_data import encode_intervals
from stagescope.vocabulary.kinds import COMPUTE, LANE_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence


OF_SPANS = ("waits_for_row", "waits_for_kind", "culprit_row")
"""Columns that a reader with all spans finds there."""


def viewer_idle(idle: pl.DataFrame, spans: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Return the table `idle` of docs/viewer-format.md, sorted, with absolute starts in ns.

    `idle` is that of `AnalysisLayers`, `spans` what `viewer_spans` returns. Ranks without a row are omitted.
    """
    ids = spans.select(
        pl.col("source_row").cast(pl.Int64),
        pl.int_range(pl.len()).alias("waits_for_id"),
        pl.col("row").alias("waits_for_row"),
        pl.col("kind").alias("waits_for_kind"),
    )
    culprits = ids.select("source_row", culprit_id="waits_for_id", culprit_row="waits_for_row")
    named = idle.filter(pl.col("rank").is_in(ranks)).with_columns(
        pl.col("waits_for").cast(pl.Int64),
        cause=pl.col("cause") if "cause" in idle.columns else pl.lit(None, pl.String),
        culprit=(pl.col("culprit") if "culprit" in idle.columns else pl.lit(None)).cast(pl.Int64),
    )
    joined = named.join(ids, left_on="waits_for", right_on="source_row", how="left").join(
        culprits, left_on="culprit", right_on="source_row", how="left"
    )
    return joined.sort("rank", "start_ns").select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32).alias("row"),
        pl.col("start_ns").alias("start"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
        "step",
        pl.col("waiting_for").cast(pl.String),
        pl.col("waits_for_id").alias("waits_for"),
        pl.col("text").cast(pl.String),
        "cause",
        pl.col("culprit_id").alias("culprit"),
        *OF_SPANS,
    )


def encode_idle(idle: pl.DataFrame, base_ns: int) -> bytes:
    """Return the result of `viewer_idle` as a column blob with starts."""
    return encode_intervals(idle, base_ns)


def encode_idle_after_spans(idle: pl.DataFrame, spans: pl.DataFrame, base_ns: int) -> bytes:
    """Return the column blob for a reader that holds all spans, with `after` and `lead` instead of the start.

    Nearly every interval begins where a span or another interval ends. The blob is a third smaller this way.
    The columns OF_SPANS are omitted.
    """
    ended = spans.with_row_index("after").filter(pl.col("lane") == LANE_CODES[COMPUTE])
    ends = ended.select(
        "row", (pl.col("start") + pl.col("duration")).alias("start"), pl.col("after").cast(pl.Int64)
    )
    found = idle.join(
        ends.unique(["row", "start"], keep="last"), on=["row", "start"], how="left", maintain_order="left"
    )
    end_before = (pl.col("start") + pl.col("duration")).shift(1).over("row").fill_null(base_ns)
    # Without a span in `after`, a reader starts from the end of the interval before.
    lead = pl.when(pl.col("after").is_null() | (pl.col("start") == end_before)).then(
        pl.col("start") - end_before
    )
    timed = found.with_columns(
        lead=lead.otherwise(0), after=pl.when(pl.col("start") != end_before).then("after")
    )
    if timed.filter(pl.col("lead") < 0).height:
        return encode_idle(idle, base_ns)
    return encode_columns(timed.drop("start", *OF_SPANS))
