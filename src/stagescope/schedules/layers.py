"""The best split of the layers of a model into pipeline stages.

The slowest stage bounds a pipeline (Alpa, arXiv 2201.12023, eq. 2: the sum over the stages plus B - 1 times the
slowest), so the split minimizes the cost of the slowest stage. Among splits with equal slowest stage, the one with the
smallest variance between stages is best. The sum of all stages is fixed, so that is the smallest sum of squares.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence


class LayerSplit(NamedTuple):
    """Contiguous stages: stage s has the layers from `first_layers[s]` to before `first_layers[s + 1]`.

    The last entry of `first_layers` is the number of layers, so it has one more entry than there are stages.
    """

    first_layers: tuple[int, ...]
    stage_ns: tuple[int, ...]

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """The number of layers of each stage."""
        return tuple(after - before for before, after in pairwise(self.first_layers))

    @property
    def slowest_ns(self) -> int:
        """The cost of the slowest stage."""
        return max(self.stage_ns)

    def totals(self, per_layer: Sequence[int]) -> tuple[int, ...]:
        """Return the sums per stage of another quantity per layer, such as forward time or activation memory."""
        return tuple(sum(per_layer[before:after]) for before, after in pairwise(self.first_layers))


def split_layers(layer_ns: Sequence[int], stages: int) -> LayerSplit:
    """Return the best split of layers into contiguous stages, each with at least one layer.

    `layer_ns` is the cost of each layer per micro-batch, forward and backward. The result is optimal: no other split
    has a faster slowest stage, and none with an equally slow one has a smaller variance between stages. Among equal
    splits, the cuts are as far to the front as possible. Takes O(stages x layers²) time. Raises ScheduleError for
    fewer layers than stages, for zero stages, and for a cost that is not a whole number of at least 0.

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
            raise ScheduleError.wrong_cost("of a layer", cost, "a whole number, at least 0")
    if not 1 <= stages <= len(costs):
        raise ScheduleError.too_few_layers(len(costs), stages)
    return costs


def _smallest_maximum(sums: list[int], stages: int) -> int:
    """Return the smallest possible cost of the slowest stage, by bisection."""
    # The slowest stage costs at least the largest layer and at most all layers.
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
    """Return how many stages are needed if each takes as many layers as the cap allows.

    A number below the requested one is fine: cutting a stage in two makes no stage slower.
    """
    needed, begins_ns = 1, 0
    for before, after in pairwise(sums):
        if after - begins_ns > cap_ns:
            needed, begins_ns = needed + 1, before
    return needed


def _best_end(sums: list[int], first: int, cap_ns: int, rest: list[float]) -> tuple[float, int]:
    """Return the smallest sum of squares from layer `first` on, and the end of the stage that begins there.

    `rest[end]` is the smallest sum for the layers from `end` on.
    """
    least, best_end = float("inf"), len(sums) - 1
    for end in range(first + 1, len(sums)):
        cost_ns = sums[end] - sums[first]
        # Costs are not negative, so a longer stage costs at least as much.
        if cost_ns > cap_ns:
            break
        total = cost_ns * cost_ns + rest[end]
        # Strictly smaller: of equal totals the shortest first stage is kept, which puts the cuts to the front.
        if total < least:
            least, best_end = total, end
    return least, best_end


def _most_even(sums: list[int], stages: int, cap_ns: int) -> tuple[int, ...]:
    """Return the cuts with the smallest sum of squared stage costs, no stage above the cap.

    `best[layer]` is the smallest sum for the layers from `layer` on, with the stages processed so far, counted from the
    back; `next_cut[stage][layer]` is the end of the first of these stages.
    """
    layers = len(sums) - 1
    best: list[float] = [float("inf")] * layers + [0]
    next_cut: list[dict[int, int]] = []
    for begins in reversed(_possible_begins(sums, stages, cap_ns)):
        choices = [_best_end(sums, first, cap_ns, best) for first in begins]
        best = [float("inf")] * (layers + 1)
        best[begins.start : begins.stop] = [total for total, _ in choices]
        next_cut.append(dict(zip(begins, (end for _, end in choices), strict=True)))
    found = [0]
    for cuts in reversed(next_cut):
        found.append(cuts[found[-1]])
    return tuple(found)


def _possible_begins(sums: list[int], stages: int, cap_ns: int) -> list[range]:
    """Return the layers that each stage can begin with, if no stage is above the cap and none is empty.

    With many stages these are few: full stages before it, or full stages from it on, leave few choices.
    """
    layers = len(sums) - 1
    latest, earliest = [0], [layers]
    for stage in range(1, stages):
        full = bisect_right(sums, sums[latest[-1]] + cap_ns) - 1
        latest.append(min(full, layers - (stages - stage)))
    for stage in reversed(range(stages)):
        full = bisect_left(sums, sums[earliest[-1]] - cap_ns)
        earliest.append(max(full, stage))
    return [range(first, last + 1) for first, last in zip(reversed(earliest[1:]), latest, strict=True)]
