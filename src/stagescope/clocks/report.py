"""The report of an alignment: machines, clock adjustments, outliers and inconsistent pairs, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REFERENCE, ALIGNED, ONE_SIDED, UNALIGNED, INCONSISTENT = (
    "reference",
    "aligned",
    "one-sided",
    "unaligned",
    "inconsistent",
)
STATES = (REFERENCE, ALIGNED, ONE_SIDED, UNALIGNED, INCONSISTENT)


@dataclass(frozen=True)
class MachineClock:
    """How one clock was aligned.

    `state` is one of STATES: reference (of its group), aligned (error bounded on both sides), one-sided (bounded on one
    side), unaligned (no bound towards the common clock), inconsistent (its observations contradict each other and
    were not used). `group` names the reference of the clocks that are aligned to one another. `has_link` is true where
    some observation connects that group to the common clock; if the clock is unaligned all the same, the observations
    were too few or inconsistent.

    `offset_ns` was added to the clock's first timestamp, and `drift_ppm` is the mean rate at which it changes.
    `error_lo_ns` and `error_hi_ns` are the guaranteed bound at the worst moment of the run, None where that side is
    never bounded. 99 % of all errors are smaller than `estimated_error_ns`, under the assumptions of docs/clocks.md, at
    the worst moment for which there is an estimate; None for references and without an estimate. `unbounded_ns` is for
    how long a side is not bounded, for instance because the clock may have been set without being noticed.
    `is_steady` is false in a group in which a clock drifts faster than the bounds allow, so that nothing is bounded.
    """

    clock: str
    machine: str | None
    ranks: tuple[int, ...]
    state: str
    group: str
    offset_ns: int
    drift_ppm: float
    error_lo_ns: int | None
    error_hi_ns: int | None
    unbounded_ns: int
    observation_count: int
    outlier_count: int
    has_link: bool = False
    estimated_error_ns: int | None = None
    is_steady: bool = True

    @property
    def name(self) -> str:
        """The machine, or the clock where no machine is known."""
        return self.machine or self.clock

    @property
    def is_aligned(self) -> bool:
        """Whether both sides are bounded, for a part of the run at least."""
        return self.error_lo_ns is not None and self.error_hi_ns is not None


@dataclass(frozen=True)
class ClockAdjustment:
    """A clock that was set by `size_ns` (positive: forward) between two of its own timestamps.

    `candidates` are all clocks that may have been set, where the observations cannot distinguish them.
    """

    clock: str
    from_ns: int
    to_ns: int
    size_ns: int
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class SlewedClock:
    """A clock that ran faster by `rate_ppm` than usual between two of its own timestamps, and gained `gained_ns`.

    Both are negative if it ran slower. These changes of its rate were removed from its timestamps. `candidates` are all
    clocks that may have been slewed, where the observations cannot distinguish them.
    """

    clock: str
    from_ns: int
    to_ns: int
    rate_ppm: float
    gained_ns: int
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Observation:
    """Two events on two clocks, of which the source's cannot have been later than the target's."""

    kind: str
    source: str
    target: str
    source_rank: int
    target_rank: int
    step: int | None
    microbatch: int | None
    sent_ns: int
    received_ns: int

    def __str__(self) -> str:
        where = "" if self.step is None else f" in step {self.step}"
        which = "" if self.microbatch is None else f" of micro-batch {self.microbatch}"
        return f"{self.kind}{which}{where} from rank {self.source_rank} to rank {self.target_rank}"


@dataclass(frozen=True)
class Outlier:
    """An observation whose timestamps are inconsistent with the others, and wrong by at least `error_ns`."""

    observation: Observation
    error_ns: int


@dataclass(frozen=True)
class InconsistentPair:
    """Two clocks whose observations contradict each other by `conflict_ns`; none of them was used."""

    clocks: tuple[str, str]
    conflict_ns: int
    observations: tuple[Observation, ...]


@dataclass(frozen=True)
class ExitSkew:
    """How far apart the ranks of a group leave its collectives or gradient reductions, by which clocks are aligned.

    Standard deviations: `scatter_ns` of the difference of two ranks from call to call, and `constant_ns` of what is the
    same in all calls, for one rank; `latest_ns` is that of the rank of which it may be the most. `is_assumed` states
    that only one clock ever entered last, so that nothing shows `constant_ns`: it follows from the duration of the
    shortest call.
    """

    group: str
    clock_count: int
    call_count: int
    scatter_ns: int
    constant_ns: int
    latest_ns: int
    is_assumed: bool


@dataclass(frozen=True)
class ClockReport:
    """Everything that one alignment found. `max_ppm` is the drift that the guaranteed bounds allow for.

    The bounds hold as long as no more than `tolerated_outlier_fraction` of the observations are wrong without having
    been detected; it is 0 where no outlier was found.
    """

    machines: tuple[MachineClock, ...]
    adjustments: tuple[ClockAdjustment, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    inconsistent_pairs: tuple[InconsistentPair, ...] = ()
    max_ppm: float = 0.0
    tolerated_outlier_fraction: float = 0.0
    slews: tuple[SlewedClock, ...] = ()
    exits: tuple[ExitSkew, ...] = ()

    def name_of(self, clock: str) -> str:
        """Return the name of the machine that has a clock."""
        return next((machine.name for machine in self.machines if machine.clock == clock), clock)

    @property
    def unaligned(self) -> tuple[MachineClock, ...]:
        """The machines that are not on the common clock with a bound on both sides."""
        return tuple(machine for machine in self.machines if not machine.is_aligned)

    @property
    def partly_bounded(self) -> tuple[MachineClock, ...]:
        """The machines on the common clock whose error is not bounded for a part of the run."""
        return tuple(machine for machine in self.machines if machine.is_aligned and machine.unbounded_ns)

    @property
    def worst_error_ns(self) -> int | None:
        """The largest guaranteed bound of a timestamp of an aligned machine; None where no two were aligned."""
        known = [
            max(-machine.error_lo_ns, machine.error_hi_ns)
            for machine in self.machines
            if machine.error_lo_ns is not None and machine.error_hi_ns is not None
        ]
        return max(known) if len(known) > 1 else None

    @property
    def estimated_error_ns(self) -> int | None:
        """The largest estimated error of an aligned machine; None if it is unknown for any of them."""
        errors_ns = [machine.estimated_error_ns for machine in self.machines if machine.state == ALIGNED]
        known = [error_ns for error_ns in errors_ns if error_ns is not None]
        return max(known) if known and len(known) == len(errors_ns) else None


def report_json(report: ClockReport) -> dict[str, Any]:
    """Return the report as plain data for json.dumps.

    Keys: machines, adjustments, slews, exits, outliers and inconsistent_pairs (lists of objects with the fields of
    MachineClock, ClockAdjustment, SlewedClock, ExitSkew, Outlier and InconsistentPair), max_ppm,
    tolerated_outlier_fraction, worst_error_ns (null where no two machines were aligned), estimated_error_ns (null
    without an estimate) and unaligned (a list of clocks). A run with a single clock has no machines.
    """
    fields = {name: _plain(value) for name, value in asdict(report).items()}
    unaligned = [machine.clock for machine in report.unaligned]
    errors_ns = {"worst_error_ns": report.worst_error_ns, "estimated_error_ns": report.estimated_error_ns}
    return {**fields, **errors_ns, "unaligned": unaligned}


def report_from_json(data: Mapping[str, Any]) -> ClockReport:
    """Return the report that `report_json` made plain data of. Raises TypeError and KeyError for anything else."""
    outliers = [Outlier(Observation(**each["observation"]), each["error_ns"]) for each in data["outliers"]]
    pairs = [
        InconsistentPair(
            (each["clocks"][0], each["clocks"][1]),
            each["conflict_ns"],
            tuple(Observation(**one) for one in each["observations"]),
        )
        for each in data["inconsistent_pairs"]
    ]
    return ClockReport(
        machines=tuple(MachineClock(**{**each, "ranks": tuple(each["ranks"])}) for each in data["machines"]),
        adjustments=tuple(ClockAdjustment(**_with_candidates(each)) for each in data["adjustments"]),
        outliers=tuple(outliers),
        inconsistent_pairs=tuple(pairs),
        max_ppm=data["max_ppm"],
        tolerated_outlier_fraction=data["tolerated_outlier_fraction"],
        slews=tuple(SlewedClock(**_with_candidates(each)) for each in data["slews"]),
        exits=tuple(
            ExitSkew(**each) for each in data.get("exits", ())
        ),  # runs stored by earlier versions have none
    )


def _with_candidates(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "candidates": tuple(fields["candidates"])}


def _plain(value: object) -> object:
    """Return tuples as lists, so that the result equals what json.loads returns."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
