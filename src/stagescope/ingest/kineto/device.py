"""Move actions and transfers to device times, from the kernels launched inside their annotations.

A kernel belongs to the action during whose annotation it was launched, on any thread: the autograd engine launches
backward kernels from its own thread while the annotated thread waits. Kineto's projected annotations
(``gpu_user_annotation``) cover only launches of the annotating thread and only the innermost annotation, so they are
used only for actions without any launch in the trace. A captured CUDA graph is one launch of many kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.kernel_classes import COMPUTE_KERNEL, TRANSFER_KERNEL
from stagescope.vocabulary.kinds import HOST, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping


class OnDevice(NamedTuple):
    """Spans at device times; actions that launched no kernel stay on the host lane and are counted."""

    actions: pl.DataFrame
    transfers: pl.DataFrame
    without_kernels: int


def on_device(
    tables: Mapping[str, pl.DataFrame], actions: pl.DataFrame, marks: pl.DataFrame, rank: int | None
) -> OnDevice:
    """Return the actions from the start of their first kernel to the end of their last, and the NCCL transfers.

    `marks` has the annotations of transfers; `rank` is the rank of this process.
    """
    launched = launched_kernels(tables["kernels"], tables["launches"])
    placed = placed_in(launched.filter(pl.col("what") == COMPUTE_KERNEL), actions)
    times = placed.group_by("action").agg(device_start_ns=pl.min("start_ns"), device_end_ns=pl.max("end_ns"))
    joined = actions.with_row_index("action").join(times, on="action", how="left", maintain_order="left")
    # Only for actions that are still without a kernel: see the module's docstring for what projections miss.
    joined = _with_projected(joined, tables["annotations"], tables["device_annotations"])
    has_kernels = pl.col("device_start_ns").is_not_null()
    moved = joined.with_columns(
        start_ns=pl.coalesce("device_start_ns", "start_ns"),
        end_ns=pl.coalesce("device_end_ns", "end_ns"),
        edge_error_ns=pl.when(has_kernels).then(_error_on_device(joined)).otherwise("edge_error_ns"),
        lane=pl.when(has_kernels).then("lane").otherwise(pl.lit(HOST)),
    )
    # `other` annotations, such as UNSHARD, need not launch a kernel.
    missing = moved.filter(pl.col("device_start_ns").is_null() & (pl.col("kind") != "other")).height
    transfers = _transfers(
        launched.filter(pl.col("what") == TRANSFER_KERNEL), tables["messages"], marks, rank
    )
    return OnDevice(moved.drop("action", "device_start_ns", "device_end_ns"), transfers, missing)


def _error_on_device(actions: pl.DataFrame) -> pl.Expr:
    """Return the edge error of actions with kernels: 0, except for a forward that includes its loss."""
    if "holds_loss" not in actions.columns:
        return pl.lit(0)
    return pl.when("holds_loss").then(pl.col("device_end_ns") - pl.col("device_start_ns")).otherwise(0)


def _with_projected(
    actions: pl.DataFrame, annotations: pl.DataFrame, projected: pl.DataFrame
) -> pl.DataFrame:
    """Return the actions; those without a kernel get the device times of Kineto's projected annotations.

    Host and projected annotations of one name are matched by occurrence, if there are equally many; the stream with
    the longest projected annotations is used. The two actions of a pair share one annotation, which does not show
    where either begins or ends, so they are excluded.
    """
    if projected.is_empty() or "mark" not in actions.columns:
        return actions
    own = annotations.with_row_index("mark").filter(pl.col("mark").is_in(actions["mark"].implode()))
    named = projected.filter(pl.col("name").is_in(own["name"].implode()))
    lengths = named.group_by("stream").agg(length_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    main = lengths.sort("length_ns", "stream")["stream"].tail(1)
    key = ["name", "occurrence", "occurrences"]
    on_stream = _numbered(named.filter(pl.col("stream").is_in(main.implode()))).select(
        *key, projected_start_ns="start_ns", projected_end_ns="end_ns"
    )
    matched = _numbered(own).join(on_stream, on=key).select("mark", "projected_start_ns", "projected_end_ns")
    joined = actions.join(matched, on="mark", how="left", maintain_order="left")
    sides = {
        side: pl.coalesce(side, pl.when(pl.col("pair").is_null()).then(side.replace("device", "projected")))
        for side in ("device_start_ns", "device_end_ns")
    }
    return joined.with_columns(**sides).drop("projected_start_ns", "projected_end_ns")


def _numbered(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return annotations in time order with `occurrence` (number within the name) and `occurrences` (their count)."""
    counted = {"occurrence": pl.int_range(pl.len()).over("name"), "occurrences": pl.len().over("name")}
    return annotations.sort("start_ns").with_columns(**counted)


def launched_kernels(kernels: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with launch_ns; kernels without a recorded launch are dropped."""
    known = (
        launches.filter(pl.col("correlation") > 0)  # 0 and missing ids belong to no launch
        .group_by("correlation")
        .agg(launch_ns=pl.max("start_ns"))
    )
    return kernels.join(known, on="correlation", how="inner")


def placed_in(kernels: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with `action`, the row of the action in whose annotation they were launched."""
    enclosing = (
        actions.with_row_index("action")
        .select("action", "mark_start_ns", "mark_end_ns")
        .sort("mark_start_ns")
    )
    found = kernels.sort("launch_ns").join_asof(
        enclosing, left_on="launch_ns", right_on="mark_start_ns", check_sortedness=False
    )
    return found.filter(pl.col("launch_ns") <= pl.col("mark_end_ns"))


def _transfers(
    kernels: pl.DataFrame, messages: pl.DataFrame, marks: pl.DataFrame, rank: int | None
) -> pl.DataFrame:
    """Return the transfer kernels that were launched in the annotation of a send or receive, with its fields."""
    enclosing = marks.filter(pl.col("kind").is_in(TRANSFERS)).with_columns(
        mark_start_ns="start_ns", mark_end_ns="end_ns"
    )
    named = enclosing.with_row_index("action").select("action", "kind", "stage", "microbatch", "step")
    # A graph launches several kernels under one correlation id; a join on all of them would multiply transfers.
    facts = messages.unique("correlation", keep="first", maintain_order=True)
    placed = placed_in(kernels, enclosing).join(named, on="action").join(facts, on="correlation", how="left")
    peer = pl.when(pl.col("kind").str.starts_with("send")).then("target").otherwise("source")
    return placed.select(
        "kind", "stage", "microbatch", "step", "start_ns", "end_ns", "bytes",
        peer=pl.when(peer != (-1 if rank is None else rank)).then(peer),
    ).sort("start_ns")  # fmt: skip
