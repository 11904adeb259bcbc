"""Several sources become one Timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.one_run import Source, keep_one_run
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.stages import place_stages
from stagescope.model import CLOCKS, DIAGNOSTICS, RANKS, SPANS, STEPS, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform, in_order
from stagescope.vocabulary.errors import InputError, StagescopeError, TableError
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.ingest.discover import Inputs


def read_inputs(inputs: Inputs, options: ReadOptions | None = None) -> Timeline:
    """Return the one Timeline of all inputs, each format read by its reader, with stages where they can be known.

    A format that its reader refuses becomes a row in diagnostics if its files were only found in a directory
    and another format is usable: an error, or a warning where the files are tables of something else. Raises
    what the reader raises otherwise, and InputError when two sources hold the same rank.

    Formats that are not of one run are not merged: see ingest/one_run.py.
    """
    options = options or ReadOptions()
    sources: list[Source] = []
    refused: list[StagescopeError] = []
    for reader, files in inputs.files.items():
        try:
            sources.append(Source(reader.name, files, reader.read(files, options)))
        except StagescopeError as error:  # noqa: PERF203 - each format fails on its own
            if inputs.named.intersection(files):
                raise
            refused.append(error)
    if refused and not sources:
        raise refused[0]
    not_read = [
        Diagnostic("warning" if isinstance(error, TableError) else "error", f"not read: {error}")
        for error in refused
    ]
    timelines, left_out = keep_one_run(sources, inputs.named)
    merged = merge_timelines(timelines, options.layout.rank_count).with_diagnostics(
        [*inputs.diagnostics, *not_read, *left_out]
    )
    return place_stages(with_schedule(merged, options.schedule), options.layout)


def merge_timelines(timelines: Iterable[Timeline], world_size: int | None = None) -> Timeline:
    """Return one Timeline of all given, its tables as declared and sorted.

    Raises InputError when two of them hold the same rank, TableError when a table breaks its declaration.
    Spans that end before they start, and waits that do, are left out and counted in diagnostics. Ranks that
    spans name and no ranks table describes get a row; ranks that the run declared and nobody recorded become an
    error in diagnostics. `world_size` is how many ranks the run had where its files do not declare it.
    """
    declared = [_conformed(timeline) for timeline in timelines] or [empty_timeline()]
    _check_ranks_once(declared)
    merged = Timeline(
        spans=in_order(pl.concat(t.spans for t in declared), SPANS),
        ranks=pl.concat(t.ranks for t in declared)
        .sort(RANKS.order)
        .with_columns(pl.coalesce("world_size", pl.lit(world_size, pl.Int32)).alias("world_size")),
        steps=pl.concat(t.steps for t in declared).sort(STEPS.order),
        clocks=pl.concat(t.clocks for t in declared).unique(maintain_order=True),
        diagnostics=pl.concat(t.diagnostics for t in declared),
    )
    return _without_reversed(merged).with_diagnostics(
        [*_missing_ranks(merged.ranks), *wall_clock_notes(merged.clocks)]
    )


def _conformed(timeline: Timeline) -> Timeline:
    """Return a Timeline of any reader with its tables as declared, and a ranks row for every rank in it."""
    spans = conform(timeline.spans, SPANS)
    ranks = conform(timeline.ranks, RANKS)
    undescribed = spans.select("rank").unique().join(ranks, on="rank", how="anti")
    return Timeline(
        spans=spans,
        ranks=pl.concat([ranks, conform(undescribed, RANKS)]),
        steps=conform(timeline.steps, STEPS),
        clocks=conform(timeline.clocks, CLOCKS),
        diagnostics=conform(timeline.diagnostics, DIAGNOSTICS),
    )


def _check_ranks_once(timelines: Iterable[Timeline]) -> None:
    every = pl.concat(timeline.ranks for timeline in timelines).select("rank", "source")
    repeated = every.filter(pl.col("rank").is_duplicated()).sort("rank", maintain_order=True)
    if not repeated.is_empty():
        rank = repeated["rank"][0]
        sources = repeated.filter(pl.col("rank") == rank)["source"].fill_null("a source without a name")
        raise InputError.duplicate_rank(rank, sources)


def _without_reversed(timeline: Timeline) -> Timeline:
    """Return the timeline without spans that end before they start, and without waits that do."""
    reversed_span = pl.col("end_ns") < pl.col("start_ns")
    reversed_wait = (pl.col("wait_end_ns") < pl.col("wait_start_ns")).fill_null(value=False)
    spans = timeline.spans.filter(~reversed_span)
    diagnostics = [
        *_counted(timeline, reversed_span, "spans that end before they start; they were left out"),
        *_counted(timeline.with_spans(spans), reversed_wait, "waits that end before they start; left out"),
    ]
    waits = [pl.when(~reversed_wait).then(name).alias(name) for name in ("wait_start_ns", "wait_end_ns")]
    return timeline.with_spans(spans.with_columns(waits)).with_diagnostics(diagnostics)


def _counted(timeline: Timeline, wrong: pl.Expr, message: str) -> list[Diagnostic]:
    """Return one diagnostic per rank for the spans that are wrong."""
    counts = (
        timeline.spans.filter(wrong)
        .group_by("rank")
        .agg(pl.len().alias("count"), pl.min("start_ns"))
        .join(timeline.ranks.select("rank", "source"), on="rank", how="left")
        .sort("rank")
    )
    return [
        Diagnostic(
            "error", message, row["source"], row["rank"], f"first start_ns {row['start_ns']}", row["count"]
        )
        for row in counts.iter_rows(named=True)
    ]


def wall_clock_notes(clocks: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning where several clocks stand side by side and nobody knows how far they are apart."""
    count = clocks["clock"].n_unique()
    if count < 2 or not clocks["error_hi_ns"].null_count():  # noqa: PLR2004 - one clock agrees with itself
        return []
    text = f"{count} machines are merged by their wall clocks: how far these are apart is unknown"
    return [Diagnostic("warning", text, count=count)]


def _missing_ranks(ranks: pl.DataFrame) -> list[Diagnostic]:
    """Return an error for the ranks that the run declared and nobody recorded."""
    world_size = ranks["world_size"].max()
    if not isinstance(world_size, int):
        return []
    missing = sorted(set(range(world_size)) - set(ranks["rank"]))
    if not missing:
        return []
    message = f"no recording of rank {compact_ranges(missing)}: the run declared {world_size} ranks"
    return [Diagnostic("error", message, count=len(missing))]
