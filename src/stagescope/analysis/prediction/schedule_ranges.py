"""The step time under every other schedule of the catalog, as a range over what was not measured.

Each schedule is simulated with the measured cost of every action (or of the action that it is derived from), for
several measured steps and for every scenario of `assumptions`. The gain of a scenario is the simulated time of the
measured order minus that of the other one. The range covers the scenarios, and what the simulation of the measured
order misses of the measured time. No prediction is below the work of the busiest rank, in which what the first and the
last stage cost more than the others stays whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from scipy.special import stdtrit  # type: ignore[import-untyped]

from stagescope.analysis.prediction.assumptions import (
    TWICE_TEXT,
    WEIGHT_SHARES,
    WHOLE,
    Scenario,
    assume_costs,
    least_works_ns,
    list_scenarios,
)
from stagescope.analysis.prediction.measured_cells import measure_cells
from stagescope.analysis.prediction.other_schedule import other_order
from stagescope.analysis.prediction.planned_order import OrderCosts, plan_order
from stagescope.analysis.prediction.rank_memory import RankMemory, compare_memory, rank_memory
from stagescope.analysis.prediction.reduction import plan_reduction, reduce_cells
from stagescope.schedules.action_index import index_actions
from stagescope.schedules.catalog import NAMES, find_schedule
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.prediction.measured_cells import MeasuredCells
    from stagescope.analysis.prediction.planned_order import PlannedOrder
    from stagescope.analysis.prediction.rank_memory import MemoryChange
    from stagescope.analysis.prediction.reduction import Reduction
    from stagescope.analysis.prediction.what_if import Measured
    from stagescope.schedules.action import Order
    from stagescope.schedules.action_index import ActionIndex

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

FEWEST_STEPS = 2
MOST_PLANS = 2 * len(NAMES)
"""Plans that are kept for the next report: those of every schedule at one size, of which large sizes have two parts."""
AS_MEASURED = Scenario(WEIGHT_SHARES[-1], WHOLE, with_delays=True)


class SchedulePrediction(NamedTuple):
    """The shortest and longest step of a schedule, what the range assumes, and its memory."""

    name: str
    low_ns: float
    high_ns: float
    assumptions: str
    memory: MemoryChange


class _Plan(NamedTuple):
    """An order of the catalog, ready to be simulated, and its memory without grouping of ranks."""

    order: PlannedOrder
    memory: RankMemory


class SchedulePredictions(NamedTuple):
    """The predictions, and why there is none for other schedules: reasons with the names that they apply to.

    `unsupported` are schedules that these numbers of ranks, stages and micro-batches exclude; `reduced` is a clause
    about what was simulated instead of every action, or empty.
    """

    found: list[SchedulePrediction]
    untested: dict[str, list[str]]
    unsupported: list[str]
    reduced: str = ""


def predict_schedules(measured: Measured, ran: str | None) -> SchedulePredictions:
    """Return predictions for the schedules that support the measured sizes, except the one that ran."""
    names = [name for name in NAMES if name != ran]
    size = _measured_size(measured)
    base = size if isinstance(size, str) else _measured_base(measured, size, ran)
    if isinstance(size, str) or isinstance(base, str):
        return SchedulePredictions([], {str(base): names}, [])
    found: list[SchedulePrediction] = []
    untested: dict[str, list[str]] = {}
    unsupported: list[str] = []
    for name in names:
        if not _other_order_exists(name, len(measured.order), size.microbatches, size.stages):
            unsupported.append(name)
            continue
        prediction = base.predict(name)
        if isinstance(prediction, str):
            untested.setdefault(prediction, []).append(name)
        else:
            found.append(prediction)
    return SchedulePredictions(found, untested, unsupported, base.reduction.text())


def _measured_size(measured: Measured) -> ActionIndex | str:
    """Return the actions of the measured order, or why no schedule can be tested."""
    try:
        size = index_actions(measured.order)
    except ScheduleError:
        return "a step has an action twice"
    return size if _fits(measured, size) else "steps differ in their stages or micro-batches"


def _measured_base(measured: Measured, size: ActionIndex, ran: str | None) -> _Base | str:
    """Return what predictions start from, or why there is nothing."""
    cells = measure_cells(measured, size.stages, size.microbatches)
    if cells is None:
        return "forwards of some stage were not recorded"
    reduction = plan_reduction(len(measured.order), size.microbatches)
    if reduction is None:
        return "ranks and micro-batches are too many to simulate"
    if not reduction.is_exact and ran is None:
        return "the measured order is unknown and too large to simulate"
    return _Base.make(measured, cells, reduction, ran) or "the measured order cannot be simulated"


def _fits(measured: Measured, size: ActionIndex) -> bool:
    """Return whether the stages and micro-batches of all counted steps are those of the measured order.

    Evaluations have fewer kinds of actions than steps that train.
    """
    counted = pl.Series(measured.counted.to_numpy()[measured.groups.step_of_action()])
    of_steps = measured.actions.table.filter(counted).group_by("step", "pipeline")
    largest = of_steps.agg(pl.max("stage", "microbatch"), kinds=pl.col("kind").n_unique())
    rows = largest.select("stage", "microbatch", "kinds").unique().rows()
    return len(rows) == 1 and rows[0][:2] == (size.stages - 1, size.microbatches - 1)


def _other_order_exists(name: str, ranks: int, microbatches: int, stages: int) -> bool:
    """Return whether a schedule supports these sizes."""
    schedule = find_schedule(name)
    chunks = stages // ranks if schedule.least_chunks is not None and stages > ranks else None
    return schedule.supports(ranks, microbatches, chunks)


@dataclass(frozen=True)
class _Base:
    """The measured order and its costs, reduced if it is large; `orders` has one entry per part of the reduction."""

    cells: MeasuredCells
    reduction: Reduction
    orders: tuple[PlannedOrder, ...]
    homes: Integers
    base_ns: Floats
    step_ns: float
    noise_ns: float
    memory: RankMemory

    @staticmethod
    def make(measured: Measured, cells: MeasuredCells, reduction: Reduction, ran: str | None) -> _Base | None:
        full = cells
        if reduction.is_exact:
            orders = [measured.order]
        else:
            cells = reduce_cells(cells, reduction.group)
            orders = _orders(ran or "", reduction, cells.stages)
        planned = tuple(plan_order(each) for each in orders)
        homes = _homes(planned[0])
        costs = [assume_costs(cells, each, homes, AS_MEASURED) for each in planned]
        if not all(each.can_run for each in planned) or any(each is None for each in costs):
            return None
        base_ns = _weighted(
            reduction, [one.makespans_ns(cost) for one, cost in zip(planned, costs, strict=True) if cost]
        )
        step_ns = measured.step_ns(measured.groups.window_ns(measured.actions.table))
        memory = rank_memory(orders[0]).grouped(reduction.group)
        return _Base(cells, reduction, planned, homes, base_ns, step_ns, _noise_ns(full.window_ns), memory)

    def predict(self, name: str) -> SchedulePrediction | str:
        """Return the prediction for a schedule, or why there is none."""
        sizes = [part.microbatches for part in self.reduction.parts]
        try:
            plans = [_plan(name, self.reduction.ranks, size, self.cells.stages) for size in sizes]
        except ScheduleError:
            return "they cannot be reduced to a size that is fast to simulate"
        planned = [each.order for each in plans]
        scenarios, texts = list_scenarios(self.cells, planned[0], self.homes)
        times = [self._times_ns(each, scenarios) for each in planned]
        if any(each is None for each in times):
            return "the costs of some of their actions were not measured"
        other_ns = _weighted(self.reduction, [each for each in times if each is not None])
        needed = plans[0].memory.grouped(self.reduction.group)
        if needed.copies > self.memory.copies:
            texts.append(TWICE_TEXT)
        gains_ns = self.base_ns.mean() - other_ns
        missed_ns = abs(float(self.base_ns.mean() - self.cells.window_ns.mean())) + self.noise_ns
        least_ns = self._least_ns(planned)
        low_ns, high_ns = (
            max(self.step_ns - gain_ns, least_ns)
            for gain_ns in (float(gains_ns.max()) + missed_ns, float(gains_ns.min()) - missed_ns)
        )
        texts = [*texts, *filter(None, [self.reduction.text()])]
        return SchedulePrediction(
            name, low_ns, high_ns, "; ".join(texts), compare_memory(self.memory, needed)
        )

    def _times_ns(self, order: PlannedOrder, scenarios: Sequence[Scenario]) -> Floats | None:
        """Return the mean step time of every scenario."""
        costs = [assume_costs(self.cells, order, self.homes, each) for each in scenarios]
        known = [each for each in costs if each is not None]
        if len(known) < len(costs):
            return None
        pairs = [each.pairs for each in known if each.pairs is not None]
        united = OrderCosts(
            np.concatenate([each.actions for each in known], axis=-1),
            np.concatenate([each.hops for each in known], axis=-1),
            np.concatenate(pairs, axis=-1) if pairs else None,
        )
        times: Floats = order.makespans_ns(united).reshape(len(scenarios), -1).mean(axis=1)
        return times

    def _least_ns(self, orders: Sequence[PlannedOrder]) -> float:
        """Return the work of the busiest rank, below which no step can be."""
        works = [least_works_ns(self.cells, each, self.homes) for each in orders]
        return float(_weighted(self.reduction, [each for each in works if each is not None]).mean())


@lru_cache(maxsize=MOST_PLANS)
def _plan(name: str, ranks: int, microbatches: int, stages: int) -> _Plan:
    """Return the plan of an order, which depends on nothing measured; raises ScheduleError if there is none."""
    found = other_order(name, ranks=ranks, microbatches=microbatches, stages=stages)
    return _Plan(plan_order(found), rank_memory(found))


def _orders(name: str, reduction: Reduction, stages: int) -> list[Order]:
    return [
        other_order(name, ranks=reduction.ranks, microbatches=part.microbatches, stages=stages)
        for part in reduction.parts
    ]


def _homes(order: PlannedOrder) -> Integers:
    """Return per stage the position of its rank, where ranks are sorted by their first stage."""
    ranks = order.rank_of_cell.max(axis=1)
    _, first = np.unique(ranks, return_index=True)
    positions = np.argsort(np.argsort(first))
    homes: Integers = positions[np.searchsorted(np.unique(ranks), ranks)]
    return homes


def _noise_ns(window_ns: Floats) -> float:
    """Return half of the 95 % interval of the difference of the mean steps of two runs of the same kind."""
    count = len(window_ns)
    if count < FEWEST_STEPS:
        return 0.0
    deviation_ns = float(window_ns.std(ddof=1))
    return float(stdtrit(2 * count - 2, 0.975)) * deviation_ns * math.sqrt(2 / count)


def _weighted(reduction: Reduction, times: Sequence[Floats]) -> Floats:
    """Return the sum of the times of all parts, weighted."""
    whole: Floats = sum(part.weight * each for part, each in zip(reduction.parts, times, strict=True))  # type: ignore[assignment]  # arrays
    return whole
