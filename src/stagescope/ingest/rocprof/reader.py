"""Reader of traces of rocprofv3: rocpd databases and JSON; see docs/rocprof.md."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stagescope.ingest.database import is_database
from stagescope.ingest.device_ranges.process_trace import ProcessTrace, Unmarked, counted, read_trace
from stagescope.ingest.device_ranges.timeline import timeline_of_traces
from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.rocprof.results_json import SIGN, read_json
from stagescope.ingest.rocprof.rocpd import is_rocpd, read_rocpd
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline

DATABASE_NAMES = ("_results.db", ".rocpd")


def recognize_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is of rocprofv3: by its content, or by its name if it is a damaged database."""
    is_named = path.name.endswith(DATABASE_NAMES)
    if not is_database(head):
        return is_named or SIGN in head
    try:
        return is_rocpd(path)
    except InputError:
        return is_named


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given traces; they are read in parallel if they are large together.

    A trace that cannot be read becomes an error in diagnostics as long as another one is usable. Raises InputError as
    timeline_of_traces does, and if no trace is usable.
    """
    ordered = sorted(paths, key=lambda path: natural_key(str(path)))
    found, refused = read_each(
        partial(read_one, kernels=options.kernels),
        ordered,
        options.done,
        options.pattern,
        keep=partial(counted, options=options),
    )
    return timeline_of_traces(found).with_diagnostics(refused)


def read_one(
    path: Path, pattern: str | None = None, *, kernels: bool = False
) -> list[ProcessTrace] | Unmarked:
    """Return the processes of a trace that ran actions; raises InputError for a file that cannot be read."""
    is_json = not (path.name.endswith(DATABASE_NAMES) or _is_database(path))
    trace = read_json(path) if is_json else read_rocpd(path)
    return read_trace(trace, pattern, kernels=kernels)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return is_database(file.read(16))


READER = Reader(
    name="rocprof",
    patterns=("*results*.db", "*.rocpd", "*results*.json*"),
    description="traces of AMD's rocprofv3: rocpd databases and JSON, with roctx ranges",
    recognizes=recognize_trace,
    read=read_traces,
)
