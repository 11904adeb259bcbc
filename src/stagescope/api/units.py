"""The files with the spans of a stored run, some pipelines at a time: what a worker reads at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.stored_run import read_or_note
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.stored_run import NONE
from stagescope.model.tables import SPANS, STEPS
from stagescope.model.validate import in_order_together
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.model.step_division import NeededSpans
    from stagescope.model.stored_run import Manifest, Part

SPANS_OF_UNIT = 1_000_000
"""Spans of pipelines that are read at once, unless a single file has more."""


class Unit(NamedTuple):
    """Files with the spans of some pipelines: `needed` are those of the ranges of steps that they are divided into.

    `steps` are files with the table of steps of these pipelines. Spans of `dropped` ranks are left out. The ranges
    `outlined`, by number, are looked at in groups of pipelines.
    """

    directory: Path
    number: int
    parts: tuple[Part, ...]
    steps: tuple[Part, ...]
    needed: tuple[NeededSpans, ...]
    dropped: tuple[int, ...] = ()
    outlined: range = range(0)

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"part {self.number} of the pipelines"


def count_units(manifest: Manifest) -> int:
    """Return about how many units a run has."""
    return -(-manifest.span_count // SPANS_OF_UNIT)


def divide_into_units(
    directory: Path, manifest: Manifest, needed: tuple[NeededSpans, ...] = ()
) -> list[Unit]:
    """Return the files of spans, some pipelines at a time; files without a pipeline are apart."""
    parts = [part for part in manifest.parts if part.table == SPANS.name]
    groups: list[list[Part]] = []
    rows = 0
    for part in sorted(parts, key=lambda each: (each.pipeline == NONE, each.step_range, each.pipeline)):
        is_other = not groups or (part.pipeline == NONE) != (groups[-1][-1].pipeline == NONE)
        if is_other or rows + part.rows > SPANS_OF_UNIT:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += part.rows
    return [
        Unit(directory, number, tuple(group), steps, needed)
        for number, (group, steps) in enumerate(zip(groups, _steps_of_groups(manifest, groups), strict=True))
    ]


def _steps_of_groups(manifest: Manifest, groups: Sequence[Sequence[Part]]) -> Iterator[tuple[Part, ...]]:
    """Yield the files with the table of steps of the pipelines of each group of files of spans."""
    steps: defaultdict[int | None, list[Part]] = defaultdict(list)
    for part in manifest.parts:
        if part.table == STEPS.name:
            steps[part.pipeline].append(part)
    for group in groups:
        yield tuple(part for pipeline in {each.pipeline: None for each in group} for part in steps[pipeline])


def read_unit(unit: Unit) -> tuple[pl.DataFrame, pl.DataFrame, tuple[Diagnostic, ...]]:
    """Return the spans of a unit, the pipelines of its ranks that are not dropped, and what is wrong with its files."""
    read = [(part.pipeline, read_or_note(unit.directory, part)) for part in unit.parts]
    files = [(pipeline, rows) for pipeline, rows in read if isinstance(rows, pl.DataFrame)]
    damage = tuple(note for _, note in read if isinstance(note, Diagnostic))
    acted = [
        rows.select("rank", "kind")
        .filter(pl.col("kind").is_in(ACTION_KINDS) & ~pl.col("rank").is_in(unit.dropped))
        .select("rank", pipeline=pl.lit(pipeline, pl.Int32))
        .unique()
        for pipeline, rows in files
        if pipeline != NONE
    ]
    empty = pl.DataFrame(schema={"rank": pl.Int32, "pipeline": pl.Int32})
    pipelines = pl.concat([empty, *acted]).unique().sort("rank")
    parts = [rows for _, rows in files]
    del read, files  # their rows are moved
    return in_order_together(parts, SPANS), pipelines, damage


def kept_spans(spans: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """Return the spans of a unit without those of the ranks that are dropped."""
    return spans.filter(~pl.col("rank").is_in(unit.dropped)) if unit.dropped else spans
