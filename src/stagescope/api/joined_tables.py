"""Tables of the report of a run in ranges of steps that workers make while the first process explains the run."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.analysis.iteration.culprits import CULPRITS
from stagescope.analysis.ranges import (
    SCANNED,
    RangeAnalysis,
    Reference,
    compare_ranges,
    joined_pieces,
    sum_causes_of,
)
from stagescope.analysis.slowdown.slowdowns import SLOWDOWNS, measure_slowdowns
from stagescope.api.detached_tables import (
    attach,
    attach_later,
    detach,
    read_object,
    read_table,
    write_object,
)
from stagescope.api.range_files import timeline_of
from stagescope.execution import InThisProcess, in_background
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run import write_table
from stagescope.model.tables import SPANS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import polars as pl

    from stagescope.analysis.iteration.culprit_sums import CauseSums
    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.sample_comparisons import SampleComparisons
    from stagescope.analysis.statistics.step_trend import OutlierWindows
    from stagescope.execution import Executor

JOINED = "joined"
"""In the folder of the analysis, for these tables."""
COMPARISONS = "comparisons"
"""No table of the report: what it is explained with."""


class AnalyzedRun(NamedTuple):
    """What was measured of all ranges and of the reference, the steps in the totals, and those that were unusual.

    `sampling` is that of ChosenSteps. Tables are in files.
    """

    folder: Path
    ranges: tuple[RangeAnalysis, ...]
    reference: Reference
    counted: tuple[int, ...]
    unusual: OutlierWindows
    sampling: Sampling | None

    def attached(self) -> list[RangeAnalysis]:
        """Return what was measured of all ranges, whose tables are read when they are used."""
        return [attach_later(each, SCANNED) for each in self.ranges]

    def comparisons(self) -> SampleComparisons:
        """Return what the samples of all ranges show."""
        timeline, pipelines = timeline_of(SPANS.empty(), self.folder), _pipelines(self.folder)
        return compare_ranges(timeline, pipelines, self.attached(), self.sampling, attach(self.unusual))

    def causes(self) -> CauseSums:
        """Return the sums that culprits need."""
        return sum_causes_of(self.attached(), self.counted)


class _Table(NamedTuple):
    """A table to make."""

    table: str
    run: AnalyzedRun

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"the table {self.table}"


class JoinedTables(NamedTuple):
    """What workers make: the names of tables to save, and functions that wait for results and are called in this order.

    They return what the samples show, the sums for culprits, and the files of all tables by name.
    """

    names: frozenset[str]
    comparisons: Callable[[], SampleComparisons]
    causes: Callable[[], Callable[[], CauseSums]]
    files: Callable[[], dict[str, Path]]


@contextmanager
def joined_by_workers(executor: Executor, run: AnalyzedRun) -> Iterator[JoinedTables]:
    """Let workers make tables during the block, and yield what waits for them.

    Without workers, this process makes these tables when it saves the report.
    """
    if isinstance(executor, InThisProcess):
        yield JoinedTables(frozenset(), run.comparisons, lambda: run.causes, dict)
        return
    folder = run.folder / JOINED
    make_directory(folder)
    names = (SLOWDOWNS.name, *joined_pieces(run.attached(), run.counted))
    items = [_Table(name, run) for name in (COMPARISONS, CULPRITS.name, *names)]
    with in_background(executor, _join, items) as results:

        def files() -> dict[str, Path]:
            deque(results, maxlen=0)
            return {name: _file(folder, name) for name in names}

        yield JoinedTables(
            frozenset(names),
            lambda: read_object(next(results)),
            lambda: partial(attach, next(results)),
            files,
        )


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _pipelines(folder: Path) -> pl.DataFrame:
    return read_table(folder / "pipelines.arrow")


def _join(item: _Table) -> Any:
    """Write a table of the report; for culprits, return sums with tables in files, and comparisons in a file."""
    folder = item.run.folder / JOINED
    if item.table == COMPARISONS:
        return write_object(item.run.comparisons(), folder / f"{COMPARISONS}.pickle")
    if item.table == CULPRITS.name:
        sums: CauseSums = detach(item.run.causes(), folder / item.table)
        return sums
    if item.table == SLOWDOWNS.name:
        pieces = _slowdowns(item.run)
    else:
        pieces = joined_pieces(item.run.attached(), item.run.counted)[item.table]()
    write_table(pieces, _file(folder, item.table))
    return None


def _slowdowns(run: AnalyzedRun) -> Iterator[pl.DataFrame]:
    """Yield the table SLOWDOWNS of the reference."""
    reference: Reference = attach(run.reference)
    timeline = timeline_of(reference.spans, run.folder)
    every = None if reference.others is None else _pipelines(run.folder)["pipeline"]
    yield measure_slowdowns(timeline, reference.pipelines, run.counted, every)
