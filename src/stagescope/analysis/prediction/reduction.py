"""Smaller pipelines that represent large ones, where simulating every order of the catalog would take too long.

Groups of neighboring ranks become one rank, and as many consecutive micro-batches one micro-batch. The bubble of a
schedule depends on the numbers of ranks and micro-batches only through their ratio, up to one group. With many
micro-batches per rank, the steady state repeats itself every p micro-batches: two short steps are simulated and the
rest is extrapolated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.prediction.measured_cells import MeasuredCells

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CELLS = 1024
"""Ranks times micro-batches that are simulated without reduction; 16 schedules of this size take about 0.5 CPU s."""

FEWEST_RANKS = 16
SHORT, LONG = 3, 4
"""Micro-batches per rank of the two steps that are extrapolated."""


class Part(NamedTuple):
    """A number of micro-batches to simulate, and the weight of its step time in the sum."""

    microbatches: int
    weight: float


class Reduction(NamedTuple):
    """Every rank and micro-batch represents `group` of them; the step is the weighted sum of `parts`."""

    ranks: int
    group: int
    parts: tuple[Part, ...]

    @property
    def is_exact(self) -> bool:
        """Whether nothing is reduced."""
        return self.group == 1 and len(self.parts) == 1

    def text(self) -> str:
        """Return what is simulated, as a clause; empty if nothing is reduced."""
        texts = []
        if self.group > 1:
            texts.append(f"{self.group} ranks and {self.group} micro-batches are simulated as one")
        if len(self.parts) > 1:
            texts.append("further micro-batches repeat the steady state")
        return "; ".join(texts)


def plan_reduction(ranks: int, microbatches: int) -> Reduction | None:
    """Return how a pipeline of these sizes is reduced to MOST_CELLS, None if it cannot be.

    >>> plan_reduction(64, 64)
    Reduction(ranks=32, group=2, parts=(Part(microbatches=32, weight=1.0),))
    >>> plan_reduction(8, 512).parts
    (Part(microbatches=32, weight=61.0), Part(microbatches=24, weight=-60.0))
    """
    divisors = [each for each in range(1, ranks + 1) if math.gcd(ranks, microbatches) % each == 0]
    fitting = [each for each in divisors if each == 1 or ranks // each >= FEWEST_RANKS]
    group = next((each for each in fitting if ranks * microbatches <= MOST_CELLS * each * each), fitting[-1])
    fewer, count = ranks // group, microbatches // group
    if fewer * count <= MOST_CELLS:
        return Reduction(fewer, group, (Part(count, 1.0),))
    if fewer * fewer * LONG > MOST_CELLS or count < LONG * fewer:
        return None
    long, short = LONG * fewer, SHORT * fewer
    more = (count - long) / (long - short)
    return Reduction(fewer, group, (Part(long, 1 + more), Part(short, -more)))


def reduce_cells(cells: MeasuredCells, group: int) -> MeasuredCells:
    """Return mean costs per group of stages for as many micro-batches; the slowest stage of a group sets its pace."""
    means = cells.of_stages()
    starts = np.arange(0, cells.stages, group)

    def grouped(named: dict[str, NDArray[np.float64]], how: np.ufunc) -> dict[str, NDArray[np.float64]]:
        return {letter: how.reduceat(each, starts) for letter, each in named.items()}

    lasting = {letter: group * each for letter, each in grouped(means.lasting_ns, np.maximum).items()}
    hops: dict[int, float] = {}
    for link, hop_ns in cells.hop_ns.items():
        hops[link // group] = hops.get(link // group, 0.0) + hop_ns
    return MeasuredCells(lasting, grouped(means.delay_ns, np.add), hops, means.window_ns)
