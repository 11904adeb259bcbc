"""ZB-1p and ZB-2p: zero-bubble orders found by a search with costs and a memory limit.

Source: Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3 (the search) and section 5 (the names: a
limit of p or of 2 p activations). These are not fixed orders: at F = I = W with m > p micro-batches ZB-1p equals ZB-H1,
at measured costs it may differ. `zero_bubble_heuristic` describes the search.

The search uses F, I, W and the time from an action to the arrival of its message; costs that differ between
micro-batches become their median per stage. `memory_limit` is in the unit of `sizes`: activations of one micro-batch,
or bytes if the sizes are bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.costs import Costs, per_stage
from stagescope.schedules.memory import CHUNKS, ActivationSizes
from stagescope.schedules.orders.searched_costs import stage_costs
from stagescope.schedules.orders.zero_bubble_heuristic import SearchInput, search_order
from stagescope.schedules.registry import Constraint, Option, Schedule, Shape
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Order

SECTION = "arXiv 2401.10241, section 3"

LIMIT = "most memory of a stage, a whole number or one per stage"


def zb_1p(shape: Shape) -> Order:
    """Return the best order found in the memory of 1F1B, or in `memory_limit`."""
    return search_order(_search_input(shape, limit_activations=shape.ranks))


def zb_2p(shape: Shape) -> Order:
    """Return the best order found in twice the memory of 1F1B, or in `memory_limit`."""
    return search_order(_search_input(shape, limit_activations=2 * shape.ranks))


def _search_input(shape: Shape, limit_activations: int) -> SearchInput:
    activation, held_for_weight = _sizes(shape)
    return SearchInput(
        microbatches=shape.microbatches,
        costs=stage_costs(shape, shape.ranks),
        activation=activation,
        held_for_weight=held_for_weight,
        memory_limit=_limit(shape) or [limit_activations * size for size in activation],
    )


def _sizes(shape: Shape) -> tuple[list[int], list[int]]:
    """Return the memory of an F on each stage, and the part of it that is kept until its W."""
    sizes = shape.options["sizes"] or CHUNKS
    activation = per_stage("activation", sizes.activation, shape.ranks)
    held = sizes.held_for_weight
    return activation, activation if held is None else per_stage("held_for_weight", held, shape.ranks)


def _limit(shape: Shape) -> list[int] | None:
    limit = shape.options["memory_limit"]
    if limit is None:
        return None
    limits = per_stage("memory_limit", limit, shape.ranks)
    if not all(isinstance(each, int) for each in limits):
        raise ScheduleError.option_value("zero bubble search", "memory_limit", limit, LIMIT)
    return limits


def _parts_fit(shape: Shape) -> bool:
    return all(0 <= held <= size for size, held in zip(*_sizes(shape), strict=True))


def _one_fits(shape: Shape) -> bool:
    limit = _limit(shape)
    return limit is None or all(size <= most for size, most in zip(_sizes(shape)[0], limit, strict=True))


OPTIONS = (
    Option("costs", None, "Costs of the actions and hops, None for F = I = W = 1", (Costs,)),
    Option(
        "sizes",
        None,
        "ActivationSizes of a micro-batch, None for 1 activation that is kept until W",
        (ActivationSizes,),
    ),
    Option(
        "memory_limit",
        None,
        LIMIT,
        (int, list, tuple),
    ),
)

CONSTRAINTS = (
    Constraint("sizes with held_for_weight from 0 to activation", "its W frees a part", _parts_fit, "sizes"),
    Constraint("a memory_limit of at least one activation", SECTION, _one_fits, "memory_limit"),
)


ZB_1P = Schedule(
    name="zb-1p",
    title="Zero bubble, searched in the memory of 1F1B",
    source=SECTION,
    placement="linear",
    peak_memory="min(m, p), or memory_limit",
    build=zb_1p,
    options=OPTIONS,
    constraints=CONSTRAINTS,
)

ZB_2P = Schedule(
    name="zb-2p",
    title="Zero bubble, searched in twice the memory of 1F1B",
    source=SECTION,
    placement="linear",
    peak_memory="min(m, 2 p), or memory_limit",
    build=zb_2p,
    options=OPTIONS,
    constraints=CONSTRAINTS,
)
