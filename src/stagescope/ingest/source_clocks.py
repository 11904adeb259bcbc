"""Build the `clocks` rows of a source, as its timestamps were recorded, before any alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model import CLOCKS
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Mapping


def source_clocks(machines: Mapping[str, str | None], method: str, *, is_known: bool = True) -> pl.DataFrame:
    """Return one CLOCKS row per key of `machines`, which maps each clock to its machine; all offsets are 0.

    `method` describes the clocks. A single clock has an error of 0 if it `is_known` to be one clock; the error
    between several clocks is unknown (null).
    """
    error_ns = 0 if len(machines) == 1 and is_known else None
    rows = pl.DataFrame(
        {"clock": list(machines), "machine": list(machines.values())}, schema_overrides={"machine": pl.String}
    )
    same = {"offset_ns": 0, "error_lo_ns": error_ns, "error_hi_ns": error_ns, "method": method}
    return conform(rows.with_columns(pl.lit(value).alias(name) for name, value in same.items()), CLOCKS)
