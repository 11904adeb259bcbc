"""Straight from a large Parquet file of spans to a folder that the server answers from, a part at a time.

A run of 64 million spans takes 10 GB as a timeline. As long as a table says everything itself and is in order, which
is how `stagescope export` writes it, a million spans at a time are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from stagescope.model import RANKS, SPANS, empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.model.validate import conform
from stagescope.viewer.run_data import viewer_meta
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles.build import Chunk, Extent, build_levels
from stagescope.viewer.tiles.run import save_run
from stagescope.viewer.tiles.sources import SPANS_AT_ONCE, coded
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.viewer.tiles.build import Progress

LARGE = 8_000_000
"""With fewer spans than this, a timeline is no burden, and says more."""

NEEDED = ("rank", "lane", "kind", "start_ns", "end_ns", "step", "stage")
OF_ACTIONS_ALONE = ("step", "stage")
"""An optimizer's span has no stage, and what runs between steps has no step; a action without them was not placed yet.
"""

FACT_SOURCES = ("pair", "peer", "bytes", "wait_start_ns", "name")
OUTLINE = ["rank", "step", "kind", "lane", "stage", "peer"]
"""What meta tells apart: spans that agree in all of these count as one for it."""

NOT_COMPUTED = (
    "this table has {count:,} spans and is read in parts: clocks are not aligned, schedules are not recognized and "
    "nothing is analyzed; bubbles, verdict, idle intervals, critical path, slack and heat map are missing. Analyze a "
    "part of it, such as a few steps, to see them"
)


class LargeTable(NamedTuple):
    """A table that can be read a part at a time, and what had to be known of it first."""

    path: Path
    ranks: tuple[int, ...]
    base_ns: int
    extent: Extent


def find_large(path: Path) -> LargeTable | None:
    """Return what to know of a large table; None where it is small, says too little itself, or is out of order."""
    table = pl.scan_parquet(path, hive_partitioning=False)
    try:
        present = set(table.collect_schema().names())
        count = table.select(pl.len()).collect().item()
        if count < LARGE or not present.issuperset(NEEDED):
            return None
        found = _survey(table.select(*NEEDED, *(name for name in FACT_SOURCES if name in present)), count)
    except PolarsError:
        return None
    if found is None:
        return None
    extent = Extent(
        len(found.ranks), count, found.last_ns - found.base_ns, found.has_facts, tuple(sorted(found.names))
    )
    return LargeTable(path, tuple(found.ranks), found.base_ns, extent)


@dataclass
class _Survey:
    """What one pass over a table found so far; `last_row` is the rank and start of the row before."""

    ranks: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    base_ns: int = np.iinfo(np.int64).max
    last_ns: int = np.iinfo(np.int64).min
    has_facts: bool = False
    last_row: tuple[int, int] | None = None


def _survey(table: pl.LazyFrame, count: int) -> _Survey | None:
    """Return what stands in a table; None where it is out of order or needs mending, as a timeline would be."""
    found = _Survey()
    for offset in range(0, count, SPANS_AT_ONCE):
        spans = table.slice(offset, SPANS_AT_ONCE).collect()
        if not _is_plain(spans, found.last_row):
            return None
        ranks = spans["rank"].unique(maintain_order=True).to_list()
        found.ranks += ranks[1:] if found.ranks[-1:] == ranks[:1] else ranks
        base_ns, last_ns = spans.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
        found.base_ns, found.last_ns = min(found.base_ns, base_ns), max(found.last_ns, last_ns)
        found.has_facts |= any(spans[name].count() for name in FACT_SOURCES if name in spans.columns)
        if "name" in spans.columns:
            found.names |= set(spans["name"].drop_nulls().unique())
        found.last_row = spans.select("rank", "start_ns").row(-1)
    return found


def _is_plain(spans: pl.DataFrame, before: tuple[int, int] | None) -> bool:
    """Tell whether spans go on in order and need no mending: nothing missing, none that ends before its start."""
    if before is not None and spans.select("rank", "start_ns").row(0) < before:
        return False
    rank, start = pl.col("rank"), pl.col("start_ns")
    falls = (rank < rank.shift(1)) | ((rank == rank.shift(1)) & (start < start.shift(1)))
    always = [name for name in NEEDED if name not in OF_ACTIONS_ALONE]
    is_action = pl.col("kind").cast(pl.String).is_in(ACTION_KINDS)
    wrong = spans.select(
        falls.any().alias("out_of_order"),
        (pl.col("end_ns") < start).any().alias("reversed"),
        pl.any_horizontal(pl.col(always).is_null().any()).alias("missing"),
        pl.any_horizontal((pl.col(OF_ACTIONS_ALONE).is_null() & is_action).any()).alias("not_placed"),
    )
    return not any(wrong.row(0))


def save_table(table: LargeTable, folder: Path, on_done: Progress | None = None) -> None:
    """Fill `folder` with the levels of a large table.

    What follows from all spans together is left out, and a diagnostic says so. Raises TableError where a value does
    not fit its column.
    """
    outlines: list[pl.DataFrame] = []
    build_levels(_chunks(table, outlines), table.extent, folder, on_done)
    bare = empty_timeline()
    ranks = pl.DataFrame({"rank": table.ranks, "source": [str(table.path)] * len(table.ranks)})
    spans = conform(pl.concat(outlines), SPANS)
    run = replace(bare, spans=spans, ranks=conform(ranks, RANKS)).with_diagnostics(
        [
            Diagnostic(
                "warning",
                NOT_COMPUTED.format(count=table.extent.span_count),
                source=str(table.path),
                code="viewer.analysis_omitted",
            )
        ]
    )
    bubbles = step_bubbles(bare.spans, find_pipelines(bare.spans))
    meta = viewer_meta(run, bubbles, list(table.ranks)) | {"span_count": table.extent.span_count}
    save_run(folder, meta, {}, None)


def _chunks(table: LargeTable, outlines: list[pl.DataFrame]) -> Iterator[Chunk]:
    """Yield the spans in chunks of whole rows; an outline of each is added to `outlines`."""
    spans = pl.scan_parquet(table.path, hive_partitioning=False)
    begin, carried, count = 0, SPANS.empty(), table.extent.span_count
    for offset in range(0, count, SPANS_AT_ONCE):
        read = conform(spans.slice(offset, SPANS_AT_ONCE).collect(), SPANS, where=str(table.path))
        piece = pl.concat([carried, read])
        # The last rank of a piece goes on in the next one.
        goes_on = offset + SPANS_AT_ONCE < count
        cut = piece["rank"].search_sorted(piece["rank"][-1]) if goes_on else piece.height
        whole, carried = piece.slice(0, cut), piece.slice(cut)
        if whole.height:
            end = int(np.searchsorted(table.ranks, whole["rank"][-1])) + 1
            outlines.append(_outline(whole))
            yield Chunk(begin, end, _placed(table, whole, begin, table.ranks[begin:end]))
            begin = end


def _outline(spans: pl.DataFrame) -> pl.DataFrame:
    ends = spans.lazy().group_by(OUTLINE).agg(pl.min("start_ns"), pl.max("end_ns"))
    return ends.collect(engine="streaming")  # a third quicker than in memory


def _placed(table: LargeTable, spans: pl.DataFrame, first_row: int, ranks: Sequence[int]) -> pl.DataFrame:
    placed = viewer_spans(spans, ranks).with_columns(pl.col("row") + first_row)
    return coded(placed, table.extent.names, table.base_ns)
