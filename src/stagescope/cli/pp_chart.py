"""``stagescope pp-chart``: the pipeline chart of MindStudio Insight for Ascend profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.number_lists import parse_ranges
from stagescope.cli.reading import exit_code, read_paths, reading_options
from stagescope.vocabulary.errors import OutputError, UsageError

if TYPE_CHECKING:
    from stagescope.api import RunFacts
    from stagescope.exporters.other_tools.ascend_databases import WrittenChart, WrittenRank
    from stagescope.model import Timeline


@click.command(
    "pp-chart",
    epilog="""
    \b
    Examples:
      stagescope pp-chart -d profiles
      stagescope pp-chart -d profiles -o charts --step 12 --rank 0-7
      stagescope pp-chart -d profiles --in-place --pp-type dualpipev --microbatches 16
    """,
)
@click.option(
    "-d",
    "--profiling_path",
    "directory",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Profiles of a cluster: folders *_ascend_pt or *_ascend_ms, or msMonitor databases.",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Folder for the copies (default: DIR_pp_chart).",
)
@click.option("--in-place", is_flag=True, help="Change the profiles themselves, each in one transaction.")
@click.option("--force", is_flag=True, help="Write into OUT even if it exists.")
@click.option("--step", "--step_id", metavar="N", type=click.IntRange(min=0), help="Write only this step.")
@click.option("--rank", "--rank_list", "ranks", metavar="R,..", help="Write only these ranks: 0,1,8-15.")
@click.option(
    "--names",
    type=click.Choice(["plain", "numbered"]),
    default="plain",
    show_default=True,
    help="Names of actions in a schedule without overlap: FP and BP, or F3 and B3 with the micro-batch.",
)
@reading_options
def command(
    directory: Path,
    output: Path | None,
    facts: RunFacts,
    *,
    step: int | None,
    ranks: str | None,
    names: str,
    in_place: bool,
    force: bool,
) -> int:
    """Write the pipeline chart of MindStudio Insight for Ascend profiles.

    The table StepTaskInfo and the ids that pair sends with receives are written into copies of the profiles' databases,
    in the layout of DIR, for import into Insight.
    """
    from stagescope import api

    if in_place and output is not None:
        raise UsageError.one_of(("-o OUT", "--in-place"), ("-o OUT", "--in-place"))
    # Checked before reading, which can take minutes.
    place = directory if in_place else api.pp_chart_folder(directory, output, force=force)
    chosen = None if ranks is None else parse_ranges(ranks)
    # The chart is written into the profiler's own databases, next to its raw timestamps.
    timeline = read_paths([directory], facts, align=False)
    written = api.export_pp_chart(
        timeline,
        directory,
        place,
        ranks=chosen,
        step=step,
        numbered=names == "numbered",
        on_written=_print_written,
    )
    return _report(timeline, written, place)


def _print_written(written: WrittenRank) -> None:
    """Print a line for a finished rank, while the others are still to be written."""
    unnamed = f", {written.unnamed} of them without a number" if written.unnamed else ""
    echo(
        f"rank {written.rank}: {written.marks} actions{unnamed}, {written.paired} paired operations: {written.path}"
    )


def _report(timeline: Timeline, written: WrittenChart, place: Path) -> int:
    """Print where the chart is, and what was wrong; returns the exit code."""
    from stagescope import api

    if written.ranks:
        echo(f"wrote {len(written.ranks)} ranks to {place}; import that folder into MindStudio Insight")
    failed = [each for each in written.diagnostics if each.severity == "error"]
    found = api.find_errors(timeline)
    print_diagnostics([*found, *api.sorted_diagnostics(timeline), *written.diagnostics])
    if not written.ranks:
        raise OutputError(f"no rank of {place} could be written")
    return exit_code(timeline, [*found, *failed])
