"""Actions and transfers as the device ran them: the kernels that were launched inside each annotation.

A kernel belongs to the action during whose annotation it was launched, on whatever thread: the autograd engine launches
backward kernels from a thread of its own while the annotated one waits. Kineto's own projected annotations
(``gpu_user_annotation``) know launches of the annotating thread alone, and the innermost annotation alone, so they are
used only for actions none of whose launches is in the trace. A captured graph is one launch of many kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.kernel_classes import COMPUTE_KERNEL, TRANSFER_KERNEL
from stagescope.vocabulary.kinds import HOST, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping


class OnDevice(NamedTuple):
    """Spans at the device's times; the actions that launched no kernel stay on the host lane, and are counted."""

    actions: pl.DataFrame
    transfers: pl.DataFrame
    without_kernels: int


def on_device(
    tables: Mapping[str, pl.DataFrame], actions: pl.DataFrame, marks: pl.DataFrame, rank: int | None
) -> OnDevice:
    """Return the actions from their first kernel's start to their last one's end, and the transfers of NCCL.

    `marks` has the annotations of transfers, `rank` is the process's own.
    """
    launched = _launched(tables)
    placed = _placed(launched.filter(pl.col("what") == COMPUTE_KERNEL), actions)
    times = placed.group_by("action").agg(device_start_ns=pl.min("start_ns"), device_end_ns=pl.max("end_ns"))
    joined = actions.with_row_index("action").join(times, on="action", how="left", maintain_order="left")
    joined = _with_projected(joined, tables["annotations"], tables["device_annotations"])
    has_kernels = pl.col("device_start_ns").is_not_null()
    moved = joined.with_columns(
        start_ns=pl.coalesce("device_start_ns", "start_ns"),
        end_ns=pl.coalesce("device_end_ns", "end_ns"),
        edge_error_ns=pl.when(has_kernels).then(_error_on_device(joined)).otherwise("edge_error_ns"),
        lane=pl.when(has_kernels).then("lane").otherwise(pl.lit(HOST)),
    )
    missing = moved.filter(pl.col("device_start_ns").is_null() & (pl.col("kind") != "other")).height
    transfers = _transfers(
        launched.filter(pl.col("what") == TRANSFER_KERNEL), tables["messages"], marks, rank
    )
    return OnDevice(moved.drop("action", "device_start_ns", "device_end_ns"), transfers, missing)


def _error_on_device(actions: pl.DataFrame) -> pl.Expr:
    """Return how far the edges of actions with kernels may be off: not at all, but for the loss that a forward holds."""
    if "holds_loss" not in actions.columns:
        return pl.lit(0)
    return pl.when("holds_loss").then(pl.col("device_end_ns") - pl.col("device_start_ns")).otherwise(0)


def _with_projected(
    actions: pl.DataFrame, annotations: pl.DataFrame, projected: pl.DataFrame
) -> pl.DataFrame:
    """Return the actions, those without a kernel with the times that Kineto projected their annotations to.

    The third annotation of a name on the host is the third of that name on the device, where both have as many; on the
    stream that has most of them. The two actions of a pair have one annotation, which tells nothing of either.
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
    """Return annotations in time order, each with its number among those of its name, and how many these are."""
    counted = {"occurrence": pl.int_range(pl.len()).over("name"), "occurrences": pl.len().over("name")}
    return annotations.sort("start_ns").with_columns(**counted)


def _launched(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the kernels with launch_ns; those of which no launch was recorded are left out."""
    launches = (
        tables["launches"]
        .filter(pl.col("correlation") > 0)
        .group_by("correlation")
        .agg(launch_ns=pl.max("start_ns"))
    )
    return tables["kernels"].join(launches, on="correlation", how="inner")


def _placed(kernels: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with `action`, the row of the action in whose annotation they were launched."""
    holders = (
        actions.with_row_index("action")
        .select("action", "mark_start_ns", "mark_end_ns")
        .sort("mark_start_ns")
    )
    found = kernels.sort("launch_ns").join_asof(
        holders, left_on="launch_ns", right_on="mark_start_ns", check_sortedness=False
    )
    return found.filter(pl.col("launch_ns") <= pl.col("mark_end_ns"))


def _transfers(
    kernels: pl.DataFrame, messages: pl.DataFrame, marks: pl.DataFrame, rank: int | None
) -> pl.DataFrame:
    """Return the transfers: as the annotation of a send or receive has it in which the kernel was launched."""
    holders = marks.filter(pl.col("kind").is_in(TRANSFERS)).with_columns(
        mark_start_ns="start_ns", mark_end_ns="end_ns"
    )
    named = holders.with_row_index("action").select("action", "kind", "stage", "microbatch", "step")
    facts = messages.unique("correlation", keep="first", maintain_order=True)
    placed = _placed(kernels, holders).join(named, on="action").join(facts, on="correlation", how="left")
    peer = pl.when(pl.col("kind").str.starts_with("send")).then("target").otherwise("source")
    return placed.select(
        "kind", "stage", "microbatch", "step", "start_ns", "end_ns", "bytes",
        peer=pl.when(peer != (-1 if rank is None else rank)).then(peer),
    ).sort("start_ns")  # fmt: skip
