"""The idle time by cause as bars of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.reports.aligned import aligned
from stagescope.vocabulary.causes import BY_COLUMN, NOT_RECORDED
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import cell_width, padded
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from stagescope.analysis.lost_time import LostTime

OPTIMIZER = "optimizer_ns"
MOST_CELLS = 40
FEWEST_CELLS = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"
CAUSE_HEADS = {"iteration": "cause of lost time", "window": "cause of idle time"}
TOTALS = {"iteration": "total lost", "window": "total idle"}


def ledger_bars(lost: LostTime | None, *, width: int = 80, ascii_only: bool = False) -> list[str]:
    """Return one line per cause and one for their sum: percent of the time, time per rank and step, and a bar.

    The longest bar fills the width, at most 40 cells. A negative cause, which reduces idle time, has no bar. Causes for
    which nothing was recorded have no line.
    """
    if lost is None:
        return []
    rows = ledger_rows(lost)
    fractions = [fraction or 0.0 for _, fraction, _ in rows]
    texts = [ledger_cells(*row) for row in rows]
    head = (CAUSE_HEADS[lost.basis], f"of {lost.basis}", per_rank_text(lost))
    lines = aligned(head, texts, left={0})
    cells = min(MOST_CELLS, max(FEWEST_CELLS, width - 2 - max(map(cell_width, lines))))
    longest = max(fractions) or 1.0
    bars = ["", *(_bar(fraction / longest, cells, ascii_only=ascii_only) for fraction in fractions)]
    widest = max(map(cell_width, lines))
    return [f"{padded(line, widest)}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]


def per_rank_text(lost: LostTime) -> str:
    """Return what the times of the table are means over."""
    return "per rank and iteration" if lost.steps_per_iteration > 1 else "per rank and step"


def unrecorded_text(lost: LostTime | None) -> str:
    """Return a line that names the causes of which nothing was recorded, an empty text if there is none.

    Without optimizer steps, it states what counts as an iteration.
    """
    names = [BY_COLUMN[name].label for name in lost.causes_ns if name in lost.unrecorded] if lost else []
    is_assumed = lost and lost.basis == "iteration" and OPTIMIZER in lost.unrecorded
    assumed = "; every step counts as one iteration" if is_assumed else ""
    return f"{NOT_RECORDED}: {', '.join(names)}{assumed}" if names else ""


def ledger_cells(label: str, fraction: float | None, time_ns: int | None) -> tuple[str, str, str]:
    """Return one of `ledger_rows` as text."""
    if fraction is None or time_ns is None:
        return label, "-", NOT_RECORDED
    return label, percent_text(fraction), duration_text(time_ns)


def ledger_rows(lost: LostTime) -> list[tuple[str, float | None, int | None]]:
    """Return label, fraction, and time per rank and step of every cause to show, and of all together.

    None: not recorded.
    """
    rows: list[tuple[str, float | None, int | None]] = [
        (BY_COLUMN[name].label, None if time_ns is None else lost.fraction(name), time_ns)
        for name, time_ns in lost.shown_ns().items()
    ]
    return [*rows, (TOTALS[lost.basis], lost.lost_fraction, lost.lost_ns // lost.rows)]


def _bar(share: float, cells: int, *, ascii_only: bool) -> str:
    if share <= 0:
        return ""
    if ascii_only:
        return "#" * round(share * cells)
    whole, eighths = divmod(round(share * cells * 8), 8)
    return "█" * whole + EIGHTHS[eighths].strip()
