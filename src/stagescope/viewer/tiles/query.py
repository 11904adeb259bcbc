"""The query language of the search box, such as ``stage:3 mb:7 kind:B dur>5ms``.

The language is specified in docs/viewer.md, "Query language". A page implements it in web/src/model/query.ts;
tests/data/viewer/cases.json holds the cases that both are tested with. A query is compiled to a function from
records to a mask, because runs of any size are searched a million spans at a time.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.viewer.tiles.records import FACTS, LANE_COUNT, SPAN, none_of
from stagescope.vocabulary.kinds import ACTION_KINDS, KINDS, LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from stagescope.viewer.tiles.levels import Placed
    from stagescope.viewer.tiles.records import Records

    Mask = npt.NDArray[np.bool_]
    Test = Callable[["Seen"], Mask]
    NumberTest = Callable[[npt.NDArray[Any]], Mask]

PATTERN = re.compile(r"^/(.+)/$")
NOT_REGULAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")
WORD = re.compile(r'"[^"]*"|\S+')
TERM = re.compile(r"^([a-z-]+)(:|=|>=|<=|>|<)(.+)$", re.IGNORECASE)
LABEL = re.compile(r"^([A-Za-z])(?:(\d{1,9})\.)?(\d{1,9})$")
NUMBER = re.compile(r"^\d{1,15}$")
RANGE = re.compile(r"^(\d{1,15})(?:-(\d{1,15}))?$")
DURATION = re.compile(r"^(\d{1,15}(?:\.\d*)?|\.\d{1,15})\s*(s|ms|us|µs|ns)?$")
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1, None: 1}

NUMBERS = {
    "stage": "stage",
    "mb": "microbatch",
    "microbatch": "microbatch",
    "step": "step",
    "chunk": "chunk",
    "peer": "peer",
    "pair": "pair",
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    ":": operator.eq,
    "=": operator.eq,
}
NAMES = "kind, stage, mb, step, rank, chunk, lane, name, machine, peer, pair, dur, wait, start"


class QueryError(Exception):
    """An invalid query; the message is for the user who typed it."""


class Seen(NamedTuple):
    """Some spans as a query sees them; `facts` is None if no span of the run has any."""

    found: Placed
    facts: Records | None


@dataclass(frozen=True)
class Query:
    """A compiled query: a span matches if all tests hold."""

    tests: tuple[Test, ...]
    uses_facts: bool

    def mask(self, seen: Seen) -> Mask:
        """Return which spans match."""
        return np.asarray(np.logical_and.reduce([test(seen) for test in self.tests]))


def compile_query(text: str, meta: Mapping[str, Any], names: Sequence[str]) -> Query | None:
    """Return the compiled query, None without words. `meta` describes the run, `names` are all names of spans.

    Raises QueryError.
    """
    words = WORD.findall(text)
    if not words:
        return None
    compiler = _Compiler(meta, names)
    tests = tuple(compiler.word(word) for word in words)
    return Query(tests, compiler.uses_facts)


class _Compiler:
    """Compiles words to tests, and records whether any of them needs facts."""

    def __init__(self, meta: Mapping[str, Any], names: Sequence[str]) -> None:
        self._ranks: Mapping[str, Sequence[Any]] = meta["ranks"]
        present = {kind["name"] for kind in meta["kinds"]}
        self._kinds = [kind for kind in KINDS if kind.name in present]
        self._names = names
        self.uses_facts = False

    def word(self, word: str) -> Test:
        """Return the test of one word."""
        term = TERM.match(word)
        if term is None:
            return self._bare(word.replace('"', ""))
        name, sign, value = term[1].lower(), term[2], term[3]
        special: dict[str, Callable[[], Test]] = {
            "kind": lambda: self._kind_is(value),
            "name": lambda: self._name_has(value.replace('"', "")),
            "lane": lambda: _lane_is(value),
            "rank": lambda: _row_is(_number_test(sign, value)(np.array(self._ranks["rank"]))),
            "machine": lambda: _row_is(
                np.array([value in (one or "") for one in self._ranks["machine"]], np.bool_)
            ),
            "dur": lambda: _field("duration", _duration_test(sign, value)),
            "duration": lambda: _field("duration", _duration_test(sign, value)),
            "start": lambda: _field("start", _duration_test(sign, value)),
            "wait": lambda: self._fact("wait_duration", _duration_test(sign, value)),
        }
        if name in special:
            return special[name]()
        if name not in NUMBERS:
            raise QueryError(f'Unknown field "{term[1]}". Fields: {NAMES}.')
        column, test = NUMBERS[name], _number_test(sign, value)
        return self._fact(column, test) if column in (FACTS.names or ()) else _field(column, test)

    def _bare(self, word: str) -> Test:
        """Return the test of an action such as F3 or F0.3, of the name of a kind, or of a part of a span's name."""
        label = LABEL.match(word)
        actions = [
            kind for kind in self._kinds if label and kind.letter == label[1] and kind.name in ACTION_KINDS
        ]
        if label and actions:
            wanted = {"kind": actions[0].code, "microbatch": int(label[3])}
            wanted |= {} if label[2] is None else {"stage": int(label[2])}
            return lambda seen: np.logical_and.reduce(
                [seen.found.records[name] == value for name, value in wanted.items()]
            )
        codes = [kind.code for kind in self._kinds if kind.name == word]
        named = self._name_has(word)
        return lambda seen: np.isin(seen.found.records["kind"], codes) | named(seen)

    def _name_has(self, part: str) -> Test:
        """Return the test of names that contain a text, or match a regular expression in slashes, in any case."""
        pattern, sought = PATTERN.match(part), part.lower()
        if pattern is None:
            hits = [code for code, name in enumerate(self._names) if sought in name.lower()]
        else:
            hits = _matches(pattern[1], self._names)
        if not hits:
            return lambda seen: np.zeros(len(seen.found.place), np.bool_)
        return self._fact("name", lambda codes: np.isin(codes, hits))

    def _kind_is(self, value: str) -> Test:
        wanted: list[int] = []
        for part in value.split(","):
            found = [
                kind.code
                for kind in self._kinds
                if kind.letter == part or (len(part) > 1 and kind.name.startswith(part.lower()))
            ]
            if not found:
                known = ", ".join(f"{kind.letter} {kind.name}" for kind in self._kinds)
                raise QueryError(f'Unknown kind "{part}". Kinds: {known}.')
            wanted += found
        return lambda seen: np.isin(seen.found.records["kind"], wanted)

    def _fact(self, name: str, test: NumberTest) -> Test:
        self.uses_facts = True
        empty = none_of(FACTS, name)

        def check(seen: Seen) -> Mask:
            if seen.facts is None:
                return np.zeros(len(seen.found.place), np.bool_)
            return np.asarray((seen.facts[name] != empty) & test(seen.facts[name]))

        return check


def _matches(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the places of the names that match a regular expression, in any case; the time is linear in their length.

    Raises QueryError for what is no expression, or has what the page's language of expressions alone has.
    """
    if NOT_REGULAR.search(pattern):
        raise QueryError(f'"/{pattern}/" looks around or refers back, which is not supported.')
    try:
        found = pl.Series(names, dtype=pl.String).str.contains(f"(?i){pattern}")
    except pl.exceptions.ComputeError:
        raise QueryError(f'"/{pattern}/" is not a regular expression.') from None
    return found.arg_true().to_list()


def _field(name: str, test: NumberTest) -> Test:
    """Return the test of a field of spans. Null is stored as the lowest number and would match any <."""
    empty = none_of(SPAN, name)
    return lambda seen: (seen.found.records[name] != empty) & test(seen.found.records[name])


def _row_is(hit: Mask) -> Test:
    return lambda seen: hit[seen.found.track // LANE_COUNT]


def _lane_is(value: str) -> Test:
    if value.lower() not in LANES:
        raise QueryError(f'Unknown lane "{value}". Lanes: {", ".join(LANES)}.')
    wanted = LANES.index(value.lower())
    return lambda seen: seen.found.records["lane"] == wanted


def _number_test(sign: str, value: str) -> NumberTest:
    """Return a test for `3`, `3,5`, `3-7` after a colon, or for one number after > and the like."""
    if sign not in (":", "="):
        if not NUMBER.match(value):
            raise QueryError(f'"{value}" is not an integer.')
        return lambda numbers: np.asarray(OPERATORS[sign](numbers, int(value)))
    ranges = [RANGE.match(part) for part in value.split(",")]
    for part, found in zip(value.split(","), ranges, strict=True):
        if found is None:
            raise QueryError(f'"{part}" is neither an integer such as 3 nor a range such as 3-7.')
    bounds = [(int(found[1]), int(found[2] or found[1])) for found in ranges if found is not None]
    return lambda numbers: np.logical_or.reduce(
        [(numbers >= low) & (numbers <= high) for low, high in bounds]
    )


def _duration_test(sign: str, value: str) -> NumberTest:
    found = DURATION.match(value.strip())
    if found is None:
        raise QueryError(f'"{value}" is not a duration such as 5ms, 300us or 20ns.')
    limit_ns = float(found[1]) * UNITS_NS[found[2]]
    return lambda numbers: np.asarray(OPERATORS[sign](numbers, limit_ns))
