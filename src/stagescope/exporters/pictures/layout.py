"""The layout of a picture: title, legend above or below, rows, and the smallest readable size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stagescope.exporters.pictures.canvas import AXIS_HEIGHT, Canvas
from stagescope.exporters.pictures.figure import Figure, Size
from stagescope.exporters.pictures.layers import layer_entries
from stagescope.exporters.pictures.legend import LEGEND_PITCH, LegendEntry, legend_entries, legend_lines
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from stagescope.exporters.pictures.step_chart import StepChart

TITLE_HEIGHT = 44.0
UNTITLED_HEIGHT = 12.0
"""What is above the legend: the title, or a margin."""


class Layout(NamedTuple):
    """The geometry of a picture, the lines of its legend and their top."""

    canvas: Canvas
    legend: list[list[LegendEntry]]
    legend_top: float


def lay_out(chart: StepChart, figure: Figure) -> Layout:
    """Return the layout of a picture of the size of the figure."""
    left = 30.0 + 6.6 * max((len(f"rank {rank}") for rank in chart.ranks), default=6)
    top = UNTITLED_HEIGHT if figure.look.title == "" else TITLE_HEIGHT
    canvas, legend = Canvas(chart, left, top, figure.drawn_size), figure.look.legend
    if legend == "none":
        return Layout(canvas, [], top)
    lines = legend_lines([*legend_entries(chart), *layer_entries(chart)], canvas.plot_width)
    height = LEGEND_PITCH * len(lines)
    if legend == "above":
        return Layout(replace(canvas, top=top + height + 14), lines, top)
    canvas = replace(canvas, below=AXIS_HEIGHT + height)
    return Layout(canvas, lines, canvas.height - height - 6)


def require_size(chart: StepChart, figure: Figure) -> None:
    """Raise UsageError if the requested size is too small for the axis or the rows."""
    size = figure.drawn_size
    if size is None:
        return
    width = max(size.width, lay_out(chart, figure).canvas.least_width)
    widened = replace(figure, size=Size(width).times(figure.pixels_per_unit))
    height = lay_out(chart, widened).canvas.least_height  # a narrow legend is high
    if size.width < width or (size.height is not None and size.height < height):
        least = Size(width, height).times(figure.pixels_per_unit)
        raise UsageError.figure_too_small(str(figure.size), str(least), len(chart.ranks))
