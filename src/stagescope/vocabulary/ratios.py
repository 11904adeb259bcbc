"""Ratios as text: percent for a difference, and a multiple such as 12x above ten, where percent are hard to read."""

from __future__ import annotations

LARGEST_PERCENT_RATIO = 10.0
LARGEST_RATIO = 1000.0
"""Above it, the smaller number is close to zero and the ratio has no meaning: ``over 1000x``."""

EQUATIVES = {"longer": "as long", "slower": "as slow", "wider": "as wide", "more": "as much"}


def multiple_text(ratio: float) -> str:
    """Return a ratio as a multiple.

    >>> multiple_text(12.3), multiple_text(2e6)
    ('12x', 'over 1000x')
    """
    return f"{ratio:.0f}x" if ratio <= LARGEST_RATIO else f"over {LARGEST_RATIO:.0f}x"


def percent_text(fraction: float | None) -> str:
    """Return a fraction as percent with one decimal, above ten as a multiple, or a dash for None.

    Every text shows a fraction this way, so that one quantity has one value: none is rounded further to make parts sum.

    >>> percent_text(3 / 11), percent_text(None), percent_text(-1e-9)
    ('27.3 %', '-', '0.0 %')
    """
    if fraction is None:
        return "-"
    if fraction > LARGEST_PERCENT_RATIO:
        return multiple_text(fraction)
    return f"{points_text(fraction)} %"


def points_text(fraction: float) -> str:
    """Return a fraction as percent without the sign, for a sentence that has it once.

    >>> points_text(0.2531)
    '25.3'
    """
    return f"{round(100 * fraction, 1) + 0.0:.1f}"  # 0.0 added: a small negative part is not -0.0


def change_text(ratio: float, decimals: int = 1) -> str:
    """Return a new value over an old one as a signed difference in percent, or as a multiple above ten.

    >>> change_text(1.12), change_text(0.5), change_text(12.3)
    ('+12.0 %', '-50.0 %', '12x')
    """
    if ratio > LARGEST_PERCENT_RATIO:
        return multiple_text(ratio)
    return f"{round(100 * (ratio - 1), decimals) + 0.0:+.{decimals}f} %"


def comparative_text(word: str, low: float, high: float | None = None, decimals: int = 0) -> str:
    """Return by how much something is longer (slower, wider, more) as a ratio or a range of ratios, without "than".

    `word` is a comparative of EQUATIVES. Follow it with "than" or "as", which `conjunction` returns.

    >>> comparative_text("longer", 1.12), comparative_text("longer", 12.3)
    ('12 % longer', '12x as long')
    >>> comparative_text("slower", 1.09, 1.102, decimals=1), comparative_text("slower", 9.5, 12.3)
    ('9.0 to 10.2 % slower', '10x to 12x as slow')
    """
    if max(low, high or low) > LARGEST_PERCENT_RATIO:
        ends = [multiple_text(ratio) for ratio in (low, high) if ratio is not None]
        return f"{' to '.join(dict.fromkeys(ends))} {EQUATIVES[word]}"
    ends = [f"{100 * (ratio - 1):.{decimals}f}" for ratio in (low, high) if ratio is not None]
    return f"{' to '.join(dict.fromkeys(ends))} % {word}"


def interval_text(low: float, high: float) -> str:
    """Return a range of ratios without a comparative.

    >>> interval_text(1.09, 1.102), interval_text(9.5, 12.3)
    ('9.0 to 10.2 %', '10x to 12x')
    """
    word = "longer"
    text = comparative_text(word, low, high, decimals=1)
    return text.removesuffix(f" {EQUATIVES[word]}").removesuffix(f" {word}")


def conjunction(low: float, high: float | None = None) -> str:
    """Return the word that joins a comparative_text with what it is compared to: than, or as for a multiple."""
    return "as" if max(low, high or low) > LARGEST_PERCENT_RATIO else "than"
