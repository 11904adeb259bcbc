"""Transfers that a training marks itself around calls of torch.distributed, which are recorded as well.

``with record.span("recv_forward", microbatch=m, stage=s): dist.recv(x, peer)`` gives two spans: the mark, which knows
the message, and a plain ``recv``, which knows size, peer and wait. They are one transfer and become one span: the mark,
with the times of the call and of the wait for it, and with what the mark does not state.
"""

from __future__ import annotations

import polars as pl

from stagescope.vocabulary.kinds import PLAIN_TRANSFERS, RECEIVES, SENDS

SEND = PLAIN_TRANSFERS[0]
SIDE = ("rank", "is_send")


def merge_marked(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans without the plain transfers that begin, or are awaited, inside a marked transfer of their side.

    A mark around several calls, such as those for a shape and for a tensor, lasts from the first to the last of them
    and has the sum of their bytes. Transfers that frameworks record have a wait, or contain no plain transfers.
    """
    kinds = set(spans["kind"].unique())
    if kinds.isdisjoint(PLAIN_TRANSFERS) or kinds.isdisjoint({*SENDS, *RECEIVES}):
        return spans
    rows = spans.with_row_index("row")
    is_mark = pl.col("kind").is_in([*SENDS, *RECEIVES]) & pl.col("wait_start_ns").is_null()
    marks = rows.filter(is_mark).select(
        "rank", is_send=pl.col("kind").is_in(SENDS), mark="row", mark_peer="peer", from_ns="start_ns", to_ns="end_ns"
    )  # fmt: skip
    plain = rows.filter(pl.col("kind").is_in(PLAIN_TRANSFERS)).with_columns(is_send=pl.col("kind") == SEND)
    inside = _inside(plain, marks, "start_ns")
    awaited = plain.join(inside, on="row", how="anti").drop_nulls("wait_start_ns")
    inside = pl.concat([inside, _inside(awaited, marks, "wait_start_ns")])
    return _merged(rows, inside.join(plain, on="row")) if inside.height else spans


def _inside(plain: pl.DataFrame, marks: pl.DataFrame, moment: str) -> pl.DataFrame:
    """Return row and mark of the plain transfers whose `moment` is inside a mark."""
    found = plain.sort(moment).join_asof(
        marks.sort("from_ns"), left_on=moment, right_on="from_ns", by=SIDE, check_sortedness=False
    )
    is_same = (pl.col("mark_peer") == pl.col("peer")).fill_null(value=True)
    return found.filter((pl.col(moment) <= pl.col("to_ns")) & is_same).select("row", "mark")


def _merged(rows: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    is_one = pl.col("peer").n_unique() == 1
    times = [pl.min("start_ns"), pl.max("end_ns"), pl.min("wait_start_ns"), pl.max("wait_end_ns")]
    found = inside.group_by(pl.col("mark").alias("row")).agg(
        *times, pl.when(is_one).then(pl.first("peer")).alias("peer"), pl.sum("bytes")
    )
    joined = rows.join(
        inside.select("row"), on="row", how="anti", maintain_order="left"
    ).join(found, on="row", how="left", suffix="_found", maintain_order="left")  # fmt: skip
    of_call = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    return joined.with_columns(
        *(pl.coalesce(f"{name}_found", name).alias(name) for name in of_call),
        *(pl.coalesce(name, f"{name}_found").alias(name) for name in ("peer", "bytes")),
    ).select(rows.columns[1:])
