"""The rank of every mapped span, the coordinates of the ranks, and the ranks at the other end of transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.model import RANKS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform
from stagescope.vocabulary.parallel import DIMENSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.mapping.slices import TraceSlices


def with_ranks(
    spans: pl.DataFrame, files: Sequence[TraceSlices], diagnostics: list[Diagnostic]
) -> pl.DataFrame:
    """Return spans, which have `file`, with ranks: as they are mapped, else by file names, else a rank per process."""
    if not spans["rank"].null_count():
        return spans
    of_file = {
        number: int(found[1])
        for number, file in enumerate(files)
        if (found := RANK_IN_NAME.search(file.path.name)) is not None
    }
    processes = spans.select("file", "process").unique(maintain_order=True).height
    used = spans["file"].unique()
    if len(used) == processes and len(files) > 1 and all(number in of_file for number in used):
        numbers = pl.col("file").replace_strict(of_file, return_dtype=pl.Int64)
        return spans.with_columns(rank=pl.coalesce("rank", numbers))
    if processes > 1:
        text = "no name states a rank: the processes are numbered in the order of their files and process ids"
        diagnostics.append(Diagnostic("warning", text, count=processes, code="ranks.assumed"))
    numbered = spans.select("file", "process", number=pl.col("process").cast(pl.Int64, strict=False)).unique()
    places = numbered.sort("file", "number", "process").with_row_index("place").drop("number")
    placed = spans.join(places, on=["file", "process"], how="left", maintain_order="left")
    return placed.with_columns(rank=pl.coalesce("rank", pl.col("place").cast(pl.Int64))).drop("place")


def rank_rows(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the ranks; a coordinate for which a rank has several values is unknown."""
    one = [
        pl.when(pl.col(name).drop_nulls().n_unique() == 1).then(pl.col(name).drop_nulls().first()).alias(name)
        for name in DIMENSIONS
    ]
    found = spans.group_by("rank").agg(pl.first("clock", "source"), *one)
    if (
        found["pp"].null_count() == 0 and found["pp"].is_unique().all()
    ):  # one rank per coordinate: one pipeline
        found = found.with_columns(pl.col(name).fill_null(0) for name in DIMENSIONS)
    return conform(found, RANKS)


def with_peers(spans: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the peers that a mapping states as a pipeline coordinate (`peer_pp`)."""
    if spans["peer_pp"].null_count() == spans.height:
        return spans
    others = [name for name in DIMENSIONS if name != "pp"]
    places = ranks.select("rank", *(pl.col(name).fill_null(0).cast(pl.Int64) for name in DIMENSIONS))
    once = places.filter(pl.struct(*DIMENSIONS).is_unique())
    own = places.select("rank", *(pl.col(name).alias(f"own_{name}") for name in others))
    found = spans.with_columns(pl.col("rank").cast(pl.Int32)).join(
        own, on="rank", how="left", maintain_order="left"
    )
    peers = once.rename({"rank": "found_peer", "pp": "peer_pp", **{name: f"own_{name}" for name in others}})
    joined = found.join(
        peers, on=["peer_pp", *(f"own_{name}" for name in others)], how="left", maintain_order="left"
    )
    return joined.with_columns(peer=pl.coalesce("peer", pl.col("found_peer").cast(pl.Int64))).select(
        spans.columns
    )
