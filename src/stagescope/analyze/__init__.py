"""Timeline to result: `build_report` says where the time of the pipeline went."""

from stagescope.analyze.gaps import errors_first
from stagescope.analyze.report import (
    BubbleFigures,
    RankFigures,
    Report,
    StepFigures,
    build_report,
)
from stagescope.analyze.report_json import to_json

__all__ = [
    "BubbleFigures",
    "RankFigures",
    "Report",
    "StepFigures",
    "build_report",
    "errors_first",
    "to_json",
]
