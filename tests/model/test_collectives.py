from __future__ import annotations

import polars as pl

from stagescope.model import SPANS
from stagescope.model.collectives import COLLECTIVES, find_collectives
from stagescope.model.validate import conform


def call(rank, start_ns, end_ns, *, sequence=0, group="dp 0-2 (1)", kind="collective"):
    return {
        "rank": rank,
        "lane": "comm",
        "kind": kind,
        "step": 1,
        "pair": sequence,
        "bytes": 8,
        "name": f"all_reduce in {group}",
        "start_ns": start_ns,
        "end_ns": end_ns,
        "wait_start_ns": start_ns,
        "wait_end_ns": end_ns,
    }


def found(*rows):
    return find_collectives(conform(pl.DataFrame(list(rows)), SPANS))


def test_the_rank_that_issued_a_collective_last_is_named_with_its_delay():
    table = found(call(0, 10, 215), call(1, 200, 214), call(2, 15, 216))
    assert table["rank"].to_list() == [0, 1, 2]
    assert table["last_rank"].to_list() == [1, 1, 1]
    assert table["late_ns"].to_list() == [185] * 3
    assert table["exposed_ns"].to_list() == [205, 14, 201]


def test_calls_are_matched_by_group_and_number():
    table = found(call(0, 0, 5), call(0, 6, 9, sequence=1), call(1, 1, 5), call(1, 7, 9, group="tp 0,1 (2)"))
    assert table.select("group", "sequence", "rank", "ranks").rows() == [
        ("dp 0-2 (1)", 0, 0, 2),
        ("dp 0-2 (1)", 0, 1, 2),
        ("dp 0-2 (1)", 1, 0, 1),
        ("tp 0,1 (2)", 0, 1, 1),
    ]
    assert table["late_ns"].to_list() == [1, 1, 0, 0]


def test_spans_that_are_no_numbered_collectives_are_left_out():
    table = found(call(0, 0, 5, kind="other"), {**call(0, 0, 5), "pair": None})
    assert table.is_empty()
    assert table.schema == COLLECTIVES.schema
