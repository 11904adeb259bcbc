"""``stagescope export``: a run as a picture, a trace for a viewer, or a table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.number_lists import parse_ranges
from stagescope.cli.reading import align_option, exit_code, read_paths, reading_options
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from stagescope.exporters.pictures.figure import Figure
    from stagescope.ingest.reader import ReadOptions

SIZE = re.compile(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?")


@click.command(
    "export",
    epilog="""
    \b
    Examples:
      stagescope export recordings -o run.pftrace           open at ui.perfetto.dev
      stagescope export recordings --to chrome -o run.json  open in chrome://tracing
      stagescope export recordings --step 3 -o step3.svg
      stagescope export recordings --ranks 0-7 --size 1600x900 -o slide.png
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "format",
    metavar="FORMAT",
    help="chrome, pftrace (or perfetto), svg, png, html, csv or parquet; by the suffix of OUT unless given.",
)
@click.option(
    "-o", "--output", metavar="OUT", required=True, type=click.Path(path_type=Path), help="File to write."
)
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Write this step alone.")
@click.option("--ranks", metavar="LIST", help="Draw these ranks alone, such as 0-7,16 (svg and png).")
@click.option(
    "--size", metavar="WxH", help="Size of the picture in pixels; without xH as high as it needs to be."
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    options: ReadOptions,
    output: Path,
    ranks: str | None,
    size: str | None,
    *,
    align: bool,
    **writing: Any,
) -> int:
    """Write a run as a picture, a trace for a viewer, or a table."""
    from stagescope import api as workflow
    from stagescope.analysis import errors_first

    chosen = _figure(ranks, size)  # a mistake shows before everything is read
    timeline = read_paths(paths, options, align=align).timeline
    if chosen is None:
        written = workflow.export(timeline, output, **writing)
    else:
        figure = replace(chosen, step=writing.pop("step"))
        written = workflow.export_figure(timeline, output, figure, **writing)
    flows = f", {written.flow_count} flows" if written.flow_count else ""
    click.echo(f"wrote {written.path}: {written.slice_count} slices{flows}, {written.size_bytes} bytes")
    print_diagnostics([*errors_first(timeline.diagnostics), *written.diagnostics])
    return exit_code(timeline)


def _figure(ranks: str | None, size: str | None) -> Figure | None:
    """Return the figure that was asked for, None for the picture as it is. Raises UsageError."""
    from stagescope.exporters.pictures.figure import Figure, Size

    if ranks is None and size is None:
        return None
    figure = Figure(ranks=() if ranks is None else parse_ranges(ranks))
    if size is None:
        return figure
    sides = SIZE.fullmatch(size)
    if sides is None:
        raise UsageError.picture_size_malformed(size)
    return replace(figure, size=Size(int(sides[1]), int(sides[2]) if sides[2] else None))
