"""Instances of a dataclass whose fields are computed or loaded when they are first used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = TypeVar("Kind")

LATER = "_later"


def lazily(kind: type[Kind], known: Mapping[str, object], later: Mapping[str, Callable[[], object]]) -> Kind:
    """Return an instance of a dataclass with some fields known, and others from a function, called on first use.

    `known` and `later` have all fields together. `dataclasses.replace` calls all functions.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     small: int
    ...     large: str
    >>> pair = lazily(Pair, {"small": 1}, {"large": lambda: print("loading") or "xxl"})
    >>> pair.small, pair.large, pair.large
    loading
    (1, 'xxl', 'xxl')
    """
    fields = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # every dataclass has them
    if fields != known.keys() | later.keys():
        raise TypeError(f"fields of {kind.__name__}: {sorted(fields ^ (known.keys() | later.keys()))}")
    lazy = type(kind.__name__, (kind,), {name: _loaded(name) for name in later})
    made: Kind = object.__new__(lazy)
    made.__dict__.update(known)
    made.__dict__[LATER] = dict(later)
    return made


def _loaded(name: str) -> cached_property[object]:
    """Return an attribute that is loaded once; an instance that `replace` makes has it from the beginning."""
    return cached_property(lambda instance: instance.__dict__[LATER][name]())
