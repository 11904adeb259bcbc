"""The report: metrics per step, per rank and of the whole run."""

from dataclasses import replace
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_runs import run_rows
from drawing import timeline_from_text
from random_pipelines import timeline_of
from stagescope.analysis import Report, build_explained_report, build_report, unexplained
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform
from stagescope.schedules import order

# The 1F1B figure of the papers: p=4 stages, m=8 micro-batches, F=1 and B=2.
ONE_F_ONE_B = """
F0 F1 F2 F3 .  .  .  .  .  .  B0 -  F4 B1 -  F5 B2 -  F6 B3 -  F7 B4 -  .  B5 -  .  B6 -  .  B7 -
.  F0 F1 F2 .  .  .  .  B0 -  F3 B1 -  F4 B2 -  F5 B3 -  F6 B4 -  F7 B5 -  .  B6 -  .  B7 -  .  .
.  .  F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  F4 B3 -  F5 B4 -  F6 B5 -  F7 B6 -  .  B7 -  .  .  .  .
.  .  .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -  F4 B4 -  F5 B5 -  F6 B6 -  F7 B7 -  .  .  .  .  .  .
"""


def steps(*lengths: int, first: int = 0) -> Timeline:
    """Return one rank that needs so many slots for each step, half of them idle."""
    drawn = [
        timeline_from_text(
            "F0 " + ". " * (slots - 2) + "B0", step=first + number, origin_ns=number * 1_000_000
        )
        for number, slots in enumerate(lengths)
    ]
    return drawn[0].with_spans(pl.concat(timeline.spans for timeline in drawn))


def test_1f1b_with_4_stages_and_8_micro_batches_has_a_bubble_of_3_elevenths():
    report = build_report(timeline_from_text(ONE_F_ONE_B))
    assert report.bubble.fraction == float(Fraction(3, 11))
    assert report.bubble.per_rank == dict.fromkeys(range(4), float(Fraction(3, 11)))
    assert report.ranks.select("busy_ns", "idle_ns", "window_ns").rows() == [(24_000, 9_000, 33_000)] * 4
    assert report.ranks["stages"].to_list() == [[0], [1], [2], [3]]
    assert report.microbatches == 8


def test_ranks_are_summed_over_the_steps_in_the_totals():
    report = build_report(steps(10, 20, first=3))
    assert report.steps.select("step", "window_ns", "bubble_fraction").rows() == [
        (3, 10_000, 0.8), (4, 20_000, 0.9),
    ]  # fmt: skip
    assert report.ranks.select("window_ns", "idle_ns").rows() == [(30_000, 26_000)]
    assert report.bubble.fraction == 26 / 30
    assert report.bubble.steps == (3, 4)


@pytest.mark.parametrize(
    ("skipped", "words"),
    [([3], "step 3 is listed"), ([0, 3, 4, 5], "steps 0, 3-5 are listed")],
)
def test_steps_that_are_left_out_are_listed_in_one_sentence(skipped, words):
    report = build_report(steps(*[10] * 8), skipped)
    assert f"{words} and left out of the totals, as requested" in {
        each.message for each in report.diagnostics
    }


def test_slow_step_0_is_listed_reported_and_not_in_totals():
    report = build_report(steps(50, 10, 12, 10))
    assert report.steps["in_totals"].to_list() == [False, True, True, True]
    assert report.bubble.steps == (1, 2, 3)
    assert report.ranks["window_ns"].to_list() == [32_000]
    assert report.diagnostics == (
        Diagnostic(
            "info",
            "step 0 took 5.00x the median of the other steps; it is listed and left out of the totals",
            code="steps.slow_first",
        ),
    )


@pytest.mark.parametrize(
    ("timeline", "why"),
    [
        (steps(12, 10, 10), "it is little longer"),
        (steps(50, 10), "one other step is not enough"),
        (steps(10, 50, 10), "another step is slow"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_slow_steps_are_in_totals(timeline, why):
    report = build_report(timeline)
    assert report.steps["in_totals"].all(), why
    assert report.diagnostics == ()


def test_slow_first_step_is_found_by_position():
    report = build_report(steps(50, 10, 10, first=7))
    assert report.bubble.steps == (8, 9)
    assert report.diagnostics[0].message.startswith("step 7 took 5.00x ")


def test_step_0_exactly_a_quarter_longer_is_in_totals():
    assert build_report(steps(50, 40, 40)).steps["in_totals"][0]


def pipeline_steps(*microbatches: int, first_takes: int = 1) -> Timeline:
    """Return a pipeline of two stages whose steps have so many micro-batches; the first one takes longer."""
    rows, start_ns = [], 0
    for step, count in enumerate(microbatches):
        words = order("1f1b", ranks=2, microbatches=count)
        duration_ns = 1_000 * (1 if step else first_takes)
        rows += run_rows(
            {rank: [str(action) for action in row] for rank, row in words.items()},
            lambda _part, _rank, duration_ns=duration_ns: duration_ns,
            step=step,
            start_ns=start_ns,
        )
        start_ns = max(row["end_ns"] for row in rows) + 100
    return timeline_of(rows, 2)


@pytest.mark.parametrize(
    "microbatches",
    [
        (12, 4, 12, 4, 12, 4),
        (12, 4, 4, 4),
        (4, 12, 12, 12),
        (12, 4, 12, 4),
        (1, 12, 12),
        (12, 1, 1),
        (2, 3, 4, 5),
    ],
    ids=str,
)
def test_first_step_is_compared_by_its_micro_batches(microbatches):
    assert build_report(pipeline_steps(*microbatches)).steps["in_totals"].all()


@pytest.mark.parametrize(
    ("microbatches", "took"),
    [
        ((12, 4, 12, 4, 12, 4), "4.00x the median of the other steps with as many micro-batches"),
        ((4, 12, 4, 4, 12), "4.00x the median of the other steps with as many micro-batches"),
        ((12, 4, 4, 4), "3.47x the median of the other steps per micro-batch"),
        ((6, 8, 8, 8), "4.15x the median of the other steps per micro-batch"),
    ],
    ids=str,
)
def test_slow_first_step_is_found_whatever_its_micro_batches(microbatches, took):
    report = build_report(pipeline_steps(*microbatches, first_takes=4))
    assert report.steps["in_totals"].to_list() == [False] + [True] * (len(microbatches) - 1)
    assert f"step 0 took {took}; it is listed and left out of the totals" in {
        row.message for row in report.diagnostics
    }


def test_step_of_replicas_has_the_longest_window_and_the_summed_fraction():
    spans = timeline_from_text("F0 B0\n. . . F0 . B0").spans
    sends = [
        {"rank": rank, "lane": "comm", "kind": "send_forward", "peer": rank + 8, "start_ns": 0, "end_ns": 1}
        for rank in (0, 1)
    ]
    timeline = timeline_from_text("F0\nF0").with_spans(
        pl.concat([spans, conform(pl.DataFrame(sends), SPANS)])
    )
    assert build_report(timeline).steps.rows() == [(0, 0, 6_000, 3_000, 1 / 5, True)]


def test_declared_facts_are_in_the_report():
    timeline = timeline_from_text("F0 B0\nF0 B0")
    described = pl.DataFrame({"rank": [0, 1], "machine": ["a", "b"], "schedule": ["1F1B", None]})
    report = build_report(Timeline(
        timeline.spans, conform(described, RANKS), timeline.steps, timeline.clocks, timeline.diagnostics
    ))  # fmt: skip
    assert report.ranks["machine"].to_list() == ["a", "b"]
    assert report.schedule == "1F1B"


def test_diagnostics_are_in_the_report_errors_first():
    rows = [
        Diagnostic("info", "a", code="test.finding"),
        Diagnostic("error", "b", code="test.finding"),
        Diagnostic("warning", "c", code="test.finding"),
        Diagnostic("error", "d", code="test.finding"),
    ]
    report = build_report(timeline_from_text("F0 B0").with_diagnostics(rows))
    assert [row.message for row in report.diagnostics] == ["b", "d", "c", "a"]


def test_timeline_without_actions_gives_an_empty_report():
    report = build_report(empty_timeline())
    assert (report.steps.height, report.ranks.height, report.bubble.fraction) == (0, 0, None)
    assert report.microbatches is None


def test_actions_without_length_have_no_bubble():
    instant = timeline_from_text("F0").spans.with_columns(end_ns="start_ns")
    report = build_report(timeline_from_text("F0").with_spans(instant))
    assert (report.steps["bubble_fraction"][0], report.bubble.fraction) == (0.0, 0.0)


def test_microbatches_are_unknown_if_steps_differ():
    timeline = timeline_from_text("F0 B0")
    other = timeline_from_text("F0 F1 B0 B1", step=1, origin_ns=100_000)
    assert build_report(timeline.with_spans(pl.concat([timeline.spans, other.spans]))).microbatches is None


def shape(report: Report) -> list[tuple]:
    """Return what must not depend on when a run took place."""
    return [
        *report.steps.select("step", "window_ns", "bubble_fraction", "in_totals").rows(),
        *report.ranks.select("rank", "busy_ns", "idle_ns", "window_ns").rows(),
        report.bubble,
    ]


@st.composite
def timelines(draw) -> Timeline:
    ranks = draw(st.integers(1, 4))
    actions = st.tuples(st.integers(0, 3), st.integers(0, ranks - 1), st.integers(0, 60), st.integers(0, 20))
    rows = [
        {"rank": rank, "lane": "compute", "kind": kind, "step": step, "stage": rank, "microbatch": 0,
         "start_ns": step * 50 + start, "end_ns": step * 50 + start + length}
        for kind in ("forward", "backward")
        for step, rank, start, length in draw(st.lists(actions, min_size=1, max_size=12))
    ]  # fmt: skip
    table = conform(pl.DataFrame({"rank": range(ranks)}), RANKS)
    bare = empty_timeline()
    return Timeline(conform(pl.DataFrame(rows), SPANS), table, bare.steps, bare.clocks, bare.diagnostics)


@settings(max_examples=25, deadline=None)
@given(timelines(), st.integers(-(2**40), 2**61))
def test_shifting_all_clocks_changes_no_metric(timeline, shift_ns):
    shifted = timeline.spans.with_columns(pl.col("start_ns", "end_ns") + shift_ns)
    assert shape(build_report(timeline.with_spans(shifted))) == shape(build_report(timeline))


@settings(max_examples=25, deadline=None)
@given(timelines(), st.randoms(use_true_random=False))
def test_permuting_ranks_permutes_the_results(timeline, random):
    ranks = timeline.ranks["rank"].to_list()
    renamed = dict(zip(ranks, random.sample(ranks, len(ranks)), strict=True))
    moved = timeline.spans.with_columns(pl.col("rank").replace(renamed)).sample(
        fraction=1, shuffle=True, seed=1
    )
    before, after = build_report(timeline), build_report(timeline.with_spans(moved))
    assert after.steps.equals(before.steps)
    assert after.bubble.fraction == before.bubble.fraction
    busy_ns = dict(before.ranks.select("rank", "busy_ns").rows())
    assert dict(after.ranks.select("rank", "busy_ns").rows()) == {renamed[r]: ns for r, ns in busy_ns.items()}


@settings(max_examples=25, deadline=None)
@given(timelines(), st.integers(1, 1_000_000))
def test_scaling_time_scales_times_and_preserves_fractions(timeline, factor):
    slower = timeline.spans.with_columns(pl.col("start_ns", "end_ns") * factor)
    before, after = build_report(timeline), build_report(timeline.with_spans(slower))
    assert replace(after.bubble, idle_ns=0) == replace(before.bubble, idle_ns=0)
    assert 0 <= after.bubble.idle_ns - factor * before.bubble.idle_ns < factor
    assert after.ranks["busy_ns"].equals(before.ranks["busy_ns"] * factor)


@settings(max_examples=25, deadline=None)
@given(timelines())
def test_busy_and_idle_sum_to_the_window(timeline):
    ranks = build_report(timeline).ranks
    assert (ranks["busy_ns"] >= 0).all()
    assert (ranks["idle_ns"] >= 0).all()
    assert (ranks["busy_ns"] + ranks["idle_ns"]).equals(ranks["window_ns"])


def test_single_rank_without_a_pipeline_gets_one_sentence_and_an_error():
    report = build_explained_report(timeline_from_text("F0 B0"))
    assert str(report.verdict).startswith("No pipeline: ")
    assert report.verdict.findings == ()
    assert [each.code for each in report.diagnostics if each.severity == "error"] == ["pipelines.none"]


def test_gradient_accumulation_on_one_stage_is_a_schedule():
    report = build_explained_report(timeline_from_text("F0 B0 F1 B1"))
    assert "pipelines.none" not in [each.code for each in report.diagnostics]


@pytest.mark.parametrize("picture", [ONE_F_ONE_B, "F0 B0", "F0 B0 F1 B1"])
def test_a_report_without_its_explanation_has_the_diagnostics_of_its_metrics(picture):
    notes = [Diagnostic(severity, "read", code="spans.dropped") for severity in ("info", "error", "warning")]
    timeline = timeline_from_text(picture).with_diagnostics(notes)
    backwards = timeline.spans.with_columns(pl.col("start_ns", "end_ns") * (5 - pl.col("rank")))
    for each in (timeline, timeline.with_spans(conform(backwards, SPANS))):
        explained, metrics = build_explained_report(each), build_report(each)
        found = unexplained(explained)
        assert found.diagnostics == metrics.diagnostics
        assert found.verdict is None
        assert found.explanation is None
        assert unexplained(metrics) is metrics
