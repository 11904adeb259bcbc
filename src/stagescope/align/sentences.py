"""The alignment in words: one line for reports, and the rows of diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.align.report import APART, ONE_SIDED, REFERENCE, WITHHELD
from stagescope.timeline.diagnostics import Diagnostic
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.align.report import ClockReport, MachineClock

MOST_NAMES = 5


def clock_line(report: ClockReport) -> str:
    """Return one line about the clocks: how many, how far stamps can be off, steps, and who is left out."""
    if not report.machines:
        return "All stamps are of one clock."
    left_out = report.left_out
    count = len(report.machines)
    if len(left_out) >= count - 1:
        return f"{count} machines could not be brought to one clock: {_why(left_out)}."
    parts = [f"{count - len(left_out)} machines on one clock"]
    if report.worst_error_ns is not None:
        parts.append(f"no stamp off by more than {duration_text(report.worst_error_ns)}{_but_for(report)}")
    if report.steps:
        which = _some([f"{' or '.join(step.suspects)} by {_signed(step.size_ns)}" for step in report.steps])
        parts.append(f"{_counted(len(report.steps), 'clock step')} found ({which})")
    if report.rejected:
        parts.append(f"{_counted(len(report.rejected), 'observation')} proved false")
    if left_out:
        parts.append(f"not placed: {_why(left_out)}")
    return "; ".join(parts) + "."


def _but_for(report: ClockReport) -> str:
    """Return of which machines, and for how long, even that is not known."""
    some = report.open_somewhere
    if not some:
        return ""
    longest = duration_text(max(machine.unbounded_ns for machine in some))
    return f", but for up to {longest} of {_some([_name(machine) for machine in some])}, where nothing tells"


def _name(machine: MachineClock) -> str:
    return machine.machine or machine.clock


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _why(machines: Iterable[MachineClock]) -> str:
    words = {
        APART: "nothing joins them to the others",
        ONE_SIDED: "only one side is bounded",
        WITHHELD: "their evidence contradicts itself",
        REFERENCE: "nobody tells whether it was set",
    }
    by_state: dict[str, list[str]] = {}
    for machine in machines:
        by_state.setdefault(machine.state, []).append(_name(machine))
    return ", ".join(
        f"{_some(names)} ({words.get(state, 'not bounded throughout')})" for state, names in by_state.items()
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def diagnostics_of(report: ClockReport) -> Iterator[Diagnostic]:
    """Yield what users must know of the clocks: info where all is well, warnings where it is not."""
    severity = "warning" if report.left_out or report.open_somewhere else "info"
    yield Diagnostic(severity, clock_line(report).rstrip("."), count=len(report.machines))
    for pair in report.contradictions:
        witnesses = " and ".join(map(str, pair.witnesses))
        text = (
            f"the clocks of {pair.clocks[0]} and {pair.clocks[1]} contradict each other by "
            f"{duration_text(pair.by_ns)} and were not compared: {witnesses}"
        )
        yield Diagnostic("warning", text)
    for step in report.steps:
        who = " or ".join(step.suspects) if len(step.suspects) > 1 else step.clock
        yield Diagnostic("warning", f"a clock was set by {_signed(step.size_ns)} during the run: {who}")
    if report.rejected:
        worst = report.rejected[0]
        text = f"stamps that others prove false were left out, by {duration_text(worst.by_ns)} at most: {worst.witness}"
        yield Diagnostic("warning", text, count=len(report.rejected))


def _signed(size_ns: int) -> str:
    return f"{'-' if size_ns < 0 else '+'}{duration_text(abs(size_ns))}"
