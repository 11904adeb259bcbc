"""Kernels with the category and operation that their names state, for every reader of device traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.kernel_categories import NOTIFY, kernel_category

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES_SCHEMA = {
    "name_number": pl.Int64, "name": pl.String, "category": pl.String, "named_operation": pl.String,
}  # fmt: skip


def described_names(names: Mapping[int, str]) -> pl.DataFrame:
    """Return name, category and named_operation of each name by name_number (NAMES_SCHEMA)."""
    known = [kernel_category(name) for name in names.values()]
    columns = [
        list(names),
        list(names.values()),
        [one.category for one in known],
        [one.operation for one in known],
    ]
    return pl.DataFrame(columns, NAMES_SCHEMA, orient="col")


def with_notified(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels; an exchange of counts is part of the dispatch or combine that follows on its stream."""
    is_notice = pl.col("operation") == NOTIFY
    of_exchange = pl.col("operation").is_in(["dispatch", "combine"])
    following = pl.when(of_exchange).then("operation").backward_fill().over("stream")
    ordered = kernels.sort("start_ns").with_columns(following=following)
    settled = pl.when(is_notice).then(pl.coalesce("following", pl.lit("all_to_all"))).otherwise("operation")
    return ordered.with_columns(operation=settled).drop("following")
