"""The collectives of a report as a text table: what waiting for them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import set_cell_size

from stagescope.reports.aligned import aligned
from stagescope.vocabulary.causes import NOT_RECORDED
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import cell_width, wrapped
from stagescope.vocabulary.printable import printable
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.analysis import Report

KIND_HEADS = ("collectives", "count", "exposed", "for late ranks", "hidden", "hidden share")
MOST_KINDS = 12
UNKNOWN = "other group"


def collective_lines(report: Report, *, width: int = 80) -> list[str]:
    """Return the table and a sentence about its columns; empty without collectives."""
    rows = kind_cells(report)
    if not rows:
        return []
    lines = [
        set_cell_size(line, min(width, cell_width(line))) for line in aligned(KIND_HEADS, rows, left={0})
    ]
    return [*lines, *wrapped(printable(collectives_sentence(report)), width), ""]


def kind_cells(report: Report) -> list[tuple[str, ...]]:
    """Return the most exposed rows of COLLECTIVE_KINDS as text, in the columns KIND_HEADS."""
    return [_kind_row(row) for row in report.collective_kinds.head(MOST_KINDS).iter_rows(named=True)]


def collectives_sentence(report: Report) -> str:
    """Return what the times are and divide by, and how many rows are not shown."""
    kinds = report.collective_kinds
    iterations = counted(int(kinds["iterations"][0]), "iteration")
    parts = [
        f"Mean per rank and iteration, over {iterations}; exposed: the rank did nothing but wait",
        "for late ranks: part of it until the last rank had come",
        "hidden: the rank computed between issuing and waiting",
    ]
    if kinds.height > MOST_KINDS:
        parts.append(f"{counted(kinds.height - MOST_KINDS, 'row')} not shown")
    return "; ".join(parts) + "."


def _kind_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    exposed, late, hidden = (
        NOT_RECORDED if row[name] is None else duration_text(round(row[name]))
        for name in ("exposed_ns", "arrival_wait_ns", "hidden_ns")
    )
    name = f"{row['operation']} in {row['group_kind'] or UNKNOWN}"
    return (name, str(row["collectives"]), exposed, late, hidden, percent_text(row["hidden_fraction"]))
