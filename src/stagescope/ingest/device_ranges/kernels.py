"""The kernels of one process of a trace, each with the action in whose range it was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.named_kernels import described_names, with_notified
from stagescope.ingest.device_ranges.trace import ABSENT
from stagescope.model import KERNELS

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCHED_SCHEMA = {
    "action": pl.Int64, "process": pl.Int64, "stream": pl.Int64, "name_number": pl.Int64, "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}  # fmt: skip
NO_KERNELS = pl.DataFrame(schema=LAUNCHED_SCHEMA)
OF_ACTION = ("kind", "step", "stage", "microbatch")


def process_kernels(launched: pl.DataFrame, names: Mapping[int, str], spans: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of a process with the columns of KERNELS except `rank`, at the times of the trace.

    `launched` are its kernels (LAUNCHED_SCHEMA), `spans` its actions and transfers, by whose column `action` kernels
    refer to them. Kernels that were launched in no action belong to none.
    """
    described = launched.join(described_names(names), on="name_number", how="left")
    communicates = pl.col("category") == "communication"
    named = with_notified(
        described.with_columns(
            pl.col("name").fill_null(""),
            pl.col("category").cast(pl.String).fill_null("other"),
            stream=pl.when(pl.col("stream") != ABSENT).then("stream"),
            operation=pl.when(communicates).then("named_operation"),
        )
    )
    owners = spans.select("action", *OF_ACTION).unique("action", keep="first").drop_nulls("action")
    owned = named.join(owners, on="action", how="left", maintain_order="left")
    empty = {"pair": pl.lit(None, pl.Int32), "part": pl.lit(None, pl.String)}
    return owned.with_columns(**empty).select(name for name in KERNELS.names if name != "rank")
