"""Transfers as spans, and their diagnostics; test_reader.py covers whole runs."""

import polars as pl
import pytest

from stagescope.ingest.ascend.transfer_spans import name_transfers
from stagescope.ingest.ascend.transfers import RAW_TRANSFERS
from stagescope.model import SPANS
from stagescope.model.validate import conform

MS = 1_000_000


@pytest.fixture
def run():
    actions = [
        {"rank": rank, "lane": "compute", "kind": "forward", "step": 4, "stage": rank, "chunk": 0, "microbatch": 0,
         "start_ns": rank * 2 * MS, "end_ns": rank * 2 * MS + MS}
        for rank in (0, 1)
    ]  # fmt: skip
    transfers = [
        (0, "hcom_send__1_1_1", "send", 1, MS, 2 * MS),
        (1, "hcom_receive__1_1_1", "receive", 0, MS, 2 * MS),
    ]
    frame = pl.DataFrame(
        transfers, schema=["rank", "name", "role", "peer", "start_ns", "end_ns"], orient="row"
    )
    frame = frame.with_columns(group=pl.lit("g"), local_peer=pl.col("peer"), bytes=pl.lit(8), tasks=pl.lit(3))
    coordinates = {name: [0, 0] for name in ("dp", "tp", "cp")}
    ranks = (
        pl.DataFrame({"rank": [0, 1], "pp": [0, 1], **coordinates})
        .cast(pl.Int32)
        .with_columns(clock=pl.lit("c"))
    )
    raw = frame.select(
        *(pl.col(name).cast(dtype) for name, dtype in RAW_TRANSFERS.items()), pl.col("peer").cast(pl.Int32)
    )
    return raw, conform(pl.DataFrame(actions), SPANS), ranks


COLUMNS = ("rank", "lane", "kind", "step", "stage", "chunk", "microbatch", "peer", "bytes", "name")


def test_both_ends_have_the_names_of_their_actions(run):
    spans, notes = name_transfers(*run)
    assert spans.columns == SPANS.names
    assert spans.select(COLUMNS).rows() == [
        (0, "comm", "send_forward", 4, 0, 0, 0, 1, 8, "hcom_send__1_1_1"),
        (1, "comm", "recv_forward", 4, 1, 0, 0, 0, 8, "hcom_receive__1_1_1"),
    ]
    assert notes == []


def test_a_transfer_without_an_action_is_shown_as_other_and_counted(run):
    transfers, actions, ranks = run
    more = transfers.filter(rank=0).with_columns(pl.col("start_ns", "end_ns") + 9 * MS, name=pl.lit("stray"))
    spans, (note,) = name_transfers(pl.concat([transfers, more]), actions, ranks)
    row = spans.filter(name="stray").select(COLUMNS).row(0)
    assert row == (0, "comm", "other", None, None, None, None, 1, 8, "stray")
    assert (note.severity, note.rank, note.count) == ("warning", 0, 1)


def test_a_missing_end_is_counted_on_its_rank(run):
    transfers, actions, ranks = run
    stray = transfers.filter(rank=1).with_columns(role=pl.lit("send"), name=pl.lit("stray"))
    _, notes = name_transfers(pl.concat([transfers.filter(rank=0), stray]), actions, ranks)
    assert (notes[-1].rank, notes[-1].code, notes[-1].count) == (1, "messages.missing_receive", 1)


def test_a_rank_without_transfers_has_no_missing_ends(run):
    transfers, actions, ranks = run
    assert name_transfers(transfers.filter(rank=0), actions, ranks)[1] == []
    assert name_transfers(transfers.clear(), actions, ranks)[0].is_empty()
