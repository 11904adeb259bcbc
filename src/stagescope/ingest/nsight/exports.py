"""Open a report in any of its forms: SQLite, a directory of Parquet files, or `.nsys-rep`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.ingest.device_ranges.process_trace import ProcessTrace, Unmarked, read_trace
from stagescope.ingest.nsight.native_report import SUFFIX as NATIVE_SUFFIX
from stagescope.ingest.nsight.native_report import exported
from stagescope.ingest.nsight.parquet_report import ParquetReport, require_tables
from stagescope.ingest.nsight.report import Report

if TYPE_CHECKING:
    from pathlib import Path


def read_report(
    path: Path, pattern: str | None = None, *, kernels: bool = False
) -> list[ProcessTrace] | Unmarked:
    """Return the processes of a report that ran actions; raises InputError for a report that cannot be read."""
    if path.is_dir():
        require_tables(path)
        return read_trace(ParquetReport(path), pattern, kernels=kernels)
    if path.name.endswith(NATIVE_SUFFIX):
        with exported(path) as export:
            return _of_original(read_report(export, pattern, kernels=kernels), path)
    with Report(path) as report:
        report.check()
        return read_trace(report, pattern, kernels=kernels)


def _of_original(found: list[ProcessTrace] | Unmarked, path: Path) -> list[ProcessTrace] | Unmarked:
    """Return what was read of an export with the path of the report, in diagnostics too."""
    if isinstance(found, Unmarked):
        return found._replace(path=path)
    return [
        one._replace(path=path, diagnostics=[replace(row, source=str(path)) for row in one.diagnostics])
        for one in found
    ]
