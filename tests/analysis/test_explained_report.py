"""Reports with an explanation."""

from drawing import timeline_from_text
from explained_runs import schedule_run
from stagescope.analysis import build_explained_report, build_report
from stagescope.model.diagnostics import Diagnostic


def test_explained_report_has_the_same_metrics():
    timeline = schedule_run(slower={3: 1.3})
    whole, figures = build_explained_report(timeline), build_report(timeline)
    assert whole.steps.equals(figures.steps)
    assert whole.ranks.equals(figures.ranks)
    assert whole.bubble == figures.bubble
    assert figures.explanation is None
    assert whole.verdict is not None


def test_earlier_diagnostics_are_kept_once_and_errors_come_first():
    timeline = timeline_from_text("F0 B0\n. F0 B0").with_diagnostics([Diagnostic("error", "lost")])
    diagnostics = build_explained_report(timeline).diagnostics
    assert diagnostics[0] == Diagnostic("error", "lost")
    assert len(diagnostics) == len(set(diagnostics))
