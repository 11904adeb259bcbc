"""Building the server's folder from a large stored run, a file at a time and without a Timeline.

Steps, bubbles, heat and messages are those of the whole run; verdict, findings and the account of lost time are those
of its saved report. Idle intervals, the critical path, slack and the ideal schedule have a row for every action or
more, and are left out: a diagnostic with the code `viewer.layers_omitted` states how to see them for some steps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.stored_run import read_part
from stagescope.model import SPANS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.lazy import TableParts
from stagescope.model.stored_run import NONE
from stagescope.model.tables import COUNTERS, KERNELS
from stagescope.model.validate import in_order_together
from stagescope.viewer.columns import encode_columns
from stagescope.viewer.counter_data import counter_section
from stagescope.viewer.rank_heat import rank_heat_section
from stagescope.viewer.run_data import viewer_meta
from stagescope.viewer.step_data import lengths_without_report
from stagescope.viewer.tiles.build import Extent, build_levels
from stagescope.viewer.tiles.row_parts import Rows, row_chunks
from stagescope.viewer.tiles.run import BLOB_TYPE, JSON_TYPE, Section, json_bytes, save_run
from stagescope.viewer.tiles.stored_survey import span_files, survey_run
from stagescope.vocabulary.limits import require_if_stated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Part
    from stagescope.viewer.tiles.build import Progress
    from stagescope.viewer.tiles.stored_survey import Files, Survey

LARGE = 8_000_000
"""Smaller runs are read as a Timeline, with all layers."""

MOST_AT_ONCE = 4_000_000
"""Spans of a pipeline that are sorted in memory at once; of a larger one, some ranks at a time."""

OMITTED = (
    "this run has {count:,} spans: idle intervals, the critical path, slack, links between actions and the ideal "
    "schedule are shown for some steps of it, as with: stagescope open {directory} --steps {first}:{after}"
)
KERNELS_OMITTED = "its {count:,} kernels are not shown"


class LargeRun(NamedTuple):
    """A large stored run. `timeline` has its ranks, clocks and diagnostics, and no spans.

    `unaligned` are ranks of pipelines whose machines are not on one clock: they have no windows. `name` is what
    sentences about the run call it; by default its directory.
    """

    directory: Path
    manifest: Manifest
    timeline: Timeline
    unaligned: tuple[int, ...] = ()
    name: str | None = None


def is_large(manifest: Manifest) -> bool:
    """Return whether a stored run is shown a file at a time."""
    return manifest.span_count >= LARGE


def save_large_run(
    run: LargeRun, folder: Path, extras: AnalysisLayers, on_done: Progress | None = None
) -> None:
    """Fill `folder` with the levels of a large stored run and the sections of its panels.

    `extras` has the steps and objects of its report, as far as there is one. Raises InputError if a file is missing,
    changed or damaged, and OSError when the system refuses.
    """
    require_if_stated("spans", run.manifest.span_count, run.directory)
    files = span_files(run.manifest)
    found = survey_run(run.directory, files, run.unaligned)
    rows = _rows(run, found)
    build_levels(row_chunks(rows, _whole_rows(run.directory, files)), rows.extent, folder, on_done)
    lengths = _lengths(found, extras)
    outline = run.timeline.with_spans(found.outline()).with_diagnostics(list(_omitted(run, lengths)))
    meta = viewer_meta(outline, lengths, list(rows.ranks)) | {"span_count": rows.extent.span_count}
    numbers = map(found.pipeline_of.get, rows.ranks)
    meta["ranks"]["pipeline"] = [None if number == NONE else number for number in numbers]
    sections = _sections(run, found, rows, extras)
    meta["sections"] = list(sections)
    save_run(folder, meta, sections, None)


def _lengths(found: Survey, extras: AnalysisLayers) -> pl.DataFrame:
    """Return what `step_lengths` does, for all steps; those that the report is not about are in no totals."""
    lengths = lengths_without_report(found.steps())
    if extras.steps is None:
        return lengths
    known = extras.steps.select("step", "in_totals", "excess_ns")
    joined = lengths.drop("in_totals", "excess_ns").join(known, on="step", how="left", maintain_order="left")
    return joined.with_columns(pl.col("in_totals").fill_null(value=False))


def _rows(run: LargeRun, found: Survey) -> Rows:
    known = found.ranks
    ranks = (*known, *sorted(set(run.timeline.ranks["rank"]).difference(known)))
    end = max(found.last_ns - found.base_ns, 0)
    extent = Extent(len(ranks), run.manifest.span_count, end, found.has_facts, tuple(sorted(found.names)))
    return Rows(ranks, found.base_ns, extent)


def _whole_rows(directory: Path, files: Mapping[int, Files]) -> Iterator[pl.DataFrame]:
    """Yield the spans in parts of whole ranks, in the order of the survey."""
    for own in files.values():
        count = sum(part.rows for part in own.all)
        if count <= MOST_AT_ONCE:
            yield in_order_together([read_part(directory, part) for part in own.all], SPANS)
            continue
        ranks = _ranks_of(directory, own.all)
        at_once = max(1, MOST_AT_ONCE * len(ranks) // count)
        for begin in range(0, len(ranks), at_once):
            yield _of_ranks(directory, own.all, ranks[begin : begin + at_once])


def _ranks_of(directory: Path, parts: Sequence[Part]) -> list[int]:
    found: set[int] = set()
    for part in parts:
        found.update(read_part(directory, part)["rank"].unique())
    return sorted(found)


def _of_ranks(directory: Path, parts: Sequence[Part], ranks: Sequence[int]) -> pl.DataFrame:
    chosen = pl.col("rank").is_between(ranks[0], ranks[-1])
    return in_order_together([read_part(directory, part).filter(chosen) for part in parts], SPANS)


def _omitted(run: LargeRun, lengths: pl.DataFrame) -> Iterator[Diagnostic]:
    first = int(lengths["step"][0]) if lengths.height else 0
    count, source = run.manifest.span_count, run.name or str(run.directory)
    text = OMITTED.format(count=count, directory=source, first=first, after=first + 1)
    yield Diagnostic("info", text, source, code="viewer.layers_omitted")
    kernels = sum(part.rows for part in run.manifest.parts if part.table == KERNELS.name)
    if kernels:
        yield Diagnostic("info", KERNELS_OMITTED.format(count=kernels), source, code="viewer.layers_omitted")


def _sections(run: LargeRun, found: Survey, rows: Rows, extras: AnalysisLayers) -> dict[str, Section]:
    tables = {"heat": found.stage_heat(), "transfers": found.transfer_totals()}
    blobs = {name: encode_columns(table) for name, table in tables.items() if table.height}
    by_rank = rank_heat_section(pl.concat(found.cells), rows.ranks) if found.cells else None
    if by_rank is not None:
        blobs["rank_heat"] = by_rank
    parts = [part for part in run.manifest.parts if part.table == COUNTERS.name]
    counters = TableParts(parts, partial(read_part, run.directory))
    section = counter_section(counters, rows.ranks, rows.base_ns) if parts else None
    if section is not None:
        blobs["counters"] = section
    return {
        **{name: Section(BLOB_TYPE, blob) for name, blob in blobs.items()},
        **{name: Section(JSON_TYPE, json_bytes(value)) for name, value in extras.objects.items()},
    }
