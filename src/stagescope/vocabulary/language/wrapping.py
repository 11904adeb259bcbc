"""Lines of a width in terminal cells, also for scripts with wide characters and without blanks."""

from __future__ import annotations

import re
import textwrap
from unicodedata import east_asian_width

from stagescope.vocabulary.language.choice import ENGLISH, current_language
from stagescope.vocabulary.language.translation import localized

WIDE = re.compile("[\u1100-\uffdc\U0001f300-\U0003ffff]")
NOT_FIRST = frozenset("，。；：、）》！？”’%)],.;:")
"""Characters that do not begin a line."""

NOT_LAST = frozenset("（《“‘([")


def cell_width(text: str) -> int:
    """Return the width of a text in terminal cells.

    >>> cell_width("rank"), cell_width("\u5361")
    (4, 2)
    """
    return len(text) + sum(east_asian_width(each) in "WF" for each in text if each > "\u10ff")


def padded(text: str, width: int) -> str:
    """Return a text with blanks behind it up to a width in cells."""
    return text + " " * (width - cell_width(text))


def wrapped(
    text: str, width: int, first: str = "", later: str = "", *, keeps_words: bool = False
) -> list[str]:
    """Return a text in the current language as lines; `first` and `later` are the indents of the lines.

    With `keeps_words`, words are not broken, which may be paths.
    """
    if current_language() != ENGLISH:
        text = localized(text)
        if WIDE.search(text):
            return _wide_lines(text, width, first, later)
    wraps = not keeps_words
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=wraps,
        break_on_hyphens=wraps,
    )


def filled(text: str, width: int, first: str = "", later: str = "") -> str:
    """Return `wrapped` lines as one text."""
    return "\n".join(wrapped(text, width, first, later))


def _wide_lines(text: str, width: int, first: str, later: str) -> list[str]:
    """Return lines that break at blanks and at wide characters."""
    lines, line, used = [], first, cell_width(first)
    for piece in _pieces(text):
        size = cell_width(piece.rstrip())
        if used + size > width and line.strip():
            lines.append(line.rstrip())
            line, used = later, cell_width(later)
            if not piece.strip():
                continue
        line += piece
        used += cell_width(piece)
    return [*lines, line.rstrip()]


def _pieces(text: str) -> list[str]:
    """Return what a line may break between: words with their blank, and wide characters with their punctuation."""
    pieces: list[str] = []
    for character in " ".join(text.split()):
        last = pieces[-1][-1] if pieces else " "
        is_word = not WIDE.match(character) and not WIDE.match(last) and last != " "
        if pieces and (character in NOT_FIRST or last in NOT_LAST or character == " " or is_word):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces
