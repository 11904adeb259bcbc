"""The number of its transfer on a wait that counting would give to another one."""

import polars as pl

from drawing import timeline_from_text
from stagescope.exporters.perfetto.restored import transfer_numbers
from stagescope.exporters.tracks import lay_out
from stagescope.model import SPANS
from stagescope.model.validate import conform


def numbers(*transfers):
    """Return the numbers on the waits, by start, of transfers (kind, start, end, start and end of the wait)."""
    rows = [
        {"rank": 0, "lane": "comm", "kind": kind, "stage": 0, "microbatch": 0, "start_ns": start_ns, "end_ns": end_ns,
         "wait_start_ns": wait[0], "wait_end_ns": wait[1]}
        for kind, start_ns, end_ns, *wait in transfers
    ]  # fmt: skip
    timeline = timeline_from_text("F0").with_spans(
        conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    )
    slices = lay_out(timeline).slices
    found = slices.with_columns(transfer_numbers(slices).alias("transfer")).filter("is_wait").sort("start_ns")
    return found["transfer"].to_list()


def test_waits_in_the_order_of_their_transfers_need_no_number():
    assert numbers(("recv_forward", 0, 10, 5, 10), ("recv_backward", 20, 30, 20, 40)) == [None, None]
    assert numbers(("recv_forward", 0, 10, 5, 10), ("send_forward", 5, 7, 6, 50)) == [None, None]


def test_a_wait_after_a_transfer_without_one_has_the_number_of_its_transfer():
    assert numbers(("recv_forward", 0, 10, None, None), ("recv_forward", 20, 30, 25, 30)) == [1]


def test_waits_in_another_order_have_the_numbers_of_their_transfers():
    assert numbers(("send_forward", 0, 10, 50, 60), ("send_backward", 20, 30, 30, 40)) == [1, 0]
