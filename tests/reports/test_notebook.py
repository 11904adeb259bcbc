"""Results as small HTML tables in notebooks, and their one-line representations."""

from dataclasses import replace

import polars as pl
import pytest

import stagescope as ss
import stagescope.api.notebook  # adds the representations
from drawing import timeline_from_text
from explained_runs import explained
from planted_runs import Shape, random_times, run
from stagescope.model import empty_timeline

RUN = timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1")
RESULTS = {
    "timeline": lambda: RUN,
    "report": lambda: ss.analyze(RUN),
    "comparison": lambda: ss.compare(RUN, RUN),
    "simulation": lambda: ss.simulate("zb-v", ranks=4, microbatches=8),
    "empty timeline": empty_timeline,
}


def test_a_timeline_is_a_table_of_its_size():
    rows = "<tr><td>spans</td><td>8</td></tr><tr><td>ranks</td><td>2</td></tr>"
    assert f"{rows}<tr><td>machines</td><td>not recorded</td></tr>" in RUN._repr_html_()


def test_a_report_is_its_verdict_and_its_ranks():
    report = explained(slower={2: 1.2})
    text = report._repr_html_()
    assert str(report.verdict).split(",")[0] in text
    assert text.count("<tr>") == 1 + report.ranks.height


def test_a_comparison_is_its_sentences_and_parts():
    runs = [run(random_times(Shape(pipelines=1), seed)) for seed in (1, 2)]
    comparison = ss.compare(*runs)
    assert "beyond noise" in comparison._repr_html_()
    assert repr(comparison).startswith("Comparison(")


def test_a_simulated_step_is_a_table_of_its_ranks():
    step = RESULTS["simulation"]()
    text = step._repr_html_()
    assert text.count("<tr>") == 5
    assert f"makespan {step.simulation.makespan_ns / 1e6:.0f}, bubble" in text


def test_many_ranks_are_counted():
    many = ss.simulate("1f1b", ranks=32, microbatches=32)
    assert "16 more rows not shown" in many._repr_html_()


def test_names_are_escaped():
    hostile = replace(RUN, ranks=RUN.ranks.with_columns(machine=pl.lit("<script>")))
    assert "<script>" not in ss.analyze(hostile)._repr_html_()


@pytest.mark.parametrize("name", RESULTS)
def test_representations_are_short(name):
    result = RESULTS[name]()
    assert len(repr(result)) < 600
    assert type(result).__name__ in repr(result)
