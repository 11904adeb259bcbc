"""Predicted step times as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.reports.aligned import GAP, aligned
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import wrapped
from stagescope.vocabulary.printable import printable
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    import polars as pl

PAGE_WIDTH = 100
WIDEST_NAME = 48
UNKNOWN = "?"


def what_if_text(table: pl.DataFrame) -> str:
    """Return a table with a line per change, followed by the conditions and notes of single predictions."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for row in table.iter_rows(named=True):
        name = row["change"] if len(row["change"]) <= WIDEST_NAME else f"together ({len(rows) + 1})"
        known = row["predicted_step_ns"] is not None
        rows.append(
            (
                name,
                duration_text(round(row["predicted_step_ns"])) if known else UNKNOWN,
                _signed(row["gain_ns"]) if known else UNKNOWN,
                percent_text(row["gain_fraction"]) if row["gain_fraction"] is not None else UNKNOWN,
                row["method"],
            )
        )
        spelled = row["change"] if name != row["change"] else ""
        remarks = "; ".join(filter(None, (spelled, row["condition"], row["note"])))
        if remarks:
            notes += wrapped(printable(f"{name}: {remarks}"), PAGE_WIDTH, GAP, GAP * 2)
    lines = list(aligned(("if", "step", "gain", "of measured", "by"), rows, left={0, 4}))
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _signed(time_ns: float) -> str:
    return f"-{duration_text(round(-time_ns))}" if round(time_ns) < 0 else duration_text(round(time_ns))
