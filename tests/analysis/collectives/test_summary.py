"""The sums over collectives divide by all ranks and iterations, and count waits only where they were recorded."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.collectives import summary
from stagescope.analysis.collectives.summary import (
    COLLECTIVE_KINDS,
    COLLECTIVE_RANKS,
    sum_collectives,
    summarize_kinds,
    summarize_ranks,
)
from stagescope.model import SPANS
from stagescope.model.collectives import find_collectives
from stagescope.model.validate import conform


def call(rank, sequence, start_ns, wait_ns, end_ns):
    """Return a collective that is issued at one time and waited for from another one (None: it is not) to its end."""
    return {
        "rank": rank, "lane": "comm", "kind": "collective", "step": sequence, "pair": sequence, "bytes": 8,
        "name": "all_reduce in mesh_dp 0,1 (1)", "start_ns": start_ns, "end_ns": end_ns,
        "wait_start_ns": wait_ns, "wait_end_ns": None if wait_ns is None else end_ns,
    }  # fmt: skip


def table(*rows):
    computing = {"rank": 0, "lane": "compute", "kind": "forward", "step": 0, "start_ns": 10, "end_ns": 40}
    return find_collectives(conform(pl.DataFrame([computing, *rows]), SPANS))


@pytest.fixture(scope="module")
def calls():
    return table(
        call(0, 0, 10, 40, 100), call(1, 0, 90, 90, 101), call(0, 1, 200, 200, 260), call(1, 1, 210, 210, 260)
    )


def test_an_asynchronous_collective_is_exposed_only_while_it_is_waited_for(calls):
    first = calls.filter(rank=0, sequence=0).row(0, named=True)
    assert (first["exposed_ns"], first["arrival_wait_ns"], first["hidden_ns"]) == (60, 50, 30)


def test_times_per_kind_are_means_per_rank_and_iteration(calls):
    (row,) = summarize_kinds(sum_collectives([calls]), 2).to_dicts()
    assert (row["group_kind"], row["operation"], row["collectives"], row["calls"]) == (
        "dp",
        "all_reduce",
        2,
        4,
    )
    assert row["exposed_ns"] == (60 + 11 + 60 + 50) / 4
    assert row["arrival_wait_ns"] == (50 + 0 + 10 + 0) / 4
    assert row["hidden_fraction"] == 30 / (30 + 181)


def test_waits_that_were_not_recorded_are_null():
    (row,) = summarize_kinds(sum_collectives([table(call(0, 0, 10, None, 20))]), 1).to_dicts()
    assert row["exposed_ns"] is None
    assert row["hidden_fraction"] is None


def test_rank_that_came_last_has_the_time_that_it_was_late(calls):
    ranks = summarize_ranks(sum_collectives([calls]))
    assert ranks["last_count"].to_list() == [0, 2]
    assert ranks["late_ns"].to_list() == [0, 80 + 10]


def test_tables_without_collectives_have_their_columns():
    nothing = sum_collectives([table()])
    assert dict(summarize_kinds(nothing, 3).schema) == dict(COLLECTIVE_KINDS.schema)
    assert dict(summarize_ranks(nothing).schema) == dict(COLLECTIVE_RANKS.schema)


NUMBERS = {
    "in order": {(0, 0): 0, (1, 0): 0, (0, 1): 1, (1, 1): 1, (0, 2): 2, (1, 2): 2},
    "of different steps": {(0, 0): 0, (1, 0): 0, (0, 1): 1, (1, 2): 1, (0, 2): 2, (1, 1): 2},
    "numbered again": {(0, 0): 1, (1, 0): 1, (0, 1): 0, (1, 1): 0, (0, 2): 1, (1, 2): 1},
}
"""The number of the collective of a rank in a step. Ranks may count one for different steps."""


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("ends", [(1, 3), (1, 2, 3), (1, 1, 3)], ids=str)
def test_sums_over_parts_are_those_over_all_collectives(numbers, ends):
    rows = [
        {**call(rank, number, 103 * step + 10 * rank, 103 * step + 40, 103 * step + 60), "step": step}
        for (rank, step), number in numbers.items()
    ]
    not_awaited = {"name": "all_gather in mesh_tp 0,1 (1)", "wait_start_ns": None, "wait_end_ns": None}
    every = table(*rows, *({**row, **not_awaited} for row in rows[:3]))
    step = pl.col("step")
    parts = [every.filter(step >= start, step < stop) for start, stop in pairwise((0, *ends))]
    found, whole = sum_collectives(parts), sum_collectives([every])
    assert_frame_equal(summarize_kinds(found, 3), summarize_kinds(whole, 3), check_exact=True)
    assert_frame_equal(summarize_ranks(found), summarize_ranks(whole), check_exact=True)
    assert_frame_equal(found.latest, whole.latest, check_row_order=False)
    expected = every.group_by("operation").agg(pl.struct("group", "sequence").n_unique())
    counts = summarize_kinds(found, 3).select("operation", "collectives")
    assert dict(counts.iter_rows()) == dict(expected.iter_rows())


def test_latest_collectives_of_all_parts_are_kept(calls, monkeypatch):
    monkeypatch.setattr(summary, "MOST_LATEST", 1)
    parts = [calls.filter(sequence=1), calls.filter(sequence=0)]
    assert sum_collectives(parts).latest.select("sequence", "last_rank", "late_ns").rows() == [(0, 1, 80)]
