from fractions import Fraction

import polars as pl
import pytest

from drawing import timeline_from_text
from machines import on_machines
from stagescope.analysis.report import build_report
from stagescope.exporters.pictures.step_chart import (
    UNALIGNED,
    Section,
    chart_axis,
    chart_step,
    chart_title,
    time_text,
    typical_step,
)
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.schedules.action import Action
from stagescope.schedules.costs import Costs
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS
from synthetic import Shape, pipeline_timeline

ONE_F_ONE_B = """
    F0 F1 F2 F3 . . . . . . . B0 - . B1 - . B2 - . B3 - .
    .  F0 F1 F2 F3 . . . B0 - . B1 - . B2 - . B3 - . . . .
"""


def spans(*rows: dict[str, object]) -> Timeline:
    """Return a timeline of rows; omitted fields default to a forward on rank 0."""
    usual = {"rank": 0, "lane": "compute", "kind": "forward", "step": 0, "stage": 0, "microbatch": 0}
    frame = pl.DataFrame([{**usual, **row} for row in rows], infer_schema_length=None)
    return empty_timeline().with_spans(conform(frame, SPANS))


def joined(*timelines: Timeline) -> Timeline:
    return timelines[0].with_spans(pl.concat([timeline.spans for timeline in timelines]))


def test_the_typical_step_has_the_median_length_among_whole_ones() -> None:
    timeline = joined(
        timeline_from_text("F0 . . . . B0 -", step=0),
        timeline_from_text("F0 . B0 -", step=1),
        timeline_from_text("F0 . . B0 -", step=2),
        timeline_from_text("F0", step=3),
    )
    assert typical_step(timeline) == 2


def test_spans_without_steps_are_drawn_together() -> None:
    timeline = timeline_from_text("F0 B0")
    timeline = timeline.with_spans(timeline.spans.with_columns(pl.lit(None, pl.Int32).alias("step")))
    chart = chart_step(timeline)
    assert (chart.step, chart.spans.height) == (None, 2)


def test_a_step_that_was_not_recorded_is_an_error_that_names_those_that_were() -> None:
    with pytest.raises(InputError, match=r"step 7 was not recorded; recorded: 0"):
        chart_step(timeline_from_text("F0 B0"), 7)


def test_times_count_from_the_first_action_of_the_step() -> None:
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=2, steps=3))
    chart = chart_step(timeline, 1)
    in_step = timeline.spans.filter((pl.col("step") == 1) & pl.col("kind").is_in(ACTION_KINDS))
    assert chart.origins_ns[0] == in_step["start_ns"].min() > timeline.steps["start_ns"][1]
    assert (chart.spans["start_ns"].min(), chart.start_ns) == (0, 0)


def test_a_picture_does_not_begin_with_the_wait_of_a_rank_that_was_ready_early() -> None:
    wait = {
        "rank": 1, "stage": 1, "lane": "comm", "kind": "recv_forward", "start_ns": 100, "end_ns": 2_000,
        "wait_start_ns": 100, "wait_end_ns": 2_000,
    }  # fmt: skip
    first, second = (
        {"start_ns": 1_000, "end_ns": 2_000},
        {"rank": 1, "stage": 1, "start_ns": 2_000, "end_ns": 3_000},
    )
    chart = chart_step(spans(first, wait, second))
    assert (chart.start_ns, chart.end_ns) == (0, 2_000)
    assert chart.waits.select("start_ns", "end_ns").rows() == [(0, 1_000)]


def test_overlapping_actions_share_the_row_with_the_forward_on_top() -> None:
    chart = chart_step(
        spans(
            {"kind": "backward", "pair": 1, "start_ns": 1_000, "end_ns": 3_000},
            {"kind": "forward", "pair": 1, "start_ns": 1_100, "end_ns": 3_000},
            {"kind": "forward", "start_ns": 3_000, "end_ns": 4_000},
        )
    )
    assert chart.spans.select("kind", "lane", "lane_count").sort("lane", "lane_count").rows() == [
        ("forward", 0, 1),
        ("forward", 0, 2),
        ("backward", 1, 2),
    ]


def test_actions_that_overlap_by_less_than_half_a_pixel_count_as_touching() -> None:
    chart = chart_step(
        spans(
            {"start_ns": 0, "end_ns": 1_000_100},
            {"microbatch": 1, "start_ns": 1_000_000, "end_ns": 2_000_000},
        )
    )
    assert chart.spans["lane_count"].to_list() == [1, 1]


def test_three_actions_at_once_have_three_lanes() -> None:
    rows = [{"microbatch": m, "start_ns": 0, "end_ns": 1_000} for m in range(3)]
    assert sorted(chart_step(spans(*rows)).spans["lane"]) == [0, 1, 2]


def test_a_reduction_during_an_action_is_a_strip() -> None:
    reduction = {"lane": "comm", "kind": "grad_reduce", "stage": None, "microbatch": None}
    chart = chart_step(
        spans(
            {"start_ns": 0, "end_ns": 1_000},
            {"rank": 1, "start_ns": 0, "end_ns": 5_000},
            {**reduction, "start_ns": 500, "end_ns": 2_000},
            {**reduction, "start_ns": 3_000, "end_ns": 4_000},
        )
    )
    strips = chart.spans.filter(pl.col("kind") == "grad_reduce")
    assert strips["strip"].to_list() == [True, False]


def test_a_missing_chunk_is_the_place_of_the_stage_on_its_rank() -> None:
    timeline = timeline_from_text("F0.0 F2.0\nF1.0 F3.0")
    timeline = timeline.with_spans(timeline.spans.with_columns(pl.lit(None, pl.Int32).alias("chunk")))
    chart = chart_step(timeline)
    assert chart.spans["chunk"].to_list() == [0, 1, 0, 1]
    assert chart.chunk_count == 2


def test_the_bubble_is_the_one_of_the_report() -> None:
    timeline = timeline_from_text(ONE_F_ONE_B)
    assert chart_step(timeline).bubble_fraction == build_report(timeline).bubble.fraction
    run = pipeline_timeline(Shape(steps=1))
    assert chart_step(run).bubble_fraction == pytest.approx(build_report(run).bubble.fraction, abs=1e-12)


def test_the_bubble_of_a_textbook_schedule_is_exact() -> None:
    timeline = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")
    assert chart_step(timeline).bubble_fraction == pytest.approx(float(Fraction(2, 8)))


def test_the_bubble_of_replicas_is_the_one_of_the_report() -> None:
    timeline = timeline_from_text("F0.0 . . B0.0 . .\n. . F0.0 . . B0.0")
    assert chart_step(timeline).bubble_fraction == build_report(timeline).bubble.fraction == 0.5


def test_a_rank_without_spans_keeps_its_row() -> None:
    assert chart_step(timeline_from_text("F0\n.\n. F0")).ranks == (0, 1, 2)


def test_what_is_not_drawn_is_counted() -> None:
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=3, steps=1))
    chart = chart_step(timeline)
    receives = timeline.spans.filter(
        pl.col("wait_start_ns").is_not_null() & pl.col("kind").cast(pl.String).str.starts_with("recv")
    )
    assert chart.waits.height == receives.height
    assert chart.not_drawn_count == timeline.spans.height - chart.spans.height - chart.waits.height


def test_a_wait_from_before_the_step_begins_at_the_edge_of_the_picture() -> None:
    timeline = timeline_from_text("F0 B0\n. .")
    length_ns = timeline.spans["end_ns"].max()
    receive = timeline.spans[:1].with_columns(
        kind=pl.lit("recv_forward").cast(timeline.spans["kind"].dtype), wait_start_ns=-5 * length_ns
    )
    before, into = (
        receive.with_columns(wait_end_ns=pl.lit(end_ns)) for end_ns in (-length_ns, length_ns // 4)
    )
    chart = chart_step(timeline.with_spans(pl.concat([timeline.spans, before, into], how="vertical_relaxed")))
    assert chart.waits.select("start_ns", "end_ns").rows() == [(chart.start_ns, length_ns // 4)]
    assert chart.not_drawn_count == 1


def test_a_span_that_ends_before_it_starts_is_a_point_and_counted() -> None:
    chart = chart_step(
        spans({"start_ns": 500, "end_ns": 100}, {"microbatch": 1, "start_ns": 0, "end_ns": 1_000})
    )
    assert chart.reversed_count == 1
    assert (chart.spans["end_ns"] >= chart.spans["start_ns"]).all()


def test_an_empty_timeline_has_a_chart() -> None:
    chart = chart_step(empty_timeline())
    assert (chart.ranks, chart.spans.height, chart.bubble_fraction, chart.length_ns) == ((), 0, None, 1)


def test_shifting_the_clock_does_not_change_the_chart() -> None:
    here, there = (
        chart_step(timeline_from_text(ONE_F_ONE_B, origin_ns=origin_ns))
        for origin_ns in (0, 1_763_600_000_000_000_000)
    )
    assert here.spans.equals(there.spans)
    assert here.bubble_fraction == there.bubble_fraction


def test_a_pair_that_ran_as_one_is_fused() -> None:
    pair = {"pair": 1, "start_ns": 1_000, "end_ns": 3_000}
    chart = chart_step(
        spans(
            {"start_ns": 0, "end_ns": 1_000},
            {"kind": "backward", **pair},
            {"kind": "forward", "microbatch": 1, **pair},
        )
    )
    fused = chart.spans.filter("fused").sort("lane")
    assert fused.select("kind", "lane").rows() == [("forward", 0), ("backward", 1)]
    assert chart.spans.filter(~pl.col("fused")).height == 1


def test_a_pair_whose_actions_ran_one_after_the_other_stays_two_spans() -> None:
    chart = chart_step(
        spans(
            {"pair": 1, "start_ns": 0, "end_ns": 1_000},
            {"pair": 1, "kind": "backward", "start_ns": 1_000, "end_ns": 3_000},
        )
    )
    assert not chart.spans["fused"].any()
    assert chart.spans["lane_count"].to_list() == [1, 1]


def test_a_pair_whose_actions_only_overlap_shows_each_where_it_ran() -> None:
    chart = chart_step(
        spans(
            {"pair": 1, "start_ns": 0, "end_ns": 2_000},
            {"pair": 1, "kind": "backward", "start_ns": 500, "end_ns": 3_000},
        )
    )
    assert not chart.spans["fused"].any()
    assert chart.spans["lane_count"].to_list() == [2, 2]


def test_times_of_relative_costs_have_no_unit() -> None:
    costs = Costs(forward=1_000_000, backward=2_500_000)
    step = simulate({0: [Action("F", 0, 0), Action("B", 0, 0)]}, costs)
    units = chart_step(timeline_of_simulation(step, in_cost_units=True))
    plain = chart_step(timeline_of_simulation(step))
    assert (chart_axis(units, 4).unit, [tick.text for tick in chart_axis(units, 4).ticks]) == (
        "",
        ["0", "1", "2", "3"],
    )
    assert (time_text(units, 2_500_000), time_text(plain, 2_500_000)) == ("2.5", "2.500 ms")
    assert chart_axis(plain, 4).unit == "ms"
    assert chart_title(units) == "Pipeline · 1 rank · 1 micro-batch · bubble 0.0 %"


MACHINES = {0: "a", 1: "b", 2: "a"}
HOUR_NS = 3_600_000_000_000


def an_hour_ahead(timeline: Timeline, rank: int) -> Timeline:
    ahead = pl.when(pl.col("rank") == rank).then(HOUR_NS).otherwise(0)
    return timeline.with_spans(timeline.spans.with_columns(pl.col("start_ns", "end_ns") + ahead))


def test_machines_that_are_not_on_one_clock_are_sections_with_a_zero_of_their_own() -> None:
    timeline = an_hour_ahead(timeline_from_text("F0 .\nF0 .\n. F0"), rank=1)
    chart = chart_step(on_machines(timeline, MACHINES, {"a": (0, 0), "b": None}))
    assert chart.ranks == (0, 2, 1)
    assert chart.sections == (Section(0, f"a: {UNALIGNED}"), Section(2, f"b: {UNALIGNED}"))
    assert chart.spans.select("row", "start_ns").rows() == [(0, 0), (1, 1_000), (2, 0)]
    assert chart.length_ns == 2_000
    assert chart.bubble_fraction is None


def test_machines_on_one_clock_and_those_that_were_never_aligned_share_an_axis() -> None:
    timeline = timeline_from_text("F0 .\nF0 .\n. F0")
    plain = chart_step(timeline)
    for errors_ns in ({"a": (0, 0), "b": (-5, 5)}, None):
        chart = chart_step(on_machines(timeline, MACHINES, errors_ns))
        assert (chart.sections, chart.ranks) == ((), (0, 1, 2))
        assert chart.spans.equals(plain.spans)
        assert chart.bubble_fraction == plain.bubble_fraction
