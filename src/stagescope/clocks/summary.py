"""Makes the report of an alignment: from numbers of clocks back to machines, ranks and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.report import (
    ALIGNED,
    INCONSISTENT,
    ONE_SIDED,
    REFERENCE,
    UNALIGNED,
    ClockAdjustment,
    ClockReport,
    ExitSkew,
    InconsistentPair,
    MachineClock,
    Observation,
    Outlier,
    SlewedClock,
)
from stagescope.clocks.steadiness import unsteady_groups
from stagescope.model.clock_groups import machines_of_clocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks.correction import Correction
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.prepared import Prepared
    from stagescope.clocks.solution import Contradiction, Solution
    from stagescope.model import Timeline

COMMON = "recorded common clock"
"""The name of the clock that recorded offsets refer to."""

METHODS = {
    "message": "messages",
    "action": "order of actions",
    "collective": "collectives",
    "reduction": "gradient reductions",
    "recorded offset": "recorded offsets",
}
"""The kinds of observations in words, for the column `method` of the clocks table."""


@dataclass(frozen=True)
class AlignmentResult:
    """All results of an alignment, by the number of each clock; `names` has the columns rank and clock.

    `exits` has one row per group of collectives (EXITS_SCHEMA).
    """

    names: pl.DataFrame
    clocks: tuple[str, ...]
    table: pl.DataFrame
    prepared: Prepared
    solution: Solution
    corrections: tuple[Correction, ...]
    timestamps: tuple[Ints, ...]
    exits: pl.DataFrame

    def name(self, clock: int) -> str:
        """Return the name of a clock."""
        return self.clocks[clock] if clock < len(self.clocks) else COMMON


def methods_of(found: AlignmentResult) -> list[str]:
    """Return for each clock the kinds of observations that it has."""
    ends = [found.table.select("kind", clock=end).unique() for end in ("source", "target")]
    seen = {clock: set(kinds) for clock, kinds in pl.concat(ends).group_by("clock").agg("kind").iter_rows()}
    return [
        " and ".join(label for kind, label in METHODS.items() if kind in seen.get(clock, ()))
        or "no observations"
        for clock in range(len(found.clocks))
    ]


def summarize(found: AlignmentResult, timeline: Timeline, max_ppm: float) -> ClockReport:
    """Return the report, with one entry per clock in the order of their ranks."""
    solution = found.solution
    outliers = sorted(solution.rejected.items(), key=lambda item: -item[1])
    return ClockReport(
        machines=_machines(found, timeline),
        adjustments=tuple(_adjustment(found, number) for number in range(len(solution.attributed))),
        outliers=tuple(Outlier(_observation(found, row), int(error_ns)) for row, error_ns in outliers),
        inconsistent_pairs=tuple(_inconsistent_pair(found, pair) for pair in solution.contradictions),
        max_ppm=max_ppm,
        tolerated_outlier_fraction=solution.outlier_fraction,
        slews=tuple(_slews(found)),
        exits=tuple(ExitSkew(**row) for row in found.exits.iter_rows(named=True)),
    )


def _slews(found: AlignmentResult) -> Iterator[SlewedClock]:
    """Yield one entry for each stretch in which a clock ran at another rate than usual."""
    for clock, slew in found.prepared.slews.items():
        last_ns = found.timestamps[clock][-1] if len(found.timestamps[clock]) else slew.at_ns[-1]
        ends_ns = np.append(slew.at_ns[1:], max(int(last_ns), int(slew.at_ns[-1])))
        is_unsure = any(each.may_be_reference for each in slew.breaks)
        candidates = (clock, int(found.solution.reference[clock])) if is_unsure else (clock,)
        for from_ns, to_ns, rate in zip(
            slew.at_ns.tolist(), ends_ns.tolist(), slew.rate.tolist(), strict=True
        ):
            if rate:
                names = tuple(map(found.name, candidates))
                gained_ns = round(rate * (to_ns - from_ns))
                yield SlewedClock(found.name(clock), from_ns, to_ns, 1e6 * rate, gained_ns, names)


def _inconsistent_pair(found: AlignmentResult, pair: Contradiction) -> InconsistentPair:
    return InconsistentPair(
        (found.name(pair.one), found.name(pair.other)),
        int(pair.conflict_ns),
        tuple(_observation(found, row) for row in pair.rows),
    )


def _machines(found: AlignmentResult, timeline: Timeline) -> tuple[MachineClock, ...]:
    count = len(found.solution.reference)
    evidence = found.prepared.evidence
    seen = np.bincount(np.concatenate([evidence.source, evidence.target]), minlength=count)
    rejected = np.array(list(found.solution.rejected), np.int64)
    both = np.concatenate([evidence.source[rejected], evidence.target[rejected]])
    outliers = np.bincount(both, minlength=count)
    linked = _linked(evidence, found.solution.reference)
    machines = machines_of_clocks(timeline.ranks)
    unsteady = unsteady_groups(found.prepared, found.solution)
    ranks = dict(found.names.group_by("clock").agg(pl.col("rank").sort()).iter_rows())
    entries = []
    for clock, name in enumerate(found.clocks):
        correction = found.corrections[clock]
        lower, upper = _limit(-correction.lower_ns), _limit(correction.upper_ns)
        open_pieces = ~(np.isfinite(correction.lower_ns) & np.isfinite(correction.upper_ns))
        entries.append(
            MachineClock(
                name,
                machines.get(name),
                tuple(ranks[name]),
                _state(found, clock, lower, upper),
                found.name(int(found.solution.reference[clock])),
                int(correction.offset_ns[0]),
                _mean_drift(correction),
                None if lower is None else -lower,
                upper,
                _length_of(open_pieces, correction, found.timestamps[clock]),
                int(seen[clock]),
                int(outliers[clock]),
                bool(linked[clock]),
                _limit(correction.estimated_ns),
                is_steady=not unsteady[clock],
            )
        )
    return tuple(entries)


def _linked(evidence: Evidence, reference: Ints) -> Bools:
    """Return which clocks have observations that lead out of their group, or belong to the group of the first clock."""
    one, other = reference[evidence.source], reference[evidence.target]
    outside = (one != other) | (one == reference[0])
    return np.isin(reference, np.concatenate([one[outside], other[outside]]))


def _limit(errors_ns: Floats) -> int | None:
    """Return the worst finite error, None without one."""
    finite = errors_ns[np.isfinite(errors_ns)]
    return int(np.ceil(finite.max())) if len(finite) else None


def _length_of(chosen: Bools, correction: Correction, timestamps_ns: Ints) -> int:
    """Return how much of the time between a clock's first and last timestamp the chosen pieces cover."""
    if not len(timestamps_ns):
        return 0
    limits = np.clip(np.append(correction.start_ns, timestamps_ns[-1]), timestamps_ns[0], timestamps_ns[-1])
    limits[0] = timestamps_ns[0]
    return int(np.maximum(np.diff(limits), 0)[chosen].sum())


def _state(found: AlignmentResult, clock: int, lower: int | None, upper: int | None) -> str:
    reference = found.solution.reference
    if clock in found.solution.withheld:
        return INCONSISTENT
    if clock == reference[0] or clock == 0:
        return REFERENCE
    if lower is not None and upper is not None:
        return ALIGNED
    if lower is not None or upper is not None:
        return ONE_SIDED
    return UNALIGNED


def _mean_drift(correction: Correction) -> float:
    if len(correction.start_ns) <= 1:
        return 0.0
    lengths = np.diff(correction.start_ns)
    return float(np.average(correction.rate[:-1], weights=np.maximum(lengths, 1))) * 1e6


def _adjustment(found: AlignmentResult, number: int) -> ClockAdjustment:
    adjustments = found.solution.attributed[number].adjustments
    adjustment = adjustments[0]
    unsure = [int(found.solution.reference[each.clock]) for each in adjustments if each.may_be_reference]
    from_ns, to_ns = found.prepared.shown(adjustment.clock, (adjustment.from_ns, adjustment.to_ns))
    return ClockAdjustment(
        found.name(adjustment.clock),
        from_ns,
        to_ns,
        round(_size(found, number)),
        tuple(found.name(clock) for clock in (*(each.clock for each in adjustments), *unsure)),
    )


def _size(found: AlignmentResult, number: int) -> float:
    """Return by how much the clock was set: the break of its correction with the sign reversed."""
    adjustment = found.solution.attributed[number].adjustments[0]
    grid = found.solution.grid
    whole = np.flatnonzero(grid.segment[:, adjustment.clock] >= 0)
    before = whole[grid.knots_ns[whole] <= adjustment.from_ns]
    after = whole[grid.knots_ns[whole] >= adjustment.to_ns]
    if not len(before) or not len(after):
        return adjustment.size_ns
    x_ns = found.solution.x_ns[:, adjustment.clock]
    return float(x_ns[before[-1]] - x_ns[after[0]])


def _observation(found: AlignmentResult, row: int) -> Observation:
    fields = found.table.row(row, named=True)
    for name in ("waited", "stay_ns", "by_exit", *OF_EXITS):
        del fields[name]
    return Observation(
        **fields | {"source": found.name(fields["source"]), "target": found.name(fields["target"])}
    )
