"""The times of a report as text tables, one row per step and one row per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from stagescope.analysis.statistics.step_lengths import slowest_steps
from stagescope.reports.aligned import aligned
from stagescope.reports.sampled import evenly_chosen
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import Foreign, localized
from stagescope.vocabulary.printable import printable
from stagescope.vocabulary.ratios import percent_text
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.analysis import Report

MOST_RANKS = 40
MOST_STEPS = 20
MOST_SLOW_STEPS = 5
WIDEST_STAGES = 15


def step_and_rank_tables(report: Report, *, width: int = 80, ascii_only: bool = False) -> str:
    """Return the times per step and per rank as two tables, no line wider than `width`.

    Busy and idle times are those of the windows; bubbles have the definition of `report.bubble`.
    The memory of the ranks is shown if the table with it fits. Steps that are not in the totals are marked. Of more
    than 20 steps the first and last ten are shown, of more than 40 ranks 40 evenly spaced ones; a line counts the
    others. Of more than five steps, the five slowest are listed as well, with how much longer than usual outliers are.
    """
    ranks = _rank_lines(report, _memory_cells(report))
    if max(map(cell_len, ranks)) > width:  # a number that is cut off would be mistaken for a smaller one
        ranks = _rank_lines(report, {})
    slowest = _slowest_lines(report)
    lines = [*_step_lines(report), *(("", *slowest) if slowest else ()), "", *ranks]
    text = "\n".join(
        set_cell_size(line, width).rstrip() if cell_len(line) > width else line for line in lines
    )
    return text.replace("µ", "u").encode("ascii", "replace").decode() if ascii_only else text


def _step_lines(report: Report) -> list[str]:
    steps = report.step_lengths
    if steps.is_empty():
        return [localized("no steps to measure")]
    half = MOST_STEPS // 2
    shown = steps if len(steps) <= MOST_STEPS else steps.head(half).vstack(steps.tail(half))
    rows = [
        (str(step["step"]), duration_text(step["window_ns"]), percent_text(report.bubble.per_step.get(step["step"])),
         _remark(step))
        for step in shown.iter_rows(named=True)
    ]  # fmt: skip
    lines = aligned(("step", "length", "bubble", ""), rows, left={3})
    if len(shown) < len(steps):
        lines.insert(1 + half, localized(f"... {len(steps) - len(shown)} steps not shown"))
    return lines


def _slowest_lines(report: Report) -> list[str]:
    """Return the slowest steps, empty if the steps are few."""
    lengths = report.step_lengths
    if lengths.height <= MOST_SLOW_STEPS:
        return []
    rows = [
        (str(step["step"]), duration_text(step["window_ns"]), percent_text(report.bubble.per_step.get(step["step"])),
         _remark(step))
        for step in slowest_steps(lengths, MOST_SLOW_STEPS).iter_rows(named=True)
    ]  # fmt: skip
    return aligned(("slowest steps", "length", "bubble", ""), rows, left={3})


def _remark(step: Mapping[str, Any]) -> str:
    if not step["in_totals"]:
        return "not in totals"
    excess_ns = step["excess_ns"]
    return "" if excess_ns is None else f"{duration_text(round(excess_ns))} longer than usual"


def _rank_lines(report: Report, memory: Mapping[str, Mapping[str, str]]) -> list[str]:
    ranks = report.ranks
    if ranks.is_empty():
        return [localized("no ranks to measure")]
    shown = ranks[list(evenly_chosen(len(ranks), MOST_RANKS))]
    per_rank = report.bubble.per_rank
    rows = [_rank_row(rank, per_rank.get(rank["rank"])) for rank in shown.iter_rows(named=True)]
    if len(ranks) > 1:
        busy, idle, *waits = (
            _time_text(int(ranks[name].sum()) if ranks[name].count() else None)
            for name in ("busy_ns", "idle_ns", "receive_wait_ns", "send_wait_ns")
        )
        rows.append(("all", "", busy, idle, percent_text(report.bubble.fraction), *waits, ""))
    head: tuple[str, ...] = (
        "rank",
        "stages",
        "busy",
        "idle",
        "bubble",
        "receive wait",
        "send wait",
        "machine",
    )
    for name, cells in memory.items():
        head = (*head[:-1], name, head[-1])
        rows = [(*row[:-1], cells.get(row[0], "-" if row[0] != "all" else ""), row[-1]) for row in rows]
    lines = aligned(head, rows, left={1, len(head) - 1})
    if len(shown) < len(ranks):
        lines.append(localized(f"{len(ranks) - len(shown)} ranks not shown"))
    return lines


def _rank_row(rank: Mapping[str, Any], bubble: float | None) -> tuple[str, ...]:
    stages = ", ".join(map(str, rank["stages"]))
    return (
        str(rank["rank"]),
        stages if len(stages) <= WIDEST_STAGES else stages[: WIDEST_STAGES - 3] + "...",
        duration_text(rank["busy_ns"]),
        duration_text(rank["idle_ns"]),
        percent_text(bubble),
        _time_text(rank["receive_wait_ns"]),
        _time_text(rank["send_wait_ns"]),
        Foreign(printable(rank["machine"] or "")),
    )


def _memory_cells(report: Report) -> dict[str, dict[str, str]]:
    """Return by the head of a column the most memory of every rank, by its number as text; only what was recorded."""
    heads = {"allocated_bytes": "device memory", "resident_bytes": "RAM"}
    return {
        head: {str(row["rank"]): size_text(row[name]) for row in report.memory.drop_nulls(name).to_dicts()}
        for name, head in heads.items()
        if report.memory[name].count()
    }


def _time_text(time_ns: int | None) -> str:
    """Return a duration, or a dash for one that was not recorded."""
    return "-" if time_ns is None else duration_text(time_ns)
