"""The idle time by cause as bars of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.reports.aligned import aligned
from stagescope.reports.tables import percent_text
from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation

MOST_CELLS = 40
FEWEST_CELLS = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"


def ledger_bars(explanation: Explanation, *, width: int = 80, ascii_only: bool = False) -> list[str]:
    """Return one line per cause and one for their sum: percent of the window, time per rank and step, and a bar.

    The longest bar fills the width, at most 40 cells. A negative cause, which reduces idle time, has no bar.
    """
    fractions = explanation.idle_fractions()
    if not fractions:
        return []
    total = explanation.idle.row(-1, named=True)
    steps = explanation.ledger.ranks.select("step", "rank").n_unique() or 1
    names = {**{cause.column: cause.label for cause in CAUSES}, "idle_ns": "total idle"}
    rows = [
        (label, percent_text(fractions[name]), duration_text(total[name] // steps))
        for name, label in names.items()
    ]
    lines = aligned(("cause of idle time", "of window", "per rank and step"), rows, left={0})
    cells = min(MOST_CELLS, max(FEWEST_CELLS, width - 2 - max(map(len, lines))))
    longest = max(fractions.values()) or 1.0
    bars = ["", *(_bar(fractions[name] / longest, cells, ascii_only=ascii_only) for name in names)]
    return [f"{line:{max(map(len, lines))}}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)]


def _bar(share: float, cells: int, *, ascii_only: bool) -> str:
    if share <= 0:
        return ""
    if ascii_only:
        return "#" * round(share * cells)
    whole, eighths = divmod(round(share * cells * 8), 8)
    return "█" * whole + EIGHTHS[eighths].strip()
