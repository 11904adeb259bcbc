"""``stagescope export``: a run as a picture, a trace for a viewer, or a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.reading import exit_code, read_paths, reading_options

if TYPE_CHECKING:
    from stagescope.ingest.reader import ReadOptions


@click.command(
    "export",
    epilog="""
    \b
    Examples:
      stagescope export recordings -o run.pftrace           open at ui.perfetto.dev
      stagescope export recordings --to chrome -o run.json  open in chrome://tracing
      stagescope export recordings --step 3 -o step3.svg
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "format",
    metavar="FORMAT",
    help="chrome, pftrace (or perfetto), svg, html, csv or parquet; by the suffix of OUT unless given.",
)
@click.option(
    "-o", "--output", metavar="OUT", required=True, type=click.Path(path_type=Path), help="File to write."
)
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Write this step alone.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@reading_options
def command(paths: tuple[Path, ...], options: ReadOptions, output: Path, **writing: Any) -> int:
    """Write a run as a picture, a trace for a viewer, or a table."""
    from stagescope import workflow
    from stagescope.analyze import errors_first

    timeline = read_paths(paths, options)
    written = workflow.export(timeline, output, **writing)
    flows = f", {written.flow_count} flows" if written.flow_count else ""
    click.echo(f"wrote {written.path}: {written.slice_count} slices{flows}, {written.size_bytes} bytes")
    print_diagnostics([*errors_first(timeline.diagnostics), *written.diagnostics])
    return exit_code(timeline)
