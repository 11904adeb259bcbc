"""Wraps class attributes and module globals once, and restores them."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "__stagescope_original__"


class Patches:
    """A set of replaced attributes that can be restored. Wrapping an attribute a second time has no effect."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []
        self._undo_calls: list[Callable[[], object]] = []

    def wrap(
        self, owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> bool:
        """Replace the function `name` that `owner` itself defines with ``make(original)``.

        Returns whether it was replaced. An attribute is left unchanged if it is missing (another version of the
        framework), inherited, a static or class method, or already wrapped.
        """
        original = vars(owner).get(name)
        if not callable(original) or isinstance(original, staticmethod) or hasattr(original, MARK):
            return False
        self.replace(owner, name, functools.wraps(original)(make(original)))
        return True

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Set attribute `name` of `owner` to `replacement` and remember the original."""
        original = vars(owner)[name]
        setattr(replacement, MARK, original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))

    def on_undo(self, call: Callable[[], object]) -> None:
        """Let `undo` run `call`, for hooks that are registered with a framework."""
        self._undo_calls.append(call)

    def undo(self) -> None:
        """Restore all originals in reverse order; never raises.

        Attributes that other code has replaced since are left alone.
        """
        while self._undo_calls:
            self._run(self._undo_calls.pop())
        for owner, name, original, replacement in reversed(self._replaced):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._replaced.clear()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # framework code; the remaining calls must still run
            sys.stderr.write(f"stagescope: cannot remove a hook: {error!r}\n")
