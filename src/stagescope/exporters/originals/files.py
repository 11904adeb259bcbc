"""The original files of a timeline: one trace of torch.profiler per rank, and the origin of its timestamps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.exporters.originals.corrections import rank_clocks
from stagescope.ingest.reader import HEAD_BYTES
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.recognition import is_torch_trace
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.place_names import place_of

if TYPE_CHECKING:
    from stagescope.exporters.originals.corrections import RankClock
    from stagescope.model import Timeline


class Original(NamedTuple):
    """The original file of one rank; `first_ns` and `last_ns` are its first and last span on the aligned clock."""

    rank: int
    machine: str | None
    path: Path
    clock: RankClock
    first_ns: int
    last_ns: int


Progress = Callable[[int, int], object]
"""Called with the number of files done so far and the number of all files."""


def no_progress(_done: int, _file_count: int) -> None:
    """Report nothing."""


def find_originals(timeline: Timeline) -> list[Original]:
    """Return the original files, by rank; a rank with several profiled windows has several.

    Raises OutputError if a rank was not read from a trace of torch.profiler, or if its file no longer exists.
    """
    clocks = rank_clocks(timeline)
    extents = {
        rank: (first_ns, last_ns)
        for rank, first_ns, last_ns in timeline.spans.group_by("rank")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
        .iter_rows()
    }
    windows = timeline.diagnostics.filter(pl.col("code") == "ranks.windows")
    sources = pl.concat(
        [timeline.ranks.select("rank", "source"), windows.select("rank", "source")], how="vertical"
    )
    machines = dict(timeline.ranks.select("rank", "machine").iter_rows())
    found = []
    for rank, source in sources.unique(maintain_order=True).sort("rank", maintain_order=True).iter_rows():
        if source is None or rank not in extents:
            raise OutputError.no_original(rank, source)
        path = Path(place_of(source))
        if not path.is_file() or not _is_trace(path):
            raise OutputError.no_original(rank, source)
        found.append(Original(rank, machines.get(rank), path, clocks[rank], *extents[rank]))
    if not found:
        raise OutputError.no_original(None, None)
    return found


def _is_trace(path: Path) -> bool:
    with open_stream(path) as stream:
        return is_torch_trace(stream.read(HEAD_BYTES))
