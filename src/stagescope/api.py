"""The steps in a row: read and align (or simulate), analyze, export. The Python API, and all that the commands call.

import stagescope

timeline = stagescope.read("runs/today")
report = stagescope.analyze(timeline)
print(report.bubble.fraction)
stagescope.export(timeline, "today.pftrace")
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagescope import __version__
from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.completeness.unaligned import keep_aligned_pipelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.prediction.changes import combinations_of
from stagescope.analysis.prediction.what_if import predict_steps
from stagescope.analysis.statistics.comparison import compare_totals
from stagescope.clocks import align_clocks
from stagescope.exporters import Writer, Written, chrome, tables
from stagescope.exporters.other_tools.paddle_profile import WRITERS as PADDLE_WRITERS
from stagescope.exporters.perfetto import pftrace
from stagescope.exporters.pictures import png, svg
from stagescope.exporters.save import save
from stagescope.ingest import find_inputs, read_inputs
from stagescope.ingest.merge import WALL_CLOCK_CODE, merge_timelines
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.ingest.stages import place_stages
from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.simulator import simulate as run_order
from stagescope.schedules.validation import validate
from stagescope.viewer import page
from stagescope.viewer.analysis_data import gather_compared_extras, gather_extras, gather_layers
from stagescope.viewer.tiles.cache import cache_folder, content_key, stamp_files
from stagescope.viewer.tiles.run import keep_run
from stagescope.viewer.tiles.sources import save_timeline
from stagescope.viewer.tiles.table import find_large, save_table
from stagescope.vocabulary.errors import InputError, OutputError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from stagescope.analysis import Report
    from stagescope.analysis.prediction.changes import Change, Combination
    from stagescope.analysis.prediction.what_if import WhatIf
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.clocks import Aligned
    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.exporters.pictures.figure import Figure
    from stagescope.model import Timeline
    from stagescope.schedules import Order
    from stagescope.schedules.bounds import LowerBound
    from stagescope.schedules.costs import Costs
    from stagescope.schedules.simulation import Simulation
    from stagescope.viewer.tiles.build import Progress
    from stagescope.viewer.tiles.run import RunView

WRITERS: tuple[Writer, ...] = (
    chrome.WRITER,
    pftrace.WRITER,
    svg.WRITER,
    png.WRITER,
    page.WRITER,
    tables.CSV,
    tables.PARQUET,
)
"""Every export format that is built in."""

ALIASES = {"perfetto": "pftrace"}
"""Other names by which a format may be asked for."""


def read(
    *paths: str | os.PathLike[str],
    options: ReadOptions | None = None,
    align: bool = True,
    on_found: Callable[[int], object] | None = None,
) -> Timeline:
    r"""Return the Timeline of everything recorded in `paths`, files or directories, as one run on one clock.

    A directory is searched with everything below it; the format of a file is known by its content. `options` say
    what the files may not: how the ranks form pipelines, the schedule (ingest/reader.py). The stamps of several
    machines are moved to the clock of the first, with the error that `timeline.clocks` states; without `align` they
    stay as they were read, on each machine's wall clock. `on_found` is called with the number of files before the
    first is read. What was wrong but could be left out stands in `timeline.diagnostics`, and `timeline.is_partial`
    says whether data are known to be missing. Raises
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
    timeline = read_inputs(inputs, options)
    return bring_to_one_clock(timeline).timeline if align else timeline


def bring_to_one_clock(timeline: Timeline) -> Aligned:
    """Return a timeline that was read without `align` on one clock, and the report of how well that is known.

    The report is what `stagescope clocks` prints (clocks/report.py); it names no machine where all ranks share one
    clock. The warning that the stamps are on wall clocks goes, and what was found stands in its place.
    """
    diagnostics = timeline.diagnostics
    still_valid = diagnostics["code"].ne_missing(WALL_CLOCK_CODE)
    return align_clocks(replace(timeline, diagnostics=diagnostics.filter(still_valid)))


def read_paddle_logs(
    log_dir: str | os.PathLike[str],
    devices: Sequence[int] | None = None,
    options: ReadOptions | None = None,
    *,
    multi_machine: bool = False,
) -> Timeline:
    """Return the Timeline of Paddle's worker logs in a directory, those of some devices or all.

    With `multi_machine`, every directory in `log_dir` that holds logs is a machine. Raises InputError where there
    are no logs, or no action line in any.
    """
    logs = find_worker_logs(Path(log_dir), devices, multi_machine=multi_machine)
    options = options or ReadOptions()
    timeline = merge_timelines([read_worker_logs(logs, options)], options.layout.rank_count)
    return place_stages(with_schedule(timeline, options.schedule), options.layout)


def analyze(timeline: Timeline, *, explain: bool = True) -> Report:
    """Return where the time of a timeline went: figures per step and rank, what explains them, and a verdict.

    Without `explain` there are the figures alone, which is quicker; see analysis/report.py and
    analysis/explanation.py for what each of them is.

    >>> from stagescope.model import empty_timeline
    >>> report = analyze(empty_timeline())
    >>> report.steps.height, report.bubble.fraction, report.verdict.findings
    (0, None, ())
    """
    return build_explained_report(timeline) if explain else build_report(timeline)


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
    >>> from stagescope.model import empty_timeline
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(empty_timeline(), f"{folder}/spans.csv").slice_count
    0
    """
    if step is not None:
        timeline = _only_step(timeline, step)
    is_picture = writer_for(Path(path), format).with_figure is not None
    gather = gather_layers if is_picture else gather_extras
    return write(timeline, path, format=format, extras=lambda: gather(timeline), force=force)


def export_figure(
    timeline: Timeline,
    path: str | os.PathLike[str],
    figure: Figure,
    *,
    format: str | None = None,  # noqa: A002 - as in export
    force: bool = False,
) -> Written:
    """Return what was written to `path`: a picture of one step, in a size and of ranks that `figure` chooses.

    Raises as `export` does, and UsageError for a format that is no picture and for a size without room.
    """
    writer = writer_for(Path(path), format)
    if writer.with_figure is None:
        pictures = (each.name for each in WRITERS if each.with_figure is not None)
        raise UsageError.no_figure(writer.name, pictures)
    figure = replace(figure, extras=gather_layers(timeline, figure.step))
    return save(timeline, Path(path), writer.with_figure(figure), force=force)


def export_comparison(
    comparison: Comparison,
    before: Timeline,
    after: Timeline,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
) -> Written:
    """Return what was written to `path`: the page of the run `after`, which opens compared with the run `before`.

    `comparison` is what `compare` returns for the two; the page says it in words. Raises OutputError as `export` does.
    """

    def write_both(timeline: Timeline, target: Path) -> Written:
        return page.write_html(timeline, target, gather_compared_extras(timeline, comparison), other=before)

    return save(after, Path(path), replace(page.WRITER, write=write_both), force=force)


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


def view_run(
    *paths: str | os.PathLike[str],
    options: ReadOptions | None = None,
    align: bool = True,
    on_found: Callable[[int], object] | None = None,
    on_levels: Progress | None = None,
) -> RunView:
    """Return what the local server shows of `paths`: levels of detail on disk, made now unless they are there.

    They are kept in the user's cache directory as long as the files stay as they are (viewer/tiles/cache.py).
    `on_found` is called as by `read`, `on_levels` with the number of spans done and of all. Raises as `read` does,
    and OutputError when the cache cannot be written.
    """
    options = options or ReadOptions()
    inputs = find_inputs(paths)
    files = [file for group in inputs.files.values() for file in group]
    told = repr((__version__, options.layout, options.schedule, options.microbatches, options.pattern, align))
    is_bare = replace(options, on_read=None) == ReadOptions()

    def fill(folder: Path) -> None:
        large = (
            find_large(files[0])
            if is_bare and [reader.name for reader in inputs.files] == ["parquet"]
            else None
        )
        if large is not None and len(files) == 1:
            save_table(large, folder, on_levels)
            return
        timeline = read(*paths, options=options, align=align, on_found=on_found)
        save_timeline(timeline, folder, gather_extras(timeline), on_levels)

    try:
        return keep_run(content_key(files, told), fill)
    except OSError as reason:
        raise OutputError.cannot_write(cache_folder(), reason) from reason


def view_stamp(*paths: str | os.PathLike[str]) -> str:
    """Return a text that changes when what `view_run` reads has changed. Raises InputError as `read` does."""
    return stamp_files(file for group in find_inputs(paths).files.values() for file in group)


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


def compare(before: Timeline, after: Timeline) -> Comparison:
    """Return the differences of one run from another that are more than noise, and those that are not.

    Steps that the report leaves out of its totals are left out here too, and named. See
    analysis/statistics/comparison.py.

    >>> from stagescope.model import empty_timeline
    >>> compare(empty_timeline(), empty_timeline()).table.height
    0
    """
    return compare_totals(keep_aligned_pipelines(before), keep_aligned_pipelines(after))


def what_if(timeline: Timeline, changes: Change | Sequence[Change | Combination]) -> WhatIf:
    """Return the predicted step time for each change; see analysis/prediction/what_if.py.

    `changes` is one change or several (analysis/prediction/changes.py), each predicted alone; the changes of a tuple
    are made together. Steps that are not in the totals of the report are left out here too. Raises TypeError for
    anything that is not a change, and ScheduleError for an unknown schedule or one that does not support the measured
    numbers of ranks and micro-batches.

    >>> from stagescope.model import empty_timeline
    >>> what_if(empty_timeline(), []).table.height
    0
    """
    combinations = combinations_of(changes)
    actions = find_actions(keep_aligned_pipelines(timeline))
    steps = build_report(timeline).bubble.steps
    predicted = predict_steps(actions, combinations, steps)
    return predicted._replace(diagnostics=(*actions.diagnostics, *predicted.diagnostics))


def write(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word that the command line and pandas users know
    extras: Callable[[], AnalysisLayers] | None = None,
    force: bool = False,
) -> Written:
    """Return what stands in the file at `path` after writing the timeline to it.

    `format` is the name of a writer or an alias; None takes it from the suffix of `path`. A file that exists
    is replaced with `force` only. `extras` returns what analysis found; it is called for a format that shows any of it.
    Raises OutputError for an unknown format, an existing file, or a path that cannot be written; in every case the
    file is whole, or as it was before.

    >>> from stagescope.model import empty_timeline
    >>> try:
    ...     write(empty_timeline(), "run.docx")
    ... except OutputError as error:
    ...     print(str(error).partition(";")[0])
    no export format '.docx'
    """
    target = Path(path)
    writer = writer_for(target, format)
    if extras is not None and writer.with_extras is not None and (force or not target.exists()):
        writer = writer.with_extras(extras())
    return save(timeline, target, writer, force=force)


def writer_for(path: Path, format_name: str | None) -> Writer:
    """Return the writer of a format, by the suffix of `path` if none is named. Raises OutputError without one."""
    for writer in WRITERS:
        if format_name is None and path.suffix.lower() == writer.suffix:
            return writer
        if format_name is not None and ALIASES.get(format_name, format_name) == writer.name:
            return writer
    known = (writer.name for writer in WRITERS)
    raise OutputError.unknown_format(path.suffix if format_name is None else format_name, known)
