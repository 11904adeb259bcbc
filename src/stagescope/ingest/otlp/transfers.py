"""Micro-batches of spans that do not state them, and the ends of transfers.

Megatron's spans of micro-batches state no number. With one chunk per rank, the forwards of a step run in the order of
their micro-batches, and so do its backwards. What is received belongs to the next action, and what is sent to the last
one: not every transfer has a span, so their order alone would be wrong.

A transfer with a link to a span of a transfer on another rank is the other end of it: both get their peers, and the
micro-batch that one of them lacks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, BACKWARDS, RECEIVES, SENDS

NO_ROW = -1


def with_microbatches(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of a rank, sorted by start, with the micro-batches that follow from their order."""
    order = pl.int_range(pl.len()).over("kind", "step").cast(pl.Int32)
    is_action = pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null()
    numbered = spans.with_columns(microbatch=pl.coalesce("microbatch", pl.when(is_action).then(order)))
    for kind in (*RECEIVES, *SENDS):
        numbered = _from_action(numbered, kind)
    return numbered


def _from_action(spans: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the spans with step, stage and micro-batch of the transfers of a kind, from the action they belong to."""
    own = np.flatnonzero((spans["kind"] == kind).to_numpy())
    kinds = BACKWARDS if kind.endswith("backward") else ("forward",)
    actions = np.flatnonzero(spans["kind"].is_in(kinds).to_numpy())
    if len(own) == 0 or len(actions) == 0:
        return spans
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    if kind in RECEIVES:
        place = np.searchsorted(start[actions], end[own], side="left")
    else:
        # Actions of a rank do not overlap, so they end in the order in which they start.
        place = np.searchsorted(end[actions], start[own], side="right") - 1
    is_found = (place >= 0) & (place < len(actions))
    of_action = np.full(spans.height, NO_ROW, np.int64)
    of_action[own[is_found]] = actions[place[is_found]]
    number = pl.Series("number", of_action)
    rows = spans.select("microbatch", "stage", "step").with_row_index("number").cast({"number": pl.Int64})
    found = number.to_frame().join(rows, on="number", how="left", maintain_order="left")
    # In the step of its action: a transfer between two steps belongs to neither by its time alone.
    same = (found["step"] == spans["step"]) | spans["step"].is_null()
    usable = found.with_columns(
        pl.when(same.fill_null(value=False)).then(name).alias(name) for name in rows.columns[1:]
    )
    return spans.with_columns(
        pl.coalesce(name, usable[name]).alias(name) for name in ("microbatch", "stage", "step")
    )


def with_linked_peers(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of all ranks with the peers that links state."""
    spans = spans.with_row_index("row")
    ends = spans.filter(pl.col("kind").is_in([*SENDS, *RECEIVES]))
    targets = ends.select(
        span="span", other="row", other_rank="rank", other_kind="kind", other_microbatch="microbatch"
    )
    pairs = (
        ends.select("row", "rank", "kind", "microbatch", "links")
        .explode("links", keep_nulls=False)
        .filter(pl.col("links") != "")
        .join(targets, left_on="links", right_on="span", how="inner")
        .filter((pl.col("rank") != pl.col("other_rank")) & (pl.col("kind") == _other_end("other_kind")))
        .unique("row", keep="first", maintain_order=True)
        .unique("other", keep="first", maintain_order=True)
    )
    both = pl.concat(
        [
            pairs.select("row", "other_rank", "other_microbatch"),
            pairs.select(row="other", other_rank="rank", other_microbatch="microbatch"),
        ]
    ).unique("row", keep="first")
    found = spans.join(both, on="row", how="left", maintain_order="left")
    return found.with_columns(
        peer=pl.col("other_rank").cast(pl.Int32), microbatch=pl.coalesce("microbatch", "other_microbatch")
    ).drop("row", "other_rank", "other_microbatch")


def count_unmatched(spans: pl.DataFrame) -> int:
    """Return how many transfers have links, and none to the other end; `spans` is what with_linked_peers returns."""
    is_linked = pl.col("kind").is_in([*SENDS, *RECEIVES]) & (pl.col("links").list.len() > 0)
    return spans.filter(is_linked & pl.col("peer").is_null()).height


def _other_end(column: str) -> pl.Expr:
    """Return the kind at the other end of a transfer of this kind."""
    return (
        pl.col(column)
        .str.replace("recv_", "SEND_")
        .str.replace("send_", "recv_")
        .str.replace("SEND_", "send_")
    )
