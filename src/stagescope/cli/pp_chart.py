"""``stagescope pp-chart``: the pipeline chart of MindStudio Insight for Ascend profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.number_lists import parse_ranges
from stagescope.cli.reading import EXIT_PARTIAL, exit_code, read_paths, reading_options
from stagescope.exporters.other_tools import errors
from stagescope.vocabulary.errors import InputError, OutputError, UsageError

if TYPE_CHECKING:
    from stagescope.api import RunFacts
    from stagescope.exporters.other_tools.ascend_databases import Target, WrittenChart, WrittenRank
    from stagescope.model import Timeline

DATABASES = ("ascend_pytorch_profiler_N.db", "ascend_mindspore_profiler_N.db", "msmonitor_*.db")
COPY_SUFFIX = "_pp_chart"


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
    help=f"Folder for the copies (default: DIR{COPY_SUFFIX}).",
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
    from stagescope.exporters.other_tools.ascend_databases import ChartOptions, write_chart

    if in_place and output is not None:
        raise UsageError.one_of(("-o OUT", "--in-place"), ("-o OUT", "--in-place"))
    place = directory if in_place else _place(directory, output, force=force)
    # The chart is written into the profiler's own databases, next to its raw timestamps.
    timeline = read_paths([directory], facts, align=False)
    if step is not None and step not in timeline.spans["step"]:
        raise InputError.no_step(step, timeline.spans["step"].drop_nulls().unique())
    targets = _targets(
        timeline, _Call(directory, place, in_place), None if ranks is None else set(parse_ranges(ranks))
    )
    written = write_chart(timeline, targets, ChartOptions(step, names == "numbered"), _print_written)
    return _report(timeline, written, place)


class _Call(NamedTuple):
    directory: Path
    place: Path
    in_place: bool


def _place(directory: Path, output: Path | None, *, force: bool) -> Path:
    """Return the folder of the copies; raises OutputError if it is inside the profiles, or exists without --force."""
    read = directory.resolve()
    place = read.with_name(read.name + COPY_SUFFIX) if output is None else output
    if place.resolve().is_relative_to(read):
        raise errors.inside_input(place, directory)
    if place.exists() and not force:
        raise OutputError.exists(place)
    return place


def _targets(timeline: Timeline, call: _Call, ranks: set[int] | None) -> list[Target]:
    """Return the databases to write, only those of `ranks` if given."""
    from stagescope.exporters.other_tools.ascend_databases import Target, copy_targets

    sources = timeline.ranks.select("rank", "source").drop_nulls().iter_rows()
    databases = {rank: Path(source) for rank, source in sources if source.endswith(".db")}
    if not databases:
        raise InputError.nothing_to_read(call.directory, DATABASES)
    if ranks is not None:
        if not ranks <= databases.keys():
            raise InputError.no_ranks(ranks - databases.keys(), databases)
        databases = {rank: databases[rank] for rank in sorted(ranks)}
    if call.in_place:
        return [Target(rank, path, path) for rank, path in databases.items()]
    return list(copy_targets(databases, call.directory, call.place))


def _print_written(written: WrittenRank) -> None:
    """Print a line for a finished rank, while the others are still to be written."""
    unnamed = f", {written.unnamed} of them without a number" if written.unnamed else ""
    click.echo(
        f"rank {written.rank}: {written.marks} actions{unnamed}, {written.paired} paired operations: {written.path}"
    )


def _report(timeline: Timeline, written: WrittenChart, place: Path) -> int:
    """Print where the chart is, and what was wrong; returns the exit code."""
    from stagescope import api

    if written.ranks:
        click.echo(f"wrote {len(written.ranks)} ranks to {place}; import that folder into MindStudio Insight")
    failed = [each for each in written.diagnostics if each.severity == "error"]
    print_diagnostics([*api.sorted_diagnostics(timeline), *written.diagnostics])
    if not written.ranks:
        raise errors.nothing_written(place)
    return EXIT_PARTIAL if failed else exit_code(timeline)
