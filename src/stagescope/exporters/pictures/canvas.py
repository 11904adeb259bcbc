"""The geometry of a picture: where times and rows are, in pixels, and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.exporters.pictures.figure import Size
    from stagescope.exporters.pictures.step_chart import Block, StepChart

PLOT_WIDTHS = (820.0, 1640.0)
BLOCK_WIDTH = 5.0
DIGIT_WIDTH = 7.2
"""A action that is to show its number is this wide, and this much wider per digit."""

RIGHT = 24.0
BELOW = 52.0
"""Room for the words of the time axis."""

LEAST_PLOT_WIDTH = 120.0
LEAST_PITCH = 3.0
"""Nothing can be told from a picture with less than this for time and for a rank."""

ROW_HEIGHTS = ((16, 30.0), (40, 22.0), (128, 15.0), (1 << 31, 8.0))
"""Row height for up to so many ranks."""

GAP_FRACTION = 1 / 7
"""Of a row and the room below it, the share of that room."""

SECTION_HEIGHT = 24.0
"""Room above the first row of a section, for its title."""

SHARED_ROW_FACTOR = 1.4
STRIP_FRACTION = 0.3
LEAST_WIDTH = 0.4
"""A action of no length is still seen."""


class Box(NamedTuple):
    """Where one block stands in its row, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Canvas:
    """The geometry of one picture: where times and rows are, in pixels."""

    chart: StepChart
    left: float
    top: float
    size: Size | None = None

    @cached_property
    def plot_width(self) -> float:
        """Width of the time axis: what a given size leaves, else enough for the number in nine of ten actions."""
        if self.size is not None:
            return self.size.width - self.left - RIGHT
        actions = self.chart.blocks.filter(pl.col("kind").is_in(ACTION_KINDS))
        short_ns = actions.select((pl.col("end_ns") - pl.col("start_ns")).quantile(0.1)).item() or 0
        digits = len(str(actions.select(pl.col("microbatch").max()).item() or 0))
        block_width = BLOCK_WIDTH + digits * DIGIT_WIDTH
        wanted = block_width * self.chart.length_ns / short_ns if short_ns else 0.0
        return min(max(wanted, PLOT_WIDTHS[0]), PLOT_WIDTHS[1])

    @cached_property
    def row_height(self) -> float:
        """Height of a row: what a given size leaves, else by the number of rows, more where actions share one."""
        if self.size is not None and self.size.height is not None:
            pitch = self._room(self.size.height) / max(len(self.chart.ranks), 1)
            return pitch - row_gap(pitch * GAP_FRACTION)
        height = next(height for most, height in ROW_HEIGHTS if len(self.chart.ranks) <= most)
        return (
            height * SHARED_ROW_FACTOR
            if self.chart.blocks.select((pl.col("lane_count") > 1).any()).item()
            else height
        )

    @property
    def pitch(self) -> float:
        """Distance from row to row."""
        if self.size is not None and self.size.height is not None:
            return self._room(self.size.height) / max(len(self.chart.ranks), 1)
        return self.row_height + row_gap(self.row_height / 6)

    @property
    def least_width(self) -> float:
        """The smallest width in which something can be told from the picture."""
        return self.left + LEAST_PLOT_WIDTH + RIGHT

    @property
    def least_height(self) -> float:
        """The smallest height in which something can be told from the picture."""
        rows = LEAST_PITCH * max(len(self.chart.ranks), 1)
        return self.top + SECTION_HEIGHT * len(self.chart.sections) + rows + BELOW

    def _room(self, height: float) -> float:
        """Return what a height leaves for the rows."""
        return height - self.top - BELOW - SECTION_HEIGHT * len(self.chart.sections)

    def row_top(self, row: int) -> float:
        """Return the upper edge of a row, below the titles of all sections so far."""
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
        return round(self.bottom + BELOW)

    def x(self, time_ns: int) -> float:
        """Return a time's distance from the plot's left edge, to a tenth of a pixel."""
        return round((time_ns - self.chart.start_ns) / self.chart.length_ns * self.plot_width, 1)

    def box(self, block: Block) -> Box:
        """Return where a block stands; both edges are rounded alike, so that neighbors still touch."""
        left, right = self.x(block.start_ns), self.x(block.end_ns)
        if block.strip:
            height = round(self.row_height * STRIP_FRACTION, 1)
            return Box(left, self.row_height - height, max(right - left, LEAST_WIDTH), height)
        height = self.row_height / block.lane_count
        return Box(left, height * block.lane, max(right - left, LEAST_WIDTH), height)

    def pair_box(self, half: Block) -> Box:
        """Return where the pair stands that a fused block is one half of."""
        return self.box(half)._replace(y=0.0, height=self.row_height)


def row_gap(height: float) -> float:
    """Return the room between two rows, a whole pixel or more."""
    return max(1.0, round(height))


def path_data(boxes: Iterable[Box]) -> str:
    """Return boxes as the data of one SVG path."""
    return "".join(
        f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h-{number(width)}z"
        for x, y, width, height in boxes
    )


def number(value: float) -> str:
    """Return a coordinate to a tenth of a pixel, without a needless zero."""
    return f"{value:.1f}".removesuffix(".0")
