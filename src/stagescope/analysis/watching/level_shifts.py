"""Find lasting level shifts in the series of a running training, with few false alarms.

A series has one value per step: the logarithm of a time, or a fraction of the iteration. Its noise is taken to be an
AR(1) process, which includes slow drift: the value of a step resembles that of the step before. A level shift by d then
adds d to one innovation of the process, and (1 - phi) d to each later one. For each possible first step the most
likely d is a weighted sum of the innovations since, and its ratio to its standard error is compared with a threshold
(Box and Tiao 1975; Chen and Liu 1993, "level shift"). An independent series is the special case phi = 0, in which this
is the comparison of two means.

The noise is estimated from the steps before, at most `REFERENCE` of them, so that the threshold is a quantile of
Student's distribution. It is chosen for all series together: the more of them, the larger each shift must be. A single
long step is no shift: `SHORTEST` steps have to be at the new level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

REFERENCE = 200
FEWEST_REFERENCE = 30
"""Steps from which the noise is estimated: at most, and at least."""

LONGEST = 30
SHORTEST = 5
"""Steps at the new level: a shift that is not found within the longest is drift; a shorter one may be an outlier."""

HISTORY = REFERENCE + LONGEST
FALSE_ALARMS_PER_STEP = 1e-5
"""Wanted for all series together; the estimates of the noise are not exact, so the stated rate is ten times larger."""

INDEPENDENT_STARTS = 4.0
"""First steps that are tested at once resemble each other, and count as so many."""

LARGEST_MEMORY = 0.98
SURE_DEVIATIONS = 2.0
"""Drift that is taken for independent noise raises false alarms, so the memory is an upper bound: its estimate plus so
many standard errors. In a group, the median of the estimates is more certain."""

DISTANT_LAGS = (2, 4, 8)
SURE_CORRELATION = 3.0
"""Steps that are several steps apart resemble each other if their correlation exceeds so many standard errors."""

FEWEST_IN_GROUP = 8
LARGEST_DEVIATION = 4.0
"""Beyond so many standard deviations a value of the reference is an outlier and is moved there."""

LARGEST_FIRST = 10.0
TAIL = 6.0
"""The first innovation of a shift counts as so many deviations at most, or `LARGEST_DEVIATION` if a series of the
group has had an innovation beyond `TAIL`: then a single large one is no evidence."""

LEAST_RISES = 3.5
LARGEST_BLOCK = 10
"""A shift is at least so many times as large as what a block of steps usually differs from the block before it,
whatever the noise: drift with independent noise on top has a longer memory than its neighboring steps show. A block is
as long as the shift, up to the largest."""

LEAST_NOISE = 0.002
"""Noise that is assumed at least; simulated steps have none."""

DEVIATION_OF_MAD = 1.4826


class Shift(NamedTuple):
    """A change of level: the row of the series, for how many steps it has lasted, its size, and the level before.

    `score` is the most likely size relative to its error.
    """

    row: int
    length: int
    size: float
    before: float
    score: float


class _Noise(NamedTuple):
    """Level, memory and innovation deviation of each series, from how many values, and the largest innovation."""

    level: Floats
    memory: Floats
    deviation: Floats
    size: Floats
    largest: Floats


def threshold_of(count: Floats, series: int) -> Floats:
    """Return the ratio beyond which a shift exceeds the noise, for noise from `count` values and so many series."""
    rate = FALSE_ALARMS_PER_STEP / (max(series, 1) * INDEPENDENT_STARTS)
    degrees = np.maximum(count * 0.8, 4.0)  # outliers are moved, which costs some certainty
    found: Floats = -stdtrit(degrees, rate)
    return found


def find_shifts(history: Floats, groups: NDArray[np.int64], least: Floats) -> list[Shift]:
    """Return the upward shifts that the last value of each series confirms.

    `history` has one row per series and one column per step, the last step last; NaN before the first value of a series
    and where a value is unknown. `groups` numbers the groups of similar series from 0, and `least` is the smallest
    shift worth an alarm, both per series.
    """
    steps = history.shape[1]
    longest = min(LONGEST, steps - FEWEST_REFERENCE - 1)
    if longest < SHORTEST:
        return []
    noise = _noise_of(history[:, : steps - longest], groups)
    usable = noise.size >= FEWEST_REFERENCE
    away = history - noise.level[:, None]
    innovations = away[:, -longest:] - noise.memory[:, None] * away[:, -longest - 1 : -1]
    largest = np.zeros(int(groups.max(initial=0)) + 1)
    np.maximum.at(largest, groups, noise.largest)
    first = np.where(largest[groups] > TAIL, LARGEST_DEVIATION, LARGEST_FIRST)
    lengths = np.arange(1, longest + 1)
    score = _scores(innovations, noise, first, lengths)
    decisive = threshold_of(noise.size, int(usable.sum()))
    found = np.where(usable[:, None] & (score > decisive[:, None]), score, -np.inf)
    shifts = []
    for row in np.flatnonzero(np.isfinite(found).any(axis=1)):
        best = int(np.argmax(found[row]))
        length = int(lengths[best])
        if length < SHORTEST:
            continue
        block = min(length, LARGEST_BLOCK)
        before = float(np.nanmedian(history[row, -length - block : -length]))
        size = float(np.nanmedian(history[row, -block:])) - before  # small if it did not last
        usual = _usual_rise(history[row, : steps - longest][-REFERENCE:], block)
        if size >= max(least[row], LEAST_RISES * usual):
            shifts.append(Shift(int(row), length, size, before, float(found[row, best])))
    return shifts


def _noise_of(reference: Floats, groups: NDArray[np.int64]) -> _Noise:
    reference = reference[:, -REFERENCE:]
    count = np.isfinite(reference).sum(axis=1).astype(float)
    known = np.where(count[:, None] > 0, reference, 0.0)
    level = np.nanmedian(known, axis=1)
    away = full = known - level[:, None]
    usual = np.maximum(DEVIATION_OF_MAD * np.nanmedian(np.abs(away), axis=1), LEAST_NOISE)[:, None]
    away = np.clip(away, -LARGEST_DEVIATION * usual, LARGEST_DEVIATION * usual)
    likeness = _likeness(away)
    memory = _memory(likeness, count, groups)
    innovations = away[:, 1:] - memory[:, None] * away[:, :-1]
    raw = full[:, 1:] - memory[:, None] * full[:, :-1]
    pairs_known = np.maximum(np.isfinite(innovations).sum(axis=1), 1)
    deviation = np.sqrt(np.nansum(innovations**2, axis=1) / pairs_known)
    least = LEAST_NOISE * np.sqrt(1 - memory**2)
    deviation = np.maximum(deviation, least)
    reached = np.nanmax(np.abs(raw), axis=1, initial=0.0) / deviation
    return _Noise(level, memory, deviation, count, reached)


def _likeness(away: Floats) -> Floats:
    """Return the memory per series: the correlation of neighboring steps, or what distant ones show, if that is larger.

    In an AR(1) process, the correlation of steps k apart is phi to the power of k. Independent noise on top of slow
    drift reduces all correlations by the same factor, so that neighboring steps alone look like noise that is soon
    forgotten. Distant steps count if their correlation is certain.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        energy = np.nansum(away**2, axis=1)
        found: Floats = np.nan_to_num(np.nansum(away[:, 1:] * away[:, :-1], axis=1) / energy)
        count = np.isfinite(away).sum(axis=1)
        for lag in DISTANT_LAGS:
            distant = np.nan_to_num(np.nansum(away[:, lag:] * away[:, :-lag], axis=1) / energy)
            is_certain = distant > SURE_CORRELATION / np.sqrt(np.maximum(count, 1))
            found = np.where(is_certain, np.maximum(found, np.abs(distant) ** (1 / lag)), found)
    return found


def _memory(likeness: Floats, count: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return an upper bound of phi per series, from the likeness of neighboring steps."""
    count = np.maximum(count, 1.0)
    own = likeness + (1 + 4 * likeness) / count  # the estimate is too small in short series (Kendall 1954)
    error = SURE_DEVIATIONS * np.sqrt(np.maximum(1 - np.clip(own, 0, 1) ** 2, 0.02) / count)
    found = own + error
    for group in np.unique(groups):
        members = (groups == group) & (count >= FEWEST_REFERENCE)
        size = int(members.sum())
        if size >= FEWEST_IN_GROUP:
            middle = float(np.median(own[members])) + error[members] * 1.25 / np.sqrt(size)
            found[members] = np.maximum(middle, own[members] - error[members])
    return np.clip(found, 0.0, LARGEST_MEMORY)


def _scores(innovations: Floats, noise: _Noise, largest_first: Floats, lengths: NDArray[np.int64]) -> Floats:
    """Return the most likely shift that began each number of steps ago, relative to its error."""
    later = (1 - noise.memory)[:, None]
    limited, first = (
        np.nan_to_num(np.clip(innovations, -limit, limit))[:, ::-1]
        for limit in (
            (LARGEST_DEVIATION * noise.deviation)[:, None], (largest_first * noise.deviation)[:, None]
        )
    )  # fmt: skip
    sums = np.cumsum(limited, axis=1)[:, lengths - 1] - limited[:, lengths - 1]
    weighted = first[:, lengths - 1] + later * sums
    squares = 1 + (lengths - 1)[None, :] * later**2
    error = noise.deviation[:, None] * np.sqrt(squares)
    # The level is an estimate too, a median: its error is in all innovations.
    of_level = (np.pi / 2) * (1 + (lengths - 1)[None, :] * later) ** 2 / noise.size[:, None].clip(1)
    error = noise.deviation[:, None] * np.sqrt(squares + of_level)
    found: Floats = weighted / error
    return found


def _usual_rise(values: Floats, block: int) -> float:
    """Return the root mean square of the difference between a block of steps and the one before it."""
    windows = np.lib.stride_tricks.sliding_window_view(values, block)
    medians = np.median(windows, axis=1)  # NaN where a value is unknown
    rises = medians[block:] - medians[:-block]
    known = rises[np.isfinite(rises)]
    return float(np.sqrt((known**2).mean())) if len(known) else 0.0
