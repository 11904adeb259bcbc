"""The report of a run that is analyzed in ranges of steps, one after the other or by several processes."""

from stagescope.analysis.ranges.joined import build_joined_report
from stagescope.analysis.ranges.measured import RangeAnalysis, analyze_range
from stagescope.analysis.ranges.surveyed import RangeSurvey, chosen_steps, survey_range

__all__ = [
    "RangeAnalysis",
    "RangeSurvey",
    "analyze_range",
    "build_joined_report",
    "chosen_steps",
    "survey_range",
]
