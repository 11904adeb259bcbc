"""PNG: the picture of one step in pixels, for slides and other places that do not accept SVG.

The SVG picture (exporters/pictures/drawing.py) is rendered by resvg with the fonts of this machine, two pixels per
unit of the picture, so that its text is readable on a slide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from stagescope.exporters.pictures.drawing import FONTS, draw_picture
from stagescope.exporters.pictures.figure import Figure
from stagescope.exporters.writer import Writer, Written
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.language import ENGLISH, current_language, speaking

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline

PIXELS_PER_UNIT = 2
PIXELS_PER_INCH = 300
"""What printers and journals ask for, if the width is one on paper."""

# resvg resolves neither system-ui nor sans-serif to an installed font, so common fonts are listed by name.
PNG_FONTS = (
    "'Helvetica Neue',Arial,'DejaVu Sans','Liberation Sans','Noto Sans',Roboto,Ubuntu,Cantarell,FreeSans"
)
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16">{}</svg>'
SAMPLE, UNUSED = "\u7a7a", "\U000f0000"
"""A character of the catalog, and one that no font has."""

NO_CHARACTERS = (
    "the picture is in English, because no font with Chinese characters is installed (install Noto Sans CJK, for "
    "example); an SVG is in Chinese"
)
NO_FONT = "the picture has no text, because no suitable font is installed (install DejaVu Sans, for example)"


def write_png(timeline: Timeline, path: Path, figure: Figure | None = None) -> Written:
    """Write the picture of one step, the typical one by default, and return its contents.

    A size is in pixels of the image. Raises InputError if the step or a rank was not recorded, UsageError if the size
    is too small, OSError if the file cannot be written.
    """
    with speaking(drawable_language()):
        picture = draw_picture(timeline, (figure or Figure()).scaled(PIXELS_PER_UNIT, PIXELS_PER_INCH))
    data = _render(picture.svg.replace(FONTS, PNG_FONTS))
    path.write_bytes(data)
    diagnostics = (
        *picture.diagnostics,
        *(() if _has_font() else (Diagnostic("warning", NO_FONT, code="picture.no_font"),)),
        *language_notes(),
    )
    return Written(path, len(data), picture.span_count, 0, picture.track_names, diagnostics)


def _render(svg: str) -> bytes:
    import resvg_py  # noqa: PLC0415 - 10 MB that only this format needs

    return bytes(resvg_py.svg_to_bytes(svg_string=svg))


def drawable_language() -> str:
    """Return the current language, or English where no font of this machine has its characters."""
    return current_language() if current_language() == ENGLISH or _has_character(SAMPLE) else ENGLISH


def language_notes() -> tuple[Diagnostic, ...]:
    """Return the diagnostic that a picture is in another language than the current one."""
    if drawable_language() == current_language():
        return ()
    return (Diagnostic("info", NO_CHARACTERS, code="picture.english"),)


@cache
def _has_character(character: str) -> bool:
    """Return whether a font has a character; resvg draws the same for all that no font has."""
    probes = (
        PROBE.format(f'<text y="12" font-family="{PNG_FONTS}">{each}</text>') for each in (character, UNUSED)
    )
    return _render(next(probes)) != _render(next(probes))


def _has_font() -> bool:
    """Return whether text is drawn; resvg silently omits text without a matching font."""
    text = f'<text y="12" font-family="{PNG_FONTS}">M</text>'
    return _render(PROBE.format(text)) != _render(PROBE.format(""))


def _with_extras(extras: AnalysisLayers) -> Writer:
    return _of_figure(Figure(extras=extras))


def _of_figure(figure: Figure) -> Writer:
    return replace(WRITER, write=partial(write_png, figure=figure))


WRITER = Writer("png", ".png", "picture of one step, for slides", write_png, _with_extras, _of_figure)
