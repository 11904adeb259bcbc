import polars as pl
import pytest

from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.statistics.step_lengths import STEP_LENGTHS, slowest_steps
from stagescope.model import Timeline
from synthetic import Shape, pipeline_timeline, slowed_step


def run() -> Timeline:
    return slowed_step(pipeline_timeline(Shape(ranks=2, microbatches=3, steps=12)), 7)


def test_slow_step_is_an_outlier_with_and_without_explanation():
    for report in (build_report(run()), build_explained_report(run())):
        lengths = report.step_lengths
        assert lengths.schema == STEP_LENGTHS.schema
        outliers = lengths.drop_nulls("excess_ns")
        assert outliers["step"].to_list() == [7]
        usual_ns = lengths.filter(pl.col("step") == 6)["window_ns"][0]
        assert outliers["excess_ns"][0] == pytest.approx(usual_ns, rel=0.02)
        assert slowest_steps(lengths, 1)["step"].to_list() == [7]


def test_lengths_and_bubbles_are_those_of_the_report():
    report = build_report(run())
    assert report.step_lengths["window_ns"].to_list() == report.steps["window_ns"].to_list()
    assert dict(report.step_lengths.select("step", "bubble_fraction").iter_rows()) == report.bubble.per_step


def test_finding_of_a_slow_step_names_the_step():
    finding = (
        build_explained_report(run()).findings.filter(pl.col("code") == "step.outlier").row(0, named=True)
    )
    assert (finding["subject"], finding["step"]) == ("step 7", 7)
