"""The choices for a picture, as people state them: what it shows, and its look."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from stagescope.exporters.pictures.figure import DEFAULT_POINTS, LEGENDS, Figure, Look, Size
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = re.compile(r"(\d{1,5}(?:\.\d{1,6})?)(in|cm|mm|pt|px)")
PER_INCH = {"in": 1.0, "cm": 2.54, "mm": 25.4, "pt": 72.0}
LEAST_POINTS, MOST_POINTS = 3.0, 72.0


class FigureLook(TypedDict, total=False):
    """The look of a picture.

    `title` replaces the sentence about the step; an empty text leaves it out. `legend` is above, below or none.
    `font_size` is in points, by default 9. `width` is a length on paper such as 3.3in, 84mm or 240pt, or pixels such
    as 800px; the text keeps its size, so that a narrow picture stays legible.
    """

    title: str | None
    legend: str
    font_size: float
    width: str


def make_figure(
    step: int | None,
    ranks: Iterable[int] | None,
    size: tuple[int, int | None] | None,
    look: FigureLook,
) -> Figure:
    """Return a figure. Raises UsageError for a look that is not possible, and for both a size and a width."""
    legend, points = look.get("legend", LEGENDS[0]), look.get("font_size", DEFAULT_POINTS)
    if legend not in LEGENDS:
        raise UsageError.unknown_legend(legend, LEGENDS)
    if not LEAST_POINTS <= points <= MOST_POINTS:
        raise UsageError.font_size_impossible(points, LEAST_POINTS, MOST_POINTS)
    inches, pixels = parse_width(look["width"]) if "width" in look else (None, None)
    if size is not None and (inches, pixels) != (None, None):
        raise UsageError.only_one_of("--size", "--width")
    drawn = Size(*size) if size is not None else None if pixels is None else Size(pixels)
    return Figure(step, tuple(ranks or ()), drawn, inches, Look(look.get("title"), legend, points))


def parse_width(text: str) -> tuple[float | None, float | None]:
    """Return a width in inches, or else in pixels. Raises UsageError.

    >>> parse_width("3.3in"), parse_width("25.4mm"), parse_width("800px")
    ((3.3, None), (1.0, None), (None, 800.0))
    """
    found = WIDTH.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError.width_malformed(text)
    value, unit = float(found[1]), found[2]
    return (None, value) if unit == "px" else (value / PER_INCH[unit], None)
