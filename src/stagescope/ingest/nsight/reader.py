"""Reader of NVIDIA Nsight Systems reports in three forms; see docs/nsight.md."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stagescope.ingest.database import is_database
from stagescope.ingest.device_ranges.process_trace import counted
from stagescope.ingest.device_ranges.timeline import timeline_of_traces
from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.nsight.exports import read_report
from stagescope.ingest.nsight.native_report import SUFFIX as NATIVE_SUFFIX
from stagescope.ingest.nsight.parquet_report import SUFFIX as PARQUET_SUFFIX
from stagescope.ingest.nsight.parquet_report import is_table_of_report
from stagescope.ingest.nsight.report import is_report
from stagescope.ingest.nsight.schema import COMPARED_TABLES
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline


def recognize_report(path: Path, head: bytes) -> bool:
    """Return whether a file is a report, or a table of an exported one: by its content, or by its name if damaged."""
    if path.name.endswith(NATIVE_SUFFIX):
        return True
    if path.suffix == PARQUET_SUFFIX:
        return is_table_of_report(path)
    is_named = path.suffix == ".sqlite"
    if not is_database(head):
        return is_named
    try:
        return is_report(path)
    except InputError:
        return is_named


def read_reports(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given reports; they are read in parallel if they are large together.

    A report that cannot be read becomes an error in diagnostics as long as another one is usable. Raises InputError as
    timeline_of_traces does, and if no report is usable.
    """
    reports, diagnostics = _reports(paths)
    ordered = sorted(reports, key=lambda path: natural_key(str(path)))
    found, refused = read_each(
        partial(read_report, kernels=options.kernels),
        ordered,
        options.done,
        options.pattern,
        keep=partial(counted, options=options),
    )
    return timeline_of_traces(found, COMPARED_TABLES).with_diagnostics([*refused, *diagnostics])


def report_of(path: Path) -> Path:
    """Return the report that a file belongs to: the directory of an exported table, otherwise the file itself."""
    return path.parent if path.suffix == PARQUET_SUFFIX else path


def _reports(paths: Sequence[Path]) -> tuple[list[Path], list[Diagnostic]]:
    """Return the reports that the files belong to, every report in one form, and diagnostics for the other forms."""
    reports = list(dict.fromkeys(map(report_of, paths)))
    exports = {_stem(path) for path in reports if not path.name.endswith(NATIVE_SUFFIX)}
    twice = [path for path in reports if path.name.endswith(NATIVE_SUFFIX) and _stem(path) in exports]
    text = "not read: its export is read instead"
    notes = [Diagnostic("info", text, str(path), code="input.not_read") for path in twice]
    return [path for path in reports if path not in twice], notes


def _stem(path: Path) -> Path:
    """Return the path of a report without what its form adds to the name."""
    name = path.name
    for suffix in (NATIVE_SUFFIX, ".sqlite", ".parquetdir", "_pqtdir"):
        name = name.removesuffix(suffix)
    return path.with_name(name)


READER = Reader(
    name="nsight",
    patterns=("*.sqlite", "*.parquet", f"*{NATIVE_SUFFIX}"),
    description="reports of Nsight Systems: exported to SQLite or Parquet (`nsys export`), or `.nsys-rep`",
    recognizes=recognize_report,
    read=read_reports,
    unit=report_of,
)
