"""The report as one screen of text: verdict, bubble, causes of idle time as bars, stages, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from stagescope.reports.counter_text import memory_sentence, throughput_sentence
from stagescope.reports.kernel_table import kernel_lines
from stagescope.reports.ledger_bars import ledger_bars
from stagescope.reports.stage_table import stage_lines
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import wrapped
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.printable import printable
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.analysis import Report


def report_text(
    report: Report, clock_line: str | None = None, *, width: int = 80, ascii_only: bool = False
) -> str:
    """Return the screen, no line wider than `width`; with `ascii_only` it has only ASCII characters.

    The report must have an explanation. `clock_line` describes how well the clocks were aligned. Diagnostics are not
    part of the screen.
    """
    lines = [line.rstrip() for line in _lines(report, clock_line, width, ascii_only=ascii_only)]
    text = "\n".join(set_cell_size(line, width) if cell_len(line) > width else line for line in lines)
    return text.replace("µ", "u").encode("ascii", "replace").decode() if ascii_only else text


def _lines(report: Report, clock_line: str | None, width: int, *, ascii_only: bool) -> Iterator[str]:
    verdict, explanation = report.verdict, report.explanation
    if verdict is None or explanation is None or report.ranks.is_empty():
        findings = verdict.findings if verdict else ()
        for sentence in (bubble_sentence(report), *findings):
            yield from wrapped(printable(sentence), width)
        yield from kernel_lines(report, width=width)
        return
    # What was tested is in the full report; here only if it led to nothing.
    tested = verdict.tested if explanation.improvements.is_empty() else ""
    improvement = "" if tested.startswith(verdict.improvement) else verdict.improvement
    for sentence in filter(None, (verdict.why, verdict.slowest, improvement, tested)):
        yield from wrapped(printable(sentence), width)
    yield ""
    denominator = denominator_sentence(report)
    counters = (throughput_sentence(report), memory_sentence(report))
    for sentence in (bubble_sentence(report), denominator, *counters, clock_line or ""):
        yield from wrapped(printable(sentence), width)
    for block in (
        ledger_bars(explanation.lost_time, width=width, ascii_only=ascii_only),
        stage_lines(explanation.stage_work),
        kernel_lines(report, width=width)[1:],
    ):
        if block:
            yield from ("", *block)
    if verdict.findings:
        yield ""
    for finding in verdict.findings:
        yield from wrapped(printable(finding), width, "* ", "  ")


def denominator_sentence(report: Report) -> str:
    """Return what the fractions of a report divide by."""
    lost = report.explanation.lost_time if report.explanation else None
    if lost is None or lost.basis == report.bubble.name == "window":
        return f"Fractions divide by the {report.bubble.denominator}."
    if lost.basis == report.bubble.name:
        over = counted(lost.iterations, "iteration")
        return f"The bubble and all causes divide by the {lost.denominator}, over {over}."
    bubble = f"The bubble divides by the {report.bubble.denominator}."
    over = f", over {counted(lost.iterations, 'iteration')}" if lost.basis == "iteration" else ""
    return f"{bubble} Causes divide by the {lost.denominator}{over}."


def bubble_sentence(report: Report) -> str:
    """Return one sentence: the bubble, its denominator, and the rank with the largest bubble."""
    bubble = report.bubble
    if bubble.fraction is None or report.ranks.is_empty():
        return f"The bubble is unknown: {bubble.unknown_because}."
    steps = len(bubble.steps)
    over = f"step {bubble.steps[0]}" if steps == 1 else f"{steps} steps ({compact_ranges(bubble.steps)})"
    most, fraction = max(bubble.per_rank.items(), key=lambda each: each[1])
    percent = percent_text(fraction)
    is_uniform = all(percent_text(each) == percent for each in bubble.per_rank.values())
    return (
        f"The bubble is {percent_text(bubble.fraction)} of the {bubble.whole} over {over}: "
        f"on average a rank was idle for {duration_text(bubble.idle_ns)} per step; "
        + (
            "all ranks have the same."
            if is_uniform
            else f"rank {most} has the largest bubble, {percent} of its {bubble.of_rank}."
        )
    )
