"""What of a run a picture shows and how large it is: the choices for a paper or a slide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.export.step_chart import chart_step
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.export.step_chart import Section, StepChart
    from stagescope.timeline import Timeline


class Size(NamedTuple):
    """Width and height; without a height, as high as its rows need."""

    width: float
    height: float | None = None

    def times(self, factor: float) -> Size:
        """Return the size so many times as large."""
        return Size(self.width * factor, None if self.height is None else self.height * factor)

    def __str__(self) -> str:
        """Return the size in whole pixels as a command line has it, rounded up."""
        return "x".join(str(math.ceil(side)) for side in self if side is not None)


@dataclass(frozen=True)
class Figure:
    """A step (None: the typical one), ranks (none: all of them) and a size (None: as large as the step needs).

    A size is in pixels, and a picture of pixels may have several of them for each unit that it is drawn in.
    """

    step: int | None = None
    ranks: tuple[int, ...] = ()
    size: Size | None = None
    pixels_per_unit: int = 1

    @property
    def drawn_size(self) -> Size | None:
        """The size in units."""
        return None if self.size is None else self.size.times(1 / self.pixels_per_unit)


def chart_figure(timeline: Timeline, figure: Figure) -> StepChart:
    """Return what a figure draws. Times and the bubble are those of the whole step, whichever ranks are drawn.

    Raises InputError when the step or a rank was not recorded.
    """
    chart = chart_step(timeline, figure.step)
    return _only_ranks(chart, set(figure.ranks)) if figure.ranks else chart


def _only_ranks(chart: StepChart, ranks: set[int]) -> StepChart:
    unknown = ranks.difference(chart.ranks)
    if unknown:
        raise InputError.no_ranks(unknown, chart.ranks)
    kept = [row for row, rank in enumerate(chart.ranks) if rank in ranks]
    row = pl.col("row").replace_strict(kept, range(len(kept)), return_dtype=pl.Int32)
    blocks, waits = (table.filter(pl.col("row").is_in(kept)) for table in (chart.blocks, chart.waits))
    return replace(
        chart,
        ranks=tuple(chart.ranks[row] for row in kept),
        blocks=blocks.with_columns(row),
        waits=waits.with_columns(row),
        sections=tuple(_kept_sections(chart, kept)),
        other_rank_count=len(chart.ranks) - len(kept),
    )


def _kept_sections(chart: StepChart, kept: list[int]) -> Iterator[Section]:
    """Yield the sections of which a row is kept, at the first of these."""
    ends = [section.row for section in chart.sections[1:]] + [len(chart.ranks)] * bool(chart.sections)
    for section, end in zip(chart.sections, ends, strict=True):
        places = [place for place, row in enumerate(kept) if section.row <= row < end]
        if places:
            yield section._replace(row=places[0])
