"""The story of an alignment as text: every machine's clock, what was found on the way, and what was not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks import clock_line
from stagescope.reports.aligned import aligned
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks import ClockReport, MachineClock, StepFound

MOST_REJECTED = 20
HEAD = ("machine", "ranks", "state", "offset", "drift", "interval", "observations", "rejected")
NOT_BOUNDED = "not bounded"


def clock_story(report: ClockReport) -> str:
    """Return everything that an alignment found: the line, a table of machines, steps, contradictions, rejections.

    Of more than 20 rejected observations those that are furthest off are shown, and a line says how many are not.
    """
    if not report.machines:
        return clock_line(report)
    parts = (
        [_printable(clock_line(report))],
        _machine_lines(report),
        list(_group_lines(report)),
        list(_step_lines(report)),
        list(_contradiction_lines(report)),
        list(_rejected_lines(report)),
        list(_meaning_lines(report)),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _machine_lines(report: ClockReport) -> list[str]:
    rows = [
        (
            _printable(machine.name),
            compact_ranges(machine.ranks),
            machine.state,
            _signed_text(machine.offset_ns),
            f"{machine.drift_ppm:+.2f} ppm",
            _interval_text(machine),
            str(machine.evidence_count),
            str(machine.rejected_count),
        )
        for machine in report.machines
    ]
    return aligned(HEAD, rows, left={0, 1, 2, 5})


def _interval_text(machine: MachineClock) -> str:
    """Return between which bounds a stamp's error lies, and for how long it is not known."""
    low_ns, high_ns = machine.error_lo_ns, machine.error_hi_ns
    if low_ns is None and high_ns is None:
        return NOT_BOUNDED
    low, high = (NOT_BOUNDED if one is None else _signed_text(one) for one in (low_ns, high_ns))
    unknown = f", for {duration_text(machine.unbounded_ns)} not at all" if machine.unbounded_ns else ""
    return f"{low} to {high}{unknown}"


def _group_lines(report: ClockReport) -> Iterator[str]:
    """Yield which machines are on one clock with each other, where not all are."""
    groups: dict[str, list[MachineClock]] = {}
    for machine in report.machines:
        groups.setdefault(machine.group, []).append(machine)
    if len(groups) <= 1:
        return
    yield "On one clock with each other, and not with the rest:"
    for members in groups.values():
        yield "  " + ", ".join(_printable(member.name) for member in members)


def _step_lines(report: ClockReport) -> Iterator[str]:
    names = {machine.clock: _printable(machine.name) for machine in report.machines}
    if report.steps:
        yield "Clocks that were set during the run, by their own stamps:"
    for step in report.steps:
        who = " or ".join(names.get(clock, _printable(clock)) for clock in step.suspects or (step.clock,))
        yield f"  {who} by {_signed_text(step.size_ns)}, {_between(step)}"


def _between(step: StepFound) -> str:
    first, last = (np.datetime_as_string(np.datetime64(ns, "ns"), "us") for ns in (step.from_ns, step.to_ns))
    return f"between {first} and {last}"


def _contradiction_lines(report: ClockReport) -> Iterator[str]:
    if report.contradictions:
        yield "Machines whose observations exclude each other; nothing of them was used:"
    for pair in report.contradictions:
        names = " and ".join(map(report.name_of, pair.clocks))
        yield f"  {_printable(names)} by {duration_text(pair.by_ns)}:"
        yield from (f"    {witness}" for witness in pair.witnesses)


def _rejected_lines(report: ClockReport) -> Iterator[str]:
    if report.rejected:
        yield "Observations that others prove false, and by how much at least:"
    for one in report.rejected[:MOST_REJECTED]:
        yield f"  {duration_text(one.by_ns)}: {one.witness}"
    if len(report.rejected) > MOST_REJECTED:
        yield f"  ... and {len(report.rejected) - MOST_REJECTED} more; --json lists them all"


def _meaning_lines(report: ClockReport) -> Iterator[str]:
    """Yield what the columns mean, and on what the intervals rest."""
    yield "offset: added to a machine's stamps, at the first of them; drift: the rate at which that changes."
    yield (
        "interval: what a stamp may still lack, at the worst moment of the run, provided that no clock drifts by more "
        f"than {report.max_ppm:g} ppm and no event comes before its cause."
    )
    if report.false_share:
        yield f"It holds with up to {100 * report.false_share:.2g} % false observations, rejected ones among them."


def _signed_text(value_ns: int) -> str:
    sign = "-" if value_ns < 0 else "+" if value_ns else ""
    return sign + duration_text(abs(value_ns))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
