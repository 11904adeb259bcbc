"""Observations on clocks of constant rate: as recorded, or without changes of the rate that the observations show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.conflicts import find_conflicts
from stagescope.clocks.evidence import coarse_offsets, evidence_of
from stagescope.clocks.rate_changes import rate_changes
from stagescope.clocks.slews import break_zones, find_slews
from stagescope.clocks.solution import references
from stagescope.clocks.steadiness import unsteady_clocks

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Coarse, Evidence, Floats
    from stagescope.clocks.grid import Adjustment
    from stagescope.clocks.rates import Corner, RateChanges
    from stagescope.clocks.slews import Slew

MOST_LEFT = 0.25
"""A change of a rate that is larger than this fraction of a removed one, and is left, shows that it was removed from
the wrong clock."""

MOST_JUDGED = 20_000_000
"""Observations that are judged in all attempts together to remove slews: a run of thousands of machines has as many
slews to choose from, and each attempt takes as long as the rest of the alignment."""


@dataclass(frozen=True)
class Prepared:
    """The observations in coarse time, and what was removed from their timestamps.

    `slews` are by the number of the clock, and `zones` are the stretches around their changes. `unsteady` are the
    clocks of pairs whose rates still change, or of which it is unknown: a clock drifts faster than the bounds allow.
    `corners` are the moments at which the delays of a pair change their course without an explanation.
    """

    evidence: Evidence
    coarse: Coarse
    slews: dict[int, Slew] = field(default_factory=dict)
    zones: tuple[Adjustment, ...] = ()
    unsteady: frozenset[int] = frozenset()
    corners: tuple[Corner, ...] = ()

    def shown(self, clock: int, moments_ns: tuple[float, ...]) -> tuple[int, ...]:
        """Return the raw timestamps of a clock at moments in coarse time."""
        zero_ns = self.coarse.zero_ns + int(self.coarse.offset_ns[clock])
        raw_ns = np.array([int(moment_ns) for moment_ns in moments_ns]) + zero_ns
        return tuple((self.slews[clock].shown(raw_ns) if clock in self.slews else raw_ns).tolist())


def prepare(table: pl.DataFrame, error_ns: Floats, max_ppm: float) -> Prepared:
    """Return the observations of a table in coarse time, without slews where these explain them better.

    `error_ns` is how far timestamps of each clock may be from a clock that drifts steadily. The slew of a clock is not
    assumed if the observations contradict each other more without it, with clocks that drift by up to `max_ppm`, or if
    rates change then that were constant.
    """
    clocks = len(error_ns)
    coarse = coarse_offsets(table, clocks)
    plain = Prepared(evidence_of(table, coarse, error_ns), coarse)
    rates = rate_changes(plain.evidence, clocks)
    slews = find_slews(plain.evidence, coarse, references(plain.evidence, clocks), rates)
    if not slews:
        return _judged(plain, rates, max_ppm)

    budget = np.full(clocks, max_ppm * 1e-6)
    before = len(find_conflicts(plain.evidence, budget))
    every = [dict(slews)] + [{c: slews[c] for c in slews if c != clock} for clock in slews if len(slews) > 1]
    # If one was attributed to the wrong clock, the others may be right.
    every += [{clock: slews[clock]} for clock in slews if len(slews) > 2]  # noqa: PLR2004  # not yet tried
    for chosen in every[: 1 + MOST_JUDGED // max(1, len(plain.evidence))]:
        found = _without(chosen, plain, table, error_ns)
        if len(find_conflicts(found.evidence, budget)) <= before and not _is_left(found):
            return _judged(found, rate_changes(found.evidence, clocks), max_ppm)
    return _judged(plain, rates, max_ppm)


def _judged(found: Prepared, rates: RateChanges, max_ppm: float) -> Prepared:
    """Return the observations with what the rates of the pairs show after slews were removed."""
    if not len(found.evidence):
        return found
    unsteady = unsteady_clocks(found.evidence, rates, found.slews.keys(), found.zones, max_ppm)
    return replace(found, unsteady=unsteady, corners=tuple(rates.corners))


def _is_left(found: Prepared) -> bool:
    """Return whether the pairs of a clock still change their rates by much of what was removed from the clock."""
    removed = {clock: max(abs(each.size) for each in slew.breaks) for clock, slew in found.slews.items()}
    clocks = int(max(found.evidence.source.max(), found.evidence.target.max())) + 1
    changes = rate_changes(found.evidence, clocks).changes
    return any(
        abs(change.size_of(clock)) > MOST_LEFT * removed[clock]
        for change in changes
        for clock in {change.one, change.other} & set(removed)
    )


def _without(slews: dict[int, Slew], plain: Prepared, table: pl.DataFrame, error_ns: Floats) -> Prepared:
    """Return the observations without these slews."""
    if not slews:
        return plain
    steady = table.with_columns(
        sent_ns=_removed(table, "source", "sent_ns", slews),
        received_ns=_removed(table, "target", "received_ns", slews),
    )
    after = coarse_offsets(steady, len(error_ns))
    return Prepared(
        evidence_of(steady, after, error_ns), after, slews, break_zones(slews, plain.coarse, after)
    )


def _removed(table: pl.DataFrame, end: str, name: str, slews: dict[int, Slew]) -> pl.Series:
    clock, moved_ns = table[end].to_numpy(), table[name].to_numpy().copy()
    for number, slew in slews.items():
        own = np.flatnonzero(clock == number)
        moved_ns[own] = slew.removed(moved_ns[own])
    return pl.Series(name, moved_ns)
