"""The report of a run that is analyzed in ranges of steps, one after the other or by several processes."""

from stagescope.analysis.ranges.joined import SCANNED, build_joined_report
from stagescope.analysis.ranges.measured import RangeAnalysis, analyze_range
from stagescope.analysis.ranges.surveyed import PipelineSurvey, choose_steps, join_surveys, survey_pipelines

__all__ = [
    "SCANNED",
    "PipelineSurvey",
    "RangeAnalysis",
    "analyze_range",
    "build_joined_report",
    "choose_steps",
    "join_surveys",
    "survey_pipelines",
]
