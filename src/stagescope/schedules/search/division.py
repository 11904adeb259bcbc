"""The same model cut into another number of stages: what each of them costs and keeps.

Costs are measured on some cut of the model; a schedule to be tried may need another one. Values given one per
stage are taken as the work of equal pieces of the model, in their order, each of them uniform inside: a stage
of the new cut gets its share of every piece that it covers. A chunk of v on a rank so takes 1/v of what the
rank's single stage took, and two measured chunks that become one stage cost their sum. One number for all
stages is what one of `ranks` stages costs.

What belongs to a boundary between stages and not to the work (hop, bandwidth, message bytes) is that of the
piece in which the stage ends; it does not get smaller with the stages.
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
    """Activation sizes in whole numbers: `scale` of them are one of the unit that was asked in."""

    sizes: ActivationSizes
    scale: int


def piece_count(costs: Costs, ranks: int) -> int:
    """Return how many pieces of the model the costs speak of, `ranks` where they are the same for all."""
    given = [getattr(costs, name) for name in (*ACTIONS, *WORK, *BOUNDARIES)]
    stages = [max(stage for stage, _ in each) + 1 for each in given if isinstance(each, Mapping) and each]
    lengths = [len(each) for each in given if isinstance(each, tuple)]
    return max([*stages, *lengths], default=ranks)


def divide_costs(costs: Costs, ranks: int, stages: int) -> Costs:
    """Return the costs of the same model cut into `stages` stages; sums over the model stay what they are.

    Costs per micro-batch become their median per piece. Raises ScheduleError for costs of different numbers of
    stages, and where those of a piece are not known for any micro-batch.

    >>> divide_costs(Costs(forward=10, backward=20), ranks=2, stages=4).forward
    (5, 5, 5, 5)
    >>> divide_costs(Costs(forward=[3, 4, 5, 6]), ranks=4, stages=2).forward
    (7, 11)
    """
    pieces = piece_count(costs, ranks)
    actions = action_costs(costs, pieces, _width(costs))
    work = dict(zip(ACTIONS, actions, strict=True))
    # Where all parts are given nothing is derived any more: rounded shares need not add up action by action.
    shares: dict[str, Any] = {
        name: _rounded_shares(_medians(name, cells, pieces), stages) for name, cells in work.items()
    }
    for name in WORK:
        shares[name] = _rounded_shares(per_stage(name, getattr(costs, name), pieces), stages)
    for name in BOUNDARIES:
        shares[name] = _at_ends(name, getattr(costs, name), pieces, stages)
    return replace(costs, **shares)


def divide_sizes(sizes: ActivationSizes, ranks: int, stages: int) -> ScaledSizes:
    """Return what each of `stages` stages keeps of a micro-batch, in whole numbers of a smaller unit.

    >>> divide_sizes(ActivationSizes(), ranks=2, stages=4)
    ScaledSizes(sizes=ActivationSizes(activation=[1, 1, 1, 1], held_for_weight=None), scale=2)
    """
    given = [size for size in sizes if size is not None]
    parts = [exact_shares([size] * ranks if isinstance(size, int) else list(size), stages) for size in given]
    scale = math.lcm(*(share.denominator for part in parts for share in part))
    return ScaledSizes(ActivationSizes(*([int(share * scale) for share in part] for part in parts)), scale)


def exact_shares(values: Sequence[int], stages: int) -> list[Fraction]:
    """Return the shares of equal pieces that fall on each of `stages` equal stages.

    >>> [str(share) for share in exact_shares([1, 2, 3], 2)]
    ['2', '4']
    """
    sums = list(accumulate(values, initial=0))
    until = [_until(sums, Fraction(stage * len(values), stages)) for stage in range(stages + 1)]
    return [after - before for before, after in pairwise(until)]


def _until(sums: list[int], place: Fraction) -> Fraction:
    """Return the sum of all pieces before a place, the one that it lies in by its part."""
    whole = int(place)
    rest = place - whole
    return sums[whole] + rest * (sums[whole + 1] - sums[whole]) if rest else Fraction(sums[whole])


def _rounded_shares(values: list[int] | None, stages: int) -> tuple[int, ...] | None:
    """Return the shares in whole numbers, rounded so that they add up to the whole."""
    if values is None:
        return None
    until = [int(total) for total in accumulate(exact_shares(values, stages), initial=Fraction(0))]
    return tuple(after - before for before, after in pairwise(until))


def _at_ends(name: str, amount: PerStage | None, pieces: int, stages: int) -> PerStage | None:
    if amount is None or isinstance(amount, int):
        return amount
    values = per_stage(name, amount, pieces)
    return tuple(values[-(-(stage + 1) * pieces // stages) - 1] for stage in range(stages))


def _width(costs: Costs) -> int:
    """Return how many micro-batches the costs speak of, 1 where they are the same for all."""
    given = [getattr(costs, name) for name in ACTIONS]
    last = [microbatch for each in given if isinstance(each, Mapping) for _, microbatch in each]
    return max(last, default=0) + 1


def _medians(name: str, cells: Cells, pieces: int) -> list[int] | None:
    """Return one cost per piece; None for pairs that have no cost of their own."""
    width = len(cells) // pieces
    rows = [[cell for cell in cells[piece * width :][:width] if cell is not None] for piece in range(pieces)]
    if name == "overlapped" and not all(rows):
        return None
    for piece, row in enumerate(rows):
        if not row:
            raise ScheduleError.no_cost(str(Action("FBIW"[ACTIONS.index(name)], piece, 0)))
    return [upper_median(row) for row in rows]
