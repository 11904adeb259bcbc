"""Runs of several machines with clocks known to the nanosecond, as ground truth for alignment.

A run is simulated in true time, message by message, with actions and transfers of random length; each machine then
reads its own clock at every event. `Planted.truth` are the same spans in the time of the first machine's clock, so
`aligned - truth` is the error of every timestamp. The name of a span is its number, except for collectives, and so is
its size in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from stagescope.model import CLOCKS, RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.schedules import order, parse_action

ORIGIN_NS = 1_763_600_000_000_000_000
FORWARD_NS, BACKWARD_NS, WEIGHT_NS = 10_000_000, 20_000_000, 10_000_000
TIMESTAMPS = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
ACTION_KINDS_BY_LETTER = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


@dataclass(frozen=True)
class ClockStep:
    """A clock that is set by `size_ns` when this part of the run is over."""

    machine: int
    fraction: float
    size_ns: int


@dataclass(frozen=True)
class ClockSlew:
    """A clock that runs faster by `ppm` during a part of the run."""

    machine: int
    from_fraction: float
    to_fraction: float
    ppm: float


@dataclass(frozen=True)
class Plan:
    """A planted run. The latency is a floor, equal both ways except for `asymmetry_ns`, plus a random spread.

    `costs` are factors of the lengths of actions, by stage: with short ones on the last stages, their gradients are
    there before they are received. Each step ends with `collectives` of all ranks, one after the other, which the ranks
    leave within `exit_ns` of the last arrival.
    """

    schedule: str = "1f1b"
    ranks: int = 4
    replicas: int = 1
    ranks_per_machine: int = 1
    microbatches: int = 16
    steps: int = 30
    seed: int = 0
    offset_ns: int = 50_000_000
    drift_ppm: float = 20.0
    wander_ppm: float = 0.0
    clock_steps: tuple[ClockStep, ...] = ()
    slews: tuple[ClockSlew, ...] = ()
    costs: tuple[float, ...] = ()
    collectives: int = 0
    exit_ns: tuple[int, int] = (10_000, 60_000)
    floor_ns: int = 20_000
    spread_ns: tuple[int, int] = (30_000, 60_000)
    most_ns: int = 200_000
    asymmetry_ns: int = 0
    corrupt: float = 0.0
    corrupt_ns: tuple[int, int] = (100_000, 1_000_000_000)
    lost: float = 0.0
    mismatched: float = 0.0
    missing_links: tuple[tuple[int, int], ...] = ()
    one_way_links: tuple[tuple[int, int], ...] = ()
    actions_only: bool = False


@dataclass(frozen=True)
class Planted:
    """A run as recorded, and its spans in the time of the first machine's clock."""

    timeline: Timeline
    truth: pl.DataFrame
    plan: Plan
    corrupted: dict[str, list[str]]

    def errors_ns(self, aligned: Timeline, column: str = "start_ns") -> pl.DataFrame:
        """Return the clock, aligned timestamp and error of every span without a corrupted timestamp."""
        return (
            aligned.spans.join(self.timeline.ranks.select("rank", "clock"), on="rank")
            .join(self.truth.select("bytes", pl.col(column).alias("true_ns")), on="bytes")
            .filter(~pl.col("name").is_in(self.corrupted.get(column, [])) & pl.col(column).is_not_null())
            .select("name", "rank", "clock", at_ns=column, error_ns=pl.col(column) - pl.col("true_ns"))
        )


@dataclass
class _Clock:
    """One machine's clock: an offset, a rate, two slow waves of the rate, adjustments and slews."""

    offset_ns: float
    rate: float
    waves: list[tuple[float, float, float]]
    steps: list[tuple[float, int]] = field(default_factory=list)
    slews: list[tuple[float, float, float]] = field(default_factory=list)

    def read(self, true_ns: np.ndarray) -> np.ndarray:
        drift = self.rate * true_ns
        for amplitude, period_ns, phase in self.waves:
            turn = 2 * np.pi / period_ns
            drift += amplitude / turn * (np.sin(turn * true_ns + phase) - np.sin(phase))
        for at_ns, size_ns in self.steps:
            drift += np.where(true_ns >= at_ns, size_ns, 0)
        for from_ns, to_ns, rate in self.slews:
            drift += rate * (np.clip(true_ns, from_ns, to_ns) - from_ns)
        return np.rint(true_ns + self.offset_ns + drift).astype(np.int64) + ORIGIN_NS


def plant(plan: Plan) -> Planted:
    """Return a run of this plan; the same plan gives the same run."""
    rng = np.random.default_rng(plan.seed)
    rows = _run(plan, rng)
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(bytes=pl.int_range(pl.len()))
    own_name = pl.col("name") if "name" in frame.columns else pl.lit(None)
    frame = frame.with_columns(name=pl.coalesce(own_name, pl.col("bytes").cast(pl.String)))
    count = plan.ranks * plan.replicas
    machine = np.arange(count) // plan.ranks_per_machine
    clocks = _clocks(plan, int(machine.max()) + 1, float(frame["end_ns"].max()), rng)
    # Adjustments of the first clock are not part of the truth: from then on it is wrong, not the others.
    unset = replace(clocks[0], steps=[], slews=[])
    truth = _read_by_clocks(frame, lambda _rank: unset)
    recorded = _read_by_clocks(frame, lambda rank: clocks[machine[rank]])
    corrupted: dict[str, list[str]] = {}
    if plan.corrupt:
        recorded, corrupted = _corrupted(recorded, plan, rng)
    return Planted(_timeline(_kept(recorded, plan, rng), machine), conform(truth, SPANS), plan, corrupted)


def _clocks(plan: Plan, count: int, length_ns: float, rng: np.random.Generator) -> list[_Clock]:
    clocks = []
    for number in range(count):
        share = rng.uniform(0.3, 0.7)
        waves = [
            (1e-6 * plan.wander_ppm * part, rng.uniform(4e9, 30e9), rng.uniform(0, 6.28))
            for part in ((share, 1 - share) if plan.wander_ppm else ())
        ]
        steps = [(s.fraction * length_ns, s.size_ns) for s in plan.clock_steps if s.machine == number]
        offset_ns = rng.uniform(-plan.offset_ns, plan.offset_ns)
        rate = 1e-6 * rng.uniform(-plan.drift_ppm, plan.drift_ppm)
        slews = [
            (s.from_fraction * length_ns, s.to_fraction * length_ns, 1e-6 * s.ppm)
            for s in plan.slews
            if s.machine == number
        ]
        clocks.append(_Clock(offset_ns, rate, waves, steps, slews))
    return clocks


def _read_by_clocks(frame: pl.DataFrame, clock_of: Any) -> pl.DataFrame:
    parts = []
    for (rank,), part in frame.group_by("rank", maintain_order=True):
        recorded = {}
        for name in TIMESTAMPS:
            true_ns = part[name].cast(pl.Float64).to_numpy()
            there = ~np.isnan(true_ns)
            values = clock_of(rank).read(np.where(there, true_ns, 0.0))
            recorded[name] = (
                pl.Series(name, values)
                .to_frame()
                .with_columns(pl.when(pl.Series(there)).then(pl.col(name)).alias(name))[name]
            )
        parts.append(part.with_columns(**recorded))
    return pl.concat(parts)


def _corrupted(
    frame: pl.DataFrame, plan: Plan, rng: np.random.Generator
) -> tuple[pl.DataFrame, dict[str, list[str]]]:
    """Return timestamps of transfers, some of them shifted by a random amount, and which were shifted."""
    is_transfer = frame["kind"].str.contains("send|recv").to_numpy()
    changed, corrupted = {}, {}
    for name in ("start_ns", "end_ns"):
        hit = (rng.random(len(frame)) < plan.corrupt) & is_transfer
        size = np.exp(rng.uniform(*np.log(plan.corrupt_ns), len(frame))) * rng.choice([-1, 1], len(frame))
        changed[name] = frame[name] + np.where(hit, size, 0).astype(np.int64)
        corrupted[name] = frame["name"].filter(pl.Series(hit)).to_list()
    return frame.with_columns(**changed), corrupted


def _kept(frame: pl.DataFrame, plan: Plan, rng: np.random.Generator) -> pl.DataFrame:
    """Return the recorded spans: without lost ones, and some with a wrong micro-batch."""
    is_transfer = pl.col("kind").str.contains("send|recv")
    if plan.actions_only:
        frame = frame.filter(~is_transfer)
    if plan.lost:
        frame = frame.filter(~(is_transfer & pl.Series(rng.random(len(frame)) < plan.lost)))
    if plan.mismatched:
        wrong = is_transfer & pl.Series(rng.random(len(frame)) < plan.mismatched)
        other = (pl.col("microbatch") + 1) % plan.microbatches
        frame = frame.with_columns(microbatch=pl.when(wrong).then(other).otherwise("microbatch"))
    for one, other_rank in plan.missing_links:
        between = (pl.col("rank") == one) & (pl.col("peer") == other_rank)
        frame = frame.filter(
            ~(between | ((pl.col("rank") == other_rank) & (pl.col("peer") == one))).fill_null(value=False)
        )
    for source, target in plan.one_way_links:
        sends_back = (
            (pl.col("rank") == target) & (pl.col("peer") == source) & pl.col("kind").str.contains("send")
        )
        frame = frame.filter(~sends_back.fill_null(value=False))
    return frame


def _timeline(spans: pl.DataFrame, machine: np.ndarray) -> Timeline:
    names = [f"node-{number}" for number in machine]
    ranks = pl.DataFrame(
        {"rank": range(len(machine)), "machine": names, "clock": [f"{name}/wall" for name in names]}
    )
    clocks = pl.DataFrame({"machine": sorted(set(names))}).with_columns(
        clock=pl.col("machine") + "/wall", offset_ns=pl.lit(0), method=pl.lit("wall clock, not aligned")
    )
    empty = empty_timeline()
    return Timeline(
        conform(spans, SPANS), conform(ranks, RANKS), empty.steps, conform(clocks, CLOCKS), empty.diagnostics
    )


def _run(plan: Plan, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Run every replica's steps in true time; each step ends with a reduction over the replicas of a stage."""
    actions = {
        rank: [a if not isinstance(a, str) else parse_action(a) for a in row]
        for rank, row in order(plan.schedule, ranks=plan.ranks, microbatches=plan.microbatches).items()
    }
    rows: list[dict[str, Any]] = []
    free_ns = [0.0] * (plan.ranks * plan.replicas)
    for step in range(plan.steps):
        for replica in range(plan.replicas):
            _run_step(_Step(plan, rng, actions, step, replica * plan.ranks), rows, free_ns)
        if plan.replicas > 1:
            _reduce(plan, rng, rows, free_ns, step)
        for number in range(plan.collectives):
            _collect(plan, rng, rows, free_ns, step * plan.collectives + number)
        free_ns = [each + rng.uniform(1e6, 3e6) for each in free_ns]
    return rows


@dataclass(frozen=True)
class _Step:
    plan: Plan
    rng: np.random.Generator
    actions: dict[int, list[Any]]
    number: int
    first_rank: int

    def latency_ns(self, source: int, target: int) -> float:
        upwards = target > source
        spread = self.plan.spread_ns[0 if upwards else 1]
        extra = self.plan.asymmetry_ns if upwards else 0
        return extra + min(self.plan.floor_ns + self.rng.exponential(spread), self.plan.most_ns)


def _run_step(step: _Step, rows: list[dict[str, Any]], free_ns: list[float]) -> None:
    owner = (
        {part.stage: rank for rank, actions in step.actions.items() for a in actions for part in a.parts}
        if step.plan.schedule not in ("dualpipe", "chimera")
        else {}
    )
    last = max(owner)
    sent: dict[tuple[str, int, int], tuple[float, int]] = {}
    todo = {rank: list(actions) for rank, actions in step.actions.items()}
    while any(todo.values()):
        before = sum(map(len, todo.values()))
        for rank, actions in todo.items():
            while actions and _run_action(step, (rank, actions[0], owner, last), sent, (rows, free_ns)):
                actions.pop(0)
        assert sum(map(len, todo.values())) < before, "the order deadlocks"


def _run_action(step: _Step, what: Any, sent: Any, out: Any) -> bool:
    """Run one action if its inputs exist: receives, the computation, sends."""
    rank, action, owner, last = what
    rows, free_ns = out
    me = step.first_rank + rank
    inputs = [_input(part, last) for part in action.parts]
    if any(need and need not in sent for need in inputs):
        return False
    for part, need in zip(action.parts, inputs, strict=True):
        if need and sent[need][1] != rank:
            arrival_ns, source = sent[need]
            start_ns = free_ns[me]
            end_ns = max(arrival_ns, start_ns + step.rng.uniform(2_000, 4_000))
            rows.append(
                {
                    "rank": me,
                    "lane": "comm",
                    "kind": f"recv_{_direction(part)}",
                    "step": step.number,
                    "stage": part.stage,
                    "microbatch": part.microbatch,
                    "peer": step.first_rank + source,
                    "start_ns": start_ns,
                    "end_ns": end_ns,
                    "wait_start_ns": start_ns,
                    "wait_end_ns": end_ns,
                }
            )
            free_ns[me] = end_ns
        elif need:
            free_ns[me] = max(free_ns[me], sent[need][0])
    start_ns = free_ns[me] + step.rng.uniform(500, 1500)
    costs = {"F": FORWARD_NS, "B": BACKWARD_NS, "I": BACKWARD_NS // 2, "W": WEIGHT_NS}
    factors = step.plan.costs or (1.0,) * (last + 1)
    cost_ns = sum(costs[part.kind] * factors[part.stage] for part in action.parts)
    end_ns = start_ns + cost_ns * step.rng.uniform(0.95, 1.05)
    free_ns[me] = end_ns
    for part in action.parts:
        rows.append(
            {
                "rank": me,
                "lane": "compute",
                "kind": ACTION_KINDS_BY_LETTER[part.kind],
                "step": step.number,
                "stage": part.stage,
                "microbatch": part.microbatch,
                "start_ns": start_ns,
                "end_ns": end_ns,
            }
        )
        _send(step, (rank, part, owner, last), sent, out)
    return True


def _send(step: _Step, what: Any, sent: Any, out: Any) -> None:
    rank, part, owner, last = what
    rows, free_ns = out
    me = step.first_rank + rank
    to_stage = {"F": part.stage + 1, "W": -1}.get(part.kind, part.stage - 1)
    if not 0 <= to_stage <= last:
        return
    target = owner[to_stage]
    start_ns = free_ns[me]
    key = (_direction(part), to_stage, part.microbatch)
    if target == rank:
        sent[key] = (start_ns, rank)
        return
    sent[key] = (start_ns + step.latency_ns(rank, target), rank)
    free_ns[me] = start_ns + step.rng.uniform(5_000, 15_000)
    rows.append(
        {
            "rank": me,
            "lane": "comm",
            "kind": f"send_{_direction(part)}",
            "step": step.number,
            "stage": part.stage,
            "microbatch": part.microbatch,
            "peer": step.first_rank + target,
            "start_ns": start_ns,
            "end_ns": free_ns[me],
        }
    )


def _direction(part: Any) -> str:
    return "forward" if part.kind == "F" else "backward"


def _input(part: Any, last: int) -> tuple[str, int, int] | None:
    if (
        part.kind == "W"
        or (part.kind == "F" and part.stage == 0)
        or (part.kind in "BI" and part.stage == last)
    ):
        return None
    return _direction(part), part.stage, part.microbatch


def _reduce(plan: Plan, rng: np.random.Generator, rows: Any, free_ns: list[float], step: int) -> None:
    for rank in range(plan.ranks):
        members = [rank + replica * plan.ranks for replica in range(plan.replicas)]
        entered = [free_ns[member] for member in members]
        for member, start_ns in zip(members, entered, strict=True):
            end_ns = max(entered) + rng.uniform(10_000, 60_000)
            rows.append(
                {
                    "rank": member,
                    "lane": "comm",
                    "kind": "grad_reduce",
                    "step": step,
                    "stage": rank,
                    "start_ns": start_ns,
                    "end_ns": end_ns,
                }
            )
            free_ns[member] = end_ns


def _collect(plan: Plan, rng: np.random.Generator, rows: Any, free_ns: list[float], number: int) -> None:
    entered = [each + rng.uniform(5_000, 50_000) for each in free_ns]
    for rank, start_ns in enumerate(entered):
        end_ns = max(entered) + rng.uniform(*plan.exit_ns)
        rows.append(
            {
                "rank": rank,
                "lane": "comm",
                "kind": "collective",
                "name": f"all_reduce in world 0-{len(entered) - 1} (0)",
                "pair": number,
                "step": number // plan.collectives,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "wait_start_ns": start_ns,
                "wait_end_ns": end_ns,
            }
        )
        free_ns[rank] = end_ns


def plant_graph(seed: int, *, machines: int, links: int, messages: int, length_ns: float = 2e9) -> Planted:
    """Return a run without a pipeline: machines exchange random messages, over some links one way only.

    Delays are long and short as chance has it, offsets up to an hour, rates up to 90 ppm and changing by 5.
    """
    rng = np.random.default_rng(seed)
    plan = Plan(seed=seed, ranks=machines, offset_ns=3_600_000_000_000, drift_ppm=90.0, wander_ppm=5.0)
    rows: list[dict[str, Any]] = []
    for link in range(links):
        one, other = rng.choice(machines, 2, replace=False)
        ways = [(one, other), (other, one)][: 1 if rng.random() < 0.2 else 2]
        for source, target in ways:
            scale_ns = 10 ** rng.uniform(3, 7)
            for number in range(int(rng.integers(1, messages + 1))):
                sent_ns = rng.uniform(0, length_ns)
                arrived_ns = sent_ns + rng.exponential(scale_ns)
                named = {"lane": "comm", "step": link, "microbatch": number}
                rows += [
                    {
                        **named,
                        "rank": int(source),
                        "kind": "send_forward",
                        "stage": 0,
                        "peer": int(target),
                        "start_ns": sent_ns,
                        "end_ns": sent_ns + 1_000.0,
                    },
                    {
                        **named,
                        "rank": int(target),
                        "kind": "recv_forward",
                        "stage": 1,
                        "peer": int(source),
                        "start_ns": arrived_ns - rng.uniform(0, 1e6),
                        "end_ns": arrived_ns,
                    },
                ]
    for rank in range(machines):
        for _ in range(5):
            at_ns = rng.uniform(-0.2 * length_ns, 1.2 * length_ns)
            rows.append(
                {"rank": rank, "lane": "host", "kind": "other", "start_ns": at_ns, "end_ns": at_ns + 1e5}
            )
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.lit(None, pl.Float64).alias("wait_start_ns"),
        pl.lit(None, pl.Float64).alias("wait_end_ns"),
        name=pl.int_range(pl.len()).cast(pl.String),
        bytes=pl.int_range(pl.len()),
    )
    clocks = _clocks(plan, machines, length_ns, rng)
    truth = _read_by_clocks(frame, lambda _rank: clocks[0])
    recorded = _read_by_clocks(frame, lambda rank: clocks[rank])
    return Planted(_timeline(recorded, np.arange(machines)), conform(truth, SPANS), plan, {})


def uncovered(planted: Planted, aligned: Timeline) -> pl.DataFrame:
    """Return every timestamp whose error is outside of the bound in the clocks table."""
    rows = aligned.clocks.select("clock", "start_ns", "error_lo_ns", "error_hi_ns").sort("start_ns")
    wrong = []
    for column in TIMESTAMPS:
        timestamps = planted.errors_ns(aligned, column).sort("at_ns")
        inside = timestamps.join_asof(
            rows, left_on="at_ns", right_on="start_ns", by="clock", check_sortedness=False
        )
        missing_ns = -pl.col("error_ns")  # the missing correction
        outside = (missing_ns < pl.col("error_lo_ns")) | (missing_ns > pl.col("error_hi_ns"))
        wrong.append(
            inside.filter(outside | pl.col("start_ns").is_null()).with_columns(column=pl.lit(column))
        )
    return pl.concat(wrong)
