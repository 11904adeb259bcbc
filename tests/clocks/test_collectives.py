from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from observed_clocks import gathered, observations
from planted_clocks import Plan, plant, uncovered
from stagescope.clocks import align_clocks, collectives
from stagescope.clocks.collectives import ALL_PAIRS, LATE, NEIGHBORS
from stagescope.clocks.observations import gather_observations, observe
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform


def calls(*rows, operation="all_reduce", clocks=None):
    """Return a run with the given calls (rank, number, start_ns, end_ns) of one group, and the clock of each rank."""
    ranks = sorted({row[0] for row in rows})
    table = pl.DataFrame(rows, schema=["rank", "pair", "start_ns", "end_ns"], orient="row").with_columns(
        kind=pl.lit("collective"),
        lane=pl.lit("comm"),
        name=pl.lit(f"{operation} in world 0-{ranks[-1]} (0)"),
        wait_start_ns="start_ns",
        wait_end_ns="end_ns",
        step=0,
    )
    empty = empty_timeline()
    members = conform(pl.DataFrame({"rank": ranks}), RANKS)
    run = Timeline(conform(table, SPANS), members, empty.steps, empty.clocks, empty.diagnostics)
    numbers = clocks or list(range(len(ranks)))
    of_ranks = pl.DataFrame({"rank": ranks, "clock": numbers}, schema={"rank": pl.Int32, "clock": pl.Int32})
    return run, of_ranks


def pairs_of(run, clocks):
    found = observations(run, clocks)
    return found.select("source", "target", "sent_ns", "received_ns", "waited").rows()


TWO = ((0, 0, 1_000_000, 5_000_000), (1, 0, 4_990_000, 5_010_000))


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_no_rank_leaves_a_collective_before_the_last_has_entered(operation):
    # The one that stayed for a shorter time entered last: only the delay from it to the other is short.
    assert pairs_of(*calls(*TWO, operation=operation)) == [
        (0, 1, 1_000_000, 5_010_000, False),
        (1, 0, 4_990_000, 5_000_000, True),
    ]


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "gather", "scatter"])
def test_collectives_in_which_not_all_wait_for_all_are_not_used_without_their_root(operation):
    assert pairs_of(*calls(*TWO, operation=operation)) == []


THREE = (*TWO, (2, 0, 4_000_000, 5_020_000))


@pytest.mark.parametrize("operation", ["broadcast", "scatter"])
def test_no_rank_is_done_before_the_root_of_a_broadcast_has_begun(operation):
    run, clocks = calls(*THREE, operation=operation)
    run = run.with_spans(run.spans.with_columns(peer=pl.lit(1, pl.Int32)))
    assert pairs_of(run, clocks) == [
        (1, 0, 4_990_000, 5_000_000, False),
        (1, 2, 4_990_000, 5_020_000, False),
    ]


@pytest.mark.parametrize("operation", ["reduce", "gather"])
def test_the_root_of_a_reduce_is_not_done_before_all_others_have_begun(operation):
    run, _ = calls(*THREE, operation=operation)
    run = run.with_spans(run.spans.with_columns(peer=pl.lit(0, pl.Int32)))
    shared = pl.DataFrame({"rank": [0, 1, 2], "clock": [0, 7, 7]}, schema_overrides={"clock": pl.Int32})
    # The last of two ranks on one clock.
    assert pairs_of(run, shared.with_columns(pl.col("rank").cast(pl.Int32))) == [
        (7, 0, 4_990_000, 5_000_000, False)
    ]


def test_a_group_whose_calls_with_one_number_have_different_roots_is_not_used():
    run, clocks = calls(*TWO, operation="broadcast")
    run = run.with_spans(run.spans.with_columns(peer="rank"))
    assert gathered(run, clocks).collectives.mismatched["reason"].to_list() == [
        "calls with one number have different roots"
    ]


def test_broadcasts_bound_what_messages_bound_on_one_side_only():
    planted = plant(Plan(costs=(1.0, 1.0, 0.1, 0.02), steps=4, collectives=1, seed=3))
    is_collective = pl.col("kind") == "collective"

    def least_ns(root):
        name = pl.col("name").str.replace("all_reduce", "broadcast")
        spans = planted.timeline.spans.with_columns(
            peer=pl.when(is_collective).then(pl.lit(root, pl.Int32)).otherwise("peer"),
            name=pl.when(is_collective).then(name).otherwise("name"),
        )
        aligned = align_clocks(planted.timeline.with_spans(spans))
        assert uncovered(planted, aligned.timeline).is_empty()
        return aligned.clocks.machines[3].error_lo_ns

    assert least_ns(root=0) > least_ns(root=None) / 10


def test_a_call_whose_wait_is_not_recorded_ends_before_others_entered():
    run, clocks = calls(*TWO)
    unknown = run.spans.with_columns(
        pl.when(pl.col("rank") == 0).then(None).otherwise(pl.col(name)).alias(name)
        for name in ("wait_start_ns", "wait_end_ns")
    )
    assert pairs_of(run.with_spans(unknown), clocks) == []


def test_ranks_whose_device_is_not_timed_are_not_used():
    run, clocks = calls(*TWO)
    noted = run.with_diagnostics([Diagnostic("warning", "", rank=1, code="device.host_times")])
    assert pairs_of(noted, clocks) == []


def test_of_several_ranks_on_a_clock_the_last_to_enter_and_the_first_to_leave_count():
    rows = (*TWO, (2, 0, 4_995_000, 5_008_000))
    assert pairs_of(*calls(*rows, clocks=[0, 1, 1])) == [
        (0, 1, 1_000_000, 5_008_000, False),
        (1, 0, 4_995_000, 5_000_000, True),
    ]


SECOND = ((0, 1, 6_000_000, 7_000_000), (1, 1, 6_500_000, 7_010_000))


def changed(run, **columns):
    chosen = (pl.col("rank") == 1) & (pl.col("pair") == 1)
    return run.with_spans(
        run.spans.with_columns(
            pl.when(chosen).then(pl.lit(value, run.spans.schema[name])).otherwise(pl.col(name)).alias(name)
            for name, value in columns.items()
        )
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"name": "barrier in world 0-1 (0)"}, "calls with one number have different operations"),
        ({"step": 1}, "calls with one number are in different steps"),
        ({"pair": 0}, "a rank has two calls with one number"),
        ({"pair": 2}, "ranks have different numbers of calls"),
    ],
)
def test_groups_whose_numbers_do_not_belong_together_are_not_used(columns, reason):
    run, clocks = calls(*TWO, *SECOND)
    assert len(pairs_of(run, clocks)) == 4
    wrong = changed(run, **columns)
    assert pairs_of(wrong, clocks) == []
    assert gathered(wrong, clocks).collectives.mismatched["reason"].to_list() == [reason]


def test_ranks_of_one_machine_that_were_in_different_calls_show_that_the_numbers_are_wrong():
    rows = (*TWO, (2, 0, 6_000_000, 7_000_000))
    run, clocks = calls(*rows, clocks=[0, 1, 1])
    assert pairs_of(run, clocks) == []
    (reason,) = gathered(run, clocks).collectives.mismatched["reason"]
    assert reason == "ranks on one machine were not in the same call"


def test_a_rank_whose_recording_is_incomplete_may_have_fewer_calls():
    run, clocks = calls(*TWO, SECOND[0])
    assert pairs_of(run, clocks) == []
    noted = run.with_diagnostics([Diagnostic("warning", "", rank=1, code="recording.no_end")])
    assert len(pairs_of(noted, clocks)) == 2


def test_the_number_of_pairs_of_a_large_group_is_linear():
    count = 10 * ALL_PAIRS
    rows = [(rank, 0, 1_000 * (rank * 7 % count), 1_000_000 + rank) for rank in range(count)]
    found = observations(*calls(*rows))
    assert len(found) <= 2 * (NEIGHBORS + LATE) * count
    latest = max(rows, key=lambda row: row[2])[0]
    assert found.filter(source=latest, waited=True)["target"].n_unique() == count - 1
    directed = found.select("source", "target").unique()
    assert len(directed.join(directed, left_on=["source", "target"], right_on=["target", "source"])) == len(
        directed
    )


def test_mismatched_groups_are_named_in_a_diagnostic():
    run, clocks = calls(*TWO, SECOND[0])
    names = run.ranks.with_columns(clock=pl.format("node-{}", "rank"))
    aligned = align_clocks(replace(run, ranks=names)).timeline
    (note,) = aligned.diagnostics.filter(code="clock.collectives")["message"]
    assert "world 0-1 (0)" in note
    assert clocks.height == 2


LARGE = Plan(ranks=2, replicas=ALL_PAIRS, steps=30, collectives=2)
"""More clocks than are compared pair by pair, and 60 calls of one group."""


def of_clocks(timeline):
    clocks = timeline.ranks.select("rank", clock=pl.int_range(pl.len(), dtype=pl.Int32))
    return timeline, clocks


def test_calls_that_are_compared_some_at_a_time_show_what_all_do_together(monkeypatch):
    run = plant(LARGE).timeline
    whole = gathered(*of_clocks(run)).table.filter(kind="collective")
    monkeypatch.setattr(collectives, "MEMBERS_AT_ONCE", 70)
    found = gathered(*of_clocks(run)).table.filter(kind="collective")
    assert whole.height > 70
    assert_frame_equal(found, whole, check_row_order=False)


def test_of_very_many_calls_those_with_some_numbers_are_looked_at(monkeypatch):
    monkeypatch.setattr(collectives, "MOST_CALLS", 1)
    monkeypatch.setattr(collectives, "FEWEST_CALLS", 8)
    run = plant(LARGE)
    timeline, clocks = of_clocks(run.timeline)
    halves = [timeline.with_spans(timeline.spans.filter(pl.col("rank") % 2 == half)) for half in (0, 1)]
    seen = gather_observations([observe(each, clocks) for each in halves], timeline.diagnostics, clocks)
    chosen = seen.collectives.calls["sequence"].unique().sort()
    assert 8 <= len(chosen) <= 10
    assert (chosen[0], chosen[-1]) == (0, 59)
    assert chosen.diff().max() <= 13
    assert seen.collectives.calls.height == len(chosen) * 2 * ALL_PAIRS
    assert seen.collectives.mismatched.is_empty()
    # Both calls of a step are among them, and the first one remains the first.
    slots = seen.collectives.calls.select(pl.col("sequence") % 2, "slot").unique().sort("slot").rows()
    assert slots == [(0, 0), (1, 1)]
    found = align_clocks(run.timeline)
    assert uncovered(run, found.timeline).is_empty()


def test_a_rank_with_fewer_calls_is_found_among_some_of_them(monkeypatch):
    monkeypatch.setattr(collectives, "MOST_CALLS", 1)
    monkeypatch.setattr(collectives, "FEWEST_CALLS", 8)
    timeline, clocks = of_clocks(plant(LARGE).timeline)
    is_late = (pl.col("rank") == 3) & (pl.col("kind") == "collective") & (pl.col("pair") > 57)
    short = timeline.with_spans(timeline.spans.filter(~is_late))
    assert gathered(short, clocks).collectives.mismatched["reason"].to_list() == [
        "ranks have different numbers of calls"
    ]
