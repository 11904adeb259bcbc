"""What the package knows about one schedule: how it is built, what it needs, where it comes from.

Each module of `orders/` offers one or more `Schedule` entries; `catalog` lists them all.
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

SEARCHED_FAR = 4096
"""How many values up and down from the given one are tried for the nearest valid one."""


@dataclass(frozen=True)
class Shape:
    """What an order is built for; `options` holds every option of the schedule, given or default."""

    ranks: int
    microbatches: int
    chunks: int = 1
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Option:
    """A keyword of one schedule; a value has the type of the default or is one of `accepts`."""

    name: str
    default: object
    meaning: str
    accepts: tuple[type, ...] = ()

    def allows(self, value: object) -> bool:
        """Tell whether a value may be given; True is no number."""
        types = self.accepts or (type(self.default),)
        if value is None or isinstance(value, bool):
            return value is self.default or type(value) in types
        return isinstance(value, types)


@dataclass(frozen=True)
class Constraint:
    """Something that a schedule needs of its shape.

    `needs` and `source` are the words of the error. `varies` names the field of the shape (or the option)
    that the nearest valid values are looked for in.
    """

    needs: str
    source: str
    holds: Callable[[Shape], bool]
    varies: str = "microbatches"


@dataclass(frozen=True)
class Schedule:
    """One schedule of the catalog.

    `build` turns a checked shape into an order. `chunks` is how many model chunks a rank holds unless it is
    told otherwise, which it may only be where `least_chunks` says from how many on; a bidirectional schedule
    holds 2, one of each replica. `peak_memory` is a formula, in the letters of `orders`: of how many
    micro-batches a rank keeps a chunk's activations at most.
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
        """Return the shape of an order of this schedule; raises ScheduleError where there is none."""
        known = {option.name: option for option in self.options}
        strange = [name for name in options if name not in known]
        if strange:
            raise ScheduleError.unknown_option(self.name, strange, known)
        for name, value in options.items():
            if not known[name].allows(value):
                raise ScheduleError.option_value(self.name, name, value, known[name].meaning)
        defaults = {option.name: option.default for option in self.options}
        shape = Shape(ranks, microbatches, self.chunks if chunks is None else chunks, {**defaults, **options})
        self.check(shape)
        return shape

    def check(self, shape: Shape) -> None:
        """Raise ScheduleError for the first thing that the schedule needs and the shape does not have."""
        for constraint in self.every_constraint():
            if not constraint.holds(shape):
                raise ScheduleError.impossible(
                    self.name,
                    constraint.needs,
                    _shown(shape),
                    constraint.source,
                    " or ".join(dict.fromkeys(self._nearest(shape, constraint))),
                )

    def every_constraint(self) -> tuple[Constraint, ...]:
        """Return what any schedule needs, what the chunks must be, and the schedule's own constraints."""
        return (*WHOLE, self._chunk_constraint(), *self.constraints)

    def _chunk_constraint(self) -> Constraint:
        least = self.least_chunks
        if least is None:
            needs = f"exactly {self.chunks} model chunk{'s' if self.chunks > 1 else ''} per rank"
            return Constraint(needs, self.source, lambda shape: shape.chunks == self.chunks, "chunks")
        needs = f"{least} or more model chunks per rank"
        return Constraint(needs, self.source, lambda shape: shape.chunks >= least, "chunks")

    def _nearest(self, shape: Shape, broken: Constraint) -> Iterator[str]:
        """Yield the nearest valid shapes, one below and one above where there are, as what changes.

        Where the rest of the constraints needs other micro-batches then, they change too.
        """
        for direction in (-1, 1):
            nearer = (each for each in _varied(shape, broken.varies, direction) if broken.holds(each))
            near = next(nearer, shape)
            whole = (each for each in (near, *_varied(near, "microbatches", 1)) if self._fits(each))
            yield from (_change(shape, each) for each in islice(whole, 1))

    def _fits(self, shape: Shape) -> bool:
        return all(constraint.holds(shape) for constraint in self.every_constraint())


def _whole(name: str) -> Constraint:
    def holds(shape: Shape) -> bool:
        value = getattr(shape, name)
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1

    return Constraint(f"{name} to be a whole number from 1 on", "any schedule", holds, name)


WHOLE = tuple(_whole(name) for name in ("ranks", "microbatches", "chunks"))


def _varied(shape: Shape, name: str, direction: int) -> Iterator[Shape]:
    """Yield shapes with ever larger, or ever smaller, whole numbers from 1 on in one field or option."""
    value = _values(shape)[name]
    if not isinstance(value, (int, float)):
        return
    above, below = max(math.floor(value) + 1, 1), math.ceil(value) - 1
    numbers = (
        range(above, above + SEARCHED_FAR)
        if direction > 0
        else range(below, max(below - SEARCHED_FAR, 0), -1)
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
    """Return what differs between two shapes: ranks=4 with microbatches=8."""
    before = _values(old)
    return " with ".join(f"{name}={value}" for name, value in _values(new).items() if value != before[name])
