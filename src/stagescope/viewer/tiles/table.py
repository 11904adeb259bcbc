"""Building the server's folder from a large Parquet table of spans, a part at a time and without a Timeline.

A Timeline of 64 million spans takes 10 GB. A table that is complete and sorted, as `stagescope export` writes it, is
read a million spans at a time instead. Alignment and analysis need all spans at once and are not done; a diagnostic
with the code `viewer.analysis_omitted` states this, and the page shows it above the picture.
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
from stagescope.viewer.step_data import step_lengths
from stagescope.viewer.tiles.build import Extent, build_levels
from stagescope.viewer.tiles.row_parts import FACT_SOURCES, Rows, row_chunks
from stagescope.viewer.tiles.run import save_run
from stagescope.viewer.tiles.sources import SPANS_AT_ONCE
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.viewer.tiles.build import Progress

LARGE = 8_000_000
"""Smaller tables are read as a Timeline and analyzed."""

NEEDED = ("rank", "lane", "kind", "start_ns", "end_ns", "step", "stage")
OF_ACTIONS_ALONE = ("step", "stage")
"""Only actions need these: an optimizer has no stage, and spans between steps have no step."""

OUTLINE = ["rank", "step", "kind", "lane", "stage", "peer"]
"""Columns that the meta data depend on; spans equal in all of them are reduced to one."""

NOT_COMPUTED = (
    "this table has {count:,} spans and is read in parts: clocks are not aligned, schedules are not recognized and "
    "nothing is analyzed; bubbles, verdict, idle intervals, critical path, slack and heat map are missing. Analyze a "
    "part of it, such as a few steps, to see them"
)


class LargeTable(NamedTuple):
    """A table that can be read a part at a time, and the results of a first pass over it."""

    path: Path
    rows: Rows


def find_large(path: Path) -> LargeTable | None:
    """Return a large table; None if it is small, lacks columns, or is not sorted."""
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
    return LargeTable(path, Rows(tuple(found.ranks), found.base_ns, extent))


@dataclass
class _Survey:
    """Results of one pass over a table so far; `last_row` is the rank and start of the last row."""

    ranks: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    base_ns: int = np.iinfo(np.int64).max
    last_ns: int = np.iinfo(np.int64).min
    has_facts: bool = False
    last_row: tuple[int, int] | None = None


def _survey(table: pl.LazyFrame, count: int) -> _Survey | None:
    """Return a survey of a table; None if it is unsorted or has rows that a Timeline would repair or drop."""
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
    """Return whether spans continue the order and are complete, with no span that ends before its start."""
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

    Results that need all spans at once are omitted, with a diagnostic. Raises TableError if a value does not fit
    its column.
    """
    outlines: list[pl.DataFrame] = []
    extent, numbers = table.rows.extent, table.rows.ranks
    build_levels(row_chunks(table.rows, _whole_rows(table, outlines)), extent, folder, on_done)
    bare = empty_timeline()
    ranks = pl.DataFrame({"rank": numbers, "source": [str(table.path)] * len(numbers)})
    spans = conform(pl.concat(outlines), SPANS)
    run = replace(bare, spans=spans, ranks=conform(ranks, RANKS)).with_diagnostics(
        [
            Diagnostic(
                "warning",
                NOT_COMPUTED.format(count=extent.span_count),
                source=str(table.path),
                code="viewer.analysis_omitted",
            )
        ]
    )
    bubbles = step_bubbles(bare.spans, find_pipelines(bare.spans))
    meta = viewer_meta(run, step_lengths(bubbles), list(numbers)) | {"span_count": extent.span_count}
    save_run(folder, meta, {}, None)


def _whole_rows(table: LargeTable, outlines: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the spans in parts of whole ranks; an outline of each is added to `outlines`."""
    spans = pl.scan_parquet(table.path, hive_partitioning=False)
    carried, count = SPANS.empty(), table.rows.extent.span_count
    for offset in range(0, count, SPANS_AT_ONCE):
        read = conform(spans.slice(offset, SPANS_AT_ONCE).collect(), SPANS, where=str(table.path))
        piece = pl.concat([carried, read])
        # The last rank of a piece continues in the next one.
        goes_on = offset + SPANS_AT_ONCE < count
        cut = piece["rank"].search_sorted(piece["rank"][-1], side="left") if goes_on else piece.height
        whole, carried = piece.slice(0, cut), piece.slice(cut)
        if whole.height:
            outlines.append(_outline(whole))
            yield whole


def _outline(spans: pl.DataFrame) -> pl.DataFrame:
    ends = spans.lazy().group_by(OUTLINE).agg(pl.min("start_ns"), pl.max("end_ns"))
    return ends.collect(engine="streaming")  # a third quicker than in memory
