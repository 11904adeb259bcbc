"""The planted cases: one run per cause, with the exact time that the cause costs.

The truth of a case is the length of its iteration minus that of the same run (the same random numbers) without the
cause. Without data imbalance, every micro-batch has the mean length; without stage imbalance, every stage has the
mean work: the total work stays. Every other cause is taken away. A slow device is gone without a straggler.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from truth.causes import (
    Excess,
    Place,
    collected_garbage,
    drifting_rank,
    equal_stages,
    global_rank,
    loading,
    reducing_inside,
    set_up,
    slow_actions,
    slow_link,
    slow_rank,
    slow_replica,
    slow_stages,
    unequal_microbatches,
    uniform_latency,
)
from truth.engine import simulate
from truth.orders import SCHEDULES, linear
from truth.plan import DOWN, MS, Costs, Shape, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from truth.engine import Run
    from truth.plan import Plan


@dataclass(frozen=True)
class Truth:
    """One planted cause: its name, what it is on, and the plan without it.

    `culprit` has the texts of which a report should have one, separated by ` / `; empty where the cause is everywhere.
    """

    cause: str
    culprit: str
    without: Plan

    @cached_property
    def run_without(self) -> Run:
        return simulate(self.without)


@dataclass(frozen=True)
class Case:
    """One run and what is planted in it; none for a null run."""

    name: str
    plan: Plan
    truths: tuple[Truth, ...] = ()

    @cached_property
    def run(self) -> Run:
        return simulate(self.plan)

    def lost_ns(self, truth: Truth, steps: Sequence[int] | None = None) -> float:
        """Return what a cause costs: mean ns per step, of the whole run or of some steps (by position, from 0)."""
        lost = self.run.iterations_ns - truth.run_without.iterations_ns
        return float((lost if steps is None else lost[list(steps)]).mean())

    def caused_idle_ns(self, truth: Truth) -> np.ndarray:
        """Return by pipeline rank x replica how much longer each rank is idle per step because of a cause."""
        return self.run.idle_ns() - truth.run_without.idle_ns()


def _one(name: str, base: Plan, plan: Plan, cause: str, culprit: str) -> Case:
    return Case(name, plan, (Truth(cause, culprit, base),))


@dataclass(frozen=True)
class Null:
    """A kind of run in which nothing is planted that is worth a claim."""

    name: str
    shape: Shape
    costs: Costs = field(default_factory=Costs)
    unequal: float = 0.0
    set_up: float = 1.0
    reduced_ns: int = 0

    def plan(self, seed: int) -> Plan:
        plan = make_plan(self.shape, self.costs, seed)
        plan = unequal_microbatches(plan, self.unequal, seed) if self.unequal else plan
        plan = reducing_inside(plan, self.reduced_ns, overlap=0.2) if self.reduced_ns else plan
        return set_up(plan, self.set_up) if self.set_up > 1 else plan


NULLS = (
    Null("1f1b, 4 x 2", Shape(replicas=2)),
    Null("1f1b, 8 x 4, noise 3 %", Shape(ranks=8, replicas=4, microbatches=16), Costs(noise=0.03)),
    Null("gpipe, 4 x 1", Shape("gpipe")),
    Null("interleaved, 4 x 2", Shape("interleaved", replicas=2, chunks=2)),
    Null("zb-h1, 4 x 2", Shape("zb-h1", replicas=2)),
    Null("zb-v, 4 x 2", Shape("zb-v", replicas=2, chunks=2)),
    Null("dualpipev, 4 x 2", Shape("dualpipev", replicas=2, microbatches=10, chunks=2)),
    Null("1f1b, 4 x 2, normal noise 3 %", Shape(replicas=2), Costs(noise=0.03, normal=True)),
    Null("1f1b, 4 x 4, micro-batches differ by 2 %", Shape(replicas=4), unequal=0.02),
    Null("1f1b, 4 x 2, set-up step 3 times as long, counted from 1", Shape(replicas=2), set_up=3.0),
    Null("1f1b, 4 x 4, gradients reduced in the last backwards", Shape(replicas=4), reduced_ns=5 * MS),
    Null(
        "zb-v, 4 x 2, gradients reduced in the last backwards",
        Shape("zb-v", replicas=2, chunks=2),
        reduced_ns=5 * MS,
    ),
    Null("1f1b, 4 x 4, drift 1 %", Shape(replicas=4), Costs(drift=0.01)),
    Null("1f1b, 4 x 1, drift 1 %", Shape(), Costs(drift=0.01)),
)
"""Ranks x replicas. Nothing may be claimed in them, and where ranks drift, in at most one of 60."""


def _data(seed: int, replicas: int) -> Case:
    base = make_plan(Shape(replicas=replicas), Costs(), seed)
    plan = unequal_microbatches(base, 0.3, seed)
    return _one(f"micro-batches of unequal length, {_counted(replicas)}", base, plan, "data imbalance", "")


def _hiccup(seed: int) -> Case:
    base = make_plan(Shape(steps=6), Costs(), seed)
    plan = slow_actions(base, [Excess(3, 0, 2, 4, 1_000 * MS)])
    return _one("one action 1 s longer", base, plan, "jitter", "F2.4 / rank 2")


def _garbage(seed: int) -> Case:
    base = make_plan(Shape("interleaved", ranks=8, microbatches=16, chunks=2), Costs(), seed)
    return _one(
        "garbage collection once per rank", base, collected_garbage(base, 300 * MS, seed), "jitter", ""
    )


def _rank(seed: int, replicas: int, schedule: str = "1f1b") -> Case:
    chunks = 1 if SCHEDULES[schedule][1] is linear and schedule != "interleaved" else 2
    base = make_plan(Shape(schedule, replicas=replicas, chunks=chunks), Costs(), seed)
    place = Place(1, replicas - 1)
    name = f"one rank 20 % slower, {replicas} replicas" + f", {schedule}" * (schedule != "1f1b")
    return _one(name, base, slow_rank(base, place, 1.2), "straggler", f"rank {global_rank(base, place)}")


def _replica(seed: int, replicas: int, *, sync_first: bool = False) -> Case:
    base = make_plan(Shape(replicas=replicas), Costs(), seed).with_end(sync_first=sync_first)
    name = f"a replica 20 % slower, {replicas} replicas" + ", synchronized before the reduction" * sync_first
    return _one(name, base, slow_replica(base, 1, 1.2), "straggler", "replica 1 / pipeline of rank 4")


def _intermittent(seed: int) -> Case:
    base, place = make_plan(Shape(replicas=2), Costs(), seed), Place(2, 1)
    plan = slow_rank(base, place, 1.2, slice(4, 7))
    name = "one rank 20 % slower in 3 of 10 steps"
    return _one(name, base, plan, "straggler", f"rank {global_rank(base, place)}")


def _drifting(seed: int) -> Case:
    base, place = make_plan(Shape(replicas=2, steps=20), Costs(), seed), Place(2, 1)
    plan = drifting_rank(base, place, 1.09)
    return _one("one rank drifts from 0 to 9 %", base, plan, "straggler", f"rank {global_rank(base, place)}")


def slight_straggler(seed: int) -> Case:
    """Return 8 stages x 4 replicas x 10 steps with noise of 3 % and one rank 3 % slower."""
    rng = np.random.default_rng([seed, 3])
    base = make_plan(Shape(ranks=8, replicas=4), Costs(noise=0.03), seed)
    place = Place(int(rng.integers(8)), int(rng.integers(4)))
    plan = slow_rank(base, place, 1.03)
    return _one("one rank 3 % slower, noise 3 %", base, plan, "straggler", f"rank {global_rank(base, place)}")


def _blocking_gpipe(seed: int) -> Case:
    base = uniform_latency(make_plan(Shape("gpipe"), Costs(), seed), 0).with_network(blocking=True)
    plan = uniform_latency(base, 2 * MS)
    return _one("GPipe, sends block for 2 ms", base, plan, "exposed communication", "")


def _backpressure(seed: int) -> Case:
    base, factors = make_plan(Shape("interleaved", chunks=2), Costs(), seed), {2: 1.5, 6: 1.5}
    slow = slow_stages(base, factors)
    plan, even = (each.with_network(blocking=True, buffers=1) for each in (slow, equal_stages(base, factors)))
    truths = (
        Truth("stage imbalance", "rank 2 / stage 2 / stage 6", even),
        Truth("blocked on send", "rank 2 / stage 2 / stage 6", slow),
    )
    return Case("rank 2 50 % slower, blocking sends, one buffer", plan, truths)


def _loading(seed: int, *, recorded: bool, whole: bool = False) -> Case:
    base = make_plan(Shape(), Costs(), seed)
    amount = {"per_step_ns": 15 * MS} if whole else {"per_microbatch_ns": 15 * MS}
    name = f"15 ms of data loading before each {'step' if whole else 'forward of stage 0'}"
    plan = loading(base, **amount, recorded=recorded)
    name += "" if recorded else ", not recorded"
    return _one(name, base, plan, "data loading", "rank 0")


def _dualpipev(seed: int) -> Case:
    base = make_plan(Shape("dualpipev", microbatches=10, chunks=2), Costs(), seed)
    return _imbalanced("DualPipeV, stage 3 30 % longer", base, {3: 1.3})


def _imbalanced(name: str, base: Plan, factors: dict[int, float]) -> Case:
    without, culprit = equal_stages(base, factors), " / ".join(f"stage {stage}" for stage in factors)
    return _one(name, without, slow_stages(base, factors), "stage imbalance", culprit)


def _step_end(seed: int) -> Case:
    base = make_plan(Shape(replicas=2), Costs(reduce=60 * MS, optimizer=20 * MS), seed)
    truths = (
        Truth("gradient reduction", "", base.with_end(reduce_ns=0)),
        Truth("optimizer", "", base.with_end(optimizer_ns=0)),
    )
    return Case("all-reduce 60 ms, optimizer 20 ms", base, truths)


def reduction_inside(seed: int, shape: Shape, stage: int, overlap: float = 0.0) -> Case:
    """Return a run that reduces the gradients of each stage in its last backward: for 2 ms, those of one for 62 ms."""
    base = make_plan(shape._replace(replicas=2), Costs(), seed)
    without = reducing_inside(base, 0, overlap=overlap)
    plan = reducing_inside(base, 2 * MS, {stage: 60 * MS}, overlap)
    rank = next(rank for rank, stages in enumerate(shape.placement) if stage in stages)
    culprit = f"stage {stage} / rank {rank} / rank {rank + shape.ranks}"
    name = f"all-reduce 62 ms in the last backward of stage {stage}, {shape.schedule}" + ", overlapped" * (
        overlap > 0
    )
    return _one(name, without, plan, "gradient reduction", culprit)


def _link(seed: int) -> Case:
    base = make_plan(Shape(replicas=2), Costs(), seed)
    plan = slow_link(base, DOWN, 1, 4 * MS)
    return _one("one link 4 ms slower", base, plan, "exposed communication", "rank 1 to rank 2 / link 1 -> 2")


def _last_stage(seed: int, replicas: int) -> Case:
    base = make_plan(Shape(replicas=replicas), Costs(), seed)
    return _imbalanced(f"the last stage 30 % longer, {_counted(replicas)}", base, {3: 1.3})


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _launch(seed: int) -> Case:
    base = make_plan(Shape(), Costs(launch=0), seed)
    return _one("1 ms to launch every action", base, replace(base, launch_ns=MS), "launch overhead", "")


PLANTED: tuple[Callable[[int], Case], ...] = (
    lambda seed: _data(seed, 1),
    lambda seed: _data(seed, 4),
    _hiccup,
    _garbage,
    lambda seed: _rank(seed, 2),
    lambda seed: _rank(seed, 4),
    lambda seed: _rank(seed, 2, "interleaved"),
    lambda seed: _rank(seed, 2, "zb-h1"),
    lambda seed: _rank(seed, 2, "zb-v"),
    lambda seed: _rank(seed, 2, "dualpipev"),
    lambda seed: _replica(seed, 2),
    lambda seed: _replica(seed, 4),
    lambda seed: _replica(seed, 4, sync_first=True),
    _intermittent,
    _drifting,
    slight_straggler,
    _blocking_gpipe,
    _backpressure,
    lambda seed: _loading(seed, recorded=True),
    lambda seed: _loading(seed, recorded=False),
    lambda seed: _loading(seed, recorded=True, whole=True),
    lambda seed: _loading(seed, recorded=False, whole=True),
    _dualpipev,
    _step_end,
    lambda seed: reduction_inside(seed, Shape(), 1),
    lambda seed: reduction_inside(seed, Shape("interleaved", chunks=2), 5, overlap=0.5),
    lambda seed: reduction_inside(seed, Shape("zb-v", chunks=2), 1),
    _link,
    lambda seed: _last_stage(seed, 1),
    lambda seed: _last_stage(seed, 2),
    _launch,
)
"""Builders of the planted cases: each takes a seed."""
