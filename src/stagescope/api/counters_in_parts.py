"""The counters of a run that is analyzed in ranges of steps: workers read some of its files each.

A file has the counters of one pipeline in a range of steps, or of its ranks outside of steps. What is found in them
is small, but for the data of every pipeline in every step. These stay in files, by blocks of steps, and are added up
over all pipelines a block at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis.counters.data_sizes import pipeline_data
from stagescope.analysis.counters.memory import most_memory
from stagescope.analysis.counters.parts import (
    CounterPart,
    JoinedCounters,
    SampledCells,
    join_counters,
    show_counters,
)
from stagescope.api.detached_tables import attach, attach_later, detach, path_of, read_table
from stagescope.api.range_files import FOLDER
from stagescope.ingest.stored_run import read_part
from stagescope.model.tables import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stagescope.api.joined_tables import AnalyzedRun
    from stagescope.model.stored_run import Manifest, Part
    from stagescope.vocabulary.steps import StepRanges

    Runs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]

ROWS_OF_UNIT = 1_000_000
"""Counters that a worker reads at once, unless a single file has more; each takes about 150 bytes."""
ROWS_OF_BLOCK = 1_000_000
"""Rows of a pipeline in a step that are added up at once, unless a single step has more."""


class CounterUnit(NamedTuple):
    """Files of counters: what is found in them depends on the steps in the totals and on the sample of the run.

    `sampled` are the steps of the sample, and `acting` is the file with its ranks. `bounds` are the first steps of all
    blocks but the first.
    """

    directory: Path
    number: int
    parts: tuple[Part, ...]
    bounds: tuple[int, ...]
    counted: tuple[int, ...]
    sampled: StepRanges
    acting: Path

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"part {self.number} of counters"


class ReadUnit(NamedTuple):
    """What is found in a unit, and the rows of pipeline_data by the number of their block of steps, if it has any."""

    found: CounterPart
    data: dict[int, pl.DataFrame]


def divide_counters(manifest: Manifest) -> tuple[tuple[Part, ...], ...]:
    """Return the files of counters of a run, some at a time, by steps; one group without files if it has none."""
    parts = [part for part in manifest.parts if part.table == COUNTERS.name]
    groups: list[list[Part]] = [[]]
    rows = 0
    for part in sorted(parts, key=lambda each: (each.step_range, each.pipeline)):
        if groups[-1] and rows + part.rows > ROWS_OF_UNIT:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += part.rows
    return tuple(map(tuple, groups))


def analyze_counters(
    groups: Sequence[tuple[Part, ...]],
    directory: Path,
    steps: Sequence[int],
    analyzed: AnalyzedRun,
    run: Runs,
) -> JoinedCounters:
    """Return what the counters of a run show, given its files in groups and what was measured of its ranges of steps.

    `steps` are those of the run, sorted, and `run` runs tasks. Raises InputError if a file is damaged, and OSError.
    """
    folder, reference = directory / FOLDER, analyzed.reference
    pipelines = read_table(folder / "pipelines.arrow")
    bounds = tuple(steps[:: max(1, ROWS_OF_BLOCK // max(1, pipelines["pipeline"].n_unique()))][1:])
    of_run = (bounds, analyzed.counted, reference.steps, path_of(reference.pipelines))
    units = [CounterUnit(directory, number, parts, *of_run) for number, parts in enumerate(groups)]
    read: list[ReadUnit] = list(run(read_unit, units))
    parts: list[CounterPart] = [attach_later(each.found) for each in read]
    return join_counters(parts, _data_of_blocks(read), pipelines, read_table(folder / "ranks.arrow"))


def read_unit(unit: CounterUnit) -> ReadUnit:
    """Return what is found in some files of counters, with tables in files. Raises InputError if one is damaged."""
    folder = unit.directory / FOLDER
    counters = pl.concat([COUNTERS.empty(), *(read_part(unit.directory, part) for part in unit.parts)])
    shown = show_counters(counters, unit.counted, SampledCells(unit.sampled, read_table(unit.acting)))
    data = pipeline_data(counters, read_table(folder / "pipelines.arrow"))
    found = ReadUnit(CounterPart(most_memory(counters), shown), _by_blocks(data, unit.bounds))
    read: ReadUnit = detach(found, folder / f"counters-{unit.number}")
    return read


def _by_blocks(data: pl.DataFrame, bounds: Sequence[int]) -> dict[int, pl.DataFrame]:
    """Return rows, which are sorted by step, by the number of their block."""
    places = [0, *data["step"].search_sorted(pl.Series(bounds, dtype=pl.Int32)), data.height]
    return {number: data[begin:end] for number, (begin, end) in enumerate(pairwise(places)) if begin < end}


def _data_of_blocks(read: Sequence[ReadUnit]) -> Iterator[pl.DataFrame]:
    """Yield the rows of each block with any, of all units together."""
    for number in sorted({number for each in read for number in each.data}):
        yield pl.concat([attach(each.data[number]) for each in read if number in each.data])
