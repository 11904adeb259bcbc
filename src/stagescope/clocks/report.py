"""What alignment found, for people and programs: machines, steps, what was not believed, what contradicts itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

REFERENCE, ALIGNED, ONE_SIDED, APART, WITHHELD = "reference", "aligned", "one-sided", "apart", "withheld"
STATES = (REFERENCE, ALIGNED, ONE_SIDED, APART, WITHHELD)


@dataclass(frozen=True)
class MachineClock:
    """One clock. `error_lo_ns` and `error_hi_ns` are the worst over the run; None: nothing ever bounds that side.

    `unbounded_ns` is for how long of the run a side is not bounded, as where a clock may have been set unseen.

    state: reference (of its group), aligned (bounded from both sides), one-sided, apart (nothing joins it to the
    common clock), withheld (its evidence contradicts itself). `group` is the reference of the clocks that are
    aligned to one another. `linked` tells whether anything was observed between them and the rest: of a clock that
    is apart nevertheless it was too little, or contradicted itself. `offset_ns` and `drift_ppm` are what was added
    to its stamps: at their beginning, and the mean rate of that.
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
    evidence_count: int
    rejected_count: int
    linked: bool = False

    @property
    def name(self) -> str:
        """What people call it: the machine, or the clock where no machine is known."""
        return self.machine or self.clock

    @property
    def is_placed(self) -> bool:
        """Whether both sides are bounded, for a part of the run at least."""
        return self.error_lo_ns is not None and self.error_hi_ns is not None


@dataclass(frozen=True)
class StepFound:
    """A clock that was set, by `size_ns` (positive: ahead), between two of its own stamps.

    `suspects` are all clocks that it could have been, where the evidence does not tell them apart.
    """

    clock: str
    from_ns: int
    to_ns: int
    size_ns: int
    suspects: tuple[str, ...]


@dataclass(frozen=True)
class Witness:
    """One observation: which event of one clock cannot have been after which of another."""

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
class Rejected:
    """An observation that others prove false, by at least `by_ns`."""

    witness: Witness
    by_ns: int


@dataclass(frozen=True)
class ContradictoryPair:
    """Two clocks whose observations exclude each other by `by_ns`; nothing of them was used."""

    clocks: tuple[str, str]
    by_ns: int
    witnesses: tuple[Witness, ...]


@dataclass(frozen=True)
class ClockReport:
    """The whole story of one alignment. `max_ppm` is the drift that the intervals allow for.

    `false_share` is the share of false observations that they withstand: 0 where all stamps were believed.
    """

    machines: tuple[MachineClock, ...]
    steps: tuple[StepFound, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    contradictions: tuple[ContradictoryPair, ...] = ()
    max_ppm: float = 0.0
    false_share: float = 0.0

    def name_of(self, clock: str) -> str:
        """Return the name of the machine that has a clock."""
        return next((machine.name for machine in self.machines if machine.clock == clock), clock)

    @property
    def left_out(self) -> tuple[MachineClock, ...]:
        """The machines that are not on the common clock within bounds from both sides."""
        return tuple(machine for machine in self.machines if not machine.is_placed)

    @property
    def open_somewhere(self) -> tuple[MachineClock, ...]:
        """The machines on the common clock of which a part of the run is not bounded."""
        return tuple(machine for machine in self.machines if machine.is_placed and machine.unbounded_ns)

    @property
    def worst_error_ns(self) -> int | None:
        """The largest error of a stamp of an aligned machine, where it is bounded; None where no two were aligned."""
        known = [
            max(-machine.error_lo_ns, machine.error_hi_ns)
            for machine in self.machines
            if machine.error_lo_ns is not None and machine.error_hi_ns is not None
        ]
        return max(known) if len(known) > 1 else None


def report_json(report: ClockReport) -> dict[str, Any]:
    """Return the report as plain data, for json.dumps.

    Keys: machines (of each: clock, machine, ranks, state, group, offset_ns, drift_ppm, error_lo_ns and error_hi_ns,
    null where nothing bounds that side, unbounded_ns, evidence_count, rejected_count, linked), steps, rejected,
    contradictions, each as its class here has it, worst_error_ns (null where no two machines were aligned), left_out
    (clocks), max_ppm and false_share. One clock, or none: no machines.
    """
    known = asdict(report)
    plain = {name: _plain(value) for name, value in known.items()}
    left_out = [machine.clock for machine in report.left_out]
    return {**plain, "worst_error_ns": report.worst_error_ns, "left_out": left_out}


def _plain(value: object) -> object:
    """Return tuples as lists, as a reader of JSON would find them."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
