"""Reads the arguments of a framework's call by name, without ever raising into the framework.

Versions of a framework move or remove arguments. A signature is read once, when the function is wrapped; each call
then costs one lookup in a dictionary or tuple.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Function = Callable[..., Any]

UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NOWHERE = sys.maxsize
"""Place of a parameter that cannot be passed by position."""

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Call:
    """One call: the name of the function, and its arguments by name, however they were passed."""

    __slots__ = ("_signature", "arguments", "keywords")

    def __init__(self, signature: Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self._signature = signature
        self.arguments = arguments
        self.keywords = keywords

    @property
    def name(self) -> str:
        """Name of the function."""
        return self._signature.name

    @property
    def owner(self) -> Any:
        """The object whose method was called."""
        return self.arguments[0]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument; `default` if it was not passed or this version of the function does not have it."""
        if name in self.keywords:
            return self.keywords[name]
        place = self._signature.places.get(name, len(self.arguments))
        return self.arguments[place] if place < len(self.arguments) else default


class Signature:
    """The name of a function and the positions of its parameters, if known.

    `parameters` is None if any parameter may be passed: the function is written in C or takes ``*args, **kwargs``.
    """

    __slots__ = ("name", "parameters", "places")

    def __init__(self, function: Function) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a function written in C: only keyword arguments can be read
            parameters = []
        unnamed = [parameter.name for parameter in parameters if parameter.kind in UNNAMED]
        is_known = parameters and not any(parameter.kind in VARIABLE for parameter in parameters)
        self.name: str = getattr(function, "__name__", "")
        self.parameters = frozenset(parameter.name for parameter in parameters) if is_known else None
        self.places = {name: place for place, name in enumerate(unnamed)}

    def parameter(self, name: str) -> Parameter:
        """Return a parameter, which this version of the function may not have."""
        return Parameter(name, self.places.get(name, NOWHERE))

    def call(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
        """Return the arguments of one call."""
        return Call(self, arguments, keywords)

    def lacks(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that are certainly no parameters of the function."""
        return [] if self.parameters is None else [name for name in names if name not in self.parameters]


class Parameter:
    """One parameter of a function, to be read from the arguments of many calls."""

    __slots__ = ("name", "place")

    def __init__(self, name: str, place: int) -> None:
        self.name = name
        self.place = place

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
        """Return the argument of one call, as `Call.get` does."""
        if self.name in kwargs:
            return kwargs[self.name]
        return args[self.place] if self.place < len(args) else default


def never_raises(default: Any = None) -> Callable[[Function], Function]:
    """Return a decorator for methods that read a framework's objects: they return `default` instead of raising.

    The object has a `recorder`, which prints each error once on stderr.
    """

    def decorate(method: Function) -> Function:
        @functools.wraps(method)
        def ask(self: Any, *args: Any) -> Any:
            try:
                return method(self, *args)
            except Exception as error:  # an unknown version of a framework must not stop the training
                from stagescope.record.signal_handlers import is_of_signal_handler  # needed only here

                if is_of_signal_handler(error):
                    raise
                self.recorder.warn(f"cannot record all of {method.__module__.rpartition('.')[2]}: {error!r}")
                return default

        return ask

    return decorate
