"""Ranks whose speed changes: slow in some steps only, or slower and slower from step to step.

With replicas, a rank is compared with the other ranks of its stage in the same step. Without, its own steps are
compared with each other, relative to how the time of all other ranks changes: a slow stage cannot be distinguished from
a slow device, but a stage does not change.

A rank is intermittent if its steps vary more than those of other ranks (F-test, over the variance that the steps of
most ranks have) and two levels describe them better than a line. It drifts if the line through its steps has a slope
that the noise of the run does not explain. What is worth naming is what it costs, see stragglers.py.

Ranks that clearly shift from one level to another (step_levels.py), such as a straggler that moves from one rank to
another, are no part of the noise. Without replicas a shift of a rank is relative to all others, which shows who shifted
only if at least half of the ranks did not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from scipy.special import fdtrc  # type: ignore[import-untyped]

from stagescope.analysis.statistics.estimates import estimate_means, rejections, some_rows
from stagescope.analysis.statistics.noise import DRIFT_DEGREES, estimate_changes, fit_noise
from stagescope.analysis.statistics.step_levels import explains, fit_levels, has_shift
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.noise import Noise
    from stagescope.analysis.statistics.peer_excess import PeerExcess

    Floats = NDArray[np.float64]

KINDS_OF_CHANGE = ("intermittent", "drifting")
ChangeType = pl.Enum(list(KINDS_OF_CHANGE))

FEWEST_STEPS = 6
FEWEST_SLOW_STEPS = 2
"""One slow step is an outlier, or jitter."""

MOST_SLOW_FRACTION = 0.5
MOST_SHIFTED_FRACTION = 0.9
"""A rank that is slow in most steps is slow. From a clear shift on, it may be slow in more steps."""

FEWEST_WITHOUT_PEERS = 4
"""Of fewer ranks, a shift of one looks like an opposite shift of the others."""

SLOW_SHARE = 1 / 3
"""The least share of a rise by which a rank is slower than its peers: those of a slow rank are not faster than it."""

LEAST_CHANGE = 0.01
LEAST_FAST_SHARE = 0.5
"""A slow device is slow in its fastest actions as well: they have to change by this share of what all do."""

CHANGING_RANKS = Table(
    "changing_ranks",
    "one rank whose speed changes during the run",
    ("extra_ns_per_step",),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("finding", ChangeType, "", "Slow in some steps, or slower and slower."),
        Column(
            "has_peers", pl.Boolean, "", "Compared with ranks of its stage; if not, with its other steps."
        ),
        Column("steps", pl.Int64, "", "Number of its steps: n."),
        Column(
            "slow_count",
            pl.Int64,
            "",
            "Of an intermittent rank, the steps in which it is slow.",
            nullable=True,
        ),
        Column("slow_steps", pl.String, "", "Which ones, such as 4-6.", nullable=True),
        Column(
            "excess_fraction",
            pl.Float64,
            "of its peers'",
            "How much longer it takes in its slow steps; of a drifting rank, in the last step.",
        ),
        Column(
            "first_fraction",
            pl.Float64,
            "of its peers'",
            "The same in the other steps, or in the first step.",
        ),
        Column(
            "extra_ns_per_step", pl.Float64, "ns", "What the slow steps add to its actions, over all steps."
        ),
        Column(
            "p_value",
            pl.Float64,
            "",
            "Probability of such a change if the rank were as steady as the others.",
        ),
    ),
)


class _Change(NamedTuple):
    """A change: its slow samples (none: it drifts), the number of all, and logarithms of the ratio to the peers.

    `first` and `last` are the levels of the other and the slow samples, or the ends of the line; `mean` is what is
    added on average.
    """

    slow: tuple[int, ...]
    steps: int
    first: float
    last: float
    mean: float


class _Rank(NamedTuple):
    """How much slower a rank is than its peers, by sample: usually, in its fastest actions, and its levels.

    `has_shift`: its levels differ, and explain it.
    """

    values: Floats
    fast: Floats
    levels: Floats
    has_shift: bool
    has_peers: bool


def find_changing_ranks(
    excess: PeerExcess, noise: Noise, sampling: Sampling, rate: float, *, has_peers: bool
) -> pl.DataFrame:
    """Return the table CHANGING_RANKS, the costliest first.

    `excess` compares ranks with those of their stage or, unless `has_peers`, with all others; `noise` is that of its
    shift, and `rate` the share of runs in which a change may be claimed by chance. Parts of steps are not enough to
    find a change.
    """
    series = excess.shift
    if sampling.parts > 1 or not len(series) or series.shape[1] < FEWEST_STEPS:
        return CHANGING_RANKS.empty()
    levels = _clear_levels(series, rate, has_peers=has_peers)
    if has_shift(levels).any():
        noise = fit_noise(series - levels, noise.series)
    p_values = np.stack([_slope_p_values(series, noise), _variance_p_values(excess, noise)])
    claimed = rejections(p_values.ravel(), rate).reshape(2, -1)
    own_ns = excess.facts["busy_ns"].to_numpy() / max(len(sampling.steps), 1)
    rows = []
    for index in np.flatnonzero(claimed.any(axis=0)):
        has_slope = bool(claimed[0, index])
        rank = _rank(series[index], excess.fast[index], levels[index], has_peers=has_peers)
        found = _describe(rank, has_slope=has_slope)
        if found is not None:
            rows.append(
                (
                    excess.facts["rank"][int(index)],
                    *_texts(found, sampling),
                    has_peers,
                    own_ns[index] * (1 - np.exp(-found.mean)),
                    float(p_values[:, index].min()),
                )
            )
    return _as_table(rows)


def _clear_levels(series: Floats, rate: float, *, has_peers: bool) -> Floats:
    """Return the levels of every rank, with one value for ranks of which no shift is clear."""
    levels = fit_levels(series, rate)
    known = np.isfinite(levels).any(axis=1)
    is_relative = known.sum() < FEWEST_WITHOUT_PEERS or has_shift(levels).sum() > known.sum() / 2
    if not has_peers and is_relative:
        return np.broadcast_to(_means(series)[:, None], series.shape)
    return levels


def _means(series: Floats) -> Floats:
    count = np.isfinite(series).sum(axis=1)
    means: Floats = np.nansum(series, axis=1) / np.maximum(count, 1)
    return means


def _as_table(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    first = ("rank", "finding", "steps", "slow_count", "slow_steps", "excess_fraction", "first_fraction")
    names = (*first, "has_peers", "extra_ns_per_step", "p_value")
    schema = {name: CHANGING_RANKS.schema[name] for name in names}
    table = pl.DataFrame(rows, schema=schema, orient="row").select(CHANGING_RANKS.names)
    return table.sort("extra_ns_per_step", "rank", descending=[True, False])


def _texts(change: _Change, sampling: Sampling) -> tuple[object, ...]:
    kind = KINDS_OF_CHANGE[0 if change.slow else 1]
    count, steps = None, None
    if change.slow:
        count, steps = len(change.slow), _steps_text(change.slow, sampling)
    return kind, change.steps, count, steps, float(np.expm1(change.last)), float(np.expm1(change.first))


def _steps_text(samples: Sequence[int], sampling: Sampling) -> str:
    """Return the steps of these samples as ranges, each of which spans the steps that were skipped in it."""
    if sampling.skipped:
        return compact_ranges(samples, names=sampling.steps)
    return compact_ranges(sampling.steps[place] for place in samples)


def _slope_p_values(series: Floats, noise: Noise) -> Floats:
    """Return the p-values of rows whose line has no slope, rising or falling."""
    changes = estimate_changes(series, noise)
    risen = replace(changes, value=np.abs(changes.value))
    return np.minimum(2 * risen.p_above(0.0), 1.0)


def _variance_p_values(excess: PeerExcess, noise: Noise) -> Floats:
    """Return the p-values of rows that vary from step to step no more than most do.

    If the actions of a rank vary more than those of its peers, so do its steps.
    """
    variance, count = (
        np.concatenate(each) for each in zip(*map(_variances, some_rows(excess.shift)), strict=True)
    )
    several = np.maximum(count, 2.0)
    wider = np.exp(2 * np.maximum(np.nan_to_num(estimate_means(excess.spread).value), 0.0))
    of_one = (1 - noise.drift_share) * (several - 1) + noise.drift_share * DRIFT_DEGREES
    expected = noise.variance * wider
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(expected > 0, variance / expected, np.where(variance > 0, np.inf, 0.0))
    p_values: Floats = np.where(
        count >= FEWEST_STEPS, fdtrc(np.maximum(of_one, 1.0), noise.degrees(several), ratio), 1.0
    )
    return p_values


def _variances(series: Floats) -> tuple[Floats, Floats]:
    """Return the variance of every series, and the number of its samples."""
    count = np.isfinite(series).sum(axis=1).astype(float)
    several = np.maximum(count, 2.0)
    centered = series - (np.nansum(series, axis=1) / several)[:, None]
    return np.nansum(centered**2, axis=1) / (several - 1), count


def _rank(values: Floats, fast: Floats, levels: Floats, *, has_peers: bool) -> _Rank:
    known = np.isfinite(values) & np.isfinite(fast)
    values, fast, levels = values[known], fast[known], levels[known]
    has_shift = bool(np.ptp(levels) > 0) and explains(values, levels)
    return _Rank(values, fast, levels, has_shift, has_peers)


def _describe(rank: _Rank, *, has_slope: bool) -> _Change | None:
    """Return how a rank changes: in two levels or on a line, whichever leaves smaller squares.

    None if the rank is not slower than its peers, or not in its fastest actions as well: then something disturbs it.
    """
    values, fast, has_peers = rank.values, rank.fast, rank.has_peers
    order = np.argsort(-(rank.levels if rank.has_shift else values), kind="stable")
    slow = _split((rank.levels if rank.has_shift else values)[order])
    parts = (order[:slow], order[slow:])
    squares = sum(((values[part] - values[part].mean()) ** 2).sum() for part in parts)
    place = np.arange(len(values), dtype=float)
    slope, start = np.polyfit(place, values, 1)
    if squares <= ((values - start - slope * place) ** 2).sum():
        return _in_two_levels(rank, *parts)
    end = start + slope * place[-1]
    fast_change = np.polyfit(place, fast, 1)[0] * place[-1]
    rise = end - start
    is_slow = max(start, end) >= abs(rise) / 2 if has_peers else rise > 0
    if not has_slope or abs(rise) < LEAST_CHANGE or not is_slow or fast_change / rise < LEAST_FAST_SHARE:
        return None
    if has_peers:
        mean = float(np.maximum(start + slope * place, 0.0).mean())
        return _Change((), len(values), start, end, mean)
    return _Change((), len(values), 0.0, rise, rise / 2)


def _split(ordered: Floats) -> int:
    """Return how many of the values, the largest first, form the upper of two levels that leave the least squares."""
    count = len(ordered)
    above = np.arange(1, count)
    sums = np.cumsum(ordered)
    between = sums[:-1] ** 2 / above + (sums[-1] - sums[:-1]) ** 2 / (count - above)
    return int(np.argmax(between)) + 1


def _in_two_levels(rank: _Rank, slow: NDArray[np.int64], usual: NDArray[np.int64]) -> _Change | None:
    values, fast = rank.values, rank.fast
    high, low = float(values[slow].mean()), float(values[usual].mean())
    rise = high - low
    is_slow = high >= rise * SLOW_SHARE if rank.has_peers else True
    most = MOST_SHIFTED_FRACTION if rank.has_shift else MOST_SLOW_FRACTION
    is_some = FEWEST_SLOW_STEPS <= len(slow) <= most * len(values)
    fast_rise = fast[slow].mean() - fast[usual].mean()
    if not (is_some and is_slow) or rise < LEAST_CHANGE or fast_rise / rise < LEAST_FAST_SHARE:
        return None
    # Relative to peers that are slow themselves in the other steps, the rise is more than what this rank adds.
    mean = (min(rise, high) if rank.has_peers else rise) * len(slow) / len(values)
    first, last = (low, high) if rank.has_peers else (0.0, rise)
    return _Change(tuple(sorted(int(each) for each in slow)), len(values), first, last, mean)
