"""Merge the Timelines of several sources into one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.copies import without_copies
from stagescope.ingest.memory_need import ReadingNeed
from stagescope.ingest.plausible_times import require_possible_total, without_implausible_times
from stagescope.ingest.possible_values import with_possible_values
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.run_selection import Source, select_run
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.stages import place_stages
from stagescope.ingest.step_selection import select_steps
from stagescope.ingest.step_sizes import require_step_sizes
from stagescope.model import (
    CLOCKS,
    COUNTERS,
    DIAGNOSTICS,
    KERNELS,
    RANKS,
    SPANS,
    STEPS,
    Timeline,
    empty_timeline,
)
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform, in_order
from stagescope.vocabulary.errors import InputError, StagescopeError, TableError
from stagescope.vocabulary.limits import limit, limit_text, require
from stagescope.vocabulary.number_ranges import ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stagescope.ingest.discover import Inputs


def read_inputs(inputs: Inputs, options: ReadOptions | None = None) -> Timeline:
    """Return one Timeline of all inputs, each format read by its reader, with stages filled in where possible.

    If a reader rejects files that were found by searching a directory, and another format is usable, the rejection
    becomes a diagnostic: an error, or a warning if the files are tables with other content. Otherwise the reader's
    exception is raised. Raises InputError if two sources hold the same rank, if no source has the attempt, the
    pipeline or a step of the options, if a limit is exceeded, and if the files need more memory than there is.

    Formats that belong to different runs are not merged; see ingest/run_selection.py.
    """
    options = options or ReadOptions()
    if options.attempt and not any(reader.has_attempts for reader in inputs.files):
        raise InputError.no_attempt(options.attempt, 1)
    if options.pipeline and not any(reader.has_attempts for reader in inputs.files):
        raise InputError.no_pipeline(options.pipeline, ())
    sources: list[Source] = []
    refused: list[StagescopeError] = []
    need = ReadingNeed(_sizes_bytes(inputs))
    measured = replace(options, need=need)
    files_of, copies, copied = without_copies(inputs.files)
    for copy in copies:
        measured.done(copy)
    for reader, files in files_of.items():
        try:
            # The reader of recordings knows what they need before it reads them.
            read = reader.read(files, options if reader.has_attempts else measured)
            sources.append(Source(reader.name, files, read))
        except StagescopeError as error:  # noqa: PERF203 - each format fails on its own
            if inputs.named.intersection(files) or error is need.refusal:
                raise
            refused.append(error)
    if refused and not sources:
        raise refused[0]
    not_read = [
        Diagnostic(
            "warning" if isinstance(error, TableError) else "error",
            f"not read: {error}",
            code="input.not_read",
        )
        for error in refused
    ]
    timelines, left_out = select_run(sources, inputs.named)
    merged = merge_timelines(timelines, options.layout.rank_count).with_diagnostics(
        [*inputs.diagnostics, *copied, *not_read, *left_out]
    )
    placed = place_stages(with_schedule(merged, options.schedule), options.layout)
    selected = select_steps(placed, options.steps)
    # A recording has what really ran, however much.
    require_step_sizes(selected, only_stated=all(reader.has_attempts for reader in files_of))
    return selected


def _sizes_bytes(inputs: Inputs) -> Counter[Path]:
    """Return the size of each input: of a file, or of files that are read as one."""
    sizes_bytes: Counter[Path] = Counter()
    for reader, files in inputs.files.items():
        for path in files:
            with suppress(OSError):  # deleted since; reading it states that
                sizes_bytes[reader.unit(path)] += path.stat().st_size
    return sizes_bytes


def merge_timelines(timelines: Iterable[Timeline], world_size: int | None = None) -> Timeline:
    """Return the concatenation of the given Timelines, with validated and sorted tables.

    Spans and waits that end before they start are dropped and counted in diagnostics. Ranks that appear only in spans
    get a row in `ranks`. Ranks that the run declared but that have no recording are reported as an error in
    diagnostics; `world_size` is the number of ranks for files that do not declare it. Raises InputError if two
    Timelines hold the same rank, or if a limit is exceeded; TableError if a table violates its declaration.
    """
    declared = [conformed(timeline) for timeline in timelines] or [empty_timeline()]
    check_limits(declared)
    # After conforming, which adds the ranks that appear only in spans.
    _check_ranks_once(declared)
    merged = Timeline(
        spans=in_order(pl.concat(t.spans for t in declared), SPANS),
        ranks=pl.concat(t.ranks for t in declared)
        .sort(RANKS.order)
        .with_columns(pl.coalesce("world_size", pl.lit(world_size, pl.Int32)).alias("world_size")),
        steps=pl.concat(t.steps for t in declared).sort(STEPS.order),
        clocks=pl.concat(t.clocks for t in declared).unique(maintain_order=True),
        diagnostics=pl.concat(t.diagnostics for t in declared),
        counters=in_order(pl.concat(t.counters for t in declared), COUNTERS),
        kernels=in_order(pl.concat(t.kernels for t in declared), KERNELS),
    )
    valid = with_valid_rows(merged)
    return valid.with_diagnostics(run_notes(valid.ranks, valid.clocks))


def with_valid_rows(timeline: Timeline) -> Timeline:
    """Return the timeline without values and rows that no run has, which diagnostics count.

    Whether a row is valid depends on its own rank alone. Raises InputError if times of a rank are in different units.
    """
    possible = without_implausible_times(with_possible_values(timeline))
    require_possible_total(possible)
    return _without_reversed(possible)


def run_notes(ranks: pl.DataFrame, clocks: pl.DataFrame) -> list[Diagnostic]:
    """Return the diagnostics about the ranks and clocks of a whole run."""
    return [*_missing_ranks(ranks), *_wall_clock_warnings(clocks)]


def conformed(timeline: Timeline) -> Timeline:
    """Return a reader's Timeline with validated tables and a `ranks` row for every rank in its spans."""
    spans = conform(timeline.spans, SPANS)
    ranks = conform(timeline.ranks, RANKS)
    undescribed = spans.select("rank").unique().join(ranks, on="rank", how="anti")
    conformed = Timeline(
        spans=spans,
        ranks=pl.concat([ranks, conform(undescribed, RANKS)]),
        steps=conform(timeline.steps, STEPS),
        clocks=conform(timeline.clocks, CLOCKS),
        diagnostics=conform(timeline.diagnostics, DIAGNOSTICS),
        counters=conform(timeline.counters, COUNTERS),
        kernels=conform(timeline.kernels, KERNELS),
    )
    return _with_possible_sizes(conformed)


def _with_possible_sizes(timeline: Timeline) -> Timeline:
    """Return the timeline without declared numbers of ranks that no run has: every missing rank would be listed."""
    sizes = timeline.ranks["world_size"].cast(pl.Int64)  # a limit may be larger than its type allows
    wrong = sizes.filter((sizes < 1) | (sizes > limit("ranks")))
    if wrong.is_empty():
        return timeline
    text = (
        f"a run of {wrong[0]} ranks is declared, which is ignored: expected 1 to "
        f"{limit_text('ranks', limit('ranks'))} (--limit ranks=N)"
    )
    possible = pl.col("world_size").is_between(1, limit("ranks"))
    ranks = timeline.ranks.with_columns(pl.when(possible).then("world_size").alias("world_size"))
    source = timeline.ranks.filter(pl.col("world_size").eq_missing(wrong[0]))["source"][0]
    note = Diagnostic("error", text, source, count=len(wrong), code="metadata.impossible")
    return replace(timeline, ranks=ranks).with_diagnostics([note])


def check_limits(timelines: Sequence[Timeline]) -> None:
    """Raise InputError if the timelines have more than the limits allow, together."""
    source = next((source for t in timelines for source in t.ranks["source"].drop_nulls()), "the run")
    spans = pl.concat(timeline.spans.lazy().select("step", "name") for timeline in timelines)
    require("spans", sum(timeline.spans.height for timeline in timelines), source)
    require("ranks", sum(timeline.ranks.height for timeline in timelines), source)
    steps, names, longest = spans.select(
        pl.col("step").n_unique().alias("steps"),
        pl.col("name").n_unique().alias("names"),
        pl.col("name").str.len_chars().max().fill_null(0).alias("longest"),
    ).collect().row(0)  # fmt: skip
    require("steps", steps, source)
    require("names", names, source)
    require("name-length", longest, source)


def _check_ranks_once(timelines: Iterable[Timeline]) -> None:
    every = pl.concat(timeline.ranks for timeline in timelines).select("rank", "source")
    repeated = every.filter(pl.col("rank").is_duplicated()).sort("rank", maintain_order=True)
    if not repeated.is_empty():
        rank = repeated["rank"][0]
        sources = repeated.filter(pl.col("rank") == rank)["source"].fill_null("a source without a name")
        raise InputError.duplicate_rank(rank, sources)


def _without_reversed(timeline: Timeline) -> Timeline:
    """Return the timeline without spans and waits that end before they start."""
    reversed_span = pl.col("end_ns") < pl.col("start_ns")
    reversed_wait = (pl.col("wait_end_ns") < pl.col("wait_start_ns")).fill_null(value=False)
    # Almost always there are none, which takes a tenth of the time of copying all rows.
    if not timeline.spans.select(reversed_span.any() | reversed_wait.any()).item():
        return timeline
    spans = timeline.spans.filter(~reversed_span)
    if spans.is_empty() and timeline.spans.height:
        source = next(iter(timeline.ranks["source"].drop_nulls()), "the run")
        raise InputError.all_reversed(source, timeline.spans.height, timeline.spans.row(0, named=True))
    diagnostics = [
        *_counted(timeline, reversed_span, "spans.reversed", "spans end before they start and were dropped"),
        *_counted(
            timeline.with_spans(spans),
            reversed_wait,
            "waits.reversed",
            "waits end before they start and were dropped",
        ),
    ]
    waits = [pl.when(~reversed_wait).then(name).alias(name) for name in ("wait_start_ns", "wait_end_ns")]
    return timeline.with_spans(spans.with_columns(waits)).with_diagnostics(diagnostics)


def _counted(timeline: Timeline, wrong: pl.Expr, code: str, message: str) -> list[Diagnostic]:
    """Return one diagnostic per rank that has spans selected by `wrong`."""
    counts = (
        timeline.spans.filter(wrong)
        .group_by("rank")
        .agg(pl.len().alias("count"), pl.min("start_ns"))
        .join(timeline.ranks.select("rank", "source"), on="rank", how="left")
        .sort("rank")
    )
    return [
        Diagnostic(
            "error",
            message,
            row["source"],
            row["rank"],
            f"first start_ns {row['start_ns']}",
            row["count"],
            code=code,
        )
        for row in counts.iter_rows(named=True)
    ]


def _wall_clock_warnings(clocks: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning if there are several clocks with unknown offsets between them."""
    count = clocks["clock"].n_unique()
    if count < 2 or not clocks["error_hi_ns"].null_count():  # noqa: PLR2004 - one clock agrees with itself
        return []
    text = f"{count} machines are merged by their wall clocks: the offsets between these clocks are unknown"
    return [Diagnostic("warning", text, count=count, code=WALL_CLOCK_CODE)]


WALL_CLOCK_CODE = "clock.wall"
"""Dropped again by api.py once the clocks are aligned."""


def _missing_ranks(ranks: pl.DataFrame) -> list[Diagnostic]:
    """Return an error for the ranks that the run declared and that have no recording."""
    world_size = ranks["world_size"].max()
    if not isinstance(world_size, int):
        return []
    present = ranks["rank"].filter(ranks["rank"].is_between(0, world_size - 1)).n_unique()
    if present == world_size:
        return []
    missing = sorted(set(range(world_size)) - set(ranks["rank"]))
    message = f"no recording of {ranks_text(missing)}: the run declared {world_size} ranks"
    return [Diagnostic("error", message, count=len(missing), code="ranks.missing")]
