"""The windows of all pipelines and steps that can be measured: the basis of every metric of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.completeness.unaligned import find_unaligned_ranks
from stagescope.model.bubbles import step_bubbles
from stagescope.model.lazy import parts_of
from stagescope.model.pipelines import find_pipelines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.model import Timeline


@dataclass(frozen=True)
class Windows:
    """The pipelines that can be measured, what step_bubbles returns for them, and the ranks of the others.

    `bubbles` of a large run may be in parts (model/lazy.py), one for each range of steps.
    """

    pipelines: pl.DataFrame
    bubbles: pl.DataFrame
    unaligned: list[int]

    @property
    def parts(self) -> Iterable[pl.DataFrame]:
        """The rows of `bubbles`, some steps after the others; they may be iterated more than once."""
        return parts_of(self, "bubbles")


def measure_windows(timeline: Timeline) -> Windows:
    """Return the pipelines whose ranks are on one clock, with their windows."""
    every = find_pipelines(timeline.spans, timeline.ranks)
    unaligned = find_unaligned_ranks(timeline, every)
    pipelines = every.filter(~pl.col("rank").is_in(unaligned)) if unaligned else every
    return Windows(pipelines, step_bubbles(timeline.spans, pipelines), unaligned)
