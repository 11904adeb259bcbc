"""Costs and activation sizes of a model that is divided into a different number of stages.

Costs are measured on one division of the model into stages; a schedule to simulate may need another. Values per stage
are taken as the work of equal pieces of the model, in order, each of them uniform: a stage of the new division gets
its share of every piece that it covers. With v chunks per rank, a chunk therefore costs 1/v of the single stage of the
rank, and two measured chunks that become one stage cost their sum. One number for all stages is the cost of one of
`ranks` stages.

Values of the boundary between two stages (hop, bandwidth, message bytes) are those of the piece in which the stage
ends; they do not shrink with the stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.schedules.action import Action
from stagescope.schedules.costs import ACTIONS, Costs, action_costs, per_stage
from stagescope.schedules.memory import ActivationSizes
from stagescope.schedules.orders.searched_costs import upper_median
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.schedules.costs import Cells, PerStage

WORK = ("optimizer", "grad_reduce")
BOUNDARIES = ("hop", "bandwidth", "message_bytes")


class ScaledSizes(NamedTuple):
    """Activation sizes as integers in a smaller unit: `scale` of them make one of the original unit."""

    sizes: ActivationSizes
    scale: int


def piece_count(costs: Costs, ranks: int) -> int:
    """Return the number of pieces in the costs, `ranks` if the costs are the same for all stages."""
    given = [getattr(costs, name) for name in (*ACTIONS, *WORK, *BOUNDARIES)]
    stages = [max(stage for stage, _ in each) + 1 for each in given if isinstance(each, Mapping) and each]
    lengths = [len(each) for each in given if isinstance(each, tuple)]
    return max([*stages, *lengths], default=ranks)


def divide_costs(costs: Costs, ranks: int, stages: int) -> Costs:
    """Return the costs of the same model divided into `stages` stages; sums over the model do not change.

    Costs per micro-batch become their median per piece. Raises ScheduleError for costs of different numbers of stages,
    and for a piece without costs for any micro-batch.

    >>> divide_costs(Costs(forward=10, backward=20), ranks=2, stages=4).forward
    (5, 5, 5, 5)
    >>> divide_costs(Costs(forward=[3, 4, 5, 6]), ranks=4, stages=2).forward
    (7, 11)
    """
    pieces = piece_count(costs, ranks)
    actions = action_costs(costs, pieces, _width(costs))
    work = dict(zip(ACTIONS, actions, strict=True))
    # All parts are given from here on, so nothing is derived again: rounded shares need not add up per action.
    shares: dict[str, Any] = {
        name: _rounded_shares(_medians(name, cells, pieces), stages) for name, cells in work.items()
    }
    for name in WORK:
        shares[name] = _rounded_shares(per_stage(name, getattr(costs, name), pieces), stages)
    for name in BOUNDARIES:
        shares[name] = _at_ends(name, getattr(costs, name), pieces, stages)
    return replace(costs, **shares)


def divide_sizes(sizes: ActivationSizes, ranks: int, stages: int) -> ScaledSizes:
    """Return the activation sizes of each of `stages` stages, as integers in a smaller unit.

    >>> divide_sizes(ActivationSizes(), ranks=2, stages=4)
    ScaledSizes(sizes=ActivationSizes(activation=[1, 1, 1, 1], held_for_weight=None), scale=2)
    """
    given = [size for size in sizes if size is not None]
    parts = [exact_shares([size] * ranks if isinstance(size, int) else list(size), stages) for size in given]
    # Memory limits are compared exactly, so sizes stay integers in a common denominator instead of floats.
    scale = math.lcm(*(share.denominator for part in parts for share in part))
    return ScaledSizes(ActivationSizes(*([int(share * scale) for share in part] for part in parts)), scale)


def exact_shares(values: Sequence[int], stages: int) -> list[Fraction]:
    """Return the sum of equal pieces that falls on each of `stages` equal stages.

    >>> [str(share) for share in exact_shares([1, 2, 3], 2)]
    ['2', '4']
    """
    sums = list(accumulate(values, initial=0))
    until = [_sum_until(sums, Fraction(stage * len(values), stages)) for stage in range(stages + 1)]
    return [after - before for before, after in pairwise(until)]


def _sum_until(sums: list[int], position: Fraction) -> Fraction:
    """Return the sum of the pieces before a position, with the matching part of the piece that contains it."""
    whole = int(position)
    rest = position - whole
    return sums[whole] + rest * (sums[whole + 1] - sums[whole]) if rest else Fraction(sums[whole])


def _rounded_shares(values: list[int] | None, stages: int) -> tuple[int, ...] | None:
    """Return the shares as integers, rounded such that their sum is exact."""
    if values is None:
        return None
    # Rounding the running sum instead of each share keeps the total exact.
    until = [int(total) for total in accumulate(exact_shares(values, stages), initial=Fraction(0))]
    return tuple(after - before for before, after in pairwise(until))


def _at_ends(name: str, amount: PerStage | None, pieces: int, stages: int) -> PerStage | None:
    if amount is None or isinstance(amount, int):
        return amount
    values = per_stage(name, amount, pieces)
    # Ceiling division: the piece in which the stage ends.
    return tuple(values[-(-(stage + 1) * pieces // stages) - 1] for stage in range(stages))


def _width(costs: Costs) -> int:
    """Return the number of micro-batches in the costs, 1 if the costs are the same for all."""
    given = [getattr(costs, name) for name in ACTIONS]
    last = [microbatch for each in given if isinstance(each, Mapping) for _, microbatch in each]
    return max(last, default=0) + 1


def _medians(name: str, cells: Cells, pieces: int) -> list[int] | None:
    """Return one cost per piece; None for overlapped pairs without a cost of their own."""
    width = len(cells) // pieces
    rows = [[cell for cell in cells[piece * width :][:width] if cell is not None] for piece in range(pieces)]
    if name == "overlapped" and not all(rows):
        return None
    for piece, row in enumerate(rows):
        if not row:
            raise ScheduleError.no_cost(str(Action("FBIW"[ACTIONS.index(name)], piece, 0)))
    return [upper_median(row) for row in rows]
