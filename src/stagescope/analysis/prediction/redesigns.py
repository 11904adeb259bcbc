"""Redesigns: another division of the model among the stages, and the other schedules of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.graph.measured_order import measured_order
from stagescope.analysis.prediction.changes import EqualStages, OtherSchedule
from stagescope.analysis.prediction.other_schedule import other_order
from stagescope.analysis.prediction.what_if import predict_steps
from stagescope.schedules.action_index import actions_of, index_actions
from stagescope.schedules.catalog import NAMES
from stagescope.schedules.memory import peak_in_flight
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.prediction.changes import Combination
    from stagescope.schedules.action import Order

MOST_ACTIONS = 20_000
"""Other schedules are simulated up to this many actions per step; beyond, that takes longer than the rest of a report.
"""

LEAST_MORE_MEMORY = 1.001


def find_redesigns(
    actions: Actions, schedule: str | None, steps: Collection[int], basis: ReplayBasis | None = None
) -> pl.DataFrame:
    """Return columns of IMPROVEMENTS for equal stages and the other schedules that support these sizes.

    `schedule` is the one that ran, `basis` is from find_replay_basis. Costs of a change, such as the memory of another
    schedule, are not part of the gain.
    """
    counted = actions.table.filter(pl.col("step").is_in(list(steps)))
    changes: list[Combination] = [(EqualStages(),)]
    memory, more = [1.0], [False]
    for name, needs in _other_schedules(actions, counted, schedule):
        changes.append((OtherSchedule(name),))
        memory.append(needs.activations)
        more.append(needs.is_more)
    return predict_steps(actions, changes, steps, basis).table.with_columns(
        pl.Series("activations_to_measured", memory, pl.Float64),
        pl.Series("needs_more_memory", more, pl.Boolean),
    )


class _Memory(NamedTuple):
    """The memory of an order: activations of its fullest rank relative to another order, and whether it needs more."""

    activations: float
    is_more: bool


def _other_schedules(
    actions: Actions, counted: pl.DataFrame, schedule: str | None
) -> Iterator[tuple[str, _Memory]]:
    """Yield the schedules that support these ranks and micro-batches, except the one that ran.

    Sizes are those of the first counted step. Yields nothing if that step has duplicate actions or too many actions.
    """
    first = counted.row(0, named=True)
    measured = measured_order(actions, first["pipeline"], first["step"])
    if sum(map(len, measured.values())) > MOST_ACTIONS:
        return
    try:
        size = index_actions(measured)
    except ScheduleError:
        return
    for name in NAMES:
        if name == schedule:
            continue
        try:
            order = other_order(name, ranks=len(measured), microbatches=size.microbatches, stages=size.stages)
        except ScheduleError:  # does not support these numbers of ranks, chunks and micro-batches
            continue
        yield name, _compare_memory(order, measured)


def _compare_memory(order: Order, measured: Order) -> _Memory:
    ratio = _activations(order) / _activations(measured)
    doubled = _holds_stages_twice(order) and not _holds_stages_twice(measured)
    return _Memory(ratio, doubled or ratio > LEAST_MORE_MEMORY)


def _activations(order: Order) -> float:
    """Return the peak activations of the fullest rank, in micro-batches of a whole rank's share of the model."""
    return max(peak_in_flight(order).values()) * len(order) / index_actions(order).stages


def _holds_stages_twice(order: Order) -> bool:
    """Return whether a stage runs on two ranks: a bidirectional schedule, which holds every parameter twice."""
    places = {(stage, rank) for rank, _, stage, _ in actions_of(order)}
    return len(places) > index_actions(order).stages
