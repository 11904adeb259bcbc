"""Transfers with names of their own: ``PP::fwd_send (stage 0)`` instead of ``gloo:send``.

`torch.distributed.record_comm` replaces the titles of a process group's works, and newer schedules of torch use it
(pytorch#178907). A batch of sends and receives has one title: which of the two a work is, is shown by the operator
that issued it (``c10d::send``, ``c10d::recv_``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.kineto.operator_classes import RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMED = r"^PP::(?:fwd|bwd)_(send|recv)(?:_(?:fwd|bwd)_(send|recv))? \(stage \d+\)"
PLAIN = "comm:"
"""The prefix of an unknown process group."""


def with_plain_works(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables, with the annotations of named sends and receives called ``comm:send`` and ``comm:recv``.

    A work of a batch whose operator is not in the trace keeps its name, and is no transfer.
    """
    annotations = tables["annotations"].with_row_index("row")
    named = annotations.filter(pl.col("name").str.contains(NAMED))
    if named.is_empty():
        return dict(tables)
    issued = (
        tables["operators"]
        .filter(pl.col("what").is_in([SEND, RECEIVE]))
        .select("thread", "what", issued_ns="start_ns")
        .sort("issued_ns")
    )
    verbs = named.sort("start_ns").join_asof(
        issued, left_on="start_ns", right_on="issued_ns", by="thread", check_sortedness=False
    )
    first, second = (pl.col("name").str.extract(NAMED, group) for group in (1, 2))
    of_operator = pl.col("what").replace_strict(
        {SEND: "send", RECEIVE: "recv"}, default=None, return_dtype=pl.String
    )
    verb = pl.when(second.is_null() | (first == second)).then(first).otherwise(of_operator)
    known = verbs.select("row", plain=PLAIN + verb)
    renamed = annotations.join(known, on="row", how="left", maintain_order="left")
    return {
        **tables,
        "annotations": renamed.with_columns(name=pl.coalesce("plain", "name")).drop("row", "plain"),
    }
