"""Find the actions inside CUDA graphs, from the names that kernels carry.

A captured pipeline step is one ``cudaGraphLaunch`` on the host, so no annotation of the host encloses an action. torch
can name the nodes of a graph while it captures them (torch.cuda._graph_annotations); its traces then have the name in
the arguments of each kernel: ``"name": "PP:0F0"``. The kernels of one name and one launch are one action, at the times
of the device: from the start of the first to the end of the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.kernel_classes import COMPUTE_KERNEL, TRANSFER_KERNEL
from stagescope.ingest.annotations.steps import profiler_steps, step_openings, with_steps
from stagescope.ingest.kineto.annotated import meanings_of_names
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping

LANES = {kind.name: kind.lane for kind in BY_NAME.values()}


class GraphActions(NamedTuple):
    """Actions and transfers at device times with their steps, and the number of pairs, which nothing splits."""

    actions: pl.DataFrame
    transfers: pl.DataFrame
    pairs: int


def find_graph_actions(
    tables: Mapping[str, pl.DataFrame], rank: int | None, pattern: str | None = None
) -> GraphActions | None:
    """Return the actions that kernels name; None if no kernel has the name of an action.

    Names are the notation of torch's schedules, or match the caller's `pattern`. Launches are assigned to the
    profiler's steps; without these marks, a step begins when an action is repeated.
    """
    kernels = tables["named_kernels"]
    known = meanings_of_names(kernels["annotation"].unique(maintain_order=True), pattern)
    if known.filter(pl.col("kind").is_in(ACTION_KINDS)).is_empty():
        return None
    replays = _replays(kernels, tables["launches"]).join(known, left_on="annotation", right_on="name")
    is_transfer = pl.col("kind").is_in(TRANSFERS)
    computed = replays.filter(~is_transfer & (pl.col("what") == COMPUTE_KERNEL))
    sizes = pl.len().over("correlation", "annotation")
    actions = computed.with_columns(
        pair=pl.when(sizes > 1).then(pl.struct("correlation", "annotation").rank("dense").cast(pl.Int32)),
        lane=pl.col("kind").replace_strict(LANES, return_dtype=pl.String),
        edge_error_ns=pl.lit(0, pl.Int64),
        name="text",
    ).sort("start_ns", "place")
    transfers = _transfers(
        replays.filter(is_transfer & (pl.col("what") == TRANSFER_KERNEL)), tables["messages"], rank
    )
    steps = profiler_steps(tables["annotations"])
    # Without marks, a graph may hold several steps: only its own repetitions show them.
    on_device = {"mark_start_ns": "start_ns", "mark_end_ns": "end_ns"}
    if steps.is_empty():
        actions, transfers = actions.with_columns(**on_device), transfers.with_columns(**on_device)
    openings = step_openings(actions) if steps.is_empty() else []
    placed = [with_steps(frame.sort("mark_start_ns"), steps, openings) for frame in (actions, transfers)]
    return GraphActions(placed[0], placed[1], actions["pair"].drop_nulls().n_unique())


def _replays(kernels: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch, name and class of kernel: start_ns, end_ns, mark_start_ns and mark_end_ns."""
    launched = launches.group_by("correlation").agg(launch_ns=pl.max("start_ns"))
    times = kernels.group_by("correlation", "annotation", "what", maintain_order=True).agg(
        pl.min("start_ns"), pl.max("end_ns")
    )
    joined = times.join(launched, on="correlation", how="left", maintain_order="left")
    marked = pl.coalesce("launch_ns", "start_ns")
    return joined.with_columns(mark_start_ns=marked, mark_end_ns=marked)


def _transfers(replays: pl.DataFrame, messages: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Return the transfers with peer and size, as far as the arguments of their kernels state them."""
    named = messages.filter(pl.col("annotation").is_not_null()).unique(
        ["correlation", "annotation"], keep="first", maintain_order=True
    )
    joined = replays.join(named, on=["correlation", "annotation"], how="left", maintain_order="left")
    peer = pl.when(pl.col("kind").str.starts_with("send")).then("target").otherwise("source")
    return joined.with_columns(peer=pl.when(peer != (-1 if rank is None else rank)).then(peer))


def with_owners(owned: pl.DataFrame, named: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return kernels with `action`: the `own_row` of the action that their name and launch state; null for others.

    The launch alone is that of the whole graph. Kernels of a pair belong to its first action.
    """
    rows = actions.unique(["correlation", "annotation"], keep="first", maintain_order=True).select(
        "correlation", "annotation", action=pl.col("own_row").cast(pl.UInt32)
    )
    key = ["correlation", "start_ns", "end_ns"]
    found = named.join(rows, on=["correlation", "annotation"]).unique(key, keep="first", maintain_order=True)
    return owned.drop("action").join(found.select(*key, "action"), on=key, how="left", maintain_order="left")
