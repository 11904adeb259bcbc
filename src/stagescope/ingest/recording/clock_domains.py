"""Which recordings share a clock, and the names of the machines that carry it.

Processes share CLOCK_MONOTONIC if they run on one boot in one time namespace. Containers that were restored from a
checkpoint run in a namespace of their own, with the same boot id. Recordings of version 1 do not state the namespace,
and its number can be used again, so the anchors are compared as well: at one moment all processes of a clock see the
same difference between wall clock and monotonic clock, even if the wall clock is set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.ingest.recording.readings import count_of_readings, readings_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.number_ranges import ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process

FIRST_NAMESPACE = "time:[4026531834]"
"""The namespace of every process that was not started in another one: PROC_TIME_INIT_INO of Linux."""

TOLERANCE_NS = 1_000_000
"""How far two anchors of one clock may differ beyond the widths of their readings."""

MAX_SLEW = 1e-3
"""How fast the wall clock may drift from the monotonic clock without being set: twice the limit of adjtimex(2)."""


@dataclass
class _Domain:
    """Recordings that share a clock, with all their anchors in order of time."""

    processes: list[Process]
    at_ns: npt.NDArray[np.int64]
    offset_ns: npt.NDArray[np.int64]
    width_ns: npt.NDArray[np.int64]

    def add(self, own: _Domain) -> None:
        """Add a recording that shares the clock."""
        self.processes += own.processes
        at_ns = np.concatenate([self.at_ns, own.at_ns])
        order = np.argsort(at_ns, kind="stable")
        self.at_ns = at_ns[order]
        self.offset_ns = np.concatenate([self.offset_ns, own.offset_ns])[order]
        self.width_ns = np.concatenate([self.width_ns, own.width_ns])[order]


def assign_clocks(processes: Sequence[Process]) -> tuple[list[Process], list[Diagnostic]]:
    """Return the recordings with the names of their clocks, and a warning per boot whose anchors contradict."""
    of_boot: dict[str, list[Process]] = {}
    for process in processes:
        of_boot.setdefault(_name(process), []).append(process)
    named: list[Process] = []
    notes: list[Diagnostic] = []
    for name, of_name in of_boot.items():  # one after the other: only the anchors of one are in memory
        domains = _domains(of_name)
        notes += _contradictions(domains)
        for number, domain in enumerate(domains, 1):
            clock = name if number == 1 else f"{name}/{number}"
            named += [replace(process, clock=clock) for process in domain.processes]
    return sorted(named, key=lambda process: process.rank), notes


def _domains(processes: Iterable[Process]) -> list[_Domain]:
    """Return which recordings of one boot share a clock."""
    domains: list[_Domain] = []
    for process in processes:
        own = _domain(process)
        domain = next((domain for domain in domains if _share_clock(domain, own)), None)
        if domain is None:
            domains.append(own)
        else:
            domain.add(own)
    return domains


def machine_names(processes: Iterable[Process]) -> dict[tuple[str, str | None], str]:
    """Return a distinct name for each clock and host: the host, and what distinguishes equal hosts."""
    places = list(dict.fromkeys((process.clock, process.host) for process in processes))
    names = {place: place[1] or place[0] for place in places}
    clocks_of: dict[str, list[str]] = {}
    for (clock, _), name in names.items():
        clocks_of.setdefault(name, []).append(clock)
    return {
        (clock, host): f"{name} ({_distinction(clock, clocks_of[name])})"
        if len(clocks_of[name]) > 1
        else name
        for (clock, host), name in names.items()
    }


def _distinction(clock: str, clocks: Sequence[str]) -> str:
    """Return what distinguishes a clock from others: the beginning of its boot id, or else its position."""
    boots = [other[:8] for other in clocks]
    return clock[:8] if len(set(boots)) == len(boots) else f"clock {clocks.index(clock) + 1}"


def _name(process: Process) -> str:
    header = process.contents.header
    namespace = header.get("time_namespace") or FIRST_NAMESPACE
    inner = "" if namespace == FIRST_NAMESPACE else f"/{namespace}"
    return f"{header.get('boot') or process.host or process.source}/{header.get('clock', 'unknown')}{inner}"


def _domain(process: Process) -> _Domain:
    anchors = readings_of(process.contents, "anchors")
    # Sorting them by a field takes 20 times as long as sorting the field.
    anchors = anchors[np.lexsort([anchors[name] for name in ("width_ns", "realtime_ns", "monotonic_ns")])]
    at_ns = anchors["monotonic_ns"].astype(np.int64)
    return _Domain([process], at_ns, anchors["realtime_ns"] - at_ns, anchors["width_ns"].astype(np.int64))


def _share_clock(domain: _Domain, own: _Domain) -> bool:
    """Return whether nothing shows that one recording, `own`, is on another clock than those of a domain."""
    if not len(own.at_ns) or not len(domain.at_ns):
        return True
    outside = np.concatenate([_outside(domain, own), _outside(own, domain)])
    if len(outside):
        return bool(2 * outside.sum() <= len(outside))  # a single anchor may be read while the clock is set
    return not _are_apart(domain, own)


def _outside(domain: _Domain, other: _Domain) -> npt.NDArray[np.bool_]:
    """Return for each anchor of `other` between two of `domain` whether its offset is outside of theirs.

    The wall clock may have been set between the two, before or after the anchor.
    """
    position = np.searchsorted(domain.at_ns, other.at_ns)
    inside = (position > 0) & (position < len(domain.at_ns))
    before, after = position[inside] - 1, position[inside]
    low = np.minimum(domain.offset_ns[before], domain.offset_ns[after])
    high = np.maximum(domain.offset_ns[before], domain.offset_ns[after])
    widths = domain.width_ns[before] + domain.width_ns[after] + other.width_ns[inside]
    offset_ns, margin_ns = other.offset_ns[inside], TOLERANCE_NS + widths
    result: npt.NDArray[np.bool_] = (offset_ns < low - margin_ns) | (offset_ns > high + margin_ns)
    return result


def _are_apart(domain: _Domain, own: _Domain) -> bool:
    """Return whether anchors at different times show different clocks.

    The wall clock may have been set in between, unless the recordings are simultaneous on the one clock and not on the
    other.
    """
    ends = [(one, other) for one in (0, -1) for other in (0, -1)]
    gaps_ns = [abs(int(domain.at_ns[one]) - int(own.at_ns[other])) for one, other in ends]
    gap_ns = min(gaps_ns)
    one, other = ends[gaps_ns.index(gap_ns)]
    margin_ns = TOLERANCE_NS + int(domain.width_ns[one]) + int(own.width_ns[other]) + MAX_SLEW * gap_ns
    if abs(int(domain.offset_ns[one]) - int(own.offset_ns[other])) <= margin_ns:
        return False
    [process] = own.processes
    return any(
        _overlap(process.extent_ns, member.extent_ns)
        or _overlap(process.wall_extent_ns, member.wall_extent_ns)
        for member in domain.processes
    )


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _contradictions(domains: Sequence[_Domain]) -> Iterator[Diagnostic]:
    first = domains[0]
    for other in domains[1:]:
        difference_ns = abs(int(other.processes[0].offset_ns) - int(first.processes[0].offset_ns))
        text = (
            f"the clock of {_ranks(other)} differs by {duration_text(difference_ns)} from that of {_ranks(first)} "
            "although both state the same boot, as in another time namespace: they are taken as two clocks"
        )
        source = other.processes[0].source
        yield Diagnostic("warning", text, source, count=len(other.processes), code="clock.namespaces")


def _ranks(domain: _Domain) -> str:
    ranks = sorted({process.rank for process in domain.processes})
    return ranks_text(ranks)


def rows_of_clocks(processes: Sequence[Process], machines: dict[str, str | None]) -> list[dict[str, Any]]:
    """Return one row of the table `clocks` per clock, with its offset to the wall clock from the tightest anchor.

    Within one clock the error is that of the devices' clocks, 0 if all times are host times.
    """
    rows = []
    of_clock: dict[str, list[Contents]] = {}
    for process in processes:
        of_clock.setdefault(process.clock, []).append(process.contents)
    is_alone = len(of_clock) == 1
    error_ns = 0
    if is_alone:
        errors = (readings_of(process.contents, "device_anchors")["error_ns"] for process in processes)
        error_ns = max(int(own.max(initial=0)) for own in errors)
    for clock, own in of_clock.items():
        anchors = np.concatenate([contents.anchors for contents in own])
        # The reading between the closest two readings has the smallest error.
        best = anchors[anchors["width_ns"].argmin()] if len(anchors) else None
        rows.append(
            {
                "clock": clock,
                "machine": machines.get(clock),
                "offset_ns": int(best["realtime_ns"] - best["monotonic_ns"]) if best is not None else 0,
                "error_lo_ns": -error_ns if is_alone else None,
                "error_hi_ns": error_ns if is_alone else None,
                "observation_count": sum(count_of_readings(contents, "anchors") for contents in own),
                "method": "one clock" if is_alone else "wall clock",
            }
        )
    return rows
