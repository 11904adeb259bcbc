"""Observations made from offsets that a source recorded with an error bound of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

MOMENTS = 64
"""A recorded offset holds for the whole run, so it becomes observations at this many moments; the drift between two of
them is then negligible."""


def recorded_offset_observations(
    clocks: pl.DataFrame, extent_ns: tuple[int, int] | None, number: Mapping[str, int]
) -> pl.DataFrame:
    """Return observations of the clocks whose single row in `clocks` has both errors, if there are at least two.

    `extent_ns` is from the first start of a span to the last end, None without spans. The observations are relative to
    an additional clock with the next free number, which belongs to no machine: true time was at least the timestamp
    plus error_lo_ns and at most the timestamp plus error_hi_ns.
    """
    known = clocks.filter(
        (pl.len().over("clock") == 1)
        & pl.col("error_lo_ns").is_not_null()
        & pl.col("error_hi_ns").is_not_null()
        & pl.col("clock").is_in(list(number))
    )
    if len(known) <= 1 or extent_ns is None:
        return pl.DataFrame(schema=OBSERVATION_SCHEMA)
    first, last = extent_ns
    moments = pl.DataFrame({"at_ns": first + (last - first) * np.arange(MOMENTS) // (MOMENTS - 1)})
    common, own = pl.lit(len(number)), pl.col("clock").replace_strict(dict(number), return_dtype=pl.Int32)
    at = known.select("error_lo_ns", "error_hi_ns", own=own, common=common).join(moments, how="cross")
    not_after = at.select(
        source="own", target="common", sent_ns="at_ns", received_ns=pl.col("at_ns") + pl.col("error_hi_ns")
    )
    not_before = at.select(
        source="common", target="own", sent_ns=pl.col("at_ns") + pl.col("error_lo_ns"), received_ns="at_ns"
    )
    both = pl.concat([not_after.cast(pl.Int64), not_before.cast(pl.Int64)]).with_columns(
        kind=pl.lit("recorded offset"),
        source_rank=pl.lit(None),
        target_rank=pl.lit(None),
        step=pl.lit(None),
        microbatch=pl.lit(None),
        waited=pl.lit(value=True),
        **{name: pl.lit(None) for name in ("stay_ns", "by_exit", *OF_EXITS)},
    )
    return both.select(pl.col(name).cast(dtype) for name, dtype in OBSERVATION_SCHEMA.items())
