"""The steps in a row: read (or simulate), analyze, export. This is the Python API, and all that the commands call.

import stagescope

timeline = stagescope.read("runs/today")
report = stagescope.analyze(timeline)
print(report.bubble.fraction)
stagescope.export(timeline, "today.pftrace")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagescope.analyze import build_report
from stagescope.export import write
from stagescope.export.compatible.paddle_profile import WRITERS as PADDLE_WRITERS
from stagescope.export.save import save
from stagescope.ingest import find_inputs, read_inputs
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.ingest.stages import place_stages
from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.simulate import simulate as run_order
from stagescope.schedules.validate import validate
from stagescope.vocabulary.errors import InputError, OutputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from stagescope.analyze import Report
    from stagescope.export import Written
    from stagescope.schedules import Order
    from stagescope.schedules.bounds import LowerBound
    from stagescope.schedules.costs import Costs
    from stagescope.schedules.simulation import Simulation
    from stagescope.timeline import Timeline


def read(
    *paths: str | os.PathLike[str],
    options: ReadOptions | None = None,
    on_found: Callable[[int], object] | None = None,
) -> Timeline:
    r"""Return the Timeline of everything recorded in `paths`, files or directories, as one run.

    A directory is searched with everything below it; the format of a file is known by its content. `options` say
    what the files may not: how the ranks form pipelines, the schedule (ingest/reader.py). `on_found` is called
    with the number of files before the first is read. What was wrong but could be left out stands
    in `timeline.diagnostics`, and `timeline.is_partial` says whether data are known to be missing. Raises
    InputError when a path does not exist, is no known format, or when two files hold the same rank;
    TableError when a CSV or Parquet file is no spans table.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "spans.csv")
    ...     _ = table.write_text("rank,lane,kind,start_ns,end_ns\n0,compute,forward,0,5\n")
    ...     timeline = read(table)
    >>> timeline.spans.height, timeline.is_partial
    (1, False)
    """
    inputs = find_inputs(paths)
    if on_found is not None:
        on_found(inputs.file_count)
    return read_inputs(inputs, options)


def read_paddle_logs(
    log_dir: str | os.PathLike[str],
    devices: Sequence[int] | None = None,
    options: ReadOptions | None = None,
    *,
    multi_machine: bool = False,
) -> Timeline:
    """Return the Timeline of Paddle's worker logs in a directory, those of some devices or all.

    With `multi_machine`, every directory in `log_dir` that holds logs is a machine. Raises InputError where there
    are no logs, or no job line in any.
    """
    logs = find_worker_logs(Path(log_dir), devices, multi_machine=multi_machine)
    options = options or ReadOptions()
    timeline = merge_timelines([read_worker_logs(logs, options)], options.layout.rank_count)
    return place_stages(with_schedule(timeline, options.schedule), options.layout)


def analyze(timeline: Timeline) -> Report:
    """Return the figures of a timeline: per step, per rank, and the bubble; see analyze/report.py.

    >>> from stagescope.timeline import empty_timeline
    >>> report = analyze(empty_timeline())
    >>> report.steps, report.bubble.fraction
    ((), None)
    """
    return build_report(timeline)


def export(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what a caller expects to write
    step: int | None = None,
    force: bool = False,
) -> Written:
    """Return what was written to `path`: its size, and slices, flows and tracks as a consumer counts them.

    `format` is the name of a writer (export/__init__.py lists them); None chooses by the suffix of `path`.
    `step` leaves all others out. Raises InputError when that step was not recorded, OutputError when the
    format is unknown, the file exists and `force` is not set, or it cannot be written; no half-written file
    is left behind.

    >>> import tempfile
    >>> from stagescope.timeline import empty_timeline
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(empty_timeline(), f"{folder}/spans.csv").slice_count
    0
    """
    if step is not None:
        timeline = _only_step(timeline, step)
    return write(timeline, path, format=format, force=force)


def export_paddle_profile(timeline: Timeline, directory: str | os.PathLike[str]) -> list[Written]:
    """Return the two files written to `directory`, as the script of Paddle names and fills them.

    They replace those that are there. Raises OutputError when the directory cannot be made or written to.
    """
    place = Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise OutputError.cannot_write(place, reason) from None
    return [save(timeline, place / name, writer, force=True) for name, writer in PADDLE_WRITERS.items()]


class SimulatedStep(NamedTuple):
    """What theory says of one step: its timeline, its times, the shortest it could be, and its memory.

    `peak_in_flight` is the most chunk activations that each rank holds at once.
    """

    timeline: Timeline
    simulation: Simulation
    bound: LowerBound
    peak_in_flight: dict[int, int]


def simulate(
    order: Order, costs: Costs, *, schedule: str | None = None, in_cost_units: bool = False
) -> SimulatedStep:
    """Return the step of a theoretical schedule, as a timeline that goes wherever a recorded one does.

    `schedule` is its name; `in_cost_units` says that the costs are relative and 1 ms stands for a cost of 1.
    Raises ScheduleError for an order that is not whole or deadlocks, and for costs that do not cover it.

    >>> from stagescope import schedules
    >>> step = simulate(schedules.order("1f1b", ranks=2, microbatches=4), schedules.Costs(forward=10, backward=20))
    >>> step.simulation.makespan_ns, step.bound.makespan_ns, step.peak_in_flight, step.timeline.spans.height
    (150, 150, {0: 2, 1: 1}, 16)
    """
    validate(order)
    simulation = run_order(order, costs)
    return SimulatedStep(
        timeline_of_simulation(simulation, schedule=schedule, in_cost_units=in_cost_units),
        simulation,
        lower_bound(order, costs),
        peak_in_flight(order),
    )


def _only_step(timeline: Timeline, step: int) -> Timeline:
    chosen = timeline.only_step(step)
    if chosen.spans.is_empty():
        raise InputError.no_step(step, timeline.spans["step"].drop_nulls().unique())
    return chosen
