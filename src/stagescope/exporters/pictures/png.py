"""PNG: the picture of one step as pixels, for slides and wherever SVG is not taken.

It is the SVG picture (exporters/pictures/drawing.py), drawn by resvg with the fonts of this machine, two pixels for
each unit of the picture, so that its text stays readable on a slide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stagescope.exporters.pictures.drawing import FONTS, draw_picture
from stagescope.exporters.pictures.figure import Figure
from stagescope.exporters.writer import Writer, Written
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline

PIXELS_PER_UNIT = 2

# resvg knows neither what the system's own font is called nor which one stands for sans-serif.
PNG_FONTS = (
    "'Helvetica Neue',Arial,'DejaVu Sans','Liberation Sans','Noto Sans',Roboto,Ubuntu,Cantarell,FreeSans"
)
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16">{}</svg>'
NO_FONT = "none of the fonts that the picture could use is installed: it has no text (DejaVu Sans would do)"


def write_png(timeline: Timeline, path: Path, figure: Figure | None = None) -> Written:
    """Write the picture of one step, the typical one if none is named, and return what stands in it.

    A size is that of the image, in pixels. Raises InputError when the step or a rank was not recorded, UsageError where
    the size is too small, OSError when the file cannot be written.
    """
    figure = replace(figure or Figure(), pixels_per_unit=PIXELS_PER_UNIT)
    picture = draw_picture(timeline, figure)
    data = _render(picture.svg.replace(FONTS, PNG_FONTS))
    path.write_bytes(data)
    diagnostics = (*picture.diagnostics, *(() if _has_font() else (Diagnostic("warning", NO_FONT),)))
    return Written(path, len(data), picture.block_count, 0, picture.track_names, diagnostics)


def _render(svg: str) -> bytes:
    import resvg_py  # noqa: PLC0415 - 10 MB that only this format needs

    return bytes(resvg_py.svg_to_bytes(svg_string=svg))


def _has_font() -> bool:
    """Tell whether text is drawn at all; resvg says nothing where it has no font for it."""
    text = f'<text y="12" font-family="{PNG_FONTS}">M</text>'
    return _render(PROBE.format(text)) != _render(PROBE.format(""))


def _with_extras(extras: AnalysisLayers) -> Writer:
    return _of_figure(Figure(extras=extras))


def _of_figure(figure: Figure) -> Writer:
    return replace(WRITER, write=partial(write_png, figure=figure))


WRITER = Writer("png", ".png", "picture of one step, for slides", write_png, _with_extras, _of_figure)
