"""Reads the arguments of a framework's call by name, without ever raising into the framework.

Versions of a framework move or remove arguments. A signature is read once, when the function is wrapped; each call
then costs one lookup in a dictionary or tuple.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Function = Callable[..., Any]

UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Call:
    """The arguments of one call, by name, whether they were passed by position or by keyword."""

    __slots__ = ("_arguments", "_keywords", "_places")

    def __init__(
        self, places: Mapping[str, int], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        self._places = places
        self._arguments = arguments
        self._keywords = keywords

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument; `default` if it was not passed or this version of the function does not have it."""
        if name in self._keywords:
            return self._keywords[name]
        place = self._places.get(name, len(self._arguments))
        return self._arguments[place] if place < len(self._arguments) else default


class Signature:
    """The positions of a function's parameters, if known."""

    __slots__ = ("_places",)

    def __init__(self, function: Function) -> None:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a function written in C: only keyword arguments can be read
            parameters = {}.values()
        unnamed = [parameter.name for parameter in parameters if parameter.kind in UNNAMED]
        self._places = {name: place for place, name in enumerate(unnamed)}

    def call(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
        """Return the arguments of one call."""
        return Call(self._places, arguments, keywords)


def never_raises(default: Any = None) -> Callable[[Function], Function]:
    """Return a decorator for methods that read a framework's objects: they return `default` instead of raising.

    The object has a `recorder`, which prints each error once on stderr.
    """

    def decorate(method: Function) -> Function:
        @functools.wraps(method)
        def ask(self: Any, *args: Any) -> Any:
            try:
                return method(self, *args)
            except Exception as error:  # noqa: BLE001  # an unknown version of a framework must not stop the training
                self.recorder.warn(f"cannot record all of {method.__module__.rpartition('.')[2]}: {error!r}")
                return default

        return ask

    return decorate
