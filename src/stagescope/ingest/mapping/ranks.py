"""The rank of every mapped span, the coordinates of the ranks, and the ranks at the other end of transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.model import RANKS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import ACTION_KINDS
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
    key = ["file", "process"]
    process = pl.col("process").cast(pl.String)
    numbered = spans.select(key).unique().sort("file", process.cast(pl.Int64, strict=False), process)
    placed = spans.select(key).join(
        numbered.with_row_index("place"), on=key, how="left", maintain_order="left"
    )
    return spans.with_columns(rank=pl.coalesce("rank", placed["place"].cast(pl.Int32)))


def rank_rows(spans: pl.DataFrame, files: Sequence[TraceSlices], clocks: Sequence[str]) -> pl.DataFrame:
    """Return the rows of the ranks, with the file of the first span of each and its clock.

    A coordinate for which a rank has several values is unknown.
    """
    one = [pl.when(pl.min(name) == pl.max(name)).then(pl.min(name)).alias(name) for name in DIMENSIONS]
    found = spans.group_by("rank").agg(pl.first("file"), *one)
    sources = [str(file.path) for file in files]
    found = found.with_columns(
        clock=pl.Series(clocks, dtype=pl.String).gather(found["file"]),
        source=pl.Series(sources, dtype=pl.String).gather(found["file"]),
    )
    if (
        found["pp"].null_count() == 0 and found["pp"].is_unique().all()
    ):  # one rank per coordinate: one pipeline
        found = found.with_columns(pl.col(name).fill_null(0) for name in DIMENSIONS)
    return conform(found, RANKS)


def with_peers(spans: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the peers that a mapping states as a pipeline coordinate or stage (`peer_pp`, `peer_stage`).

    The peer has the same other coordinates; it stays unknown if none or several ranks are there.
    """
    stated = [place for place in ("peer_pp", "peer_stage") if spans[place].count()]
    if not stated:
        return spans
    coordinates = ranks.select(
        pl.col("rank").cast(pl.Int64), *(pl.col(name).cast(pl.Int64) for name in DIMENSIONS)
    )
    stages = spans.select("rank", "stage").filter(spans["kind"].is_in(ACTION_KINDS)).drop_nulls().unique()
    places = {
        "peer_pp": coordinates.rename({"pp": "peer_pp"}),
        "peer_stage": coordinates.drop("pp").join(
            stages.select(pl.col("rank").cast(pl.Int64), peer_stage=pl.col("stage").cast(pl.Int64)),
            on="rank",
        ),
    }
    for place in stated:
        spans = _with_peers_at(spans, place, places[place], coordinates)
    return spans


def _with_peers_at(
    spans: pl.DataFrame, place: str, holders: pl.DataFrame, coordinates: pl.DataFrame
) -> pl.DataFrame:
    """Return spans with the only rank that is at `place`, in the row `holders`, as peer."""
    others = [name for name in DIMENSIONS if name != "pp"]
    own = coordinates.select("rank", *(pl.col(name).fill_null(0).alias(f"own_{name}") for name in others))
    key = [place, *(f"own_{name}" for name in others)]
    known = holders.select(
        place, *(pl.col(name).fill_null(0).alias(f"own_{name}") for name in others), found_peer="rank"
    )
    found = spans.select(pl.col("rank", "peer", place).cast(pl.Int64))
    joined = found.join(own, on="rank", how="left", maintain_order="left").join(
        known.filter(pl.struct(key).is_unique()), on=key, how="left", maintain_order="left"
    )
    return spans.with_columns(joined.select(pl.coalesce("peer", "found_peer")).to_series())
