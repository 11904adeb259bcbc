"""Remove changes of the rate of CLOCK_MONOTONIC with the readings of CLOCK_MONOTONIC_RAW.

Time synchronization slews the monotonic clock: ntpd by up to 500 ppm, chrony by up to 10 %. All processes of a clock
read the same two clocks, so their readings are combined into one curve: by how much the monotonic clock is ahead of a
clock of constant rate. It is linear between changes of the rate, and a change between two readings is where the lines
before and after it meet. The clock of constant rate has the typical rate of the monotonic clock, which is disciplined
by time servers, and the reading of the monotonic clock at the first reading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stagescope.ingest.recording.readings import readings_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.record import format as fmt
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

BIN_NS = 100_000_000
"""Of readings that are closer together, the narrowest counts: rates between close ones would be noise."""

NARROW = 4.0
"""Readings this many times as wide as the median were interrupted and are not used."""

NOISE = 2.0
"""A line through readings is wrong by up to half of their width, and the point where two lines meet by more."""

FLAT_NS = 5_000.0
"""Timestamps are left as they are if the clock never certainly deviates by more from one of constant rate."""

PLAUSIBLE_RATE = 1e-4
"""A typical rate farther from the hardware's is itself a slew: oscillators are within 100 ppm."""

SLEW_PPM = 50.0
"""Changes of the rate from here on are reported."""


@dataclass(frozen=True)
class Slew:
    """By how much a clock is ahead of one of constant rate: linear between the moments `at_ns`.

    `error_ns` is the largest error of that at any timestamp, under the assumption that the rate changes at most once
    between two readings where the rates around them agree with that. `rates` are the least and the greatest rate.
    """

    at_ns: Ints
    ahead_ns: Floats
    error_ns: float
    rates: tuple[float, float]

    def removed(self, timestamps_ns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return timestamps on the clock of constant rate; unknown ones stay unknown."""
        since_ns = (timestamps_ns - self.at_ns[0]).astype(float)
        ahead_ns = np.interp(since_ns, (self.at_ns - self.at_ns[0]).astype(float), self.ahead_ns)
        return np.where(
            timestamps_ns == fmt.NONE, fmt.NONE, timestamps_ns - np.rint(ahead_ns).astype(np.int64)
        )


def find_slews(processes: Sequence[Process]) -> tuple[dict[str, Slew], list[Diagnostic]]:
    """Return the slew of each clock that is not of constant rate, and diagnostics that name those that were slewed.

    Clocks without readings of the raw clock are taken to be of constant rate.
    """
    slews = {}
    of_clock: dict[str, list[Process]] = {}
    for process in processes:
        of_clock.setdefault(process.clock, []).append(process)
    for clock, own in of_clock.items():
        # Not the extent of the recordings: a process begins long before its first span and its first reading.
        extents = [process.facts.extent_ns for process in own if process.facts.extent_ns is not None]
        if not extents:
            continue
        extent_ns = min(first for first, _ in extents), max(last for _, last in extents)
        slew = slew_of(np.concatenate([readings_of(each.contents, "raw_anchors") for each in own]), extent_ns)
        if slew is not None:
            slews[clock] = slew
    return slews, list(_notes(processes, slews))


def rate_errors_of(slews: Mapping[str, Slew]) -> dict[str, int]:
    """Return the error of removing the slew of each clock."""
    return {clock: int(np.ceil(slew.error_ns)) for clock, slew in slews.items()}


def without_slew(process: Process, slews: Mapping[str, Slew]) -> Process:
    """Return a recording without changes of the rate of its clock."""
    slew = slews.get(process.clock)
    return process if slew is None else replace(process, contents=_converted(process.contents, slew))


def slew_of(readings: npt.NDArray[np.void], extent_ns: tuple[int, int]) -> Slew | None:
    """Return by how much a clock is ahead of one of constant rate, over the whole extent of its timestamps.

    Returns None if its rate is constant, or not known from at least two readings.
    """
    readings = _thinned(readings)
    if len(readings) <= 1:
        return None
    monotonic_ns, raw_ns = readings["monotonic_ns"].astype(np.int64), readings["raw_ns"].astype(np.int64)
    gap_ns = np.diff(monotonic_ns).astype(float)
    rate = gap_ns / np.diff(raw_ns)
    usual = _weighted_median(rate, gap_ns)
    scale = usual if abs(usual - 1) <= PLAUSIBLE_RATE else 1.0
    since_ns = (monotonic_ns - monotonic_ns[0]).astype(float)
    raw_since_ns = (raw_ns - raw_ns[0]).astype(float)
    ahead_ns = since_ns - scale * raw_since_ns
    widths_ns = readings["width_ns"].astype(float)
    overall = since_ns[-1] / raw_since_ns[-1]
    is_plausible = abs(overall - 1) <= PLAUSIBLE_RATE
    if _is_flat(ahead_ns, widths_ns) or (
        is_plausible and _is_flat(since_ns - overall * raw_since_ns, widths_ns)
    ):
        return None
    corners = _with_corners(since_ns, ahead_ns, widths_ns)
    first_ns, last_ns = (float(end - monotonic_ns[0]) for end in extent_ns)
    corners = _extended(corners, first_ns, last_ns)
    at_ns = np.rint(corners.since_ns).astype(np.int64) + monotonic_ns[0]
    return Slew(
        at_ns, corners.ahead_ns, corners.error_ns + NOISE * float(readings["width_ns"].max()), corners.rates
    )


def _is_flat(ahead_ns: Floats, widths_ns: Floats) -> bool:
    """Return whether no reading certainly deviates: one that was interrupted is off by up to half of its width."""
    return bool((np.abs(ahead_ns) - (widths_ns + widths_ns[0]) / 2).max() <= FLAT_NS)


def _thinned(readings: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return undisturbed readings in order of time, the narrowest of each `BIN_NS`."""
    if not len(readings):
        return readings
    readings = readings[readings["width_ns"] <= NARROW * max(1.0, float(np.median(readings["width_ns"])))]
    order = np.lexsort((readings["width_ns"], readings["monotonic_ns"] // BIN_NS))
    readings = readings[order]
    readings = readings[np.unique(readings["monotonic_ns"] // BIN_NS, return_index=True)[1]]
    # Two bins may still hold neighbors at their common border.
    apart = np.concatenate([[True], np.diff(readings["monotonic_ns"]) >= BIN_NS // 2])
    readings = readings[apart]
    forward: npt.NDArray[np.void] = readings[np.concatenate([[True], np.diff(readings["raw_ns"]) > 0])]
    return forward


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


class _Corners(NamedTuple):
    since_ns: Floats
    ahead_ns: Floats
    error_ns: float
    rates: tuple[float, float]


def _with_corners(since_ns: Floats, ahead_ns: Floats, width_ns: Floats) -> _Corners:
    """Return the readings with the changes of the rate between them, and the largest error between two readings.

    The rate is steady where two successive intervals have the same. A single interval between steady rates, with a
    rate in between, has one change, where the lines before and after it meet. In other intervals the rate may have
    been any, and the error is how much the clock gained or lost there.
    """
    gap_ns = np.diff(since_ns)
    rate = np.diff(ahead_ns) / gap_ns
    noise = (width_ns[:-1] + width_ns[1:]) / 2 / gap_ns
    same = np.abs(np.diff(rate)) <= noise[:-1] + noise[1:]
    steady = np.append(same, [False]) | np.append([False], same)
    if not steady.any():
        return _Corners(
            since_ns, ahead_ns, float((np.ptp(rate) * gap_ns).max()), (float(rate.min()), float(rate.max()))
        )
    place = np.arange(len(rate))
    last = np.maximum.accumulate(np.where(steady, place, -1))
    after = np.minimum.accumulate(np.where(steady, place, len(rate))[::-1])[::-1]
    last, after = np.where(last < 0, after, last), np.where(after == len(rate), last, after)
    low, high = np.minimum(rate[last], rate[after]), np.maximum(rate[last], rate[after])
    is_change = ~steady & (after - last == 2) & (rate > low) & (rate < high)  # noqa: PLR2004  # one interval between
    largest = np.maximum(np.abs(rate - low), np.abs(rate - high)) * gap_ns
    error_ns = float(largest[~steady & ~is_change].max(initial=0.0))
    inside = np.flatnonzero(is_change)
    before, behind = rate[last[inside]], rate[after[inside]]
    share_ns = (rate[inside] - behind) / (before - behind) * gap_ns[inside]
    corners_ns = np.concatenate([since_ns, since_ns[inside] + share_ns])
    values_ns = np.concatenate([ahead_ns, ahead_ns[inside] + before * share_ns])
    order = np.argsort(corners_ns, kind="stable")
    return _Corners(
        corners_ns[order], values_ns[order], error_ns, (float(rate[steady].min()), float(rate[steady].max()))
    )


def _extended(corners: _Corners, first_ns: float, last_ns: float) -> _Corners:
    """Return the corners with those of the first and the last timestamp.

    Before and after all readings, the rate may have been any of those known.
    """
    since_ns, ahead_ns, error_ns, rates = corners
    spread = rates[1] - rates[0]
    if first_ns < since_ns[0]:
        rate = (ahead_ns[1] - ahead_ns[0]) / (since_ns[1] - since_ns[0])
        error_ns = max(error_ns, spread * (since_ns[0] - first_ns))
        ahead_ns = np.append(ahead_ns[0] + rate * (first_ns - since_ns[0]), ahead_ns)
        since_ns = np.append(first_ns, since_ns)
    if last_ns > since_ns[-1]:
        rate = (ahead_ns[-1] - ahead_ns[-2]) / (since_ns[-1] - since_ns[-2])
        error_ns = max(error_ns, spread * (last_ns - since_ns[-1]))
        ahead_ns = np.append(ahead_ns, ahead_ns[-1] + rate * (last_ns - since_ns[-1]))
        since_ns = np.append(since_ns, last_ns)
    return _Corners(since_ns, ahead_ns, error_ns, rates)


def _converted(contents: Contents, slew: Slew) -> Contents:
    columns = contents.spans.arrays
    moved = {
        name: slew.removed(columns[name]) for name in ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    }
    anchors, device_anchors = contents.anchors.copy(), contents.device_anchors.copy()
    for table in (anchors, device_anchors):
        table["monotonic_ns"] = slew.removed(table["monotonic_ns"])
    counters = contents.counters.copy()
    counters["time_ns"] = slew.removed(counters["time_ns"])
    spans = replace(contents.spans, arrays={**columns, **moved})
    return replace(contents, spans=spans, anchors=anchors, device_anchors=device_anchors, counters=counters)


def _notes(processes: Sequence[Process], slews: dict[str, Slew]) -> Iterator[Diagnostic]:
    for clock, slew in slews.items():
        own = next(process for process in processes if process.clock == clock)
        low_ppm, high_ppm = (1e6 * rate for rate in slew.rates)
        if max(-low_ppm, high_ppm) < SLEW_PPM:
            continue
        text = (
            f"the clock of {own.host or clock} was slewed by {low_ppm:+,.0f} to {high_ppm:+,.0f} ppm; its timestamps "
            f"were converted to a constant rate with an error of at most {duration_text(int(slew.error_ns))}"
        )
        yield Diagnostic("info", text, own.source, code="clock.slewed")
