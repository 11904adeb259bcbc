"""The whole report: the figures, all that explains them, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.completeness.comparable import without
from stagescope.analysis.completeness.missing_data import errors_first
from stagescope.analysis.explanation import explain
from stagescope.analysis.groundwork import Groundwork
from stagescope.analysis.report import measure_windows, report_figures
from stagescope.analysis.verdict import give_verdict
from stagescope.model.diagnostics import diagnostics_table

if TYPE_CHECKING:
    from stagescope.analysis.report import Report
    from stagescope.model import Timeline


class Study(NamedTuple):
    """An explained report, and what it rests on, for those who show more of it."""

    report: Report
    groundwork: Groundwork


def build_explained_report(timeline: Timeline) -> Report:
    """Return the report of a timeline with `explanation` and `verdict`; see build_report for its figures.

    What the analyses could not use is said in its diagnostics. Never raises.
    """
    return study_run(timeline).report


def study_run(timeline: Timeline) -> Study:
    """Return what build_explained_report does, with its groundwork."""
    windows = measure_windows(timeline)
    report = report_figures(timeline, windows)
    groundwork = Groundwork(without(timeline, windows.apart), windows)
    explanation = explain(groundwork, report.bubble.steps)
    said = diagnostics_table([*report.diagnostics, *explanation.diagnostics])
    explained = replace(
        report,
        explanation=explanation,
        verdict=give_verdict(report, explanation),
        diagnostics=errors_first(said),
    )
    return Study(explained, groundwork)
