"""Every idle interval has a cause, and the action that delayed what its rank waited for."""

import polars as pl
import pytest

import stagescope
from delayed_runs import run
from stagescope.analysis import build_report
from stagescope.analysis.idle.intervals import IDLE_INTERVALS
from truth.cases import PLANTED
from truth.spans import timeline_of

CASES = {case.name: case for case in (build(1) for build in PLANTED)}
LENGTH = pl.col("end_ns") - pl.col("start_ns")


def idle_of(name):
    return stagescope.analyze(timeline_of(CASES[name].run)).idle


def by_culprit(idle):
    """Return the idle time per cause and culprit, without the schedule bubble, the largest first."""
    named = idle.filter(pl.col("cause").cast(pl.String) != "schedule_bubble")
    return (
        named.group_by(pl.col("cause").cast(pl.String), "culprit_rank")
        .agg(LENGTH.sum())
        .sort("end_ns")
        .reverse()
    )


@pytest.mark.parametrize(
    ("name", "cause", "rank"),
    [
        ("one action 1 s longer", "jitter", 2),
        ("one rank 20 % slower, 2 replicas", "straggler", 5),
        ("one rank 20 % slower, 4 replicas", "straggler", 13),
        ("one rank 20 % slower, 2 replicas, zb-v", "straggler", 5),
        ("one rank 20 % slower, 2 replicas, dualpipev", "straggler", 5),
        ("one rank 20 % slower in 3 of 10 steps", "straggler", 6),
        ("15 ms of data loading before each forward of stage 0", "data_loading", 0),
        ("15 ms of data loading before each forward of stage 0, not recorded", "unattributed", 0),
        ("one link 4 ms slower", "exposed_communication", 1),
        ("DualPipeV, stage 3 30 % longer", "stage_imbalance", 3),
        ("the last stage 30 % longer, 1 replica", "stage_imbalance", 3),
    ],
)
def test_intervals_have_the_planted_cause_and_culprit(name, cause, rank):
    found = by_culprit(idle_of(name))
    assert found.row(0)[:2] == (cause, rank)
    assert found["end_ns"][0] > 5 * found["end_ns"][1]


def test_the_culprit_of_the_intervals_after_a_hiccup_is_the_hiccup():
    report = stagescope.analyze(timeline_of(CASES["one action 1 s longer"].run))
    long = report.idle.filter(pl.lit(500_000_000) < LENGTH, step=3)
    assert set(long["rank"]) == {0, 1, 3}
    assert set(long["culprit_row"]) == {report.outliers["row"][0]}
    actions = report.intermediates.actions.table[long["culprit_action"]]
    assert set(actions.select("rank", "kind", "microbatch").rows()) == {(2, "forward", 4)}


def test_textbook_run_has_a_schedule_bubble_only():
    orders = {0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}
    idle = build_report(run(orders, lambda action, rank: 100)).idle
    assert set(idle["cause"]) == {"schedule_bubble"}
    assert idle["culprit_rank"].null_count() == idle.height


def test_every_interval_has_a_cause_and_the_time_is_unchanged():
    report = build_report(timeline_of(CASES["rank 2 50 % slower, blocking sends, one buffer"].run))
    assert dict(report.idle.schema) == dict(IDLE_INTERVALS.schema)
    assert not report.idle["cause"].null_count()
    bare = report.intermediates.idle_intervals
    assert report.idle.drop(IDLE_INTERVALS.names[-4:]).equals(bare.drop(IDLE_INTERVALS.names[-4:]))


def test_a_delay_after_a_transfer_that_was_not_recorded_has_no_culprit():
    timeline = timeline_of(CASES["one link 4 ms slower"].run)
    compute = timeline.with_spans(timeline.spans.filter(pl.col("lane") == "compute"))
    idle = build_report(compute).idle.filter(
        pl.lit("transfer_or_launch") == pl.col("waiting_for").cast(pl.String)
    )
    unknown = idle.filter(cause="unattributed")
    assert unknown.height > 0
    assert unknown["culprit_rank"].null_count() == unknown.height
