import numpy as np
import polars as pl

from evidence_rows import evidence_from_rows
from stagescope.clocks.evidence import coarse_offsets, evidence_of, joined
from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA

EPOCH_NS = 1_763_600_000_000_000_000


def table(*rows):
    """Return observations from rows (source, target, sent_ns, received_ns); times are relative to an epoch."""
    named = ("source", "target", "sent_ns", "received_ns")
    grid = pl.DataFrame(rows, schema=list(named), orient="row")
    missing = [
        pl.lit(value, OBSERVATION_SCHEMA[name]).alias(name)
        for name, value in {
            "waited": True,
            "kind": "message",
            **dict.fromkeys(("stay_ns", "by_exit", *OF_EXITS)),
        }.items()
    ]
    stamped = grid.with_columns(pl.col("sent_ns", "received_ns") + EPOCH_NS, *missing)
    return stamped.sort("source", "target", "sent_ns")


def test_a_coarse_offset_is_half_the_difference_of_the_delays():
    there_and_back = [(0, 1, at, at + 520) for at in range(0, 1000, 10)]
    there_and_back += [(1, 0, at, at - 480) for at in range(505, 1505, 10)]
    assert coarse_offsets(table(*there_and_back), 2).offset_ns.tolist() == [0, 500]


def test_coarse_offsets_follow_the_pairs_with_the_shortest_round_trips():
    near = [(a, b, 0, delay) for a, b, delay in ((0, 1, 110), (1, 0, -90), (1, 2, 210), (2, 1, -190))]
    far = [(0, 2, 0, 90_000), (2, 0, 0, 1_000)]
    assert coarse_offsets(table(*near, *far), 3).offset_ns.tolist() == [0, 100, 300]


def test_a_few_outliers_do_not_move_a_coarse_offset():
    rows = [(0, 1, at, at + 20) for at in range(100)] + [(1, 0, at, at + 20) for at in range(100)]
    rows += [(0, 1, 50, -1_000_000), (1, 0, 50, -7_000_000)]
    assert coarse_offsets(table(*rows), 2).offset_ns.tolist() == [0, 0]


def test_one_direction_gives_a_coarse_offset_of_its_delay():
    assert coarse_offsets(table((0, 1, 0, 700)), 2).offset_ns.tolist() == [0, 700]


def test_without_observations_all_coarse_offsets_are_0():
    coarse = coarse_offsets(table().clear(), 3)
    assert coarse.offset_ns.tolist() == [0, 0, 0]
    assert len(evidence_of(table().clear(), coarse, np.zeros(2))) == 0


def test_nanoseconds_since_the_epoch_are_exact():
    observations = table((0, 1, 1, 4), (1, 0, 1_001, 1_006))
    evidence = evidence_of(observations, coarse_offsets(observations, 2), np.zeros(2))
    assert evidence.sent_ns[0] == 0
    assert (evidence.delay_ns[0] + evidence.delay_ns[1]) == 8
    assert evidence.row.tolist() == [0, 1]


def test_slack_counts_as_delay_in_joined_evidence():
    one = evidence_from_rows([(0, 1, 0, 20)])
    both = joined(one, evidence_from_rows([(1, 0, 5, 30)]))
    assert both.delay_ns.tolist() == [20, 30]
    assert both.where(np.array([False, True])).source.tolist() == [1]
