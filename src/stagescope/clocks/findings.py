"""From numbers back to machines, ranks and events: the report of an alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.report import (
    ALIGNED,
    APART,
    ONE_SIDED,
    REFERENCE,
    WITHHELD,
    ClockReport,
    ContradictoryPair,
    MachineClock,
    Rejected,
    StepFound,
    Witness,
)

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Coarse, Evidence, Floats, Ints
    from stagescope.clocks.pieces import Pieces
    from stagescope.clocks.solve import Solution
    from stagescope.model import Timeline

COMMON = "recorded common clock"

METHODS = {
    "message": "messages of the run",
    "job": "order of the run's jobs",
    "reduction": "reductions of the run",
    "recorded offset": "recorded offsets",
}
"""What an observation of each kind is called where it is told how a clock was aligned."""


@dataclass(frozen=True)
class Found:
    """Everything that an alignment has come to, by the numbers of the clocks; `names` has rank and clock."""

    names: pl.DataFrame
    clocks: tuple[str, ...]
    table: pl.DataFrame
    evidence: Evidence
    solution: Solution
    coarse: Coarse
    pieces: tuple[Pieces, ...]
    stamps: tuple[Ints, ...]

    def name(self, clock: int) -> str:
        """Return a clock's name."""
        return self.clocks[clock] if clock < len(self.clocks) else COMMON


def methods_of(found: Found) -> list[str]:
    """Return for each clock what was observed of it."""
    ends = [found.table.select("kind", clock=end) for end in ("source", "target")]
    seen = {clock: set(kinds) for clock, kinds in pl.concat(ends).group_by("clock").agg("kind").iter_rows()}
    return [
        " and ".join(said for kind, said in METHODS.items() if kind in seen.get(clock, ()))
        or "nothing observed"
        for clock in range(len(found.clocks))
    ]


def describe(found: Found, timeline: Timeline, max_ppm: float) -> ClockReport:
    """Return the report: one entry per clock in the order of their ranks, and what was found on the way."""
    solution = found.solution
    return ClockReport(
        machines=_machines(found, timeline),
        steps=tuple(_step(found, number) for number in range(len(solution.blamed))),
        rejected=tuple(
            Rejected(_witness(found, row), int(by_ns))
            for row, by_ns in sorted(solution.rejected.items(), key=lambda item: -item[1])
        ),
        contradictions=tuple(
            ContradictoryPair(
                (found.name(each.one), found.name(each.other)),
                int(each.by_ns),
                tuple(_witness(found, row) for row in each.rows),
            )
            for each in solution.contradictions
        ),
        max_ppm=max_ppm,
        false_share=solution.share,
    )


def _machines(found: Found, timeline: Timeline) -> tuple[MachineClock, ...]:
    count = len(found.solution.reference)
    evidence = found.evidence
    seen = np.bincount(np.concatenate([evidence.source, evidence.target]), minlength=count)
    rejected = np.array(list(found.solution.rejected), np.int64)
    both = np.concatenate([evidence.source[rejected], evidence.target[rejected]])
    false = np.bincount(both, minlength=count)
    linked = _linked(evidence, found.solution.reference)
    machines = dict(timeline.ranks.drop_nulls("clock").select("clock", "machine").iter_rows())
    ranks = dict(found.names.group_by("clock").agg(pl.col("rank").sort()).iter_rows())
    entries = []
    for clock, name in enumerate(found.clocks):
        pieces = found.pieces[clock]
        lower, upper = _limit(-pieces.lower_ns), _limit(pieces.upper_ns)
        open_pieces = ~(np.isfinite(pieces.lower_ns) & np.isfinite(pieces.upper_ns))
        entries.append(
            MachineClock(
                name,
                machines.get(name),
                tuple(ranks[name]),
                _state(found, clock, lower, upper),
                found.name(int(found.solution.reference[clock])),
                int(pieces.offset_ns[0]),
                _mean_drift(pieces),
                None if lower is None else -lower,
                upper,
                _length_of(open_pieces, pieces, found.stamps[clock]),
                int(seen[clock]),
                int(false[clock]),
                bool(linked[clock]),
            )
        )
    return tuple(entries)


def _linked(evidence: Evidence, reference: Ints) -> Bools:
    """Return of which clocks something was observed that leads out of their group, or to the first of all."""
    one, other = reference[evidence.source], reference[evidence.target]
    outside = (one != other) | (one == reference[0])
    return np.isin(reference, np.concatenate([one[outside], other[outside]]))


def _limit(errors_ns: Floats) -> int | None:
    """Return the worst error where there is one at all."""
    finite = errors_ns[np.isfinite(errors_ns)]
    return int(np.ceil(finite.max())) if len(finite) else None


def _length_of(chosen: Bools, pieces: Pieces, stamps_ns: Ints) -> int:
    """Return for how long of a clock's stamps some pieces hold."""
    if not len(stamps_ns):
        return 0
    limits = np.clip(np.append(pieces.start_ns, stamps_ns[-1]), stamps_ns[0], stamps_ns[-1])
    limits[0] = stamps_ns[0]
    return int(np.maximum(np.diff(limits), 0)[chosen].sum())


def _state(found: Found, clock: int, lower: int | None, upper: int | None) -> str:
    reference = found.solution.reference
    if clock in found.solution.withheld:
        return WITHHELD
    if clock == reference[0] or clock == 0:
        return REFERENCE
    if lower is not None and upper is not None:
        return ALIGNED
    if lower is not None or upper is not None:
        return ONE_SIDED
    return APART


def _mean_drift(pieces: Pieces) -> float:
    if len(pieces.start_ns) <= 1:
        return 0.0
    lengths = np.diff(pieces.start_ns)
    return float(np.average(pieces.rate[:-1], weights=np.maximum(lengths, 1))) * 1e6


def _step(found: Found, number: int) -> StepFound:
    cuts = found.solution.blamed[number].cuts
    cut = cuts[0]
    zero_ns = found.coarse.zero_ns + int(found.coarse.offset_ns[cut.clock])
    unsure = [int(found.solution.reference[each.clock]) for each in cuts if each.or_reference]
    return StepFound(
        found.name(cut.clock),
        int(cut.from_ns) + zero_ns,
        int(cut.to_ns) + zero_ns,
        round(_size(found, number)),
        tuple(found.name(clock) for clock in (*(each.clock for each in cuts), *unsure)),
    )


def _size(found: Found, number: int) -> float:
    """Return by how much the clock was set: the jump of its correction, the other way round."""
    cut = found.solution.blamed[number].cuts[0]
    frame = found.solution.frame
    whole = np.flatnonzero(frame.segment[:, cut.clock] >= 0)
    before = whole[frame.knots_ns[whole] <= cut.from_ns]
    after = whole[frame.knots_ns[whole] >= cut.to_ns]
    if not len(before) or not len(after):
        return cut.size_ns
    x_ns = found.solution.x_ns[:, cut.clock]
    return float(x_ns[before[-1]] - x_ns[after[0]])


def _witness(found: Found, row: int) -> Witness:
    fields = found.table.row(row, named=True)
    del fields["waited"]
    return Witness(
        **fields | {"source": found.name(fields["source"]), "target": found.name(fields["target"])}
    )
