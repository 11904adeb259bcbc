"""Pairs of transfers and messages; test_reader.py covers whole runs with missing operations."""

import polars as pl

from stagescope.ingest.ascend.messages import expect_messages
from stagescope.ingest.ascend.pairing import pair_ends
from stagescope.model import SPANS
from stagescope.model.validate import conform

ACTION_NS = 1_000_000


def run(count, *, clock_offset_ns=0):
    """Return actions, ranks and transfers of a rank that sends `count` messages to another, one action apart."""
    actions, transfers = [], []
    for m in range(count):
        start = 3 * m * ACTION_NS + 77_000 * m * m % 400_000
        for rank in (0, 1):
            begin = start + rank * (ACTION_NS + 100_000) + rank * clock_offset_ns
            actions.append(
                {"rank": rank, "lane": "compute", "kind": "forward", "step": 0, "stage": rank, "chunk": 0,
                 "microbatch": m, "start_ns": begin, "end_ns": begin + ACTION_NS}
            )  # fmt: skip
            transfers.append(
                {"rank": rank, "name": f"op {m}", "role": ("send", "receive")[rank], "peer": 1 - rank, "tasks": 3,
                 "start_ns": start + ACTION_NS + rank * (clock_offset_ns - 50_000),
                 "end_ns": start + ACTION_NS + 100_000 + rank * clock_offset_ns}
            )  # fmt: skip
    clocks = ["a", "a"] if not clock_offset_ns else ["a", "b"]
    ranks = pl.DataFrame({"rank": [0, 1], "pp": [0, 1], "dp": [0, 0], "tp": [0, 0], "cp": [0, 0]}).cast(
        pl.Int32
    )
    return (
        conform(pl.DataFrame(actions), SPANS),
        ranks.with_columns(pl.Series("clock", clocks)),
        pl.DataFrame(transfers),
    )


def pairs(actions, ranks, transfers):
    messages = expect_messages(actions, ranks).with_row_index("message")
    rows = (
        transfers.sort("rank", "start_ns")
        .with_row_index("row")
        .with_columns(pl.col("rank", "peer").cast(pl.Int32))
    )
    found = pair_ends(rows, messages, actions, ranks)
    named = found.join(rows, on="row").join(messages.select("message", "microbatch"), on="message")
    return sorted(named.select("rank", "name", "microbatch").rows())


def right(count, lost=()):
    return sorted((rank, f"op {m}", m) for rank in (0, 1) for m in range(count) if (rank, m) not in lost)


def test_every_transfer_finds_its_message():
    assert pairs(*run(6)) == right(6)


def test_a_missing_entry_on_either_side_shifts_no_other():
    for lost in [(0, 0), (0, 3), (1, 0), (1, 2), (1, 5)]:
        actions, ranks, transfers = run(6)
        kept = transfers.filter((pl.col("rank") != lost[0]) | (pl.col("name") != f"op {lost[1]}"))
        assert pairs(actions, ranks, kept) == right(6, {lost})


def test_a_transfer_without_an_action_is_unpaired():
    actions, ranks, transfers = run(6)
    known = actions.filter(pl.col("microbatch") != 3)
    assert pairs(known, ranks, transfers) == right(6, {(0, 3), (1, 3)})


def test_a_large_clock_offset_changes_nothing():
    actions, ranks, transfers = run(6, clock_offset_ns=10**12)
    kept = transfers.filter((pl.col("rank") != 1) | (pl.col("name") != "op 2"))
    assert pairs(actions, ranks, kept) == right(6, {(1, 2)})


def test_a_transfer_without_a_peer_is_paired_by_its_action():
    actions, ranks, transfers = run(6)
    assert pairs(actions, ranks, transfers.with_columns(peer=pl.lit(None, pl.Int32))) == right(6)


def test_a_batch_is_identified_by_its_times():
    actions, ranks, transfers = run(6)
    assert pairs(actions, ranks, transfers.with_columns(role=pl.lit("batch"))) == right(6)
