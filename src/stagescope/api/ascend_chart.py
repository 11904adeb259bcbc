"""Write the pipeline chart of MindStudio Insight into the databases of Ascend profiles, or into copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.exporters.other_tools import errors
from stagescope.exporters.other_tools.ascend_databases import ChartOptions, Target, copy_targets, write_chart
from stagescope.vocabulary.errors import InputError, OutputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from stagescope.exporters.other_tools.ascend_databases import WrittenChart, WrittenRank
    from stagescope.model import Timeline

DATABASES = ("ascend_pytorch_profiler_N.db", "ascend_mindspore_profiler_N.db", "msmonitor_*.db")
COPY_SUFFIX = "_pp_chart"


def pp_chart_folder(
    directory: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> Path:
    """Return the folder for copies of the profiles in `directory`: `output`, or by default `directory` + _pp_chart.

    Raises OutputError if the folder is inside the profiles, or if it exists and `force` is not set.
    """
    read = Path(directory).resolve()
    place = read.with_name(read.name + COPY_SUFFIX) if output is None else Path(output)
    if place.resolve().is_relative_to(read):
        raise errors.inside_input(place, directory)
    if place.exists() and not force:
        raise OutputError.exists(place)
    return place


def export_pp_chart(
    timeline: Timeline,
    directory: str | os.PathLike[str],
    place: str | os.PathLike[str],
    *,
    ranks: Iterable[int] | None = None,
    step: int | None = None,
    numbered: bool = False,
    on_written: Callable[[WrittenRank], object] | None = None,
) -> WrittenChart:
    """Return what was written for MindStudio Insight: the pipeline chart of each rank, and diagnostics of failures.

    `timeline` is the profiles in `directory`, read with `align=False`, because the chart is next to the profiler's own
    timestamps. The databases are copied to `place` (see `pp_chart_folder`), or changed in place if it is `directory`.
    `ranks` and `step` restrict what is written; with `numbered`, names of actions contain the micro-batch. `on_written`
    is called with each finished rank.

    Raises InputError if the step or a rank was not recorded or there are no databases, and OutputError if a database
    cannot be written.
    """
    if step is not None and step not in timeline.spans["step"]:
        raise InputError.no_step(step, timeline.spans["step"].drop_nulls().unique())
    databases = _databases(timeline, directory, None if ranks is None else set(ranks))
    if Path(place) == Path(directory):
        targets = [Target(rank, path, path) for rank, path in databases.items()]
    else:
        targets = list(copy_targets(databases, Path(directory), Path(place)))
    return write_chart(timeline, targets, ChartOptions(step, numbered), on_written)


def _databases(
    timeline: Timeline, directory: str | os.PathLike[str], ranks: set[int] | None
) -> dict[int, Path]:
    """Return the database of every rank, or of those in `ranks`."""
    sources = timeline.ranks.select("rank", "source").drop_nulls().iter_rows()
    databases = {rank: Path(source) for rank, source in sources if source.endswith(".db")}
    if not databases:
        raise InputError.nothing_to_read(directory, DATABASES)
    if ranks is None:
        return databases
    if not ranks <= databases.keys():
        raise InputError.no_ranks(ranks - databases.keys(), databases)
    return {rank: databases[rank] for rank in sorted(ranks)}
