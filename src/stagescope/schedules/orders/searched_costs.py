"""The costs for a search: one per stage, equal for all micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import Action
from stagescope.schedules.costs import Costs, action_costs, link_costs
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.schedules.costs import Cells
    from stagescope.schedules.registry import Shape


class StageCosts(NamedTuple):
    """Nanoseconds of F, I, W and of a message to or from the next stage, one value per stage."""

    forward: list[int]
    backward_input: list[int]
    backward_weight: list[int]
    hop: list[int]


def stage_costs(shape: Shape, stages: int) -> StageCosts:
    """Return the option `costs` of a shape per stage; F = I = W = 1 without the option.

    Costs that differ between micro-batches become their median. Raises ScheduleError for a stage without costs for any
    micro-batch.
    """
    costs = shape.options.get("costs") or Costs()
    actions = action_costs(costs, stages, shape.microbatches)
    return StageCosts(
        _medians("F", actions.forward, stages),
        _medians("I", actions.backward_input, stages),
        _medians("W", actions.backward_weight, stages),
        link_costs(costs, stages).least_ns,
    )


def upper_median(values: Iterable[int]) -> int:
    """Return the median; of two middle values, the larger one."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _medians(kind: str, cells: Cells, stages: int) -> list[int]:
    width = len(cells) // stages
    medians = []
    for stage in range(stages):
        known = [cell for cell in cells[stage * width : (stage + 1) * width] if cell is not None]
        if not known:
            raise ScheduleError.no_cost(str(Action(kind, stage, 0)))
        medians.append(upper_median(known))
    return medians
