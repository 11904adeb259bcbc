"""SVG: the picture of one step as a file (exporters/pictures/drawing.py draws it)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stagescope.exporters.pictures.drawing import draw_picture
from stagescope.exporters.pictures.figure import Figure
from stagescope.exporters.writer import Writer, Written

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline


def write_svg(timeline: Timeline, path: Path, figure: Figure | None = None) -> Written:
    """Write the picture of one step, the typical one by default, and return its contents.

    Raises InputError if the step or a rank was not recorded, UsageError if the size is too small, OSError if the file
    cannot be written.
    """
    picture = draw_picture(timeline, (figure or Figure()).scaled())
    data = picture.svg.encode()
    path.write_bytes(data)
    return Written(path, len(data), picture.span_count, 0, picture.track_names, picture.diagnostics)


def _with_extras(extras: AnalysisLayers) -> Writer:
    return _of_figure(Figure(extras=extras))


def _of_figure(figure: Figure) -> Writer:
    return replace(WRITER, write=partial(write_svg, figure=figure))


WRITER = Writer(
    "svg", ".svg", "picture of one step, for papers and web pages", write_svg, _with_extras, _of_figure
)
