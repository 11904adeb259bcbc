"""The geometry of a picture: positions of times and rows in pixels, and the format of coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.exporters.pictures.figure import Size
    from stagescope.exporters.pictures.step_chart import ChartSpan, StepChart

PLOT_WIDTHS = (820.0, 1640.0)
BLOCK_WIDTH = 5.0
DIGIT_WIDTH = 7.2
"""A action that is to show its number is this wide, and this much wider per digit."""

RIGHT = 24.0
AXIS_HEIGHT = 52.0
"""Height of the labels of the time axis, below which there may be a legend."""

LEAST_PLOT_WIDTH = 120.0
LEAST_PITCH = 3.0
"""A picture with fewer pixels than this per rank, or for the time axis, is not readable."""

ROW_HEIGHTS = ((16, 30.0), (40, 22.0), (128, 15.0), (1 << 31, 8.0))
"""Row height by the number of ranks, up to each count."""

GAP_FRACTION = 1 / 7
"""The fraction of the distance between rows that stays empty."""

SECTION_HEIGHT = 24.0
"""Height of the title above the first row of a section."""

SHARED_ROW_FACTOR = 1.4
STRIP_FRACTION = 0.3
LEAST_WIDTH = 0.4
"""Spans of zero length are drawn this wide, so that they are visible."""


class Box(NamedTuple):
    """The position of one span in its row, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Canvas:
    """The geometry of one picture: positions of times and rows, in pixels; `below` is what is below the rows."""

    chart: StepChart
    left: float
    top: float
    size: Size | None = None
    below: float = AXIS_HEIGHT

    @cached_property
    def plot_width(self) -> float:
        """Width of the time axis: given by the size, or wide enough for the number in nine of ten actions."""
        if self.size is not None:
            return self.size.width - self.left - RIGHT
        actions = self.chart.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
        short_ns = actions.select((pl.col("end_ns") - pl.col("start_ns")).quantile(0.1)).item() or 0
        digits = len(str(actions.select(pl.col("microbatch").max()).item() or 0))
        block_width = BLOCK_WIDTH + digits * DIGIT_WIDTH
        wanted = block_width * self.chart.length_ns / short_ns if short_ns else 0.0
        return min(max(wanted, PLOT_WIDTHS[0]), PLOT_WIDTHS[1])

    @cached_property
    def row_height(self) -> float:
        """Height of a row: given by the size, or by the number of rows, higher if actions share one."""
        if self.size is not None and self.size.height is not None:
            pitch = self._rows_height(self.size.height) / max(len(self.chart.ranks), 1)
            return pitch - row_gap(pitch * GAP_FRACTION)
        height = next(height for most, height in ROW_HEIGHTS if len(self.chart.ranks) <= most)
        return (
            height * SHARED_ROW_FACTOR
            if self.chart.spans.select((pl.col("lane_count") > 1).any()).item()
            else height
        )

    @property
    def pitch(self) -> float:
        """Distance from row to row."""
        if self.size is not None and self.size.height is not None:
            return self._rows_height(self.size.height) / max(len(self.chart.ranks), 1)
        return self.row_height + row_gap(self.row_height / 6)

    @property
    def least_width(self) -> float:
        """The smallest readable width."""
        return self.left + LEAST_PLOT_WIDTH + RIGHT

    @property
    def least_height(self) -> float:
        """The smallest readable height."""
        rows = LEAST_PITCH * max(len(self.chart.ranks), 1)
        return self.top + SECTION_HEIGHT * len(self.chart.sections) + rows + self.below

    def _rows_height(self, height: float) -> float:
        """Return the height that remains for the rows."""
        return height - self.top - self.below - SECTION_HEIGHT * len(self.chart.sections)

    def row_top(self, row: int) -> float:
        """Return the upper edge of a row, below the titles of all sections before it."""
        titles = sum(section.row <= row for section in self.chart.sections)
        return self.top + row * self.pitch + titles * SECTION_HEIGHT

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        return self.top + self.pitch * len(self.chart.ranks) + SECTION_HEIGHT * len(self.chart.sections)

    @property
    def width(self) -> float:
        """Width of the picture."""
        return self.size.width if self.size is not None else round(self.left + self.plot_width + RIGHT)

    @property
    def height(self) -> float:
        """Height of the picture."""
        if self.size is not None and self.size.height is not None:
            return self.size.height
        return round(self.bottom + self.below)

    def x(self, time_ns: int) -> float:
        """Return a time's distance from the plot's left edge, to a tenth of a pixel."""
        return round((time_ns - self.chart.start_ns) / self.chart.length_ns * self.plot_width, 1)

    def box(self, span: ChartSpan) -> Box:
        """Return the position of a span; both edges are rounded the same way, so that neighbors still touch."""
        left, right = self.x(span.start_ns), self.x(span.end_ns)
        if span.strip:
            height = round(self.row_height * STRIP_FRACTION, 1)
            return Box(left, self.row_height - height, max(right - left, LEAST_WIDTH), height)
        height = self.row_height / span.lane_count
        return Box(left, height * span.lane, max(right - left, LEAST_WIDTH), height)

    def pair_box(self, half: ChartSpan) -> Box:
        """Return the position of the pair of which a fused span is one half."""
        return self.box(half)._replace(y=0.0, height=self.row_height)


def row_gap(height: float) -> float:
    """Return the space between two rows, at least one whole pixel."""
    return max(1.0, round(height))


def path_data(boxes: Iterable[Box]) -> str:
    """Return boxes as the data of one SVG path."""
    return "".join(
        f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h-{number(width)}z"
        for x, y, width, height in boxes
    )


def number(value: float) -> str:
    """Return a coordinate with at most one decimal, without trailing zeros."""
    return f"{value:.1f}".removesuffix(".0")
