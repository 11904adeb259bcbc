"""The sums over collectives divide by all ranks and iterations, and count waits only where they were recorded."""

from __future__ import annotations

import polars as pl
import pytest

from stagescope.analysis.collectives.summary import (
    COLLECTIVE_KINDS,
    COLLECTIVE_RANKS,
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
    (row,) = summarize_kinds(calls, 2).to_dicts()
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
    (row,) = summarize_kinds(table(call(0, 0, 10, None, 20)), 1).to_dicts()
    assert row["exposed_ns"] is None
    assert row["hidden_fraction"] is None


def test_rank_that_came_last_has_the_time_that_it_was_late(calls):
    ranks = summarize_ranks(calls)
    assert ranks["last_count"].to_list() == [0, 2]
    assert ranks["late_ns"].to_list() == [0, 80 + 10]


def test_tables_without_collectives_have_their_columns():
    nothing = table()
    assert dict(summarize_kinds(nothing, 3).schema) == dict(COLLECTIVE_KINDS.schema)
    assert dict(summarize_ranks(nothing).schema) == dict(COLLECTIVE_RANKS.schema)
