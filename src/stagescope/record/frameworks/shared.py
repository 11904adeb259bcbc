"""Objects that all hooks of one recorder share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

Shared = TypeVar("Shared")

_objects: WeakKeyDictionary[Recorder, dict[Any, Any]] = WeakKeyDictionary()


def shared(recorder: Recorder, make: Callable[..., Shared], *arguments: object) -> Shared:
    """Return the result of ``make(*arguments)`` of the first call with this recorder and `make`, usually a class."""
    objects = _objects.setdefault(recorder, {})
    if make not in objects:
        objects[make] = make(*arguments)
    found: Shared = objects[make]
    return found
