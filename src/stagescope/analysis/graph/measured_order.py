"""The order in which the ranks of one pipeline ran their actions in one step, as the theory writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.schedules.action import Action
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions
    from stagescope.schedules.action import Order


def measured_order(actions: Actions, pipeline: int, step: int) -> Order:
    """Return what every rank of a pipeline ran in a step, in the order of its starts; empty if nothing."""
    table = actions.table.filter((pl.col("pipeline") == pipeline) & (pl.col("step") == step))
    second = actions.partners.filter(pl.col("action").is_in(table["action"].implode()))
    partners = {
        number: Action(BY_NAME[kind].letter, stage, microbatch)
        for number, kind, stage, microbatch in second.select(
            "action", "kind", "stage", "microbatch"
        ).iter_rows()
    }
    order: Order = {}
    for number, rank, kind, stage, microbatch in table.select(
        "action", "rank", "kind", "stage", "microbatch"
    ).iter_rows():
        action = Action(BY_NAME[kind].letter, stage, microbatch, partners.get(number))
        order.setdefault(rank, []).append(action)
    return order
