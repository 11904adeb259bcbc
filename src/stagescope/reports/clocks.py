"""The report of clock alignment as text: machines, clock adjustments, inconsistent machines and outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks import EXIT_NS, candidates_text, clock_line
from stagescope.reports.aligned import aligned
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import Foreign, localized, localized_list
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks import ClockAdjustment, ClockReport, MachineClock, SlewedClock

MOST_OUTLIERS, MOST_EXITS = 20, 10
HEAD = ("machine", "ranks", "state", "offset", "drift", "guaranteed bound", "observations", "outliers")
ESTIMATED = "estimated error"
NOT_BOUNDED = "not bounded"


def clocks_text(report: ClockReport) -> str:
    """Return the summary line, a table of machines, and paragraphs for everything that was found.

    At most 20 outliers are listed, the largest errors first, followed by the number of the others.
    """
    if not report.machines:
        return localized(clock_line(report))
    parts = (
        [printable(clock_line(report))],
        _machine_lines(report),
        list(_group_lines(report)),
        list(_adjustment_lines(report)),
        list(_slew_lines(report)),
        list(_exit_lines(report)),
        list(_inconsistency_lines(report)),
        list(_outlier_lines(report)),
        list(_meaning_lines(report)),
    )
    return "\n\n".join("\n".join(localized_list(lines)) for lines in parts if lines)


def _machine_lines(report: ClockReport) -> list[str]:
    rows = [
        (
            Foreign(printable(machine.name)),
            compact_ranges(machine.ranks),
            machine.state,
            _signed_text(machine.offset_ns),
            f"{machine.drift_ppm:+.2f} ppm",
            _bound_text(machine),
            str(machine.observation_count),
            str(machine.outlier_count),
        )
        for machine in report.machines
    ]
    if all(machine.estimated_error_ns is None for machine in report.machines):
        return aligned(HEAD, rows, left={0, 1, 2, 5})
    estimated = [_estimated_text(machine) for machine in report.machines]
    wider = [(*row[:5], text, *row[5:]) for row, text in zip(rows, estimated, strict=True)]
    return aligned((*HEAD[:5], ESTIMATED, *HEAD[5:]), wider, left={0, 1, 2, 6})


def _estimated_text(machine: MachineClock) -> str:
    if machine.estimated_error_ns is None:
        return "-"
    return duration_text(machine.estimated_error_ns)


def _bound_text(machine: MachineClock) -> str:
    """Return the guaranteed bound of a timestamp's error, and for how much of the run there is none."""
    low_ns, high_ns = machine.error_lo_ns, machine.error_hi_ns
    if low_ns is None and high_ns is None:
        return NOT_BOUNDED
    low, high = (NOT_BOUNDED if one is None else _signed_text(one) for one in (low_ns, high_ns))
    unbounded = f" ({NOT_BOUNDED} for {duration_text(machine.unbounded_ns)})" if machine.unbounded_ns else ""
    return f"{low} to {high}{unbounded}"


def _group_lines(report: ClockReport) -> Iterator[str]:
    """Yield the groups of machines that are aligned to each other, where there are several."""
    groups: dict[str, list[MachineClock]] = {}
    for machine in report.machines:
        groups.setdefault(machine.group, []).append(machine)
    if len(groups) <= 1:
        return
    yield "Machines aligned to each other, but not to the other groups:"
    for members in groups.values():
        yield Foreign("  " + ", ".join(printable(member.name) for member in members))


def _adjustment_lines(report: ClockReport) -> Iterator[str]:
    if report.adjustments:
        yield "Clocks that were set during the run, in the time of the clock itself:"
    for adjustment in report.adjustments:
        machines = printable(candidates_text(report, adjustment))
        yield f"  {machines} by {_signed_text(adjustment.size_ns)}, {_between(adjustment)}"


def _slew_lines(report: ClockReport) -> Iterator[str]:
    if report.slews:
        yield "Clocks that ran at another rate for a while, which was removed from their timestamps:"
    for slew in report.slews:
        machines = printable(candidates_text(report, slew))
        yield f"  {machines} at {slew.rate_ppm:+,.1f} ppm ({_signed_text(slew.gained_ns)}), {_between(slew)}"


def _exit_lines(report: ClockReport) -> Iterator[str]:
    """Yield the groups whose ranks do not leave collectives at about the same time, the farthest apart first."""
    apart = [each for each in report.exits if max(each.scatter_ns, each.latest_ns) > EXIT_NS]
    apart.sort(key=lambda each: (-max(each.scatter_ns, each.latest_ns), each.group))
    if apart:
        yield "How far apart ranks leave collectives (standard deviations), part of the estimated error:"
    for each in apart[:MOST_EXITS]:
        scatter, constant = duration_text(each.scatter_ns), duration_text(each.latest_ns)
        assumed = " (assumed: only one machine ever enters last)" if each.is_assumed else ""
        yield f"  {printable(each.group)}: {scatter} from call to call, up to {constant} constant{assumed}"
    if len(apart) > MOST_EXITS:
        yield f"  ... and {len(apart) - MOST_EXITS} more (use --json to list all)"


def _between(change: ClockAdjustment | SlewedClock) -> str:
    ends_ns = (change.from_ns, change.to_ns)
    first, last = (np.datetime_as_string(np.datetime64(ns, "ns"), "us") for ns in ends_ns)
    return f"between {first} and {last}"


def _inconsistency_lines(report: ClockReport) -> Iterator[str]:
    if report.inconsistent_pairs:
        yield "Machines that were not compared because their observations contradict each other:"
    for pair in report.inconsistent_pairs:
        names = " and ".join(map(report.name_of, pair.clocks))
        yield f"  {printable(names)} by {duration_text(pair.conflict_ns)}:"
        yield from (f"    {observation}" for observation in pair.observations)


def _outlier_lines(report: ClockReport) -> Iterator[str]:
    if report.outliers:
        yield "Observations excluded because their timestamps are inconsistent, with the least possible error:"
    for outlier in report.outliers[:MOST_OUTLIERS]:
        yield f"  {duration_text(outlier.error_ns)}: {outlier.observation}"
    if len(report.outliers) > MOST_OUTLIERS:
        yield f"  ... and {len(report.outliers) - MOST_OUTLIERS} more (use --json to list all)"


def _meaning_lines(report: ClockReport) -> Iterator[str]:
    """Yield the meaning of the columns and the assumptions of the bounds."""
    yield "offset: added to a machine's first timestamp; drift: the rate at which the offset changes."
    if any(machine.estimated_error_ns is not None for machine in report.machines):
        yield (
            "estimated error: 99 % of all errors are smaller if the shortest delays are about equal in both "
            "directions; -: no estimate."
        )
    yield (
        "guaranteed bound: remaining error of a timestamp at the worst moment of the run, assuming that clocks drift "
        f"by at most {report.max_ppm:g} ppm and no effect precedes its cause."
    )
    if report.tolerated_outlier_fraction:
        percent = 100 * report.tolerated_outlier_fraction
        yield f"It also holds if up to {percent:.2g} % of the observations are undetected outliers."


def _signed_text(value_ns: int) -> str:
    sign = "-" if value_ns < 0 else "+" if value_ns else ""
    return sign + duration_text(abs(value_ns))
