"""Expressions of a mapping, such as ``args.model_chunk * 4 + pid``: whole numbers, names, ``+ - * // %`` and brackets.

They are parsed and computed here, column by column; nothing of them is evaluated as Python. `//` and `%` round down, as
in Python. A name without a number in some row, a division by zero, and a result of 2**62 or more give null in that row.

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "//" | "%") factor)*
    factor     := "-" factor | number | name | "(" expression ")"
    name       := "pid" | "tid" | SOURCE "." WORD | "args" "[" TEXT "]"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 200
DEEPEST = 16
"""Limits on the length of an expression and on its nested brackets and signs: files with mappings are shared."""

MOST_DIGITS = 15
TOO_LARGE = 2.0**62

ARGS = "args"
SOURCES = (ARGS, "name", "thread", "process", "file")
"""Where names are looked up: arguments of the event, or numbers that a pattern found in a text."""

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)"
    r"|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_][\w-]*\b(?!\[))*)(?:\[(?P<quote>[\"'])(?P<key>[^\"']{1,80})(?P=quote)\])?"
    r"|(?P<operator>//|[-+*%()]))",
    re.ASCII,
)


Compute = Callable[[pl.DataFrame], pl.Series]


class Token(NamedTuple):
    """One token: its group in TOKEN, its text, and its position from 1."""

    group: str
    text: str
    at: int


@dataclass(frozen=True)
class Expression:
    """A parsed expression: its text, the columns of a frame that it needs, and how it is computed."""

    text: str
    columns: frozenset[str]
    compute: Compute

    def values(self, frame: pl.DataFrame) -> pl.Series:
        """Return the value in each row of a frame, as Int64; null where it is unknown."""
        return self.compute(frame)


def parse_expression(text: str) -> Expression:
    """Return the expression that `text` is. Raises UsageError with the position of what is wrong.

    >>> expression = parse_expression("args.chunk * 4 + pid")
    >>> sorted(expression.columns)
    ['args.chunk', 'pid']
    """
    if len(text) > LONGEST:
        raise UsageError.expression_malformed(
            text[:40] + "...", LONGEST, f"at most {LONGEST} characters", f"{len(text)}"
        )
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._columns: set[str] = set()

    def parse(self) -> Expression:
        value = self._sum(DEEPEST)
        if self._next < len(self._tokens):
            raise self._unexpected("an operator or the end")
        return Expression(self._text, frozenset(self._columns), value)

    def _sum(self, depth: int) -> Compute:
        value = self._product(depth)
        while (sign := self._take("+", "-")) is not None:
            value = _combined(sign, value, self._product(depth))
        return value

    def _product(self, depth: int) -> Compute:
        value = self._factor(depth)
        while (sign := self._take("*", "//", "%")) is not None:
            value = _combined(sign, value, self._factor(depth))
        return value

    def _factor(self, depth: int) -> Compute:
        if depth == 0:
            raise self._unexpected(f"at most {DEEPEST} nested brackets and signs")
        if self._take("-") is not None:
            return _combined("-", _number(0), self._factor(depth - 1))
        if self._take("(") is not None:
            value = self._sum(depth - 1)
            if self._take(")") is None:
                raise self._unexpected("a closing bracket")
            return value
        return self._operand()

    def _operand(self) -> Compute:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        if token is None or token.group == "operator":
            raise self._unexpected("a number, a name or an opening bracket")
        if token.group == "number" and len(token.text) > MOST_DIGITS:
            raise self._unexpected(f"a number of at most {MOST_DIGITS} digits")
        self._next += 1
        if token.group == "number":
            return _number(int(token.text))
        self._columns.add(token.text)
        return _column(token.text)

    def _take(self, *operators: str) -> str | None:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.group == "operator" and token.text in operators:
                self._next += 1
                return token.text
        return None

    def _unexpected(self, expected: str) -> UsageError:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            return UsageError.expression_malformed(self._text, token.at, expected, repr(token.text))
        return UsageError.expression_malformed(self._text, len(self._text) + 1, expected, "the end")


def _tokens(text: str) -> Iterator[Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = TOKEN.match(text, at)
        if found is None:
            begin = at + len(text[at:]) - len(text[at:].lstrip())
            raise UsageError.expression_malformed(
                text, begin + 1, "whole numbers, names, + - * // % and brackets", repr(text[begin])
            )
        group = next(name for name in ("number", "name", "operator") if found[name] is not None)
        begin = found.start(group)
        word = f"{found['name']}.{found['key']}" if found["key"] else found[group]
        if group == "name":
            _check_name(text, word, begin + 1)
        yield Token(group, word, begin + 1)
        at = found.end()


def _check_name(text: str, name: str, at: int) -> None:
    source, _, word = name.partition(".")
    is_known = source in SOURCES and word if word else name in ("pid", "tid")
    if not is_known:
        expected = f"pid, tid, or a name in {', '.join(source + '.' for source in SOURCES)}"
        raise UsageError.expression_malformed(text, at, expected, repr(name))


def _number(value: int) -> Compute:
    return lambda frame: pl.Series([value], dtype=pl.Int64).new_from_index(0, frame.height)


def _column(name: str) -> Compute:
    return lambda frame: frame[name].cast(pl.Int64, strict=False)


def _combined(operator: str, left: Compute, right: Compute) -> Compute:
    return lambda frame: _result(operator, left(frame), right(frame))


def _result(operator: str, left: pl.Series, right: pl.Series) -> pl.Series:
    """Return the result of an operator; null where 64 bits do not hold it, where it would be a plausible number."""
    sides = pl.DataFrame({"left": left, "right": right})
    a, b = pl.col("left"), pl.col("right")
    if operator in ("//", "%"):
        quotient = a.floordiv(pl.when(b != 0).then(b))
        return sides.select(quotient if operator == "//" else a - quotient * b).to_series()
    combine = {"+": pl.Expr.add, "-": pl.Expr.sub, "*": pl.Expr.mul}[operator]
    size = combine(a.cast(pl.Float64), b.cast(pl.Float64)).abs()
    return sides.select(pl.when(size < TOO_LARGE).then(combine(a, b))).to_series()
