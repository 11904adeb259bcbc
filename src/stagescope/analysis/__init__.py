"""Timeline to Report: where the time of a pipeline went, and why."""

from stagescope.analysis.bubble import Bubble
from stagescope.analysis.completeness.missing_data import errors_first
from stagescope.analysis.report import Report, build_explained_report, build_report, unexplained
from stagescope.analysis.report_json import to_json

__all__ = [
    "Bubble",
    "Report",
    "build_explained_report",
    "build_report",
    "errors_first",
    "to_json",
    "unexplained",
]
