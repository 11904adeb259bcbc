"""Where to cut a model of layers into stages.

The slowest stage bounds a pipeline (Alpa, arXiv 2201.12023, eq. 2: the sum over the stages plus B - 1 times the
slowest), so that is what the cuts make as fast as can be. Of all cuts with the same slowest stage those count
as best whose stages differ least: as the sum is what it is, the ones with the smallest sum of squares.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence


class LayerSplit(NamedTuple):
    """Contiguous stages: stage s holds the layers from `first_layers[s]` up to the next stage's first.

    `first_layers` has one entry more than there are stages, the number of layers.
    """

    first_layers: tuple[int, ...]
    stage_ns: tuple[int, ...]

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """How many layers each stage holds."""
        return tuple(after - before for before, after in pairwise(self.first_layers))

    @property
    def slowest_ns(self) -> int:
        """The cost of the slowest stage."""
        return max(self.stage_ns)

    def totals(self, per_layer: Sequence[int]) -> tuple[int, ...]:
        """Return any other amount per layer, such as its forward or its activation, summed up per stage."""
        return tuple(sum(per_layer[before:after]) for before, after in pairwise(self.first_layers))


def split_layers(layer_ns: Sequence[int], stages: int) -> LayerSplit:
    """Return the best cut of layers into contiguous stages, each with at least one layer.

    `layer_ns` is what each layer costs per micro-batch, forward and backward. The split is exact: no other one
    has a faster slowest stage, and none with an equal one has a smaller variance between its stages. Of equal
    splits it is the one with its cuts furthest to the front. Takes time in the order of stages x layers². Raises
    ScheduleError for fewer layers than stages, for no stage, and for a cost that is no whole number from 0 on.

    >>> split = split_layers([9, 1, 1, 1, 1, 1, 1, 5], stages=3)
    >>> split.layer_counts, split.stage_ns, split.totals([1] * 8)
    ((1, 5, 2), (9, 5, 6), (1, 5, 2))
    """
    costs = _checked(layer_ns, stages)
    sums = list(accumulate(costs, initial=0))
    cap_ns = _smallest_maximum(sums, stages)
    cuts = _most_even(sums, stages, cap_ns)
    return LayerSplit(cuts, tuple(sums[after] - sums[before] for before, after in pairwise(cuts)))


def _checked(layer_ns: Sequence[int], stages: int) -> list[int]:
    costs = list(layer_ns)
    for cost in costs:
        if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
            raise ScheduleError.wrong_cost("of a layer", cost, "a whole number from 0 on")
    if not 1 <= stages <= len(costs):
        raise ScheduleError.too_few_layers(len(costs), stages)
    return costs


def _smallest_maximum(sums: list[int], stages: int) -> int:
    """Return the smallest cost that no stage of some split exceeds: halving between what must and what can be."""
    low_ns = max(after - before for before, after in pairwise(sums))
    high_ns = sums[-1]
    while low_ns < high_ns:
        middle_ns = (low_ns + high_ns) // 2
        if _stages_needed(sums, middle_ns) <= stages:
            high_ns = middle_ns
        else:
            low_ns = middle_ns + 1
    return low_ns


def _stages_needed(sums: list[int], cap_ns: int) -> int:
    """Return how many stages are enough if each takes as many layers as the cap allows.

    Fewer than asked for will do too: cutting a stage in two makes none of them slower.
    """
    needed, begins_ns = 1, 0
    for before, after in pairwise(sums):
        if after - begins_ns > cap_ns:
            needed, begins_ns = needed + 1, before
    return needed


def _best_end(sums: list[int], first: int, cap_ns: int, rest: list[float]) -> tuple[float, int]:
    """Return the sum of squares from layer `first` on, and where the stage that begins there had best end.

    `rest[end]` is the sum for the layers from `end` on.
    """
    least, best_end = float("inf"), len(sums) - 1
    for end in range(first + 1, len(sums)):
        cost_ns = sums[end] - sums[first]
        if cost_ns > cap_ns:
            break
        total = cost_ns * cost_ns + rest[end]
        if total < least:
            least, best_end = total, end
    return least, best_end


def _most_even(sums: list[int], stages: int, cap_ns: int) -> tuple[int, ...]:
    """Return the cuts with the smallest sum of squared stage costs, no stage above the cap.

    `best[layer]` is the smallest sum for the layers from there on, cut into so many stages as have been gone
    through; `next_cut[stage][layer]` the end of the first of them.
    """
    layers = len(sums) - 1
    never = float("inf")
    best: list[float] = [never] * layers + [0]
    next_cut: list[list[int]] = []
    for _ in range(stages):
        choices = [_best_end(sums, first, cap_ns, best) for first in range(layers)]
        best = [total for total, _ in choices] + [never]
        next_cut.append([end for _, end in choices] + [layers])
    found = [0]
    for cuts in reversed(next_cut):
        found.append(cuts[found[-1]])
    return tuple(found)
