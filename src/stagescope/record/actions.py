"""A decorator for the functions that compute the actions of a custom pipeline.

A decorated function is timed where it computes: on the device, if the training uses one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from stagescope.record import session
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

_OTHER = BY_NAME["other"].code
PASSES = ("forward", "backward", "backward_input", "backward_weight")
"""Kinds of actions in which collectives are counted; see frameworks/collectives.py."""


def action(
    kind: str, *, stage: int | None = None, microbatch: int | None = None, chunk: int | None = None
) -> Callable[[Function], Function]:
    """Return a decorator that records each call of a function as one action of `kind`.

    Omitted values are taken from the arguments of the call, if the function has a parameter of that name. `stage` is
    the global stage, `microbatch` counts from 0, `chunk` is local. `kind` is one of the names in vocabulary/kinds.py;
    any other text is recorded as kind ``other`` with that name. An exception propagates; the action ends where it was
    raised.

    >>> @action("forward", stage=1)
    ... def forward(x, microbatch):
    ...     return x + microbatch
    >>> forward(1, microbatch=3)
    4
    """
    known = BY_NAME.get(kind)
    code, name = (known.code, "") if known else (_OTHER, str(kind))

    def decorate(function: Function) -> Function:
        read = _reader_of(function, {"stage": stage, "microbatch": microbatch, "chunk": chunk})

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            recorder = session.recorder
            if recorder is None or not recorder.enabled:
                return function(*args, **kwargs)
            numbers = read(args, kwargs)
            if recorder.mirror is not None:
                recorder.mirror.open(code, numbers[0], numbers[1], name)
            counts = recorder.counts_collectives
            recorder.counts_collectives = counts or (kind in PASSES and not recorder.is_detailed)
            token = recorder.timer.begin()
            try:
                return function(*args, **kwargs)
            finally:
                recorder.counts_collectives = counts
                recorder.timer.end(token, code, *numbers, recorder.name_id(name) if name else 0)
                if recorder.mirror is not None:
                    recorder.mirror.close()

        return recorded  # type: ignore[return-value]  # same signature as the function

    return decorate


def _reader_of(function: object, given: dict[str, int | None]) -> Callable[[Any, Any], list[int]]:
    """Return a function that reads stage, micro-batch and chunk from the arguments of a call.

    Uses the code object instead of `inspect`, whose import costs 5 ms per process.
    """
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    fixed = [_number(value) for value in given.values()]
    asked = [
        (field, name, names.index(name) if name in names else None)
        for field, (name, value) in enumerate(given.items())
        if value is None
    ]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        numbers = fixed.copy()
        for field, name, place in asked:
            if place is not None and place < len(args):
                numbers[field] = _number(args[place])
            elif name in kwargs:
                numbers[field] = _number(kwargs[name])
        return numbers

    return read


def _number(value: Any) -> int:
    """Return `value` as an integer, `NONE` if it is not one."""
    if type(value) is int:
        return value
    try:
        return NONE if value is None else int(value.__index__())
    except (AttributeError, TypeError):
        return NONE
