"""Patterns of a mapping for the texts of a trace: ``PP rank {pp}, TP rank {tp}, *``.

``{word}`` is a number of at most nine digits, which expressions use under that name; ``*`` matches any text, everything
else matches literally, in upper or lower case. Texts are matched in linear time, because both patterns and texts come
from files of others: between two stars, the first place that fits is taken.
"""

from __future__ import annotations

import re

from stagescope.vocabulary.errors import UsageError

LONGEST = 200
MOST_NUMBERS = 6
LONGEST_TEXT = 1000
"""No longer name is that of an action."""

PART = re.compile(r"\{([A-Za-z_]\w*)\}|([{}])|([^{}]+)", re.ASCII)


class TextPattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Compile a pattern; raises UsageError for an invalid one."""
        self.text = text
        self.numbers: tuple[str, ...] = ()
        if not text or len(text) > LONGEST:
            raise UsageError.text_pattern_malformed(text[:40], f"1 to {LONGEST} characters")
        segments = text.split("*")
        expressions = [self._expression(segment) for segment in segments]
        if len(set(self.numbers)) < len(self.numbers) or len(self.numbers) > MOST_NUMBERS:
            raise UsageError.text_pattern_malformed(
                text, f"at most {MOST_NUMBERS} different numbers in braces"
            )
        self._segments = [re.compile(one, re.IGNORECASE) for one in expressions]
        self._last = re.compile(f"(?:{expressions[-1]})\\Z", re.IGNORECASE)

    def find(self, text: str) -> dict[str, int] | None:
        """Return the numbers in a text that matches; None if it does not match.

        >>> TextPattern("rank {rank} of *").find("Rank 3 of 8")
        {'rank': 3}
        """
        if len(text) > LONGEST_TEXT:
            return None
        only_one = len(self._segments) == 1
        found = (self._last if only_one else self._segments[0]).match(text)
        if found is None:
            return None
        groups = found.groupdict()
        for segment in self._segments[1:-1]:
            found = segment.search(text, found.end())
            if found is None:
                return None
            groups |= found.groupdict()
        if not only_one:
            found = self._last.search(text, found.end())
            if found is None:
                return None
            groups |= found.groupdict()
        return {name: int(digits) for name, digits in groups.items()}

    def _expression(self, segment: str) -> str:
        parts = []
        was_number = False
        for word, bracket, literal in PART.findall(segment):
            if bracket or (word and was_number):
                raise UsageError.text_pattern_malformed(
                    self.text, "numbers as {word}, * for any text, and text between two numbers"
                )
            was_number = bool(word)
            if word:
                self.numbers += (word,)
            parts.append(rf"(?P<{word}>\d{{1,9}})" if word else re.escape(literal))
        return "".join(parts)
