"""Gradient reductions that a training writes by hand: collectives of replicas between its backwards and its optimizer.

DDP, FSDP and the frameworks' own data parallelism are known by the functions that reduce. A training that calls
``dist.all_reduce`` for each gradient shows only that. Such a collective reduces gradients if it

* sums over a data-parallel group: its members are the replicas of one rank of a pipeline,
* begins after the last backward of its rank in the step, and before the optimizer step that follows, if there is one,
* has more than a few bytes: losses, norms and counts are averaged over replicas in the same place.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.collectives import ASYNCHRONOUS, SEPARATOR
from stagescope.model.group_kinds import DATA_PARALLEL, find_group_kinds
from stagescope.vocabulary.kinds import COLLECTIVE

SUMS = ("all_reduce", "reduce_scatter", "reduce")
BACKWARDS = ("backward", "backward_input", "backward_weight")
MOST_BYTES_OF_VALUES = 64
"""A collective of at most this many bytes averages values other than gradients."""


def name_reductions(
    spans: pl.DataFrame, ranks: pl.DataFrame, group_kinds: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the spans of a run, in which the collectives that reduce gradients are of kind ``grad_reduce``.

    `ranks` is the table RANKS. If the spans are those of some ranks of a run, `group_kinds` are those of the groups
    of all (`reducing_groups`, `find_group_kinds`).
    """
    rows = spans.with_row_index("row")
    found = _sums(rows).select("row", "rank", "step", "start_ns", "group")
    if found.is_empty():
        return spans
    if group_kinds is None:
        group_kinds = find_group_kinds(found.select("group", "rank"), ranks)
    kinds = group_kinds.filter(pl.col("group_kind").str.split("+").list.contains(DATA_PARALLEL))
    keys = ["rank", "step"]
    found = found.join(kinds, on="group").join(_ends_of_backwards(spans, keys), on=keys)
    found = found.filter(pl.col("start_ns") >= pl.col("computed_ns"))
    found = found.join(_next_optimizer_steps(spans, found, keys), on=keys, how="left").filter(
        pl.col("optimized_ns").is_null() | (pl.col("start_ns") < pl.col("optimized_ns"))
    )
    kind = spans.schema["kind"]
    reduces = pl.col("row").is_in(found["row"].implode())
    return (
        rows.join(_only_stages(spans), on="rank", how="left", maintain_order="left")
        .with_columns(
            kind=pl.when(reduces).then(pl.lit("grad_reduce", kind)).otherwise("kind"),
            stage=pl.when(reduces).then(pl.coalesce("stage", "only")).otherwise("stage"),
        )
        .drop("row", "only")
    )


def reducing_groups(spans: pl.DataFrame) -> pl.DataFrame:
    """Return group and rank of the collectives that may reduce gradients."""
    return _sums(spans).select("group", "rank").unique(maintain_order=True)


def _sums(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the sums over more than a few bytes, with their group."""
    is_sum = (pl.col("kind") == COLLECTIVE) & (pl.col("bytes") > MOST_BYTES_OF_VALUES)
    parts = pl.col("name").str.split(SEPARATOR)
    return (
        spans.filter(is_sum, pl.col("step").is_not_null())
        .with_columns(operation=parts.list.first().str.strip_suffix(ASYNCHRONOUS), group=parts.list.last())
        .filter(pl.col("operation").is_in(SUMS))
    )


def _only_stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the stage of the ranks that have a single one."""
    return (
        spans.filter(pl.col("kind").is_in(BACKWARDS))
        .group_by("rank")
        .agg(only=pl.when(pl.col("stage").n_unique() == 1).then(pl.col("stage").first()))
    )


def _ends_of_backwards(spans: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return when the last backward of each rank and step had ended."""
    return spans.filter(pl.col("kind").is_in(BACKWARDS)).group_by(keys).agg(computed_ns=pl.max("end_ns"))


def _next_optimizer_steps(spans: pl.DataFrame, found: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return when the optimizer step after the backwards of each rank and step began."""
    ends = found.select(*keys, "computed_ns").unique()
    steps = spans.filter(pl.col("kind") == "optimizer").select(*keys, optimized_ns="start_ns")
    return (
        steps.join(ends, on=keys)
        .filter(pl.col("optimized_ns") >= pl.col("computed_ns"))
        .group_by(keys)
        .agg(pl.min("optimized_ns"))
    )
