"""The alignment in words: one line for reports, and the rows of diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.clocks.report import INCONSISTENT, ONE_SIDED, REFERENCE, UNALIGNED
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from stagescope.clocks.report import ClockAdjustment, ClockReport, MachineClock, SlewedClock

MOST_NAMES = 5


def clock_line(report: ClockReport) -> str:
    """Return one line: how many machines are aligned, the bound, clock adjustments, outliers, unaligned machines."""
    if not report.machines:
        return "All timestamps come from one clock."
    unaligned = report.unaligned
    count = len(report.machines)
    if len(unaligned) >= count - 1:
        return f"Clocks of {count} machines could not be aligned: {_reasons(report)}."
    parts = [f"Clocks of {count - len(unaligned)} machines aligned"]
    if report.worst_error_ns is not None:
        parts.append(f"maximum error{_errors(report)}{_exception(report)}")
    if report.adjustments:
        each = [f"{candidates_text(report, one)} by {_signed(one.size_ns)}" for one in report.adjustments]
        parts.append(f"{counted(len(report.adjustments), 'clock adjustment')} detected ({_listed(each)})")
    if report.slews:
        names = list(dict.fromkeys(candidates_text(report, each) for each in report.slews))
        parts.append(f"{counted(len(names), 'slewed clock')} corrected ({_listed(names)})")
    if report.outliers:
        parts.append(f"{counted(len(report.outliers), 'inconsistent observation')} excluded")
    if unaligned:
        parts.append(f"not aligned: {_reasons(report)}")
    return "; ".join(parts) + "."


def _errors(report: ClockReport) -> str:
    bound = duration_text(report.worst_error_ns or 0)
    if report.estimated_error_ns is None:
        return f" {bound}"
    return f" estimated {duration_text(report.estimated_error_ns)}, guaranteed {bound}"


def _exception(report: ClockReport) -> str:
    """Return which machines have no bound for a part of the run, and for how long at most."""
    machines = report.partly_bounded
    if not machines:
        return ""
    longest = duration_text(max(machine.unbounded_ns for machine in machines))
    return f" (not bounded for up to {longest} on {_listed([machine.name for machine in machines])})"


def candidates_text(report: ClockReport, change: ClockAdjustment | SlewedClock) -> str:
    """Return the machines whose clock may have been set or slewed."""
    return " or ".join(report.name_of(clock) for clock in change.candidates or (change.clock,))


def _reasons(report: ClockReport) -> str:
    """Return the machines that are not aligned, grouped by reason."""
    disputed = {clock for pair in report.inconsistent_pairs for clock in pair.clocks}
    disputed = {machine.group for machine in report.machines if machine.clock in disputed}
    by_reason: dict[str, list[str]] = {}
    for machine in report.unaligned:
        by_reason.setdefault(_reason(machine, disputed), []).append(machine.name)
    return ", ".join(f"{_listed(names)} ({reason})" for reason, names in by_reason.items())


def _reason(machine: MachineClock, disputed: set[str]) -> str:
    if not machine.is_steady:
        return "a clock runs at a rate that changes, or faster than oscillators drift"
    by_state = {
        ONE_SIDED: "messages go one way only, so the offset is bounded on one side",
        INCONSISTENT: "inconsistent observations",
        REFERENCE: "its own clock may have been set",
    }
    if machine.state != UNALIGNED:
        return by_state.get(machine.state, "not bounded throughout the run")
    if machine.group in disputed:
        return "inconsistent observations between it and the other machines"
    return (
        "too few consistent observations" if machine.has_link else "no messages to or from the other machines"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def diagnostics_of(report: ClockReport) -> Iterator[Diagnostic]:
    """Yield the summary (a warning where a bound is missing), inconsistent pairs, adjustments, slews and outliers."""
    summary = clock_line(report).rstrip(".")
    if report.unaligned:
        yield Diagnostic("warning", summary, count=len(report.machines), code="clock.unaligned")
    else:
        severity = "warning" if report.partly_bounded else "info"
        yield Diagnostic(severity, summary, count=len(report.machines), code="clock.aligned")
    for pair in report.inconsistent_pairs:
        observations = " and ".join(map(str, pair.observations))
        text = (
            f"the clocks of {' and '.join(map(report.name_of, pair.clocks))} were not compared: their observations "
            f"contradict each other by {duration_text(pair.conflict_ns)} ({observations})"
        )
        yield Diagnostic("warning", text, code="clock.inconsistent")
    for adjustment in report.adjustments:
        machines = candidates_text(report, adjustment)
        text = f"the clock of {machines} was set by {_signed(adjustment.size_ns)} during the run"
        yield Diagnostic("warning", text, code="clock.adjusted")
    for slew in report.slews:
        faster = "faster" if slew.rate_ppm > 0 else "slower"
        text = (
            f"the clock of {candidates_text(report, slew)} ran {faster} by {abs(slew.rate_ppm):,.0f} ppm for "
            f"{duration_text(slew.to_ns - slew.from_ns)}, which the delays of messages show; this was removed from its "
            "timestamps"
        )
        yield Diagnostic("info", text, code="clock.slewed")
    if report.outliers:
        worst = report.outliers[0]
        text = (
            "observations with inconsistent timestamps were excluded from clock alignment; the worst is off by "
            f"at least {duration_text(worst.error_ns)}: {worst.observation}"
        )
        yield Diagnostic("warning", text, count=len(report.outliers), code="clock.outliers")


def mismatch_notes(mismatched: pl.DataFrame) -> Iterator[Diagnostic]:
    """Yield one diagnostic per reason why groups of collectives were not used; columns group and reason."""
    for reason, groups in mismatched.group_by("reason", maintain_order=True).agg("group").iter_rows():
        text = f"collectives of {_listed(groups)} were not used for clock alignment: {reason}"
        yield Diagnostic("warning", text, count=len(groups), code="clock.collectives")


def _signed(size_ns: int) -> str:
    return f"{'-' if size_ns < 0 else '+'}{duration_text(abs(size_ns))}"
