"""Foreign text made safe to print: names in recordings, traces and file systems may hold anything."""

from __future__ import annotations

REPLACEMENT = "?"
"""ASCII, therefore the same on every terminal, and one character, so that aligned columns remain aligned."""


def printable(text: str) -> str:
    r"""Return text as one line without characters that control a terminal or reorder what surrounds them.

    Each of them becomes a question mark: control characters (C0, DEL, C1), line breaks, bidirectional overrides and
    other format characters, lone surrogates. Terminals execute escape sequences: OSC 52 writes the clipboard.

    >>> printable("1F1B\x1b]52;c;aGk=\x07"), printable("a\nb\u202e")
    ('1F1B?]52;c;aGk=?', 'a?b?')
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else REPLACEMENT for character in text)


def printable_lines(text: str) -> str:
    r"""Return text of several lines, each of them as `printable` returns it.

    >>> printable_lines("rank\n0\x9b2J\n")
    'rank\n0?2J\n'
    """
    return "\n".join(map(printable, text.split("\n")))
