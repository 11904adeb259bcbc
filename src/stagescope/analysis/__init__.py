"""Timeline to result: where the time of a pipeline went, and why."""

from stagescope.analysis.completeness.missing_data import errors_first
from stagescope.analysis.explained_report import build_explained_report
from stagescope.analysis.report import (
    BubbleFigures,
    RankFigures,
    Report,
    StepFigures,
    build_report,
)
from stagescope.analysis.report_json import to_json

__all__ = [
    "BubbleFigures",
    "RankFigures",
    "Report",
    "StepFigures",
    "build_explained_report",
    "build_report",
    "errors_first",
    "to_json",
]
