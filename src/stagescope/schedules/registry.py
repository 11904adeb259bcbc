"""The declaration of a schedule: how its order is built, its sizes and options, its source.

Each module of `orders/` declares one or more `Schedule` entries; `catalog` lists them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stagescope.schedules.action import Order

SEARCH_DISTANCE = 4096
"""How many values above and below the given one are tried to suggest the nearest valid value."""


@dataclass(frozen=True)
class Shape:
    """The sizes and options of an order; `options` has every option of the schedule, given or default."""

    ranks: int
    microbatches: int
    chunks: int = 1
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Option:
    """A keyword of one schedule; its value has the type of the default, or one of the types in `accepts`."""

    name: str
    default: object
    meaning: str
    accepts: tuple[type, ...] = ()

    def allows(self, value: object) -> bool:
        """Return whether a value is allowed; a boolean does not count as a number."""
        types = self.accepts or (type(self.default),)
        if value is None or isinstance(value, bool):
            return value is self.default or type(value) in types
        return isinstance(value, types)


@dataclass(frozen=True)
class Constraint:
    """A requirement of a schedule on its shape.

    `needs` and `source` appear in the error message. `varies` names the field of the shape, or the option, for which
    the nearest valid values are suggested.
    """

    needs: str
    source: str
    holds: Callable[[Shape], bool]
    varies: str = "microbatches"


@dataclass(frozen=True)
class Schedule:
    """One schedule of the catalog.

    `build` turns a checked shape into an order. `chunks` is the default number of model chunks per rank; another number
    is possible only if `least_chunks` is given, the smallest one. A bidirectional schedule has 2 chunks, one of each
    replica. `peak_memory` is a formula in the letters of `orders`: the largest number of chunk activations (of one
    micro-batch each) that a rank keeps.
    """

    name: str
    title: str
    source: str
    placement: str
    peak_memory: str
    build: Callable[[Shape], Order]
    chunks: int = 1
    least_chunks: int | None = None
    options: tuple[Option, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    def shape(
        self, ranks: int, microbatches: int, chunks: int | None, options: Mapping[str, object]
    ) -> Shape:
        """Return the shape of an order of this schedule; raises ScheduleError for invalid sizes or options."""
        known = {option.name: option for option in self.options}
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ScheduleError.unknown_option(self.name, unknown, known)
        for name, value in options.items():
            if not known[name].allows(value):
                raise ScheduleError.option_value(self.name, name, value, known[name].meaning)
        defaults = {option.name: option.default for option in self.options}
        shape = Shape(ranks, microbatches, self.chunks if chunks is None else chunks, {**defaults, **options})
        self.check(shape)
        return shape

    def check(self, shape: Shape) -> None:
        """Raise ScheduleError for the first constraint that the shape violates."""
        for constraint in self.every_constraint():
            if not constraint.holds(shape):
                raise ScheduleError.impossible(
                    self.name,
                    constraint.needs,
                    _shown(shape),
                    constraint.source,
                    " or ".join(dict.fromkeys(self._nearest(shape, constraint))),
                )

    def supports(self, ranks: int, microbatches: int, chunks: int | None = None) -> bool:
        """Return whether an order of these sizes exists, with the default options; `chunks` as for `shape`."""
        defaults = {option.name: option.default for option in self.options}
        return self._fits(Shape(ranks, microbatches, self.chunks if chunks is None else chunks, defaults))

    def every_constraint(self) -> tuple[Constraint, ...]:
        """Return the constraints of all schedules, the one on chunks, and those that only this schedule has."""
        return (*POSITIVE_SIZES, self._chunk_constraint(), *self.constraints)

    def _chunk_constraint(self) -> Constraint:
        least = self.least_chunks
        if least is None:
            needs = f"exactly {self.chunks} model chunk{'s' if self.chunks > 1 else ''} per rank"
            return Constraint(needs, self.source, lambda shape: shape.chunks == self.chunks, "chunks")
        needs = f"{least} or more model chunks per rank"
        return Constraint(needs, self.source, lambda shape: shape.chunks >= least, "chunks")

    def _nearest(self, shape: Shape, broken: Constraint) -> Iterator[str]:
        """Yield the changes to the nearest valid shapes, at most one below and one above.

        If another constraint then needs a different number of micro-batches, the change includes it.
        """
        for direction in (-1, 1):
            nearer = (each for each in _varied(shape, broken.varies, direction) if broken.holds(each))
            near = next(nearer, shape)
            whole = (each for each in (near, *_varied(near, "microbatches", 1)) if self._fits(each))
            yield from (_change(shape, each) for each in islice(whole, 1))

    def _fits(self, shape: Shape) -> bool:
        return all(constraint.holds(shape) for constraint in self.every_constraint())


def _positive(name: str) -> Constraint:
    def holds(shape: Shape) -> bool:
        value = getattr(shape, name)
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1

    return Constraint(f"{name} to be a whole number, at least 1", "any schedule", holds, name)


POSITIVE_SIZES = tuple(_positive(name) for name in ("ranks", "microbatches", "chunks"))


def _varied(shape: Shape, name: str, direction: int) -> Iterator[Shape]:
    """Yield shapes with increasing (or decreasing) values of one field or option, all at least 1."""
    value = _values(shape)[name]
    if not isinstance(value, (int, float)):
        return
    above, below = max(math.floor(value) + 1, 1), math.ceil(value) - 1
    numbers = (
        range(above, above + SEARCH_DISTANCE)
        if direction > 0
        else range(below, max(below - SEARCH_DISTANCE, 0), -1)
    )
    for number in numbers:
        yield _with(shape, name, number)


def _with(shape: Shape, name: str, value: int) -> Shape:
    if name in shape.options:
        return replace(shape, options={**shape.options, name: value})
    return replace(shape, **{name: value})  # type: ignore[arg-type]  # the numbers of a shape


def _values(shape: Shape) -> dict[str, object]:
    numbers = {"ranks": shape.ranks, "microbatches": shape.microbatches, "chunks": shape.chunks}
    return {**numbers, **shape.options}


def _shown(shape: Shape) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in _values(shape).items() if value is not None)


def _change(old: Shape, new: Shape) -> str:
    """Return the difference between two shapes as text, such as ``ranks=4 with microbatches=8``."""
    before = _values(old)
    return " with ".join(f"{name}={value}" for name, value in _values(new).items() if value != before[name])
