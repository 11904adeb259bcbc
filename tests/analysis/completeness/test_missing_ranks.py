"""Missing ranks are noticed, and what is left of a pipeline gets no name."""

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from stagescope.analysis.completeness.missing_ranks import MissingRanks
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.windows import Windows
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import spans_of

SHAPES = {
    name: Shape(name, microbatches=10, steps=2, chunks=chunks)
    for name, chunks in (("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2))
} | {"interleaved": Shape("interleaved", microbatches=8, steps=2, chunks=2)}


def report_of(name, gone, *, transfers):
    spans = spans_of(simulate(make_plan(SHAPES[name], Costs(), 1)))
    kept = spans.filter((pl.col("rank") != gone) if gone is not None else pl.lit(value=True))
    if not transfers:
        kept = kept.filter(~pl.col("kind").str.contains("send|recv"))
    return stagescope.analyze(stagescope.Timeline.from_spans(kept))


def codes_of(report):
    return {each.code for each in report.diagnostics} & {
        "ranks.missing",
        "stages.missing",
        "ranks.maybe_missing",
    }


@pytest.mark.parametrize("transfers", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_complete_pipelines_miss_nothing(name, transfers):
    report = report_of(name, None, transfers=transfers)
    assert not codes_of(report)
    assert report.verdict.why.startswith(f"{name}, ")


@pytest.mark.parametrize("gone", [*(pytest.param(rank, marks=pytest.mark.exhaustive) for rank in (0, 2)), 3])
@pytest.mark.parametrize("name", SHAPES)
def test_peers_name_a_missing_rank_and_no_schedule_is_named(name, gone):
    report = report_of(name, gone, transfers=True)
    assert "ranks.missing" in codes_of(report)
    assert report.verdict.why.startswith("Pipeline, ")
    assert f"(rank {gone} missing)" in report.verdict.why
    assert report.explanation.ideal.schedule is None
    assert not (report.improvements["kind"] == "redesign").any()


@pytest.mark.parametrize("gone", [0, *(pytest.param(rank, marks=pytest.mark.exhaustive) for rank in (2, 3))])
@pytest.mark.parametrize("name", SHAPES)
def test_without_transfers_a_gap_or_the_last_stage_shows_it(name, gone):
    report = report_of(name, gone, transfers=False)
    linear = SHAPES[name].chunks == 1
    assert codes_of(report) == {"ranks.maybe_missing" if linear and gone == 3 else "stages.missing"}
    assert report.verdict.why.startswith("Pipeline, ")
    assert "missing)" in report.verdict.why


def test_gaps_and_peers_are_listed():
    timeline = timeline_from_text("F0.0 B0.0\nF2.0 B2.0")
    send = timeline.spans.head(1).with_columns(
        kind=pl.lit("send_forward"), peer=pl.lit(7), lane=pl.lit("comm")
    )
    one_pipeline = timeline.with_spans(pl.concat([timeline.spans, send.cast(dict(timeline.spans.schema))]))
    joined = find_pipelines(timeline.spans).with_columns(pipeline=pl.lit(0, pl.Int32))
    known = Intermediates(one_pipeline, Windows(joined, step_bubbles(timeline.spans, joined), []))
    assert known.missing == MissingRanks((7,), (1,))
    assert str(MissingRanks((), (1, 2, 5))) == "stages 1-2, 5 missing"
    assert not MissingRanks((), ())


def test_step_without_waiting_last_stage_is_not_suspected():
    report = stagescope.analyze(timeline_from_text("F0 F1 . . B0 B1\n. F0 F1 B0 B1 ."))
    assert "ranks.maybe_missing" not in codes_of(report)
