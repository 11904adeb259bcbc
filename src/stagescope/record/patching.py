"""Wrap class attributes and module globals once, and put back what was there."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "__stagescope_original__"


class Patches:
    """A set of replaced attributes that can be undone; wrapping the same attribute twice does nothing."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []
        self._undo_calls: list[Callable[[], object]] = []

    def wrap(
        self, owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> bool:
        """Replace the function `name` that `owner` itself defines with ``make(original)``.

        Returns whether it was replaced: an attribute that is missing (another version of the framework),
        inherited, a static or class method, or wrapped already is left alone.
        """
        original = vars(owner).get(name)
        if not callable(original) or isinstance(original, staticmethod) or hasattr(original, MARK):
            return False
        self.replace(owner, name, functools.wraps(original)(make(original)))
        return True

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Put `replacement` where `owner` has `name`, and remember what was there."""
        original = vars(owner)[name]
        setattr(replacement, MARK, original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))

    def on_undo(self, call: Callable[[], object]) -> None:
        """Have `call` run by `undo`: for hooks that a framework takes and gives back itself."""
        self._undo_calls.append(call)

    def undo(self) -> None:
        """Put every original back, the last one first, unless somebody has replaced ours since; never raises."""
        while self._undo_calls:
            self._run(self._undo_calls.pop())
        for owner, name, original, replacement in reversed(self._replaced):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._replaced.clear()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # it is a framework's, and the others must be run still
            sys.stderr.write(f"stagescope: cannot take a hook back: {error!r}\n")
