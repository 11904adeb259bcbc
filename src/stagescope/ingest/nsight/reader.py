"""Reader of NVIDIA Nsight Systems reports, exported with `nsys export --type sqlite`; see docs/nsight.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.database import is_database
from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.nsight.process_trace import read_report
from stagescope.ingest.nsight.report import is_report
from stagescope.ingest.nsight.timeline import timeline_of_reports
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline


def recognize_report(path: Path, head: bytes) -> bool:
    """Return whether a file is an exported report: by its tables, or by its name if it is damaged or empty."""
    is_named = path.suffix == ".sqlite"
    if not is_database(head):
        return is_named
    try:
        return is_report(path)
    except InputError:
        return is_named


def read_reports(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given reports; large reports are read in parallel.

    A file that SQLite cannot read becomes an error in diagnostics as long as another file is usable. Raises
    InputError as timeline_of_reports does, and if no file is usable.
    """
    ordered = sorted(paths, key=lambda path: natural_key(str(path)))
    reports, refused = read_each(read_report, ordered, options.done, options.pattern)
    return timeline_of_reports(reports).with_diagnostics(refused)


READER = Reader(
    name="nsight",
    patterns=("*.sqlite",),
    description="reports of Nsight Systems, exported to SQLite (`nsys export --type sqlite`)",
    recognizes=recognize_report,
    read=read_reports,
)
