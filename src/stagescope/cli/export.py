"""``stagescope export``: a run as a picture, a trace for a viewer, or a table."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.console import echo
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT
from stagescope.cli.number_lists import parse_ranges
from stagescope.cli.reading import FileBar, align_option, exit_code, read_paths, reading_options
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.written import require_no_terminal, standard_output, written_text
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from stagescope.api import RunFacts

LOOK = ("title", "legend", "font_size", "width")
SIZE = re.compile(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?")


@click.command(
    "export",
    epilog="""
    \b
    Examples:
      stagescope export recordings -o run.pftrace           open at ui.perfetto.dev
      stagescope export recordings --to chrome -o run.json  open in chrome://tracing
      stagescope export recordings --step 3 -o step3.svg
      stagescope export traces --to merged-pftrace -o all.pftrace
      stagescope export traces --to merged-chrome -o all.json
      stagescope export traces --to perfetto-archive -o all.zip
      stagescope export recordings --table counters -o counters.parquet
      stagescope export recordings --to csv -o - | gzip > spans.csv.gz
      stagescope export recordings --ranks 0-7 --size 1600x900 -o slide.png
      stagescope export recordings --width 3.3in --font-size 7 --no-title --legend below -o column.pdf
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option(
    "--to",
    "format",
    metavar="FORMAT",
    help="chrome, pftrace (or perfetto), svg, png, pdf, html, csv or parquet; omit to use the suffix of OUT. Of traces "
    "of torch.profiler: merged-chrome or merged-pftrace (every event of all ranks), perfetto-archive (the files).",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; - writes to standard output, in the format of --to.",
)
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Write only this step.")
@click.option("--ranks", metavar="LIST", help="Draw only these ranks, such as 0-7,16 (svg, png and pdf).")
@click.option(
    "--size", metavar="WxH", help="Size of the picture in pixels; omit xH to make it as high as needed."
)
@click.option(
    "--width",
    metavar="LENGTH",
    help="Width of the picture, such as 3.3in, 84mm, 240pt or 800px; the text keeps its size.",
)
@click.option(
    "--font-size", metavar="POINTS", type=float, help="Size of the text of a picture, by default 9."
)
@click.option("--title", metavar="TEXT", help="Title of a picture, instead of what it shows.")
@click.option("--no-title", is_flag=True, help="Draw a picture without a title.")
@click.option(
    "--legend", type=click.Choice(["above", "below", "none"]), help="Place of the legend of a picture."
)
@click.option(
    "--table",
    metavar="NAME",
    help="Table to write: spans (default), ranks, steps, clocks, diagnostics, counters or kernels.",
)
@click.option(
    "--csv-safe",
    is_flag=True,
    help="Write an apostrophe before text that a spreadsheet would evaluate (csv).",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    facts: RunFacts,
    output: Path,
    ranks: str | None,
    size: str | None,
    *,
    no_title: bool,
    align: bool,
    **writing: Any,
) -> int:
    """Write a run as a picture, a trace for a viewer, or a table."""
    from stagescope import api

    # Parsed before reading, which can take minutes, so that a mistake is reported at once.
    picture: dict[str, Any] = {
        "ranks": None if ranks is None else parse_ranges(ranks),
        "size": None if size is None else _parse_size(size),
        **_parse_look({name: writing.pop(name) for name in LOOK}, no_title=no_title),
    }
    is_stream = output == STANDARD_OUTPUT
    if is_stream:
        require_no_terminal(api.writer_for(output, writing["format"]))
    timeline = read_paths(paths, facts, align=align)
    with ExitStack() as shown:
        on_progress = FileBar(shown, paths, "writing").show
        path = shown.enter_context(standard_output()) if is_stream else output
        written = api.export(timeline, path, **writing, **picture, on_progress=on_progress)
    if not is_stream:
        echo(written_text(written))
    found = api.find_errors(timeline)
    print_diagnostics([*found, *api.sorted_diagnostics(timeline), *written.diagnostics], err=is_stream)
    return exit_code(timeline, found)


def _parse_size(text: str) -> tuple[int, int | None]:
    """Return the width and height of ``1600x900``, or the width and None of ``1600``. Raises UsageError."""
    sides = SIZE.fullmatch(text)
    if sides is None:
        raise UsageError.picture_size_malformed(text)
    return int(sides[1]), int(sides[2]) if sides[2] else None


def _parse_look(stated: dict[str, Any], *, no_title: bool) -> dict[str, Any]:
    """Return the options of the look that were stated. Raises UsageError for a width without a unit."""
    from stagescope.api.figures import parse_width

    look = {name: value for name, value in stated.items() if value is not None}
    if no_title and "title" in look:
        raise UsageError.only_one_of("--title", "--no-title")
    if "width" in look:
        parse_width(look["width"])
    return look | ({"title": ""} if no_title else {})
