"""Transfers whose works have names of their own, as `torch.distributed.record_comm` gives them."""

import gzip
import re

import polars as pl
import pytest

import stagescope
from ingest.kineto.planted_traces import mark, operator, tables_of
from places import DATA

NAMES = {
    # Each work is called like its whole batch: 1F1B sends and receives in one.
    "1F1B": {"gloo:send": "PP::fwd_send_bwd_recv (stage 1)", "gloo:recv": "PP::fwd_send_bwd_recv (stage 1)"},
    "GPipe": {"gloo:send": "PP::fwd_send (stage 0)", "gloo:recv": "PP::bwd_recv (stage 0)"},
    "ZBVZeroBubble": {"gloo:send": "PP::bwd_send (stage 7)", "gloo:recv": "PP::fwd_recv (stage 7)"},
}


@pytest.mark.parametrize("schedule", NAMES)
def test_renamed_works_of_real_traces_change_nothing(tmp_path, schedule):
    count = 0
    for source in sorted((DATA / "kineto" / schedule).glob("*.gz")):
        text = gzip.decompress(source.read_bytes()).decode()
        for plain, name in NAMES[schedule].items():
            text, found = re.subn(f'"{plain}"', f'"{name}"', text)
            count += found
        (tmp_path / source.stem).write_text(text, encoding="utf-8")
    assert count > 0
    renamed, original = stagescope.read(tmp_path), stagescope.read(DATA / "kineto" / schedule)
    assert renamed.spans.filter(pl.col("lane") == "comm").height > 0
    assert renamed.spans.equals(original.spans)


def test_a_work_of_a_batch_without_its_operator_is_no_transfer(tmp_path):
    batch = "PP::bwd_send_fwd_recv (stage 2)"
    events = [
        mark(batch, 0, 1),
        operator("c10d::recv_", 10, 12),
        mark(batch, 11, 20),
        mark("PP::other (stage 2)", 30, 31),
    ]
    names = tables_of(tmp_path, events)["annotations"]["name"].to_list()
    assert names == [batch, "comm:recv", "PP::other (stage 2)"]
