"""Instances of a dataclass whose fields are computed or loaded when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Kind = TypeVar("Kind")

LATER = "_later"


@dataclass(frozen=True)
class InParts:
    """Loads a table that is larger than what is computed from it: as a whole, or its parts one after the other."""

    whole: Callable[[], pl.DataFrame]
    parts: Callable[[], Iterator[pl.DataFrame]]

    def __call__(self) -> pl.DataFrame:
        """Return the table."""
        return self.whole()


def in_parts(tables: Iterable[pl.DataFrame]) -> InParts:
    """Return what loads these tables, which may be iterated more than once, as one, or one after the other.

    >>> table = in_parts([pl.DataFrame({"step": [0]}), pl.DataFrame({"step": [1]})])
    >>> table().rows(), [rows.item() for rows in table.parts()]
    ([(0,), (1,)], [0, 1])
    """
    return InParts(lambda: pl.concat(tables), lambda: iter(tables))


class TableParts:
    """A table in parts, which are changed whenever they are iterated, one after the other.

    >>> parts = TableParts([1, 2], lambda number: pl.DataFrame({"step": [number]}))
    >>> [rows.item() for rows in parts], [rows.item() for rows in parts]
    ([1, 2], [1, 2])
    """

    def __init__(self, parts: Iterable[Kind], change: Callable[[Kind], pl.DataFrame]) -> None:
        self._parts, self._change = parts, change

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return map(self._change, self._parts)


class _Unkept:
    """An attribute that is loaded whenever it is used, unless the instance has a value of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> object:
        return self if instance is None else instance.__dict__[LATER][self.name]()


def lazily(
    kind: type[Kind],
    known: Mapping[str, object],
    later: Mapping[str, Callable[[], object]],
    *,
    is_kept: bool = True,
) -> Kind:
    """Return an instance of a dataclass with some fields known, and others from a function, called on first use.

    `known` and `later` have all fields together, and may have cached properties, too. `is_kept=False` is for what is
    larger than memory: then these functions are called on every use. `dataclasses.replace` calls all functions;
    `with_known` calls none.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     small: int
    ...     large: str
    >>> pair = lazily(Pair, {"small": 1}, {"large": lambda: print("loading") or "xxl"})
    >>> pair.small, pair.large, pair.large
    loading
    (1, 'xxl', 'xxl')
    >>> pair = lazily(Pair, {"small": 1}, {"large": lambda: print("loading") or "xxl"}, is_kept=False)
    >>> pair.large, pair.large
    loading
    loading
    ('xxl', 'xxl')
    >>> with_known(pair, small=2).small
    2
    """
    fields = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # every dataclass has them
    given = known.keys() | later.keys()
    wrong = [name for name in fields ^ given if name in fields or not hasattr(kind, name)]
    if wrong:
        raise TypeError(f"fields of {kind.__name__}: {sorted(wrong)}")
    attribute = _loaded if is_kept else _Unkept
    lazy = type(kind.__name__, (kind,), {name: attribute(name) for name in later})
    made: Kind = object.__new__(lazy)
    made.__dict__.update(known)
    made.__dict__[LATER] = dict(later)
    return made


def with_known(instance: Kind, **values: object) -> Kind:
    """Return the same with other values of some fields; those that are not loaded yet stay so."""
    made: Kind = object.__new__(type(instance))
    made.__dict__.update(instance.__dict__ | values)
    return made


def with_later(instance: Kind, later: Mapping[str, Callable[[], object]]) -> Kind:
    """Return the same with some fields from functions, which are called on every use."""
    facts = dict(instance.__dict__)
    earlier = facts.pop(LATER, {})
    known = {name: value for name, value in facts.items() if name not in later}
    return lazily(type(instance), known, {**earlier, **later}, is_kept=False)


def parts_of(instance: object, name: str) -> Iterable[pl.DataFrame]:
    """Return the parts of a table in a field that was given as InParts; any other table as a whole.

    They may be iterated more than once. All tables of a run in ranges of steps have the same parts.
    """
    return _PartsOf(instance, name)


class _PartsOf:
    """The parts of a table in a field, which are loaded whenever they are iterated."""

    def __init__(self, instance: object, name: str) -> None:
        self._instance, self._name = instance, name

    def __iter__(self) -> Iterator[pl.DataFrame]:
        load = self._instance.__dict__.get(LATER, {}).get(self._name)
        if isinstance(load, InParts) and self._name not in self._instance.__dict__:
            yield from load.parts()
        else:
            yield getattr(self._instance, self._name)


def _loaded(name: str) -> cached_property[object]:
    """Return an attribute that is loaded once; an instance that `replace` makes has it from the beginning."""
    return cached_property(lambda instance: instance.__dict__[LATER][name]())
