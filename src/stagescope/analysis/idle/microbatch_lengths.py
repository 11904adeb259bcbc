"""How much longer each micro-batch is than the others, as far as it shows in all actions of its pipeline alike.

Sequences of different lengths make the actions of one micro-batch longer on every rank. Noise does not: it differs from
rank to rank. So a factor model is fitted to the logarithms of durations relative to their class (rank, stage, kind):

    log(duration / usual of its class) = weight of the class * length of the micro-batch + noise

The weights differ, because attention grows with the square of a sequence, and a stage with the loss grows less than one
without. The lengths are used only if an F-test rejects that noise alone explains them, also without the rank that
differs most in each micro-batch: one rank that is slow in some of them is no length. They are random effects, drawn
towards 0 by the ratio of the variances of noise and of lengths: where only actions of small weights are known of a
micro-batch, their noise would otherwise become a length that actions of large weights raise to a power. The correlation
of forward and backward times, which What-if analysis of stragglers (Lin et al., OSDI 2025) tests, is above 0.9 at a
spread of 2 % as well, where it costs nothing.

If the micro-batches of a run differ, so does the sum of a step from pipeline to pipeline. That is the same fit over
classes and steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from scipy.sparse.linalg import lsqr  # type: ignore[import-untyped]
from scipy.special import fdtrc  # type: ignore[import-untyped]

from stagescope.analysis.idle.usual_costs import medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

FALSE_RATE = 1e-4
FEWEST_RANKS = 2
EXACT = 1e-14
ROUNDS = 8
"""Rounds of alternating least squares; weights and lengths of planted runs change by less than 1e-4 after four."""


class Pairs(NamedTuple):
    """The cell of the second micro-batch of every value, and the share of the first one: 1 where there is no other."""

    cell: Integers
    share: Floats

    def mean(self, length: Floats, cell: Integers) -> Floats:
        """Return the mean of both lengths of every value, `cell` being those of the first ones."""
        both: Floats = self.share * length[cell] + (1 - self.share) * length[self.cell]
        return both


class Sample(NamedTuple):
    """Logarithms of durations relative to what is usual.

    `row` is the number of what has a weight, `cell` of what has a length, `rank_of_row` the rank of each row; `centers`
    is how many means the values have been reduced by. A value of an overlapped pair has the lengths of two cells.
    """

    value: Floats
    row: Integers
    cell: Integers
    rank_of_row: Integers
    centers: int
    pairs: Pairs | None = None

    @property
    def cells(self) -> int:
        """Number of cells."""
        of_pairs = -1 if self.pairs is None else int(self.pairs.cell.max(initial=-1))
        return max(int(self.cell.max(initial=-1)), of_pairs) + 1


class Fit(NamedTuple):
    """The weights of rows, 1 on average, and the ratio of the variances of noise and of lengths.

    `before` are the weights of the round before, with which the lengths were found.
    """

    weight: Floats
    before: Floats
    ratio: float


def fit_lengths(sample: Sample) -> tuple[Fit, Floats] | None:
    """Return the weights of the rows and the length of every cell, None if the lengths are not more than noise.

    Lengths need the rows of at least two ranks, or nothing would be shared by ranks.
    """
    if len(np.unique(sample.rank_of_row)) < FEWEST_RANKS:
        return None
    ratio = _noise_to_lengths(sample)
    if ratio is None or _noise_to_lengths(_without_extremes(sample)) is None:
        return None
    rows = len(sample.rank_of_row)
    weight, before, length = np.ones(rows), np.ones(rows), np.zeros(sample.cells)
    for _ in range(ROUNDS):
        before = weight
        length = _lengths(sample, before, ratio)
        known = length[sample.cell] if sample.pairs is None else sample.pairs.mean(length, sample.cell)
        weight = np.clip(_least_squares(sample.value, known, sample.row, rows), 0.0, None)
        weight /= weight.mean() or 1.0
    return Fit(weight, before, ratio), length


def lengths_of(sample: Sample, fit: Fit) -> Floats:
    """Return the length of every cell, given the weights of the rows of `sample`."""
    return _lengths(sample, fit.before, fit.ratio)


def _lengths(sample: Sample, weight: Floats, ratio: float) -> Floats:
    if sample.pairs is None:
        return _least_squares(sample.value, weight[sample.row], sample.cell, sample.cells, ratio)
    return _lengths_of_pairs(sample, sample.pairs, weight[sample.row], ratio)


def _least_squares(value: Floats, known: Floats, group: Integers, groups: int, ratio: float = 0.0) -> Floats:
    """Return the factor of each group that, times `known`, is closest to the values; `ratio` draws it towards 0."""
    above = np.bincount(group, weights=value * known, minlength=groups)
    below = np.bincount(group, weights=known * known, minlength=groups) + ratio
    found: Floats = above / np.where(below > 0, below, 1.0)
    return found


def _lengths_of_pairs(sample: Sample, pairs: Pairs, weight: Floats, ratio: float) -> Floats:
    """Return the lengths of the cells that come closest to all values, those of pairs being means of two."""
    value = np.arange(len(sample.value))
    entries = np.concatenate([weight * pairs.share, weight * (1 - pairs.share)])
    places = (np.concatenate([value, value]), np.concatenate([sample.cell, pairs.cell]))
    matrix = csr_matrix((entries, places), (len(value), sample.cells))
    # To rounding errors: the lengths of a step must not depend on which other steps are solved with it.
    found: Floats = lsqr(matrix, sample.value, damp=np.sqrt(ratio), atol=EXACT, btol=EXACT)[0]
    return found


def _without_extremes(sample: Sample) -> Sample:
    """Return the values relative to the median of their row, without those of one rank in each cell.

    It is the rank whose values differ most from 0. The median, because a rank that is slow in one micro-batch is below
    its mean in all others.
    """
    value = sample.value - medians(sample.value, sample.row, len(sample.rank_of_row))[sample.row]
    numbers, of_rank = np.unique(sample.rank_of_row, return_inverse=True)
    place, of_value = np.unique(sample.cell * len(numbers) + of_rank[sample.row], return_inverse=True)
    distance = np.abs(np.bincount(of_value, weights=value) / np.bincount(of_value))
    cell = place // len(numbers)
    ordered = np.lexsort((distance, cell))
    is_last = np.append(np.diff(cell[ordered]) > 0, True)
    is_extreme = np.zeros(len(place), dtype=np.bool_)
    is_extreme[ordered[is_last]] = True
    kept = ~is_extreme[of_value]
    return sample._replace(value=value[kept], row=sample.row[kept], cell=sample.cell[kept], pairs=None)


def _noise_to_lengths(sample: Sample) -> float | None:
    """Return the variance of the noise divided by that of the lengths, None if cells differ no more than noise does.

    An analysis of variance, with equal weights.
    """
    means = _least_squares(sample.value, np.ones(len(sample.value)), sample.cell, sample.cells)
    explained = float((means[sample.cell] ** 2).sum())
    rest = float(((sample.value - means[sample.cell]) ** 2).sum())
    used = sample.cells - sample.centers
    free = len(sample.value) - sample.cells - len(sample.rank_of_row)
    if used < 1 or free < 1 or explained <= 0:
        return None
    between, within = explained / used, rest / free
    if within > 0 and not fdtrc(used, free, between / within) < FALSE_RATE:
        return None
    return within * len(sample.value) / sample.cells / (between - within)
