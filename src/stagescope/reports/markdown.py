"""The report as Markdown, for an issue or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.analysis.understood import understood
from stagescope.reports.collective_table import KIND_HEADS, collectives_sentence, kind_cells
from stagescope.reports.counter_text import memory_sentence, throughput_sentence
from stagescope.reports.kernel_table import KERNEL_HEADS, kernel_cells
from stagescope.reports.ledger_bars import (
    CAUSE_HEADS,
    ledger_cells,
    ledger_rows,
    per_rank_text,
    unrecorded_text,
)
from stagescope.reports.stage_table import time_text, versus_others_text
from stagescope.reports.text import bubble_sentence, denominator_sentence
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.language import localized, localized_list
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.report import Report

MOST_STAGES = 64
MOST_DIAGNOSTICS = 10


def report_markdown(report: Report, clock_line: str | None = None) -> str:
    """Return a report as Markdown: verdict, clocks, causes of idle time, stages, findings, diagnostics."""
    verdict, explanation = report.verdict, report.explanation
    if verdict is None or explanation is None:
        return f"{localized(bubble_sentence(report))}\n"
    is_unknown = report.bubble.fraction is None
    blocks = [
        f"**{_plain(localized(str(verdict).strip()))}**",
        "\n".join(_understood(report)),
        *([_plain(localized(clock_line))] if clock_line else []),
        localized(
            bubble_sentence(report)
            if is_unknown
            else f"{bubble_sentence(report)} {denominator_sentence(report)}"
        ),
        localized(f"{throughput_sentence(report)} {memory_sentence(report)}".strip()),
        "\n".join(_causes(explanation)),
        localized(unrecorded_text(explanation.lost_time)),
        "\n".join(_stages(explanation)),
        "\n".join(_collectives(report)),
        "\n".join(_kernels(report)),
        "\n".join(f"* {_plain(localized(finding))}" for finding in verdict.findings),
        "\n".join(_diagnostics(report)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _understood(report: Report) -> Iterator[str]:
    found = understood(report.timeline)
    if found is not None:
        yield from _table(("understood as", ""), found.rows, has_numbers=False)


def _causes(explanation: Explanation) -> Iterator[str]:
    lost = explanation.lost_time
    if lost is None:
        return
    rows = [ledger_cells(*row) for row in ledger_rows(lost)]
    (total, *figures) = rows.pop()
    head = (CAUSE_HEADS[lost.basis], f"of the {lost.basis}", per_rank_text(lost))
    yield from _table(head, [*rows, (f"**{localized(total)}**", *figures)])


def _stages(explanation: Explanation) -> Iterator[str]:
    work = explanation.stage_work
    if work.is_empty():
        return
    has_weight = bool((work["weight_ns"] != 0).any())
    times = ("forward_ns", "backward_ns", "weight_ns")[: 3 if has_weight else 2]
    rows = [
        (
            str(row["stage"]),
            *(time_text(row[name]) for name in times),
            versus_others_text(row["work_to_others"]),
        )
        for row in work.head(MOST_STAGES).to_dicts()
    ]
    names = ("forward", "backward", "weight gradient")[: len(times)]
    yield from _table(("stage, per micro-batch", *names, "work vs. others"), rows)
    if work.height > MOST_STAGES:
        hidden = work.height - MOST_STAGES
        yield "\n" + localized(f"{counted(hidden, 'stage')} {'is' if hidden == 1 else 'are'} not shown.")


def _collectives(report: Report) -> Iterator[str]:
    rows = kind_cells(report)
    if rows:
        yield from _table(KIND_HEADS, rows)
        yield f"\n{_plain(localized(collectives_sentence(report)))}"


def _kernels(report: Report) -> Iterator[str]:
    rows = kernel_cells(report)
    if rows:
        yield from _table(KERNEL_HEADS, rows)


def _diagnostics(report: Report) -> Iterator[str]:
    shown = report.diagnostics[:MOST_DIAGNOSTICS]
    for each in shown:
        yield f"* {_plain(localized(f'{each.severity}: {each.message}'))}" + (
            f" ({each.count})" if each.count > 1 else ""
        )
    if len(shown) < len(report.diagnostics):
        yield localized(f"* {len(report.diagnostics) - len(shown)} more")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, has_numbers: bool = True) -> Iterator[str]:
    """Yield a table; numbers, in all columns after the first, are aligned to the right."""
    yield f"| {' | '.join(localized_list(head))} |"
    yield f"| --- |{(' ---: |' if has_numbers else ' --- |') * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(_plain(localized(cell)) for cell in row)} |"


def _plain(text: str) -> str:
    """Return text without Markdown or HTML: names of machines and files may contain anything."""
    return printable(text.replace("\n", " ")).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
