"""Texts that modules show to people, found in their syntax trees, and examples of them with values."""

from __future__ import annotations

import ast
import re
from functools import cache
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
VALUES = ("7", "7.000 ms", "a.json")
MOST_VALUES = 6
FIELD = re.compile(r"\{[^{}]*\}")
"""A value in a text for str.format."""


class Text(NamedTuple):
    """A text of a module: where it is, and its pieces; None is a value.

    `calls` are the calls that it is an argument of, the innermost first, each with the keyword or position, such as
    option.help or Limit#3, and `name` is what it is assigned to, or the function that it is in.
    """

    path: str
    line: int
    pieces: tuple[str | None, ...]
    calls: tuple[str, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {''.join('{}' if each is None else each for each in self.pieces)}"

    @property
    def is_a_sentence(self) -> bool:
        """Whether it has two words or more of its own."""
        words = " ".join(filter(None, self.pieces)).split()
        return sum(word.strip(".,:;()'\"").isalpha() for word in words) > 1

    def examples(self) -> Iterator[str]:
        """Yield the text with numbers, with durations and with names for its values."""
        places = sum(each is None for each in self.pieces)
        for chosen in product(VALUES, repeat=min(places, MOST_VALUES)):
            values = iter((*chosen, *["7"] * places))
            yield "".join(next(values) if each is None else each for each in self.pieces)

    def parts(self) -> list[str]:
        """Return its words between values, without punctuation at their ends."""
        found = (
            part.strip(" .,;:()\n").lower() for piece in self.pieces if piece for part in FIELD.split(piece)
        )
        return [part for part in found if part]


def texts_of(path: Path) -> Iterator[Text]:
    """Yield what a module shows: help, printed messages, errors and diagnostics, if they are literals."""
    name = path.relative_to(SOURCE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_of_errors = "errors" in name
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        shown = [keyword.value for keyword in node.keywords if keyword.arg in SHOWN_KEYWORDS]
        if called in SHOWN_BY:
            shown += node.args[SHOWN_BY[called] : SHOWN_BY[called] + 1]
        if is_of_errors and called == "cls":
            shown += node.args[:2]
        for argument in shown:
            pieces = _pieces(argument)
            if pieces is not None and (text := Text(name, argument.lineno, pieces)).is_a_sentence:
                yield text


@cache
def sentences_of(path: Path) -> tuple[Text, ...]:
    """Return every text of a module that has two words or more, except docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(_sentences(tree, path.relative_to(SOURCE).as_posix(), (), "<module>"))


def _sentences(node: ast.AST, path: str, calls: tuple[str, ...], name: str) -> Iterator[Text]:
    pieces = _pieces(node)
    if pieces is not None:
        text = Text(path, node.lineno, pieces, calls, name)  # type: ignore[attr-defined]  # an expression
        if text.is_a_sentence:
            yield text
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        name = node.name
    elif isinstance(node, ast.AnnAssign):
        name = _target(node.target) if name == "<module>" else name
    elif isinstance(node, ast.Assign):
        name = _target(node.targets[0]) if name == "<module>" else name
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant):
            continue  # a part of this text
        if isinstance(node, ast.FormattedValue) and child is node.format_spec:
            continue
        within = calls
        if isinstance(node, ast.Call) and child is not node.func:
            place = f".{child.arg}" if isinstance(child, ast.keyword) else f"#{node.args.index(child)}"
            within = (f"{_called(node)}{place}", *calls)
        yield from _sentences(child, path, within, name)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _target(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _pieces(node: ast.AST) -> tuple[str | None, ...] | None:
    """Return the pieces of a literal; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        return tuple(str(each.value) if isinstance(each, ast.Constant) else None for each in node.values)
    return None
