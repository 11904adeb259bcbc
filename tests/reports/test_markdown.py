"""The report as Markdown."""

from dataclasses import replace

import polars as pl

from explained_runs import explained
from stagescope.analysis import build_explained_report
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.reports.markdown import report_markdown


def test_the_verdict_is_bold_and_tables_are_tables():
    lines = report_markdown(explained(slower={2: 1.2})).splitlines()
    assert lines[0].startswith("**1f1b, 4 stages x 8 micro-batches")
    assert lines[0].endswith("**")
    for line in lines:
        if line.startswith("|"):
            assert line.count("|") in (4, 5)


def test_the_clock_line_follows_the_verdict():
    assert report_markdown(explained(), "2 machines, off by 3 us at most.").splitlines()[2] == (
        "2 machines, off by 3 us at most."
    )


def test_names_of_files_and_machines_are_escaped():
    report = replace(
        explained(),
        diagnostics=(Diagnostic("error", "<img src=x> | `a`\n# b", count=2, code="test.finding"),),
    )
    last = report_markdown(report).splitlines()[-1]
    assert last == "* error: &lt;img src=x> \\| 'a' # b (2)"


def test_counts_the_diagnostics_that_are_not_shown():
    many = tuple(Diagnostic("info", f"number {number}", code="test.finding") for number in range(13))
    assert report_markdown(replace(explained(), diagnostics=many)).splitlines()[-1] == "* 3 more"


def test_counts_the_stages_that_are_not_shown():
    report = explained()
    many = pl.concat([report.explanation.stage_work] * 17).head(65)
    text = report_markdown(replace(report, explanation=replace(report.explanation, stage_work=many)))
    assert "1 stage is not shown." in text


def test_without_steps_the_report_is_one_sentence():
    assert "No step with a forward or backward action was recorded" in report_markdown(
        build_explained_report(empty_timeline())
    )
