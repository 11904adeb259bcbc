"""Which of the observations of two clocks are used, where there are more than the alignment needs.

Time and memory of the alignment are proportional to the observations, and hundreds of messages within a second show no
more than the shortest of them. Everything here depends on the observations of one pair of clocks alone, so that the
pairs can be thinned where they are read, before those of the whole run are known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.clocks.conflicts import find_conflicts, tight
from stagescope.clocks.evidence import coarse_offsets, evidence_of
from stagescope.clocks.grid import MAX_PPM
from stagescope.clocks.lines import Delays, fit_lines

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints

OF_RUN, LEAST_OF_PAIR, MOST_OF_PAIR = 500_000, 256, 25_000
"""Observations of all clocks together, and of one pair in one direction at least and at most, above which they are
thinned. Each takes 10 us of the alignment."""
OUTERMOST = 16
"""The first and the last observations of a pair in each direction, all of which are kept: bounds at the ends of the run
come from these, whether or not one of them is an outlier."""
ROWS_TOGETHER = 400_000
"""About so many observations of some pairs are thinned at once: they take 300 bytes each meanwhile."""
ORDER = ("source", "target", "sent_ns", "received_ns", "source_rank", "target_rank", "step", "microbatch")
TIMES = ("source", "target", "sent_ns", "received_ns")


def most_of_pair(clocks: int) -> int:
    """Return how many observations two of so many clocks need in one direction.

    >>> most_of_pair(4), most_of_pair(1_250)
    (25000, 400)
    """
    return max(LEAST_OF_PAIR, min(MOST_OF_PAIR, OF_RUN // max(1, clocks)))


def thinned(table: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the observations, of directions and kinds with more than `most` about that many.

    Their shortest delays are kept: of each group of as many successive ones the one that is the shortest above the line
    of the pair. The shortest of several exponentially distributed delays are exponentially distributed as well, so the
    estimate, which relies on that, finds the same shortest possible delay. Observations that contradict any other one
    are all kept, with those that they contradict, because they show outliers and clocks that were set. So are the
    outermost ones. Where any receiver of a pair waited, those that did not wait are omitted, which nothing uses.
    """
    if table.height <= most:
        return table
    group = _groups(table, most)
    is_dense = group >= 0
    if not is_dense.any():
        return table
    zero_ns = int(table["sent_ns"].filter(pl.Series(is_dense)).min())
    found = []
    for number in np.unique(group[is_dense]):
        own = table.filter(pl.Series(group == number)).sort(ORDER, maintain_order=True)
        found.append(own.filter(pl.Series(_chosen(own, most, zero_ns))))
    return pl.concat([table.filter(pl.Series(~is_dense)), pl.concat(found).sort(ORDER, maintain_order=True)])


def _groups(table: pl.DataFrame, most: int) -> Ints:
    """Return for each observation the group of pairs that it is thinned with, -1 if its pair has few of each kind.

    With numbers in place of columns as keys: Polars takes 150 bytes per observation for those.
    """
    kinds = sorted(table["kind"].unique())
    kind = table["kind"].replace_strict(kinds, range(len(kinds)), return_dtype=pl.Int64).to_numpy()
    source, target = (table[name].to_numpy().astype(np.int64) for name in ("source", "target"))
    clocks = int(max(source.max(), target.max())) + 1
    way, counts = np.unique((source * clocks + target) * len(kinds) + kind, return_counts=True)
    dense = np.unique(_pair_of(*np.divmod(way[counts > most] // len(kinds), clocks), clocks))
    if not len(dense):
        return np.full(table.height, -1)
    pair = _pair_of(source, target, clocks)
    place = np.minimum(np.searchsorted(dense, pair), len(dense) - 1)
    is_dense = dense[place] == pair
    last = np.bincount(place[is_dense]).cumsum()
    return np.where(is_dense, (last[place] - 1) // ROWS_TOGETHER, -1)


def _pair_of(source: Ints, target: Ints, clocks: int) -> Ints:
    """Return the same number for both directions of two clocks."""
    return np.minimum(source, target) * clocks + np.maximum(source, target)


class _Pairs(NamedTuple):
    """Observations of which each pair of clocks has two clocks of its own, and the number of the pair."""

    evidence: Evidence
    pair: Ints
    pairs: int


def _chosen(table: pl.DataFrame, most: int, zero_ns: int) -> Bools:
    """Return which observations of a table, sorted by ORDER, are kept."""
    pairs = _pairs(table, zero_ns)
    evidence = pairs.evidence
    budget = np.full(2 * pairs.pairs, MAX_PPM * 1e-6)
    conflicts = find_conflicts(evidence, budget)
    kept = np.zeros(len(evidence), bool)
    kept[conflicts.early] = kept[conflicts.late] = True
    is_tight = tight(evidence, 2 * pairs.pairs, by_channel=True)
    above_ns = _above_lines(pairs, is_tight)
    kind = table["kind"].rank("dense").to_numpy().astype(np.int64)
    way = np.unique(evidence.source * (int(kind.max()) + 1) + kind, return_inverse=True)[1]
    places = np.flatnonzero(is_tight)
    places = places[np.lexsort((evidence.sent_ns[places], way[places]))]
    first, size = _runs(way[places])
    place = np.arange(len(places)) - first
    kept[places[(place < OUTERMOST) | (place >= size - OUTERMOST)]] = True
    rest = places[~kept[places]]
    first, size = _runs(way[rest])
    group = (np.arange(len(rest)) - first) // np.maximum(1, -(-size // most))
    order = np.lexsort((above_ns[rest], group, way[rest]))
    is_first = np.ones(len(rest), bool)
    is_first[1:] = (np.diff(way[rest][order]) != 0) | (np.diff(group[order]) != 0)
    kept[rest[order[is_first]]] = True
    return kept


def _pairs(table: pl.DataFrame, zero_ns: int) -> _Pairs:
    """Return the observations in coarse time of each pair alone, which does not depend on other pairs."""
    source, target = (table[name].to_numpy().astype(np.int64) for name in ("source", "target"))
    one, other = np.minimum(source, target), np.maximum(source, target)
    found, pair = np.unique(one * (int(other.max()) + 1) + other, return_inverse=True)
    own = table.with_columns(
        source=pl.Series(2 * pair + (source > target)), target=pl.Series(2 * pair + (target > source))
    )
    in_order = own.select(*TIMES).sort("source", "target", "sent_ns", maintain_order=True)
    coarse = replace(coarse_offsets(in_order, 2 * len(found)), zero_ns=zero_ns)
    return _Pairs(evidence_of(own, coarse, np.zeros(2 * len(found))), pair, len(found))


def _above_lines(pairs: _Pairs, is_tight: Bools) -> Floats:
    """Return how far each delay is above a line that rises as fast as that under all delays of its pair."""
    evidence = pairs.evidence
    ahead = evidence.source < evidence.target
    at_ns = np.where(ahead, evidence.sent_ns, evidence.received_ns)
    sign = np.where(ahead, 1.0, -1.0)
    places = np.flatnonzero(is_tight)
    places = places[np.lexsort((at_ns[places], pairs.pair[places]))]
    delays = Delays(
        at_ns[places],
        evidence.delay_ns[places],
        sign[places],
        np.where(ahead, 0, 1)[places] + 2 * evidence.channel[places],
        np.ones(len(places)),
    )
    bounds = np.append(np.flatnonzero(np.diff(pairs.pair[places], prepend=-1)), len(places))
    rate = np.zeros(pairs.pairs)
    rate[pairs.pair[places][bounds[:-1]]] = fit_lines(delays, bounds[:-1], bounds[1:]).rate
    return np.asarray(evidence.delay_ns - sign * rate[pairs.pair] * at_ns)


def _runs(values: Ints) -> tuple[Ints, Ints]:
    """Return for each of some sorted values the place of the first equal one, and the number of equal ones."""
    _, first, run, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    return first[run], counts[run]
