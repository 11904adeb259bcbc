"""Texts that modules show to people, found in their syntax trees, and examples of them with values."""

from __future__ import annotations

import ast
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = ROOT / "src" / "stagescope"

SHOWN_BY = {
    "echo": 0,
    "Diagnostic": 1,
    "UsageError": 0,
    "InputError": 0,
    "OutputError": 0,
    "Command": 2,
    "wrapped": 0,
}
"""Calls whose argument at a position is shown; the constructors of errors are calls of `cls` in classes of errors."""

SHOWN_KEYWORDS = ("help",)
VALUES = ("7", "7.000 ms")
MOST_VALUES = 6


class Text(NamedTuple):
    """A text of a module: where it is, and its pieces; None is a value."""

    path: str
    line: int
    pieces: tuple[str | None, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {''.join('{}' if each is None else each for each in self.pieces)}"

    @property
    def is_a_sentence(self) -> bool:
        """Whether it has two words or more of its own."""
        words = " ".join(filter(None, self.pieces)).split()
        return sum(word.strip(".,:;()'\"").isalpha() for word in words) > 1

    def examples(self) -> Iterator[str]:
        """Yield the text with numbers and with durations for its values."""
        places = sum(each is None for each in self.pieces)
        for chosen in product(VALUES, repeat=min(places, MOST_VALUES)):
            values = iter((*chosen, *["7"] * places))
            yield "".join(next(values) if each is None else each for each in self.pieces)


def texts_of(path: Path) -> Iterator[Text]:
    """Yield what a module shows: help, printed messages, errors and diagnostics, if they are literals."""
    name = path.relative_to(SOURCE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_of_errors = "errors" in name
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        shown = [keyword.value for keyword in node.keywords if keyword.arg in SHOWN_KEYWORDS]
        if called in SHOWN_BY:
            shown += node.args[SHOWN_BY[called] : SHOWN_BY[called] + 1]
        if is_of_errors and called == "cls":
            shown += node.args[:2]
        for argument in shown:
            pieces = _pieces(argument)
            if pieces is not None and (text := Text(name, argument.lineno, pieces)).is_a_sentence:
                yield text


def _pieces(node: ast.expr) -> tuple[str | None, ...] | None:
    """Return the pieces of a literal; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        return tuple(str(each.value) if isinstance(each, ast.Constant) else None for each in node.values)
    return None
