"""The kernels of one rank, each with the action that launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.kernel_categories import collective_operation
from stagescope.ingest.annotations.named_kernels import described_names, with_notified
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
    return with_notified(kernels.join(owners, on="kernel", how="left"))


def rank_kernels(owned: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return `owned` with the columns of KERNELS except `rank`; `actions` have its rows in their column `own_row`."""
    of_action = actions.select(pl.col("own_row").cast(pl.UInt32).alias("action"), *OF_ACTION, part="name")
    joined = owned.join(of_action, on="action", how="left", maintain_order="left")
    return joined.select(name for name in KERNELS.names if name != "rank")


def _named(read: TraceTables) -> pl.DataFrame:
    """Return the kernels with name, category and operation; the arguments of NCCL's kernels take precedence."""
    messages = read.tables["messages"].unique("correlation", keep="first", maintain_order=True)
    stated = messages.select("correlation", collective="collective")
    operations = {name: collective_operation(name) for name in stated["collective"].unique().drop_nulls()}
    stated = stated.with_columns(
        stated_operation=pl.col("collective").replace_strict(operations, default=None, return_dtype=pl.String)
    )
    described = described_names(dict(enumerate(read.kernel_names)))
    kernels = read.tables["kernels"].with_columns(pl.col("name_number").cast(pl.Int64))
    kernels = kernels.join(described, on="name_number", how="left")
    kernels = kernels.join(stated, on="correlation", how="left")
    communicates = pl.col("category") == "communication"
    operation = pl.coalesce("stated_operation", "named_operation")
    return kernels.with_columns(operation=pl.when(communicates).then(operation))
