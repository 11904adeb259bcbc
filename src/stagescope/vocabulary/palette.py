"""One color per kind, the same in SVG pictures, the terminal and the viewer.

The hues are those of Okabe and Ito ("Color Universal Design", 2008), which remain distinguishable with the common
forms of color blindness. Hue is never the only channel: pictures add a letter or the texture of the kind.
"""

from __future__ import annotations

from typing import NamedTuple

INK = "#1a1a1a"
PAPER = "#ffffff"
LINEAR_BELOW = 0.04045
"""The value at which sRGB changes from a linear segment to a power function (IEC 61966-2-1)."""


class Swatch(NamedTuple):
    """The look of one kind: its color, and the texture that distinguishes it in grayscale."""

    color: str
    texture: str


SWATCHES: dict[str, Swatch] = {
    "forward": Swatch("#0072b2", "plain"),
    "backward": Swatch("#009e73", "rising"),
    "backward_input": Swatch("#e69f00", "falling"),
    "backward_weight": Swatch("#cc79a7", "dots"),
    "optimizer": Swatch("#6b6b6b", "cross"),
    "send_forward": Swatch("#56b4e9", "plain"),
    "recv_forward": Swatch("#56b4e9", "rising"),
    "send_backward": Swatch("#8fd0b8", "plain"),
    "recv_backward": Swatch("#8fd0b8", "rising"),
    "grad_reduce": Swatch("#d55e00", "bars"),
    "loss": Swatch("#f0e442", "plain"),
    "other": Swatch("#bdbdbd", "plain"),
    "collective": Swatch("#d98c5f", "bars"),
    "send": Swatch("#a6bddb", "plain"),
    "recv": Swatch("#a6bddb", "rising"),
}
"""Color and texture of every kind of span."""

TERMINAL_COLORS: dict[str, int] = {
    "forward": 4,
    "backward": 2,
    "backward_input": 3,
    "backward_weight": 5,
    "optimizer": 8,
    "send_forward": 14,
    "recv_forward": 14,
    "send_backward": 10,
    "recv_backward": 10,
    "grad_reduce": 1,
    "loss": 6,
    "other": 7,
    "collective": 9,
    "send": 12,
    "recv": 12,
}
"""The color of every kind among the 16 of a terminal that has no others (0 to 15, those from 8 are bright)."""
DARK_TERMINAL_COLORS = frozenset({0, 1, 4, 5, 8})
"""Those on which white text is easier to read than black."""

WAIT_SWATCHES: dict[str, Swatch] = {
    "compute": Swatch("#56b4e9", "rising"),
    "reduction": Swatch("#0072b2", "falling"),
    "transfer": Swatch("#d55e00", "falling"),
    "launch": Swatch("#e69f00", "cross"),
    "transfer_or_launch": Swatch("#009e73", "bars"),
    "other_work": Swatch("#cc79a7", "dots"),
    "unknown": Swatch("#8a8f98", "rising"),
    "nothing": Swatch("#8a8f98", "dots"),
}
"""Color and hatch of the idle intervals of each wait in vocabulary/causes.py, in pictures and in the viewer."""

LIGHTEST_CHUNK_FRACTION = 0.55
"""How far the last of a rank's chunks is mixed with white; the first has the full color."""


def wait_swatch(wait: str) -> Swatch:
    """Return the look of a wait; one that this version does not know looks like "unknown"."""
    return WAIT_SWATCHES.get(wait, WAIT_SWATCHES["unknown"])


def chunk_color(kind: str, chunk: int, chunk_count: int) -> str:
    """Return the color of a kind on one of a rank's model chunks: dark for the first, light for the last.

    >>> chunk_color("forward", 0, 2), chunk_color("forward", 1, 2)
    ('#0072b2', '#8cc0dc')
    """
    place_fraction = min(max(chunk / (chunk_count - 1), 0.0), 1.0) if chunk_count > 1 else 0.0
    return mix(SWATCHES[kind].color, PAPER, LIGHTEST_CHUNK_FRACTION * place_fraction)


def mix(color: str, other: str, other_fraction: float) -> str:
    """Return `color` mixed with the given fraction of `other`, both written ``#rrggbb``."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * other_fraction):02x}" for a, b in pairs)


def text_color(background: str) -> str:
    """Return the text color, dark or white, with the higher contrast on `background`."""
    return max(INK, PAPER, key=lambda ink: contrast(ink, background))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _channels(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def _luminance(color: str) -> float:
    """Return the relative luminance, 0 to 1 (WCAG 2.2)."""
    linear = [_linear(channel / 255) for channel in _channels(color)]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= LINEAR_BELOW else ((value + 0.055) / 1.055) ** 2.4)
