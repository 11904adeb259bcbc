"""PDF: the picture of one step with shapes and text as vectors, for papers.

The SVG picture (exporters/pictures/drawing.py) is converted by Typst, with the fonts of this machine embedded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from html import unescape
from typing import TYPE_CHECKING

from stagescope.exporters.pictures.drawing import FONTS, draw_picture
from stagescope.exporters.pictures.figure import UNITS_PER_INCH, Figure
from stagescope.exporters.pictures.png import PNG_FONTS, drawable_language, language_notes
from stagescope.exporters.writer import Writer, Written
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.language import speaking

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline

INSTALL = "pip install 'stagescope[pdf]'"
PAGE = b"""\
#set page(width: auto, height: auto, margin: 0pt, fill: none)
#set document(title: sys.inputs.title, date: none)
#image(bytes(sys.inputs.picture), format: "svg", width: float(sys.inputs.points) * 1pt, alt: sys.inputs.title)
"""
POINTS_PER_PIXEL = 72 / UNITS_PER_INCH


def write_pdf(timeline: Timeline, path: Path, figure: Figure | None = None) -> Written:
    """Write the picture of one step, the typical one by default, and return its contents.

    A size is in pixels of CSS, of which 96 are an inch. Raises InputError if the step or a rank was not recorded,
    UsageError if the size is too small, CommandError if the library of the extra ``pdf`` is missing, OSError if the
    file cannot be written.
    """
    try:
        import typst  # noqa: PLC0415 - 80 MB that only this format needs
    except ImportError:
        raise CommandError.missing_library("typst", "writing a PDF", INSTALL) from None
    with speaking(drawable_language()):
        picture = draw_picture(timeline, (figure or Figure()).scaled())
    inputs = {
        "picture": picture.svg.replace(FONTS, PNG_FONTS),
        "points": str(picture.width * POINTS_PER_PIXEL),
        "title": unescape(picture.title),
    }
    data = typst.compile(PAGE, sys_inputs=inputs)
    path.write_bytes(data)
    diagnostics = (*picture.diagnostics, *language_notes())
    return Written(path, len(data), picture.span_count, 0, picture.track_names, diagnostics)


def _with_extras(extras: AnalysisLayers) -> Writer:
    return _of_figure(Figure(extras=extras))


def _of_figure(figure: Figure) -> Writer:
    return replace(WRITER, write=partial(write_pdf, figure=figure))


WRITER = Writer("pdf", ".pdf", "picture of one step, for papers", write_pdf, _with_extras, _of_figure)
