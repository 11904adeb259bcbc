"""What a picture shows of a run, and its size: the choices for a paper or a slide."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.exporters.pictures.step_chart import chart_step, from_origins
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.exporters.pictures.step_chart import Section, StepChart
    from stagescope.model import Timeline


LEGENDS = ("above", "below", "none")
DEFAULT_POINTS = 9.0
UNITS_PER_INCH = 96.0
"""A unit is a pixel of CSS, of which 12 are 9 points."""


class Size(NamedTuple):
    """Width and height; without a height, as high as its rows need."""

    width: float
    height: float | None = None

    def times(self, factor: float) -> Size:
        """Return the size multiplied by a factor."""
        return Size(self.width * factor, None if self.height is None else self.height * factor)

    def __str__(self) -> str:
        """Return the size in whole pixels, rounded up, as on the command line."""
        return "x".join(str(math.ceil(side)) for side in self if side is not None)


class Look(NamedTuple):
    """The title (None: what the picture shows; empty: none), one of LEGENDS, and the font size in points."""

    title: str | None = None
    legend: str = "above"
    font_points: float = DEFAULT_POINTS


AS_USUAL = Look()


@dataclass(frozen=True)
class Figure:
    """A step (None: the typical one), ranks (empty: all), a size (None: as large as the step needs) and a look.

    A size is in pixels; a picture may have several of them per unit of the drawing. `inches` is a width on paper,
    instead of a size. `extras` are analysis results, of which a figure shows the idle time by cause and the critical
    path.
    """

    step: int | None = None
    ranks: tuple[int, ...] = ()
    size: Size | None = None
    inches: float | None = None
    look: Look = AS_USUAL
    pixels_per_unit: float = 1.0
    extras: AnalysisLayers | None = field(default=None, compare=False, repr=False)

    def scaled(self, pixels_per_unit: float = 1.0, pixels_per_inch: float = UNITS_PER_INCH) -> Figure:
        """Return the figure with so many pixels per unit for the default font size, or per inch of its width."""
        factor = self.look.font_points / DEFAULT_POINTS
        if self.inches is None:
            return replace(self, pixels_per_unit=pixels_per_unit * factor)
        size = Size(round(self.inches * pixels_per_inch, 1))
        return replace(self, size=size, pixels_per_unit=pixels_per_inch / UNITS_PER_INCH * factor)

    @property
    def drawn_size(self) -> Size | None:
        """The size in units."""
        return None if self.size is None else self.size.times(1 / self.pixels_per_unit)


def chart_figure(timeline: Timeline, figure: Figure) -> StepChart:
    """Return the chart of a figure; times and bubble are those of the whole step, whichever ranks are drawn.

    Raises InputError if the step or a rank was not recorded.
    """
    chart = with_extras(chart_step(timeline, figure.step), timeline, figure.extras)
    return _only_ranks(chart, set(figure.ranks)) if figure.ranks else chart


def with_extras(chart: StepChart, timeline: Timeline, extras: AnalysisLayers | None) -> StepChart:
    """Return the chart with idle time by cause and the critical path of its step; unchanged without `extras`."""
    if extras is None or chart.step is None:
        return chart
    idle, path = extras.idle, extras.critical_path
    if idle is not None:
        idle = _in_chart(idle.filter(pl.col("step") == chart.step), chart).select(
            "row", "start_ns", "end_ns", "waiting_for"
        )
    if path is not None:
        spans = timeline.spans[path["row"]].filter(pl.col("step") == chart.step)
        path = _in_chart(spans, chart).select("row", "start_ns", "end_ns")
    return replace(chart, idle=idle, critical_path=path)


def _in_chart(frame: pl.DataFrame, chart: StepChart) -> pl.DataFrame:
    """Return a frame with rank, start_ns and end_ns in the rows and times of a chart."""
    row = pl.col("rank").replace_strict(chart.ranks, range(len(chart.ranks)), return_dtype=pl.Int32)
    return from_origins(frame, chart.origins_ns, ("start_ns", "end_ns")).with_columns(row=row)


def _only_ranks(chart: StepChart, ranks: set[int]) -> StepChart:
    unknown = ranks.difference(chart.ranks)
    if unknown:
        raise InputError.no_ranks(unknown, chart.ranks)
    kept = [row for row, rank in enumerate(chart.ranks) if rank in ranks]
    row = pl.col("row").replace_strict(kept, range(len(kept)), return_dtype=pl.Int32)
    row_or_none = pl.col("row").replace_strict(kept, range(len(kept)), default=None, return_dtype=pl.Int32)
    drawn, waits = (table.filter(pl.col("row").is_in(kept)) for table in (chart.spans, chart.waits))
    idle, path = chart.idle, chart.critical_path
    return replace(
        chart,
        ranks=tuple(chart.ranks[row] for row in kept),
        spans=drawn.with_columns(row),
        waits=waits.with_columns(row),
        idle=None if idle is None else idle.filter(pl.col("row").is_in(kept)).with_columns(row),
        critical_path=None if path is None else path.with_columns(row_or_none),
        sections=tuple(_kept_sections(chart, kept)),
        other_rank_count=len(chart.ranks) - len(kept),
    )


def _kept_sections(chart: StepChart, kept: list[int]) -> Iterator[Section]:
    """Yield the sections with at least one drawn row, at the first of these."""
    ends = [section.row for section in chart.sections[1:]] + [len(chart.ranks)] * bool(chart.sections)
    for section, end in zip(chart.sections, ends, strict=True):
        places = [place for place, row in enumerate(kept) if section.row <= row < end]
        if places:
            yield section._replace(row=places[0])
