"""Results as small HTML tables, for the cells of a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from stagescope.model.simulated import simulated_time_text
from stagescope.reports.comparison_sentences import comparison_sentences
from stagescope.reports.comparison_table import step_rows
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.analysis import Report
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.model import Timeline
    from stagescope.schedules.simulation import Simulation

MOST_ROWS = 16


def timeline_html(timeline: Timeline) -> str:
    """Return the size of a timeline: spans, ranks, machines, steps and diagnostics."""
    machines = timeline.ranks["machine"].drop_nulls().n_unique()
    found = timeline.diagnostics["severity"].value_counts().sort("severity").rows()
    rows = [
        ("spans", f"{timeline.spans.height:,}"),
        ("ranks", f"{timeline.ranks.height:,}"),
        ("machines", str(machines) if machines else "not recorded"),
        ("steps", f"{timeline.spans['step'].drop_nulls().n_unique():,}"),
        ("diagnostics", ", ".join(counted(count, severity) for severity, count in found) or "none"),
    ]
    return _table("Timeline", ("", ""), rows)


def report_html(report: Report) -> str:
    """Return the verdict of a report and a table of its ranks, at most 16 of them."""
    verdict = "" if report.verdict is None else f"<p>{html.escape(str(report.verdict))}</p>"
    rows = [
        (
            str(rank["rank"]),
            ", ".join(map(str, rank["stages"])),
            duration_text(rank["busy_ns"]),
            duration_text(rank["idle_ns"]),
            percent_text(rank["bubble_fraction"]),
        )
        for rank in report.ranks.head(MOST_ROWS).iter_rows(named=True)
    ]
    bubble = report.bubble
    title = f"Report: bubble {percent_text(bubble.fraction)} of the {bubble.whole}"
    if bubble.fraction is None:
        title = f"Report: the bubble is unknown, because {html.escape(bubble.unknown_because)}"
    return verdict + _table(title, ("rank", "stages", "busy", "idle", "bubble"), rows, report.ranks.height)


def comparison_html(comparison: Comparison) -> str:
    """Return the sentences of a comparison and the table of the step and its parts."""
    sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in comparison_sentences(comparison))
    head, rows = step_rows(comparison)
    return sentences + _table("Comparison", head, rows)


def simulation_html(simulation: Simulation, *, in_cost_units: bool = False) -> str:
    """Return the makespan and bubble of a simulated step and a table of its ranks, at most 16 of them."""

    def text(time_ns: int) -> str:
        return simulated_time_text(time_ns, in_cost_units=in_cost_units)

    ranks = sorted(simulation.order)
    rows = [
        (str(rank), text(simulation.busy_ns[rank]), text(simulation.idle_ns[rank]))
        for rank in ranks[:MOST_ROWS]
    ]
    bubble = percent_text(simulation.bubble_fraction)
    title = f"Simulated step: makespan {text(simulation.makespan_ns)}, bubble {bubble}"
    return _table(title, ("rank", "busy", "idle"), rows, len(ranks))


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], row_count: int | None = None
) -> str:
    """Return an HTML table; names in it may contain anything, so every cell is escaped."""
    shown = list(rows)
    parts = [f"<table><caption>{html.escape(title)}</caption>"]
    if any(head):
        parts.append(_row("th", head))
    parts += [_row("td", row) for row in shown]
    if row_count is not None and row_count > len(shown):
        parts.append(f'<tr><td colspan="{len(head)}">{row_count - len(shown)} more rows not shown</td></tr>')
    return "".join([*parts, "</table>"])


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
