"""What the page needs to know of a whole stored run, from one pass over its files.

Windows, heat, and messages are those of one pipeline in one step, so that a file, with its neighbors for spans that
reach over a boundary between steps, is all that they need.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.statistics.stage_heat import measure_stage_heat
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.ingest.stored_run import read_part
from stagescope.model import SPANS
from stagescope.model.bubbles import bubbles_of_steps, bubbles_of_sums, of_windows, step_bubbles, sum_of_steps
from stagescope.model.large_tables import ReducedRows
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines
from stagescope.model.stored_run import NONE
from stagescope.model.validate import conform
from stagescope.viewer.rank_heat import MOST_CELLS
from stagescope.viewer.tiles.row_parts import FACT_SOURCES
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from stagescope.model.stored_run import Manifest, Part

OUTLINES = (
    ("rank", "kind", "lane", "stage", "peer"),
    ("step", "kind", "lane"),
    ("kind", "lane", "microbatch"),
)
"""The meta data depend on which ranks, steps and micro-batches have what; spans equal in one of these are one row."""


class Files(NamedTuple):
    """The files with the spans of one pipeline: those of ranges of steps in order, and that of spans without one."""

    ranges: tuple[Part, ...]
    without_step: tuple[Part, ...]

    @property
    def all(self) -> tuple[Part, ...]:
        """All of them."""
        return (*self.ranges, *self.without_step)


def span_files(manifest: Manifest) -> dict[int, Files]:
    """Return the files with spans by pipeline; ranks without a pipeline are the last one, NONE."""
    parts = [part for part in manifest.parts if part.table == SPANS.name and part.rows]
    numbers = sorted({int(part.pipeline or 0) for part in parts}, key=lambda number: (number == NONE, number))
    return {
        number: Files(
            tuple(
                sorted(
                    (part for part in parts if part.pipeline == number and part.step_range != NONE),
                    key=lambda part: part.step_range or 0,
                )
            ),
            tuple(part for part in parts if part.pipeline == number and part.step_range == NONE),
        )
        for number in numbers
    }


@dataclass
class Survey:
    """What one pass over a stored run found so far; without the windows of `unaligned` ranks, which have none."""

    unaligned: Sequence[int] = ()
    pipeline_of: dict[int, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    base_ns: int = np.iinfo(np.int64).max
    last_ns: int = np.iinfo(np.int64).min
    has_facts: bool = False
    outlines: tuple[ReducedRows, ...] = field(
        default_factory=lambda: tuple(ReducedRows(partial(_outline, names=names)) for names in OUTLINES)
    )
    step_sums: ReducedRows = field(default_factory=lambda: ReducedRows(sum_of_steps))
    cells: list[pl.DataFrame] = field(default_factory=list)
    cell_count: int = 0
    heat: ReducedRows = field(default_factory=lambda: ReducedRows(_sum_heat))
    transfers: ReducedRows = field(default_factory=lambda: ReducedRows(_sum_transfers))

    @property
    def ranks(self) -> list[int]:
        """The ranks with a span, pipeline by pipeline; those without a pipeline are the last ones."""
        place = {number: place for place, number in enumerate(dict.fromkeys(self.pipeline_of.values()))}
        return sorted(self.pipeline_of, key=lambda rank: (place[self.pipeline_of[rank]], rank))

    def outline(self) -> pl.DataFrame:
        """Return a table SPANS with the same kinds, stages, steps, micro-batches and extremes as the run."""
        rows = [each.rows() for each in self.outlines if each]
        return conform(pl.concat(rows, how="diagonal"), SPANS) if rows else SPANS.empty()

    def steps(self) -> pl.DataFrame:
        """Return what `bubbles_of_steps` returns for the run."""
        empty = step_bubbles(SPANS.empty(), find_pipelines(SPANS.empty()))
        return bubbles_of_sums(self.step_sums.rows()) if self.step_sums else bubbles_of_steps(empty)

    def stage_heat(self) -> pl.DataFrame:
        """Return the table STAGE_HEAT of the run."""
        return self.heat.rows() if self.heat else pl.DataFrame()

    def transfer_totals(self) -> pl.DataFrame:
        """Return the table TRANSFER_TOTALS of the run."""
        return self.transfers.rows() if self.transfers else pl.DataFrame()

    def add_windows(self, bubbles: pl.DataFrame) -> None:
        """Add what `step_bubbles` returned for a file. Those of more ranks and steps than a map shows are not kept."""
        own = bubbles.filter(~pl.col("rank").is_in(self.unaligned))
        self.step_sums.add(of_windows(own))
        self.cell_count += own.height
        if self.cell_count <= MOST_CELLS:
            self.cells.append(own)
        else:
            self.cells.clear()


def survey_run(directory: Path, files: Mapping[int, Files], unaligned: Sequence[int] = ()) -> Survey:
    """Return the survey of a stored run. Raises InputError if a file is missing, changed or damaged."""
    found = Survey(unaligned)
    for pipeline, own in files.items():
        loose = _joined([read_part(directory, part) for part in own.without_step])
        if loose.height:
            _look_at(found, loose, pipeline)
        for part, rows, neighbors in _with_neighbors(directory, own.ranges):
            _look_at(found, rows, pipeline)
            if pipeline != NONE:
                _measure(found, part, rows, _joined([rows, loose, *neighbors]))
    return found


def _with_neighbors(
    directory: Path, parts: Sequence[Part]
) -> Iterator[tuple[Part, pl.DataFrame, list[pl.DataFrame]]]:
    """Yield each file with its rows and those of the files before and after it; each is read once."""
    known: deque[pl.DataFrame] = deque(maxlen=3)
    rows = chain((read_part(directory, part) for part in parts), [None])
    for number, following in enumerate(rows):
        if number:
            after = [] if following is None else [following]
            before = list(known)[:-1][-1:]
            yield parts[number - 1], known[-1], [*before, *after]
        if following is not None:
            known.append(following)


def _look_at(found: Survey, rows: pl.DataFrame, pipeline: int) -> None:
    base_ns, *ends_ns = rows.select(pl.min("start_ns"), last=pl.max("start_ns"), end=pl.max("end_ns")).row(0)
    found.base_ns, found.last_ns = min(found.base_ns, base_ns), max(found.last_ns, *ends_ns)
    found.has_facts |= any(rows[name].null_count() < rows.height for name in FACT_SOURCES)
    found.names |= set(rows["name"].drop_nulls().unique())
    found.pipeline_of |= dict.fromkeys(rows["rank"].unique(), pipeline)
    for each in found.outlines:
        each.add(rows)


def _measure(found: Survey, part: Part, rows: pl.DataFrame, around: pl.DataFrame) -> None:
    """Add the windows, the heat and the messages of a file; `around` has what reaches over its boundaries, too."""
    actions = rows.filter(pl.col("kind").is_in(ACTION_KINDS))["rank"].unique().sort()
    pipelines = pl.DataFrame({"rank": actions}).with_columns(pipeline=pl.lit(part.pipeline, pl.Int32))
    own = pl.col("step").is_between(part.first_step, part.last_step)
    bubbles = step_bubbles(around, pipelines).filter(own)
    found.add_windows(bubbles)
    found.heat.add(measure_stage_heat(rows, bubbles))
    found.transfers.add(measure_transfers(match_messages(rows)))


def _outline(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    rank = [] if "rank" in names else [pl.min("rank")]
    return rows.group_by(names).agg(*rank, pl.min("start_ns"), pl.max("end_ns"))


def _joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(parts) if parts else SPANS.empty()


def _sum_heat(parts: pl.DataFrame) -> pl.DataFrame:
    idle = pl.when(pl.col("idle_ns").is_not_null().any()).then(pl.sum("idle_ns"))
    return _summed(
        parts, ("step", "stage"), [pl.sum("action_ns", "wait_ns", "action_count"), idle.alias("idle_ns")]
    )


def _sum_transfers(parts: pl.DataFrame) -> pl.DataFrame:
    size = pl.when(pl.col("bytes").is_not_null().all()).then(pl.sum("bytes"))
    wait = pl.when(pl.col("wait_ns").is_not_null().any()).then(pl.sum("wait_ns"))
    others = [pl.sum("messages", "transfer_ns"), size.alias("bytes"), wait.alias("wait_ns")]
    return _summed(parts, ("source", "target"), others)


def _summed(parts: pl.DataFrame, key: tuple[str, ...], sums: list[pl.Expr]) -> pl.DataFrame:
    return parts.group_by(key).agg(sums).sort(key).select(pl.col(n).cast(d) for n, d in parts.schema.items())
