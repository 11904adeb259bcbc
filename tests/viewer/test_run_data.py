from dataclasses import replace

import polars as pl

from column_blobs import read_blob
from drawing import timeline_from_text
from stagescope.exporters.layers import AnalysisLayers
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.viewer.run_data import shown_ranks, stage_heat, viewer_data
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=3, microbatches=4, steps=2))
DRAWN = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .", origin_ns=10**18)


def test_meta_says_what_the_run_is():
    meta = viewer_data(DRAWN).meta
    assert meta["title"] == "Pipeline · 2 ranks · 2 micro-batches · 1 step"
    assert (meta["base_ns"], meta["end"], meta["span_count"]) == (str(10**18), 8000, 8)
    assert [kind["letter"] for kind in meta["kinds"]] == ["F", "B"]
    assert meta["ranks"]["stages"] == [[0], [1]]
    assert meta["steps"] == [{"step": 0, "start": 0, "end": 8000, "bubble_fraction": 4 / 16}]


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


def test_messages_name_the_spans_at_both_ends():
    data = viewer_data(RUN)
    spans, _ = read_blob(data.tables["spans"])
    messages, _ = read_blob(data.tables["messages"])
    assert len(messages["send"]) == 2 * 2 * 4 * 2
    for send, recv in zip(messages["send"], messages["recv"], strict=True):
        assert spans["microbatch"][send] == spans["microbatch"][recv]
        assert (spans["peer"][send], spans["peer"][recv]) == (spans["row"][recv], spans["row"][send])


def test_heat_adds_up_to_the_work_of_the_run():
    heat = stage_heat(DRAWN.spans, step_bubbles(DRAWN.spans, find_pipelines(DRAWN.spans)))
    assert heat.rows() == [(0, 0, 6000, 0, 2000, 4), (0, 1, 6000, 0, 2000, 4)]


def test_what_is_wrong_with_the_data_comes_first_and_what_is_drawn_otherwise_is_counted():
    spans = DRAWN.spans.with_columns(
        end_ns=pl.when(pl.col("microbatch") == 1).then(pl.col("start_ns") - 1).otherwise("end_ns")
    )
    late = pl.when(pl.col("microbatch") == 0).then(pl.col("start_ns") - 2**60).otherwise("start_ns")
    timeline = replace(DRAWN, spans=spans.with_columns(start_ns=late)).with_diagnostics(
        [Diagnostic("error", "lost")]
    )
    said = [
        (row["severity"], row["message"], row["count"]) for row in viewer_data(timeline).meta["diagnostics"]
    ]
    assert said[0] == ("error", "lost", 1)
    assert ("warning", "spans end before they start; drawn as points", 4) in said
    assert any("shown rounded" in message for _, message, _ in said)


def test_a_rank_without_a_span_has_a_row():
    ranks = pl.concat([DRAWN.ranks, DRAWN.ranks[:1].with_columns(rank=pl.lit(9, pl.Int32))])
    assert shown_ranks(replace(DRAWN, ranks=ranks)) == [0, 1, 9]


def test_what_analysis_found_is_told_in_rows_and_ids_of_the_viewer():
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
    path = pl.DataFrame({"row": [row], "slack_ns": [0]})
    extras = AnalysisLayers(
        idle=idle, critical_path=path, ideal=DRAWN.spans, objects={"ledger": {"parts": []}}
    )
    data = viewer_data(DRAWN, extras)
    assert data.meta["sections"] == ["heat", "idle", "critical_path", "ideal", "ledger"]
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
