"""A comparison of two runs as sentences and tables, for the terminal and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.reports.aligned import aligned
from stagescope.reports.tables import percent_text
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.statistics.comparison import Comparison

MOST_SUBJECTS = 20
HEAD = ("", "before", "after", "difference", "of before", "95 % CI")

Row = dict[str, Any]


def comparison_sentences(comparison: Comparison) -> list[str]:
    """Return one or two sentences: whether the step got longer or shorter, and where most of the difference is."""
    rows = comparison.table.to_dicts()
    step = next((row for row in rows if row["subject"] == "step"), None)
    if step is None:
        return ["The runs have nothing in common that could be compared."]
    between = (
        f"{duration_text(round(step['before_ns']))} before, {duration_text(round(step['after_ns']))} after"
    )
    counts = f"n = {step['steps_before']} and {step['steps_after']} steps"
    if step["low_ns"] is None:
        return [f"Too few steps to distinguish a difference from noise ({counts}): {between}."]
    interval = f"95 % CI {_interval(step)}, {counts}"
    change = "longer" if step["difference_ns"] > 0 else "shorter"
    if not step["is_claimed"]:
        if _is_sure(step):
            return [
                f"The step got {change}, but the amount is too uncertain to claim: {between} ({interval})."
            ]
        return [f"The step did not change beyond noise: {between} ({interval})."]
    fraction = percent_text(abs(step["difference_ns"]) / step["before_ns"])
    return [f"The step got {fraction} {change}: {between} ({interval}).", *_where(rows, step)]


def _where(rows: list[Row], step: Row) -> list[str]:
    """Return the stage or link that changed most in the direction of the step."""
    same_way = [
        row
        for row in rows
        if row["subject"] in ("actions", "link")
        and row["is_claimed"]
        and row["difference_ns"] * step["difference_ns"] > 0
    ]
    if not same_way:
        return ["No single stage or link changed in that direction beyond noise."]
    most = max(same_way, key=lambda row: abs(row["difference_ns"]))
    return [f"Most of it: {_name(most)}, {_signed(most['difference_ns'])} per step."]


def step_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the cells of the table of the step and its parts."""
    return ("mean step", *HEAD[1:]), [_cells(row) for row in comparison.table.to_dicts() if _is_step(row)]


def comparison_tables(comparison: Comparison, *, markdown: bool = False) -> str:
    """Return two tables: the step and its parts, and what else changed beyond noise, largest difference first.

    A line below counts the comparisons that are not claimed.
    """
    rows = comparison.table.to_dicts()
    whole = [row for row in rows if _is_step(row)]
    places = [row for row in rows if not _is_step(row)]
    claimed = sorted((row for row in places if row["is_claimed"]), key=lambda row: -abs(row["difference_ns"]))
    lines = _table(("mean step", *HEAD[1:]), whole, markdown=markdown)
    if claimed:
        head = ("where, per step", *HEAD[1:])
        lines += ["", *_table(head, claimed[:MOST_SUBJECTS], markdown=markdown)]
    lines += ["", _rest(len(places) - len(claimed), len(claimed) - len(claimed[:MOST_SUBJECTS]))]
    return "\n".join(lines).rstrip()


def _is_step(row: Row) -> bool:
    return row["subject"] in ("step", "part")


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
    fraction = row["difference_ns"] / row["before_ns"] if row["before_ns"] else None
    return (
        _name(row),
        duration_text(round(row["before_ns"])),
        duration_text(round(row["after_ns"])),
        _signed(row["difference_ns"]) + _doubt(row),
        "-" if fraction is None else f"{100 * fraction:+.1f} %",
        _interval(row),
    )


def _name(row: Row) -> str:
    """Return the subject of a row in words."""
    kind = str(row["kind"]).replace("_", " ")
    if row["subject"] == "actions":
        return f"{kind} of stage {row['stage']}"
    if row["subject"] == "rank":
        return f"actions of rank {row['rank']}"
    if row["subject"] == "link":
        return f"{kind} messages from rank {row['rank']} to {row['peer']}"
    return str(row["part"] or "whole step").replace("_", " ")


def _doubt(row: Row) -> str:
    """Return why a difference is not claimed: zero is within its interval, or it is too small to matter."""
    if row["is_claimed"]:
        return ""
    return " (uncertain)" if _is_sure(row) else " (noise)"


def _is_sure(row: Row) -> bool:
    """Return whether zero is outside the interval of a difference."""
    return row["low_ns"] is not None and row["low_ns"] * row["high_ns"] > 0


def _interval(row: Row) -> str:
    if row["low_ns"] is None:
        return "-"
    return f"{_signed(row['low_ns'])} to {_signed(row['high_ns'])}"


def _signed(duration_ns: float) -> str:
    text = duration_text(round(duration_ns))
    return text if text.startswith("-") else f"+{text}"
