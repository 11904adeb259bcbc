"""The communication kernels of a report as a text table: how much of them is hidden, by what they ran in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from rich.cells import set_cell_size

from stagescope.analysis.kernels.communication import ANY, OUTSIDE, PAIR, RUN
from stagescope.analysis.kernels.sentences import operation_text
from stagescope.reports.aligned import aligned
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import cell_width, localized
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from stagescope.analysis import Report

KERNEL_HEADS = ("communication in", "operation", "kernels", "hidden", "exposed", "hidden share")
MOST_ROWS = 24
WORDS = {PAIR: "overlapped pair", OUTSIDE: "no action"}


def kernel_lines(report: Report, *, width: int = 80) -> list[str]:
    """Return an empty line and the table; nothing if no kernel communicates, or none were read."""
    rows = kernel_cells(report)
    lines = [
        set_cell_size(line, min(width, cell_width(line))) for line in aligned(KERNEL_HEADS, rows, left={0, 1})
    ]
    return ["", *lines, *_rest(report)] if rows else []


def kernel_cells(report: Report) -> list[tuple[str, ...]]:
    """Return rows of KERNEL_COMMUNICATION_KINDS as text, in the columns KERNEL_HEADS."""
    return [_row(row) for row in _shown(report).head(MOST_ROWS).iter_rows(named=True)]


def _shown(report: Report) -> pl.DataFrame:
    kinds = report.kernel_communication_kinds
    return kinds.filter((pl.col("within") != RUN) & (pl.col("operation").ne_missing(ANY)))


def _rest(report: Report) -> list[str]:
    hidden = _shown(report).height - MOST_ROWS
    return [localized(f"{counted(hidden, 'row')} not shown")] if hidden > 0 else []


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    within = WORDS.get(row["within"], row["within"].replace("_", " "))
    return (
        within,
        operation_text(row["operation"]),
        str(row["kernels"]),
        duration_text(row["hidden_ns"]),
        duration_text(row["exposed_ns"]),
        percent_text(row["hidden_fraction"]),
    )
