"""Kernels as the viewer reads them: by row and time, each stream of a rank on a lane of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.viewer.span_data import encode_intervals
from stagescope.viewer.tiles.levels import TooManyError
from stagescope.vocabulary.kinds import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.viewer.tiles.levels import Part

MOST_KERNELS = 500_000
"""More are not sent at once: about 8 bytes each, of which a page may have 15 MB."""

LONGEST_NAME = 200


def encode_kernels(kernels: pl.DataFrame, ranks: Sequence[int], base_ns: int) -> bytes:
    """Return a column blob of a table KERNELS, sorted by row and start; columns as in `kernel_rows`."""
    return encode_intervals(kernel_rows(kernels, ranks), base_ns)


def kernel_rows(kernels: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Return a table KERNELS as the viewer reads it, sorted by row and start.

    Columns: row, start, duration, lane (place of its stream among those of the rank), stream, name, category,
    operation, action (such as F0.3, with the name of its part) and pair.
    """
    shown = kernels.filter(pl.col("rank").is_in(ranks)).sort("rank", "start_ns", "end_ns")
    keys = shown.select("kind", "stage", "microbatch").unique()
    labels = pl.DataFrame(
        [(*row, None if row[0] is None else label(*row)) for row in keys.iter_rows()],
        {**keys.schema, "label": pl.String},
        orient="row",
    )
    named = shown.join(
        labels, on=["kind", "stage", "microbatch"], how="left", nulls_equal=True, maintain_order="left"
    )
    return named.select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32).alias("row"),
        pl.col("start_ns").alias("start"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
        (pl.col("stream").fill_null(-1).rank("dense").over("rank") - 1).cast(pl.Int32).alias("lane"),
        "stream",
        pl.col("name").str.slice(0, LONGEST_NAME),
        pl.col("category").cast(pl.String),
        pl.col("operation").cast(pl.String),
        pl.concat_str("label", "part", separator=", ", ignore_nulls=True).replace("", None).alias("action"),
        "pair",
    )


def kernel_facts(rows: pl.DataFrame, row_count: int) -> dict[str, Any]:
    """Return what the page needs to know before it asks for kernels: median duration, and lanes of each row."""
    lanes = dict(rows.group_by("row").agg(pl.max("lane") + 1).iter_rows())
    typical_ns = rows["duration"].quantile(0.5, "lower") or 0
    return {
        "count": rows.height,
        "typical_ns": int(typical_ns),
        "lanes": [lanes.get(row, 0) for row in range(row_count)],
    }


def kernel_blob(rows: pl.LazyFrame, part: Part) -> bytes:
    """Return the kernels of `rows`, whose starts are relative, in a part of the picture; raises TooManyError."""
    found = (
        rows.filter(
            pl.col("row").is_in(part.rows.tolist()),
            pl.col("start") < part.end,
            pl.col("start") + pl.col("duration") > part.start,
        )
        .head(MOST_KERNELS + 1)
        .collect()
    )
    if found.height > MOST_KERNELS:
        raise TooManyError
    return encode_intervals(found, 0)


def omitted_kernels(kernels: pl.DataFrame) -> list[Diagnostic]:
    """Return the diagnostic that there are too many kernels for the page; empty if there are not."""
    if kernels.height <= MOST_KERNELS:
        return []
    message = (
        f"none of the {kernels.height:,} kernels is drawn, because the page draws at most {MOST_KERNELS:,};"
        " actions and transfers are complete; 'stagescope open' shows all kernels"
    )
    return [Diagnostic("warning", message, code="viewer.kernels_omitted")]
