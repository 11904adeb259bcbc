"""A comparison of two runs as tables, for the terminal and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.reports.aligned import aligned
from stagescope.reports.comparison_sentences import Row, interval_text, is_sure, name_of, signed_text
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.ratios import change_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.statistics.comparison import Comparison

MOST_SUBJECTS = 20
HEAD = ("", "before", "after", "difference", "of before", "95 % CI")
WHOLE = ("iteration", "step", "part")


def step_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the cells of the table of the iteration, the window and the parts of the iteration."""
    return _head(comparison), [_cells(row) for row in comparison.table.to_dicts() if _is_whole(row)]


def comparison_tables(comparison: Comparison, *, markdown: bool = False) -> str:
    """Return two tables: the iteration and its parts, and what else changed beyond noise, largest difference first.

    A line below counts the comparisons that are not claimed.
    """
    rows = comparison.table.to_dicts()
    whole = [row for row in rows if _is_whole(row)]
    places = [row for row in rows if row["subject"] not in WHOLE]
    claimed = sorted((row for row in places if row["is_claimed"]), key=lambda row: -abs(row["difference_ns"]))
    lines = _table(_head(comparison), whole, markdown=markdown)
    if claimed:
        head = (f"where, per {comparison.per}; links per message", *HEAD[1:])
        lines += ["", *_table(head, claimed[:MOST_SUBJECTS], markdown=markdown)]
    lines += ["", _rest(len(places) - len(claimed), len(claimed) - len(claimed[:MOST_SUBJECTS]))]
    return "\n".join(lines).rstrip()


def _head(comparison: Comparison) -> tuple[str, ...]:
    without = ", without outliers" if comparison.leaves_out else ""
    return (f"mean per {comparison.per}{without}", *HEAD[1:])


def _is_whole(row: Row) -> bool:
    return row["subject"] in WHOLE and (row["subject"] != "part" or bool(row["before_ns"] or row["after_ns"]))


def _rest(unclaimed: int, hidden: int) -> str:
    more = f"{hidden} more differences not shown. " if hidden else ""
    return f"{more}{unclaimed} further comparisons of actions, ranks and links are not claimed."


def _table(head: tuple[str, ...], rows: Iterable[Row], *, markdown: bool) -> list[str]:
    cells = [_cells(row) for row in rows]
    if not markdown:
        return aligned(head, cells, left={0})
    rule = ("---", *["---:"] * (len(head) - 1))
    return ["| " + " | ".join(line) + " |" for line in (head, rule, *cells)]


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row["after_ns"] / row["before_ns"] if row["before_ns"] > 0 else -1.0
    return (
        name_of(row),
        duration_text(round(row["before_ns"])),
        duration_text(round(row["after_ns"])),
        signed_text(row["difference_ns"]) + _doubt(row),
        "-" if ratio < 0 else change_text(ratio),
        interval_text(row),
    )


def _doubt(row: Row) -> str:
    """Return why a difference is not claimed: zero is within its interval, or it is too small to matter."""
    if row["is_claimed"]:
        return ""
    return " (uncertain)" if is_sure(row) else " (noise)"
