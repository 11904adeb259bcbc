"""The report of a run that is analyzed in ranges of steps, one after the other or by several processes."""

from stagescope.analysis.ranges.joined import (
    SCANNED,
    MeasuredRun,
    build_joined_report,
    compare_ranges,
    joined_pieces,
    sum_causes_of,
    with_culprits,
)
from stagescope.analysis.ranges.long_tables import LongTable
from stagescope.analysis.ranges.measured import (
    MeasuredPipelines,
    RangeAnalysis,
    analyze_range,
    join_pipelines,
    measure_pipelines,
)
from stagescope.analysis.ranges.reference import LEARNED, Reference, results_of
from stagescope.analysis.ranges.surveyed import (
    PipelineSurvey,
    StepTables,
    choose_steps,
    join_surveys,
    survey_pipelines,
)

__all__ = [
    "LEARNED",
    "SCANNED",
    "LongTable",
    "MeasuredPipelines",
    "MeasuredRun",
    "PipelineSurvey",
    "RangeAnalysis",
    "Reference",
    "StepTables",
    "analyze_range",
    "build_joined_report",
    "choose_steps",
    "compare_ranges",
    "join_pipelines",
    "join_surveys",
    "joined_pieces",
    "measure_pipelines",
    "results_of",
    "sum_causes_of",
    "survey_pipelines",
    "with_culprits",
]
