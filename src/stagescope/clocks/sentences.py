"""The alignment in words: one line for reports, and the rows of diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.clocks.report import APART, ONE_SIDED, REFERENCE, WITHHELD
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks.report import ClockReport, MachineClock, StepFound

MOST_NAMES = 5


def clock_line(report: ClockReport) -> str:
    """Return one line about the clocks: how many, how far stamps can be off, steps, and who is left out."""
    if not report.machines:
        return "All stamps are of one clock."
    left_out = report.left_out
    count = len(report.machines)
    if len(left_out) >= count - 1:
        return f"{count} machines could not be brought to one clock: {_why(report)}."
    parts = [f"{count - len(left_out)} machines on one clock"]
    if report.worst_error_ns is not None:
        parts.append(f"no stamp off by more than {duration_text(report.worst_error_ns)}{_but_for(report)}")
    if report.steps:
        which = _some([f"{_suspects(report, step)} by {_signed(step.size_ns)}" for step in report.steps])
        parts.append(f"{_counted(len(report.steps), 'clock step')} found ({which})")
    if report.rejected:
        parts.append(f"{_counted(len(report.rejected), 'observation')} proved false")
    if left_out:
        parts.append(f"not placed: {_why(report)}")
    return "; ".join(parts) + "."


def _but_for(report: ClockReport) -> str:
    """Return of which machines, and for how long, even that is not known."""
    some = report.open_somewhere
    if not some:
        return ""
    longest = duration_text(max(machine.unbounded_ns for machine in some))
    return f", but for up to {longest} of {_some([machine.name for machine in some])}, where nothing tells"


def _suspects(report: ClockReport, step: StepFound) -> str:
    return " or ".join(report.name_of(clock) for clock in step.suspects or (step.clock,))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _why(report: ClockReport) -> str:
    """Return the machines that are left out, by the reason."""
    disputed = {clock for pair in report.contradictions for clock in pair.clocks}
    disputed = {machine.group for machine in report.machines if machine.clock in disputed}
    by_reason: dict[str, list[str]] = {}
    for machine in report.left_out:
        by_reason.setdefault(_reason(machine, disputed), []).append(machine.name)
    return ", ".join(f"{_some(names)} ({reason})" for reason, names in by_reason.items())


def _reason(machine: MachineClock, disputed: set[str]) -> str:
    words = {
        ONE_SIDED: "only one side is bounded",
        WITHHELD: "their evidence contradicts itself",
        REFERENCE: "nobody tells whether it was set",
    }
    if machine.state != APART:
        return words.get(machine.state, "not bounded throughout")
    if machine.group in disputed:
        return "what was observed between them and the others contradicts itself"
    return (
        "too few observations bear each other out" if machine.linked else "nothing joins them to the others"
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
            f"the clocks of {' and '.join(map(report.name_of, pair.clocks))} contradict each other by "
            f"{duration_text(pair.by_ns)} and were not compared: {witnesses}"
        )
        yield Diagnostic("warning", text)
    for step in report.steps:
        who = _suspects(report, step)
        yield Diagnostic("warning", f"a clock was set by {_signed(step.size_ns)} during the run: {who}")
    if report.rejected:
        worst = report.rejected[0]
        text = f"stamps that others prove false were left out, by {duration_text(worst.by_ns)} at most: {worst.witness}"
        yield Diagnostic("warning", text, count=len(report.rejected))


def _signed(size_ns: int) -> str:
    return f"{'-' if size_ns < 0 else '+'}{duration_text(abs(size_ns))}"
