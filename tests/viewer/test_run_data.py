from dataclasses import replace

import polars as pl
import pytest

from column_blobs import read_blob
from drawing import timeline_from_text
from stagescope.analysis import build_explained_report
from stagescope.api import simulate
from stagescope.exporters.layers import AnalysisLayers
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.schedules import Costs, order
from stagescope.viewer import links
from stagescope.viewer.analysis_data import report_extras
from stagescope.viewer.links import ACTION_PHASES
from stagescope.viewer.run_data import shown_ranks, viewer_data
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=3, microbatches=4, steps=2))
DRAWN = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .", origin_ns=10**18)


def test_meta_describes_the_run():
    meta = viewer_data(DRAWN).meta
    assert meta["title"] == "Pipeline · 2 ranks · 2 micro-batches · 1 step"
    assert (meta["base_ns"], meta["end"], meta["span_count"]) == (str(10**18), 8000, 8)
    assert [kind["letter"] for kind in meta["kinds"]] == ["F", "B"]
    assert meta["ranks"]["stages"] == [[0], [1]]
    measured = {"window_ns": 8000, "bubble_fraction": 4 / 16, "in_totals": True, "excess_ns": None}
    assert meta["steps"] == [{"step": 0, "start": 0, "end": 8000, **measured}]


def test_a_run_without_anything_has_meta_too():
    data = viewer_data(empty_timeline())
    assert (data.meta["span_count"], data.meta["end"], data.meta["steps"]) == (0, 0, [])
    assert read_blob(data.tables["spans"])[0]["start"] == []
    assert data.meta["sections"] == []


def test_the_bubble_of_a_step_is_that_of_the_report():
    bubbles = step_bubbles(RUN.spans, find_pipelines(RUN.spans, RUN.ranks))
    first = bubbles.filter(pl.col("step") == 0)
    assert (
        viewer_data(RUN).meta["steps"][0]["bubble_fraction"]
        == first["idle_ns"].sum() / first["window_ns"].sum()
    )


def test_links_connect_actions_of_one_microbatch_and_step():
    data = viewer_data(RUN)
    spans, _ = read_blob(data.tables["spans"])
    pairs, _ = read_blob(data.tables["links"])
    stages = len(set(spans["stage"]) - {None})
    actions = sum(kind in ACTION_PHASES for kind in spans["kind"])
    assert len(pairs["to"]) == actions - actions // (
        2 * stages
    )  # all but the forwards of stage 0 need another action
    for giver, taker in zip(pairs["from"], pairs["to"], strict=True):
        assert all(spans[name][giver] == spans[name][taker] for name in ("step", "microbatch"))


def test_links_are_omitted_with_a_diagnostic_where_ranks_cannot_be_distinguished(monkeypatch):
    monkeypatch.setattr(links, "MOST_SURPLUS_PAIRS", -(10**6))
    data = viewer_data(RUN)
    assert "links" not in data.tables
    assert {one["code"] for one in data.meta["diagnostics"]} >= {"viewer.links_omitted"}


def test_slack_is_that_of_the_report_to_three_digits():
    report = build_explained_report(RUN)
    data = viewer_data(RUN, report_extras(report))
    slack, _ = read_blob(data.tables["slack"])
    expected = report.slack.filter(pl.col("slack_ns") > 0).height
    assert sum(value > 0 for value in slack["slack_ns"]) == expected > 0
    on_path = set(read_blob(data.tables["critical_path"])[0]["span"])
    by_span = dict(zip(slack["span"], slack["slack_ns"], strict=True))
    assert {by_span[span] for span in on_path} == {0}
    exact = sorted(report.slack["slack_ns"])
    assert sorted(by_span.values()) == pytest.approx(exact, rel=0.005)
    assert all(len(str(int(value)).rstrip("0")) <= 3 for value in by_span.values())


def test_errors_come_first_and_display_problems_are_counted():
    spans = DRAWN.spans.with_columns(
        end_ns=pl.when(pl.col("microbatch") == 1).then(pl.col("start_ns") - 1).otherwise("end_ns")
    )
    late = pl.when(pl.col("microbatch") == 0).then(pl.col("start_ns") - 2**60).otherwise("start_ns")
    timeline = replace(DRAWN, spans=spans.with_columns(start_ns=late)).with_diagnostics(
        [Diagnostic("error", "lost", code="test.finding")]
    )
    rows = viewer_data(timeline).meta["diagnostics"]
    assert (rows[0]["severity"], rows[0]["message"]) == ("error", "lost")
    counts = {row["code"]: (row["severity"], row["count"]) for row in rows}
    assert counts["viewer.spans_reversed"] == ("warning", 4)
    assert counts["viewer.times_rounded"] == ("warning", 1)


def test_a_rank_without_a_span_has_a_row():
    ranks = pl.concat([DRAWN.ranks, DRAWN.ranks[:1].with_columns(rank=pl.lit(9, pl.Int32))])
    assert shown_ranks(replace(DRAWN, ranks=ranks)) == [0, 1, 9]


def test_layers_use_rows_and_ids_of_the_viewer():
    row = DRAWN.spans.with_row_index().filter((pl.col("rank") == 1) & (pl.col("kind") == "backward"))[
        "index"
    ][0]
    idle = pl.DataFrame(
        {
            "rank": [1],
            "step": [0],
            "start_ns": [10**18],
            "end_ns": [10**18 + 1000],
            "waiting_for": ["transfer"],
            "waits_for": [row],
            "text": [None],
        },
        schema_overrides={"rank": pl.Int32, "text": pl.String},
    )
    path = pl.DataFrame({"row": [row]})
    extras = AnalysisLayers(
        idle=idle, critical_path=path, ideal=DRAWN.spans, objects={"ledger": {"parts": []}}
    )
    data = viewer_data(DRAWN, extras)
    assert data.meta["sections"] == ["heat", "rank_heat", "links", "idle", "critical_path", "ideal", "ledger"]
    spans, _ = read_blob(data.tables["spans"])
    (span,) = read_blob(data.tables["critical_path"])[0]["span"]
    assert (spans["row"][span], spans["start"][span]) == (1, DRAWN.spans["start_ns"][row])
    gap, _ = read_blob(data.tables["idle"])
    assert (gap["row"], gap["duration"], gap["waiting_for"], gap["waits_for"]) == (
        [1],
        [1000],
        ["transfer"],
        [span],
    )
    assert (gap["after"], gap["lead"]) == ([None], [0])
    assert read_blob(data.tables["ideal"])[0]["start"] == spans["start"]


def test_a_simulation_has_no_clock_error_and_a_recording_has_one():
    simulated = simulate(order("1f1b", ranks=2, microbatches=4), Costs(forward=10, backward=20)).timeline
    assert simulated.clocks.height == 1
    assert viewer_data(simulated).meta["clocks"] == []
    recorded = replace(simulated, ranks=simulated.ranks.with_columns(clock=pl.lit("a")))
    assert [clock["method"] for clock in viewer_data(recorded).meta["clocks"]] == ["exact"]
