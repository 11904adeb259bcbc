"""Diagnostics: what was wrong or lost, as rows that every front end shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.timeline.tables import DIAGNOSTICS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Diagnostic(NamedTuple):
    """One row of the diagnostics table, as it is made."""

    severity: str
    message: str
    source: str | None = None
    rank: int | None = None
    location: str | None = None
    count: int = 1


def diagnostics_table(rows: Iterable[Diagnostic]) -> pl.DataFrame:
    """Return diagnostics as the declared table."""
    return pl.DataFrame([row._asdict() for row in rows], schema=dict(DIAGNOSTICS.schema))
