"""The clocks that a source's stamps are of, before anything has aligned them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model import CLOCKS
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Mapping


def source_clocks(machines: Mapping[str, str | None], method: str, *, is_known: bool = True) -> pl.DataFrame:
    """Return the CLOCKS rows of some clocks, each with the machine that it is of, as they stand in the source.

    `method` says what they are. One clock agrees with itself, if it `is_known` to be one; how far several are apart
    is unknown.
    """
    error_ns = 0 if len(machines) == 1 and is_known else None
    rows = pl.DataFrame(
        {"clock": list(machines), "machine": list(machines.values())}, schema_overrides={"machine": pl.String}
    )
    same = {"offset_ns": 0, "error_lo_ns": error_ns, "error_hi_ns": error_ns, "method": method}
    return conform(rows.with_columns(pl.lit(value).alias(name) for name, value in same.items()), CLOCKS)
