"""Simulated schedules as loops record them that call torch.distributed themselves."""

from __future__ import annotations

import polars as pl

from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import PLAIN_TRANSFERS, RECEIVES, SENDS
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import spans_of

CHUNKS = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}
MESSAGE = pl.col("kind").is_in([*SENDS, *RECEIVES])


def run_of(schedule, *, ranks=4, tensors=1, replicas=1, steps=3):
    """Return the spans of simulated steps, each message sent as that many tensors."""
    shape = Shape(schedule, ranks=ranks, replicas=replicas, steps=steps, chunks=CHUNKS.get(schedule, 1))
    spans = spans_of(simulate(make_plan(shape, Costs()))).drop("dp", "pp")
    spans = awaited(spans)
    copies = [spans, *[spans.filter(MESSAGE)] * (tensors - 1)]
    return conform(pl.concat(copies).sort("rank", "start_ns", maintain_order=True), SPANS)


def awaited(spans):
    """Return spans in which a message that arrives early is noticed right before the action that needs it."""
    needs = spans.filter(lane="compute").select(
        "rank", "step", "stage", "microbatch", "kind", needed_ns="start_ns"
    )
    kinds = {"forward": "recv_forward", "backward": "recv_backward", "backward_input": "recv_backward"}
    needs = needs.with_columns(pl.col("kind").replace(kinds)).drop_nulls("microbatch")
    joined = spans.join(
        needs, on=["rank", "step", "stage", "microbatch", "kind"], how="left", maintain_order="left"
    )
    is_early = pl.col("kind").is_in(RECEIVES) & (pl.col("wait_end_ns") <= pl.col("wait_start_ns")).fill_null(
        value=True
    )
    times = (
        pl.when(is_early).then("needed_ns").otherwise(name).alias(name)
        for name in ("wait_start_ns", "end_ns")
    )
    return joined.with_columns(*times).select(spans.columns)


def hidden(spans):
    """Return spans as a loop with marked actions records them: no steps, and transfers with a tag per stage."""
    is_send = pl.col("kind").is_in(SENDS)
    forward = pl.col("kind").is_in([SENDS[0], RECEIVES[0]])
    to_stage = pl.col("stage") + pl.when(~is_send).then(0).when(forward).then(1).otherwise(-1)
    tag = 2 * to_stage + forward.cast(pl.Int32)
    plain = pl.when(is_send).then(pl.lit("send")).when(MESSAGE).then(pl.lit("recv")).otherwise("kind")
    kinds = spans.with_columns(
        kind=plain.cast(spans.schema["kind"]),
        step=pl.lit(None, pl.Int32),
        stage=pl.when(~MESSAGE).then("stage"),
        microbatch=pl.when(~MESSAGE).then("microbatch"),
        name=pl.when(MESSAGE).then(pl.concat_str(plain, pl.lit(" tag "), tag, pl.lit(" in 0-3 (0)"))),
    )
    number = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", "peer", "name")
    return kinds.with_columns(
        pair=pl.when(pl.col("kind").is_in(PLAIN_TRANSFERS)).then(number).otherwise("pair")
    )
