"""What counters show, of all of them at once or of some after the others: a large run has more than fit into memory.

A part has all counters of some pipelines in some steps, or of some ranks outside of steps. What is found in it has a
row per rank and counter, or per micro-batch of the sample of the run; the data of pipelines have one per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.counters.data_sizes import (
    count_data,
    data_of_iterations,
    microbatch_sizes,
    unit_of,
    units_in,
)
from stagescope.analysis.counters.lengths import SIZES
from stagescope.analysis.counters.memory import join_memory, memory_of_ranks
from stagescope.analysis.counters.slow_clocks import join_readings, read_clocks
from stagescope.model.large_tables import reduced
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from stagescope.vocabulary.steps import StepRange, StepRanges


class SampledCells(NamedTuple):
    """Where the sample of a run is: its steps, None for all, and rank and pipeline of its ranks."""

    steps: StepRange | StepRanges | None
    pipelines: pl.DataFrame


class ShownCounters(NamedTuple):
    """What an explanation needs of counters.

    `readings` is from read_clocks for the steps in the totals, `sizes` from microbatch_sizes for the sample of the run,
    and `units` from units_in.
    """

    readings: pl.DataFrame
    sizes: pl.DataFrame
    units: frozenset[str]


class CounterPart(NamedTuple):
    """What is found in some of the counters; `memory` is from most_memory."""

    memory: pl.DataFrame
    shown: ShownCounters


class JoinedCounters(NamedTuple):
    """What all counters of a run show: the table RANK_MEMORY, and the result of count_data; None without data."""

    memory: pl.DataFrame
    data: pl.DataFrame | None
    shown: ShownCounters

    def step_data(self, iterations: pl.DataFrame) -> pl.DataFrame:
        """Return the table STEP_DATA, given the table ITERATION_STEPS."""
        return data_of_iterations(self.data, iterations)


def show_counters(counters: pl.DataFrame, counted: Collection[int], sample: SampledCells) -> ShownCounters:
    """Return what an explanation needs of some counters; `counted` are the steps in the totals."""
    sampled = counters.filter(is_in_steps(sample.steps))
    return ShownCounters(
        read_clocks(counters, counted),
        microbatch_sizes(sampled, sample.pipelines, SIZES),
        units_in(counters),
    )


def join_counters(
    parts: Sequence[CounterPart], data: Iterable[pl.DataFrame], pipelines: pl.DataFrame, ranks: pl.DataFrame
) -> JoinedCounters:
    """Return what all parts show together; there is at least one.

    `data` are the rows of pipeline_data, some steps after the others: a large run has too many for memory. `pipelines`
    is what find_pipelines returns, `ranks` has the data-parallel coordinates.
    """
    units = frozenset().union(*(each.shown.units for each in parts))
    return JoinedCounters(
        memory_of_ranks(reduced((each.memory for each in parts), join_memory)),
        count_data(data, unit_of(units), pipelines, ranks),
        ShownCounters(
            reduced((each.shown.readings for each in parts), join_readings),
            pl.concat([each.shown.sizes for each in parts]),
            units,
        ),
    )
