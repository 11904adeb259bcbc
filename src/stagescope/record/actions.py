"""A decorator for the functions that compute the actions of a custom pipeline.

A decorated function is timed where it computes: on the device, if the training uses one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from stagescope.record import session
from stagescope.record.frameworks.runs import Place
from stagescope.record.marked_actions import MarkedAction, number_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

_OTHER = BY_NAME["other"].code


def action(
    kind: str, *, stage: int | None = None, microbatch: int | None = None, chunk: int | None = None
) -> Callable[[Function], Function]:
    """Return a decorator that records each call of a function as one action of `kind`.

    Omitted values are taken from the arguments of the call, if the function has a parameter of that name. `stage` is
    the global stage, `microbatch` counts from 0, `chunk` is local. `kind` is one of the names in vocabulary/kinds.py;
    any other text is recorded as kind ``other`` with that name. An exception propagates; the action ends where it was
    raised.

    >>> @action("forward", stage=1)
    ... def compute(x, microbatch):
    ...     return x + microbatch
    >>> compute(1, microbatch=3)
    4
    """
    known = BY_NAME.get(kind)
    code, name = (known.code, "") if known else (_OTHER, str(kind))

    def decorate(function: Function) -> Function:
        read = _reader_of(function, {"stage": stage, "microbatch": microbatch, "chunk": chunk})

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if session.recorder is None:
                return function(*args, **kwargs)
            with MarkedAction(code, Place(*read(args, kwargs)), name):
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]  # same signature as the function

    return decorate


def _reader_of(function: object, given: dict[str, int | None]) -> Callable[[Any, Any], list[int]]:
    """Return a function that reads stage, micro-batch and chunk from the arguments of a call.

    Uses the code object instead of `inspect`, whose import costs 5 ms per process.
    """
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    fixed = [number_of(value) for value in given.values()]
    asked = [
        (field, name, names.index(name) if name in names else None)
        for field, (name, value) in enumerate(given.items())
        if value is None
    ]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        numbers = fixed.copy()
        for field, name, place in asked:
            if place is not None and place < len(args):
                numbers[field] = number_of(args[place])
            elif name in kwargs:
                numbers[field] = number_of(kwargs[name])
        return numbers

    return read
