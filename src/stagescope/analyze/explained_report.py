"""The whole report: the figures, all that explains them, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.analyze.comparable import without
from stagescope.analyze.explanation import explain
from stagescope.analyze.gaps import errors_first
from stagescope.analyze.report import measure_windows, report_figures
from stagescope.analyze.verdict import give_verdict
from stagescope.timeline.diagnostics import diagnostics_table

if TYPE_CHECKING:
    from stagescope.analyze.report import Report
    from stagescope.timeline import Timeline


def build_explained_report(timeline: Timeline) -> Report:
    """Return the report of a timeline with `explanation` and `verdict`; see build_report for its figures.

    What the analyses could not use is said in its diagnostics. Never raises.
    """
    windows = measure_windows(timeline)
    report = report_figures(timeline, windows)
    measured = without(timeline, windows.apart)
    explanation = explain(measured, windows.bubbles, windows.pipelines, report.bubble.steps)
    said = diagnostics_table([*report.diagnostics, *explanation.diagnostics])
    return replace(
        report,
        explanation=explanation,
        verdict=give_verdict(report, explanation),
        diagnostics=errors_first(said),
    )
