"""The kernels of one rank, each with the action that launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.kernel_categories import NOTIFY, collective_operation, kernel_category
from stagescope.ingest.kineto.device import launched_kernels, placed_in
from stagescope.model import KERNELS

if TYPE_CHECKING:
    from stagescope.ingest.kineto.tables import TraceTables

OF_ACTION = ("kind", "step", "stage", "microbatch", "pair")


def owned_kernels(read: TraceTables, actions: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of a trace with name, category, operation, and `action`: the row of the action or null.

    `actions` have the marks in which they launched, at host times. A kernel whose launch is not in the trace, or is in
    no action, belongs to none.
    """
    kernels = _named(read).with_row_index("kernel")
    found = placed_in(launched_kernels(kernels, read.tables["launches"]), actions)
    owners = found.select("kernel", "action").unique("kernel", keep="first", maintain_order=True)
    return _with_notified(kernels.join(owners, on="kernel", how="left"))


def rank_kernels(owned: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return `owned` with the columns of KERNELS except `rank`; `actions` have its rows in their column `own_row`."""
    of_action = actions.select(pl.col("own_row").cast(pl.UInt32).alias("action"), *OF_ACTION, part="name")
    joined = owned.join(of_action, on="action", how="left", maintain_order="left")
    return joined.select(name for name in KERNELS.names if name != "rank")


def _named(read: TraceTables) -> pl.DataFrame:
    """Return the kernels with name, category and operation; the arguments of NCCL's kernels take precedence."""
    names = read.kernel_names
    known = [kernel_category(name) for name in names]
    described = pl.DataFrame(
        {
            "name_number": range(len(names)),
            "name": names,
            "category": [each.category for each in known],
            "named_operation": [each.operation for each in known],
        },
        schema={
            "name_number": pl.Int32, "name": pl.String, "category": pl.String, "named_operation": pl.String,
        },
    )  # fmt: skip
    messages = read.tables["messages"].unique("correlation", keep="first", maintain_order=True)
    stated = messages.select("correlation", collective="collective")
    operations = {name: collective_operation(name) for name in stated["collective"].unique().drop_nulls()}
    stated = stated.with_columns(
        stated_operation=pl.col("collective").replace_strict(operations, default=None, return_dtype=pl.String)
    )
    kernels = read.tables["kernels"].join(described, on="name_number", how="left")
    kernels = kernels.join(stated, on="correlation", how="left")
    communicates = pl.col("category") == "communication"
    operation = pl.coalesce("stated_operation", "named_operation")
    return kernels.with_columns(operation=pl.when(communicates).then(operation))


def _with_notified(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels; an exchange of counts is part of the dispatch or combine that follows on its stream."""
    is_notice = pl.col("operation") == NOTIFY
    of_exchange = pl.col("operation").is_in(["dispatch", "combine"])
    following = pl.when(of_exchange).then("operation").backward_fill().over("stream")
    ordered = kernels.sort("start_ns").with_columns(following=following)
    settled = pl.when(is_notice).then(pl.coalesce("following", pl.lit("all_to_all"))).otherwise("operation")
    return ordered.with_columns(operation=settled).drop("following")
