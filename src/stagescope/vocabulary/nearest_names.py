"""The name that a misspelled one probably means."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_SIMILARITY = 0.6
"""The ratio of difflib below which a name is another word and no misspelling."""


def nearest_name(word: str, names: Iterable[str]) -> str | None:
    """Return the known name that is most similar to an unknown one; None if none is similar.

    >>> nearest_name("bubbel", ["bubble", "step"]), nearest_name("foo", ["1f1b"])
    ('bubble', None)
    """
    from difflib import get_close_matches  # noqa: PLC0415 - starting is cheap

    return next(iter(get_close_matches(word.lower(), list(names), n=1, cutoff=LEAST_SIMILARITY)), None)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, such as ``; did you mean 'bubble'?``, which may be empty."""
    found = nearest_name(word, names)
    return f"; did you mean {found!r}?" if found else ""
