"""What a comparison needs of a stored run that is too large to be read as a whole, measured by workers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.statistics.compared_spans import ComparedSpans, measure_compared, unite_compared
from stagescope.analysis.statistics.comparison import gather_totals
from stagescope.api.detached_tables import attach, detach
from stagescope.api.saved_reports import large_run_of, with_damage
from stagescope.api.task_progress import TaskProgress
from stagescope.api.units import divide_into_units, kept_spans, read_unit
from stagescope.execution import executor_for
from stagescope.execution.memory import return_memory
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from stagescope.analysis.statistics.comparison import ComparedRun
    from stagescope.api.reading import RunFacts
    from stagescope.api.units import Unit
    from stagescope.model.diagnostics import Diagnostic


class UnitToCompare(NamedTuple):
    """Files with spans of some pipelines, the steps that are compared, and where to leave what is measured of them."""

    unit: Unit
    steps: tuple[int, ...]
    folder: Path

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.unit.name


class MeasuredUnit(NamedTuple):
    """What a comparison needs of a unit, with tables in files, and what is wrong with its own files."""

    spans: ComparedSpans
    damage: tuple[Diagnostic, ...]


def gather_stored_run(
    *paths: str | os.PathLike[str],
    on_progress: Callable[[int, int], object] | None = None,
    on_read: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> ComparedRun | None:
    """Return what `gather_timeline` does for a stored run, from its saved report and its files, a few at a time.

    The run is analyzed first if it has no report. None for anything that is read as a whole: other input, a run that is
    analyzed at once, and one whose report cannot be saved. Damage of the files is in the diagnostics of the report and
    its timeline. `on_progress` and what is raised are those of `report_of_stored_run`; `on_read` is called with the
    number of tasks that are done, and of all, while the spans are read.
    """
    found = large_run_of(*paths, on_progress=on_progress, **facts)
    if found is None:
        return None
    directory, manifest, report = found
    units = [each._replace(dropped=report.unaligned) for each in divide_into_units(directory, manifest)]
    damage: list[Diagnostic] = []

    def measure(steps: list[int]) -> ComparedSpans:
        measured = _measured(units, tuple(steps), TaskProgress(on_read))
        damage.extend(note for each in measured for note in each.damage)
        return unite_compared([each.spans for each in measured])

    run = gather_totals(report, measure)
    return_memory()
    return run._replace(report=with_damage(report, damage))


def _measured(units: Sequence[Unit], steps: tuple[int, ...], progress: TaskProgress) -> list[MeasuredUnit]:
    """Return what workers measure of all units of a run."""
    progress.expect(len(units))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="stagescope-") as folder,
            executor_for(is_large=True) as executor,
        ):
            items = [UnitToCompare(each, steps, Path(folder)) for each in units]
            measured = list(progress.of(executor.map(measure_unit, items)))
            return [attach(each) for each in measured]
    except OSError as reason:
        raise OutputError.cannot_write(Path(tempfile.gettempdir()), reason) from reason


def measure_unit(item: UnitToCompare) -> MeasuredUnit:
    """Return what a comparison needs of a unit, with tables in files. Raises OSError."""
    spans, pipelines, damage = read_unit(item.unit)
    found = MeasuredUnit(measure_compared(kept_spans(spans, item.unit), pipelines, item.steps), damage)
    measured: MeasuredUnit = detach(found, item.folder / f"unit-{item.unit.number}")
    return measured
