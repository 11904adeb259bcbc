"""Spans as the viewer reads them: by row, lane and time, with sublanes for overlapping ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.exporters.lanes import assign_lanes
from stagescope.model.tables import KindType, LaneType
from stagescope.viewer.columns import encode_columns
from stagescope.vocabulary.kinds import KINDS, LANE_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

KIND_CODES: Mapping[str, int] = {kind.name: kind.code for kind in KINDS}
OPTIONAL = ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes")
ORDER = ("row", "lane", "start", "kind")
MOST_SUBLANES = 255
CHAINED = {"start": "duration"}


def viewer_spans(spans: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Return the columns of docs/viewer-format.md, and `source_row`, the number of the row in `spans`.

    `ranks` is the order of the rows; every rank of `spans` must be in it. `start` is absolute, in ns. A span that ends
    before it starts gets no length.
    """
    numbered = spans.with_row_index("source_row").select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32).alias("row"),
        _codes("kind", KindType, KIND_CODES),
        _codes("lane", LaneType, LANE_CODES),
        *OPTIONAL,
        pl.col("start_ns").alias("start"),
        (pl.max_horizontal("start_ns", "end_ns") - pl.col("start_ns")).alias("duration"),
        *_wait(),
        "name",
        "source_row",
    )
    # Sorting takes ten times as long as checking that it is not needed.
    placed = numbered if _is_in_order(numbered) else numbered.sort(ORDER, maintain_order=True)
    return placed.with_columns(_sublanes(placed)).drop("source_row").with_columns(placed["source_row"])


def _codes(name: str, words: pl.Enum, codes: Mapping[str, int]) -> pl.Expr:
    """Return an Enum column as codes by physical index: comparing texts would take ten times as long."""
    by_place = pl.Series([codes[word] for word in words.categories], dtype=pl.UInt8)
    return pl.lit(by_place).gather(pl.col(name).to_physical()).alias(name)


def _is_in_order(spans: pl.DataFrame) -> bool:
    falls = pl.lit(value=False)
    for name in reversed(ORDER):
        before = pl.col(name).shift(1)
        falls = (pl.col(name) < before) | ((pl.col(name) == before) & falls)
    return not spans.select(falls.any()).item()


def encode_spans(spans: pl.DataFrame, base_ns: int, first: int = 0) -> bytes:
    """Return a result of `viewer_spans`, or a part of it from id `first` on, as a column blob.

    `base_ns` is the start of the run; the blob stores the distance of its first start from it.
    """
    lowest = spans["start"].min()
    origin = lowest - base_ns if isinstance(lowest, int) else 0
    shown = spans.drop("source_row", strict=False)
    return encode_columns(shown, chained=CHAINED, facts={"origin": origin, "first": first})


def encode_intervals(intervals: pl.DataFrame, base_ns: int, **facts: Any) -> bytes:
    """Return a table with `start` (absolute, in ns) as a column blob relative to `base_ns`."""
    lowest = intervals["start"].min()
    origin = lowest - base_ns if isinstance(lowest, int) else 0
    return encode_columns(intervals, chained=CHAINED, facts={"origin": origin, **facts})


def _wait() -> list[pl.Expr]:
    """Return when the host was blocked, relative to the start; null unless both ends are known."""
    both = pl.col("wait_start_ns").is_not_null() & pl.col("wait_end_ns").is_not_null()
    long_ns = pl.max_horizontal(pl.col("wait_end_ns") - pl.col("wait_start_ns"), pl.lit(0, pl.Int64))
    return [
        pl.when(both).then(pl.col("wait_start_ns") - pl.col("start_ns")).alias("wait"),
        pl.when(both).then(long_ns).alias("wait_duration"),
    ]


def _sublanes(spans: pl.DataFrame) -> pl.DataFrame:
    """Return sublane and sublanes: the place of a span among the overlapping ones of its lane, and their number."""
    tracks = spans.select(
        track=pl.col("row") * len(LANE_CODES) + pl.col("lane"),
        start_ns="start",
        end_ns=pl.col("start") + pl.col("duration"),
    ).with_row_index("place")
    # Sorted by start, spans of a track overlap only if some neighbors do.
    overlaps = (pl.col("start_ns") < pl.col("end_ns").shift(1)) & (
        pl.col("track") == pl.col("track").shift(1)
    )
    if not tracks.select(overlaps.any()).item():
        return spans.select(
            sublane=pl.repeat(0, pl.len(), dtype=pl.UInt8), sublanes=pl.repeat(1, pl.len(), dtype=pl.UInt8)
        )
    laned = assign_lanes(tracks, "track").slices
    reach_ns = pl.col("end_ns").cum_max().shift(1).over("track")
    begins = (pl.col("start_ns") >= reach_ns).fill_null(value=True)
    clusters = laned.with_columns(begins.cum_sum().alias("cluster"))
    counted = clusters.with_columns((pl.col("lane").max().over("cluster") + 1).alias("sublanes"))
    return counted.sort("place").select(
        pl.col("lane").clip(0, MOST_SUBLANES - 1).cast(pl.UInt8).alias("sublane"),
        pl.col("sublanes").clip(1, MOST_SUBLANES).cast(pl.UInt8),
    )
