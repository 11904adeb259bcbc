"""Write a run as a picture, a trace for a viewer, a table, a page, or a file of another project's tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.analysis import Report
from stagescope.api.figures import make_figure
from stagescope.api.formats import WRITERS, writer_for
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.other_tools.paddle_profile import WRITERS as PADDLE_WRITERS
from stagescope.exporters.save import save
from stagescope.model import TABLES
from stagescope.viewer import page
from stagescope.viewer.analysis_data import (
    gather_compared_extras,
    gather_extras,
    gather_layers,
    report_extras,
)
from stagescope.vocabulary.errors import InputError, OutputError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from typing_extensions import Unpack

    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.api.figures import FigureLook
    from stagescope.exporters import Writer, Written
    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.exporters.pictures.figure import Figure
    from stagescope.model import Timeline


def export(
    run: Timeline | Report,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the name that pandas and the command line use
    step: int | None = None,
    ranks: Iterable[int] | None = None,
    size: tuple[int, int | None] | None = None,
    table: str | None = None,
    csv_safe: bool = False,
    force: bool = False,
    on_progress: Callable[[int, int], object] | None = None,
    **look: Unpack[FigureLook],
) -> Written:
    """Return what was written to `path`: its size, and slices, flows and tracks as a consumer of the file counts them.

    `run` is a Timeline or its Report; a page made from a report contains that report, and nothing is analyzed again.
    `format` is chrome, pftrace (or perfetto), svg, png, pdf, html, csv or parquet; by default the suffix of `path`
    decides.
    With merged-chrome and merged-pftrace, one trace has every event of the original files of torch.profiler; with
    perfetto-archive, a ZIP has these files and a manifest that places them on one clock. They read the files again and
    call `on_progress` with the number of files done and of all files. (docs/kineto.md)
    `step` restricts the output to one step. `ranks` and `size` (width and height in pixels; with a height of None, as
    high as needed) are for svg, png and pdf, and so is `look`: `title`, `legend`, `font_size` and `width`, those of
    FigureLook. `table` is the table of a csv or parquet file: spans (default), ranks, steps,
    clocks, diagnostics, counters or kernels. `csv_safe` writes an apostrophe before text that a spreadsheet would
    evaluate, such as a name that begins with =; `read` keeps it as a part of the name.

    The file is readable for its owner alone (docs/security.md).

    Raises InputError if the step or a rank was not recorded; UsageError for `ranks`, `size`, `look`, `table` or
    `csv_safe` with another format, for an unknown table, and for a size that is too small; CommandError if a format
    needs a library of an extra that is not installed; OutputError for an unknown format, for an
    existing file unless `force` is set, and if the file cannot be written. A failure leaves no incomplete file
    behind.

    >>> import tempfile
    >>> from stagescope.model import empty_timeline
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(empty_timeline(), f"{folder}/spans.csv").slice_count
    0
    """
    timeline = run.timeline if isinstance(run, Report) else run
    originals = writer_for(Path(path), format).with_progress
    if originals is not None:
        if look or (step, ranks, size, table, csv_safe) != (None, None, None, None, False):
            raise UsageError.only_with(
                "--step, --table, --csv-safe and the options of pictures", "formats of the timeline"
            )
        return save(timeline, Path(path), originals(on_progress or _nothing), force=force)
    if csv_safe and writer_for(Path(path), format).without_formulas is None:
        raise UsageError.only_with("--csv-safe", "the format csv")
    if ranks is not None or size is not None or look:
        figure = make_figure(step, ranks, size, look)
        return _export_figure(timeline, Path(path), figure, format_name=format, force=force)
    if table is not None or csv_safe:
        writer = _table_writer(Path(path), format, table, csv_safe=csv_safe)
        return save(timeline if step is None else _only_step(timeline, step), Path(path), writer, force=force)
    is_picture = writer_for(Path(path), format).with_figure is not None
    if isinstance(run, Report) and step is None and not is_picture:
        return write(timeline, path, format=format, extras=lambda: report_extras(run), force=force)
    shown = timeline if step is None else _only_step(timeline, step)
    # A picture shows one step, therefore its layers are those of that step alone, also if there is a report.
    gather = gather_layers if is_picture else gather_extras
    return write(shown, path, format=format, extras=lambda: gather(shown), force=force)


def _nothing(_done: int, _file_count: int) -> None:
    """Report no progress."""


def _table_writer(path: Path, format_name: str | None, table: str | None, *, csv_safe: bool) -> Writer:
    """Return the writer of one table of the model, by default spans."""
    writer, names = writer_for(path, format_name), [each.name for each in TABLES]
    if table is not None and (writer.of_table is None or table not in names):
        formats = (each.name for each in WRITERS if each.of_table is not None)
        raise UsageError.no_table(table, names, writer.name, formats)
    if table is not None and writer.of_table is not None:
        writer = writer.of_table(table)
    return writer.without_formulas() if csv_safe and writer.without_formulas is not None else writer


def _export_figure(
    timeline: Timeline, path: Path, figure: Figure, *, format_name: str | None, force: bool
) -> Written:
    """Write a picture of one step, with the size and ranks of `figure`."""
    writer = writer_for(path, format_name)
    if writer.with_figure is None:
        pictures = (each.name for each in WRITERS if each.with_figure is not None)
        raise UsageError.no_figure(writer.name, pictures)
    figure = replace(figure, extras=gather_layers(timeline, figure.step))
    return save(timeline, path, writer.with_figure(figure), force=force)


def _only_step(timeline: Timeline, step: int) -> Timeline:
    chosen = timeline.only_step(step)
    if chosen.spans.is_empty():
        raise InputError.no_step(step, timeline.spans["step"].drop_nulls().unique())
    return chosen


def export_comparison(
    comparison: Comparison,
    before: Timeline,
    after: Timeline,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
) -> Written:
    """Return what was written to `path`: a page of the run `after` that opens compared with the run `before`.

    `comparison` is the result of `compare` for the two runs; the page contains its sentences. Raises OutputError as
    `export` does.
    """

    def write_both(timeline: Timeline, target: Path) -> Written:
        return page.write_html(timeline, target, gather_compared_extras(timeline, comparison), other=before)

    return save(after, Path(path), replace(page.WRITER, write=write_both), force=force)


def export_paddle_profile(timeline: Timeline, directory: str | os.PathLike[str]) -> list[Written]:
    """Return the two files written to `directory`, with the names and content that Paddle's own script gives them.

    Existing files are replaced. Raises OutputError if the directory cannot be created or written to.
    """
    place = Path(directory)
    try:
        make_directory(place)
    except OSError as reason:
        raise OutputError.cannot_write(place, reason) from None
    return [save(timeline, place / name, writer, force=True) for name, writer in PADDLE_WRITERS.items()]


def write(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - as in export
    extras: Callable[[], AnalysisLayers] | None = None,
    force: bool = False,
) -> Written:
    """Return what was written to `path`: the timeline, and if `extras` is given what analysis found.

    `extras` is called only for a format that shows any of it, and only if the file can be written. Everything else is
    as in `export`.

    >>> from stagescope.model import empty_timeline
    >>> try:
    ...     write(empty_timeline(), "run.docx")
    ... except OutputError as error:
    ...     print(type(error).__name__)
    OutputError
    """
    target = Path(path)
    writer = writer_for(target, format)
    if extras is not None and writer.with_extras is not None and (force or not target.exists()):
        writer = writer.with_extras(extras())
    return save(timeline, target, writer, force=force)
