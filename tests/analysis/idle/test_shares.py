"""Idle time divided among its causes."""

import polars as pl

from stagescope.analysis.idle.shares import IDLE_SHARES, share_idle
from stagescope.vocabulary.causes import CAUSE_COLUMNS


def bubbles(*rows):
    names = ("step", "rank", "pipeline", "window_ns", "idle_ns")
    return pl.DataFrame(
        rows, schema={name: pl.Int32 if name != "idle_ns" else pl.Int64 for name in names}, orient="row"
    )


def ledger(*rows):
    nothing = dict.fromkeys(CAUSE_COLUMNS, 0)
    rows = [{"step": step, "rank": rank, **nothing, **causes} for step, rank, causes in rows]
    return pl.DataFrame(rows, schema=dict.fromkeys(("step", "rank", *CAUSE_COLUMNS), pl.Int32))


def test_rows_are_ranks_then_pipelines_then_the_run():
    windows = bubbles((0, 0, 0, 100, 10), (0, 1, 0, 100, 20), (0, 2, 2, 50, 5))
    parts = ledger(
        (0, 0, {"schedule_bubble_ns": 8, "exposed_communication_ns": 2}),
        (0, 1, {"schedule_bubble_ns": 20}),
        (0, 2, {"stage_imbalance_ns": 5}),
    )
    shares = share_idle([windows], [parts])
    assert shares.columns == list(IDLE_SHARES.names)
    assert shares.select("pipeline", "rank", "window_ns", "idle_ns").rows() == [
        (0, 0, 100, 10), (0, 1, 100, 20), (2, 2, 50, 5), (0, None, 200, 30), (2, None, 50, 5), (None, None, 250, 35),
    ]  # fmt: skip
    run = shares.row(-1, named=True)
    assert {name: run[name] for name in CAUSE_COLUMNS if run[name]} == {
        "schedule_bubble_ns": 28,
        "stage_imbalance_ns": 5,
        "exposed_communication_ns": 2,
    }


def test_idle_time_without_ledger_is_unattributed():
    windows = bubbles((0, 0, 0, 100, 10), (0, 1, 0, 100, 30))
    shares = share_idle([windows], [ledger((0, 0, {"schedule_bubble_ns": 4}))])
    assert shares["unattributed_ns"].to_list() == [6, 30, 36, 36]
