"""Replaces class attributes, module globals and entries of dicts by observed ones, and restores them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.record.hooks import Guard, Observer, Predicate, Preparation


MARK = "__stagescope_original__"
"""Attribute of a wrapper: what it replaced."""

GUARDS = "__stagescope_guards__"
"""Attribute of a wrapper: the guards of its observer and of those below it."""


class Replaced(NamedTuple):
    """One replaced attribute, or one replaced entry if `owner` is a dict, which then has the key `name`."""

    owner: object
    name: Any
    original: object
    replacement: object


class Patches:
    """A set of replaced attributes and entries that can be restored.

    Replacing an attribute a second time has no effect.
    """

    def __init__(self) -> None:
        self.replaced: list[Replaced] = []
        self._undo_calls: list[Callable[[], object]] = []

    def observe(
        self,
        owner: object,
        name: str,
        observer: Observer | Preparation,
        guard: Guard,
        ignores: Predicate | None = None,
    ) -> bool:
        """Let `observer` see the calls of the function, static method or class method `name` of `owner`.

        Calls of which `ignores` returns True are not observed.

        Returns whether they are observed now. An attribute is left unchanged if it is missing (another version of the
        framework), inherited, not a function, or already observed with this guard; see hooks.can_be_observed. A
        function that one framework imports from another may be observed by the hooks of both.
        """
        from stagescope.record.hooks import can_be_observed, observed  # not needed before a framework

        original = vars(owner).get(name)
        descriptor = type(original) if isinstance(original, (staticmethod, classmethod)) else None
        function: Any = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
        if not can_be_observed(function) or guard in getattr(function, GUARDS, ()):
            return False
        wrapper = observed(function, observer, guard, ignores)
        self.replace(owner, name, descriptor(wrapper) if descriptor else wrapper)
        return True

    def observe_entry(
        self, functions: dict[Any, Any], key: object, observer: Observer | Preparation, guard: Guard
    ) -> bool:
        """Let `observer` see the calls of the function under `key`; returns whether they are observed now.

        For frameworks that look a function up in a dict. A dict that was copied from an observed one contains
        observed functions; `undo` restores these, too.
        """
        from stagescope.record.hooks import can_be_observed, observed  # as above

        original: Any = functions.get(key)
        if original is not None and any(original is one.replacement for one in self.replaced):
            self.replaced.append(Replaced(functions, key, getattr(original, MARK), original))
            return False
        if not can_be_observed(original) or hasattr(original, MARK):
            return False
        functions[key] = observed(original, observer, guard)
        self.replaced.append(Replaced(functions, key, original, functions[key]))
        return True

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Set attribute `name` of `owner` to `replacement` and remember the original."""
        original = vars(owner)[name]
        if not hasattr(replacement, MARK) and isinstance(replacement, type | classmethod):
            setattr(replacement, MARK, original)
        setattr(owner, name, replacement)
        self.replaced.append(Replaced(owner, name, original, replacement))

    def on_undo(self, call: Callable[[], object]) -> None:
        """Let `undo` run `call`, for hooks that are registered with a framework."""
        self._undo_calls.append(call)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo everything that was replaced or registered in the ``with`` block if the block raises."""
        replaced, calls = len(self.replaced), len(self._undo_calls)
        try:
            yield
        except BaseException:  # re-raised
            self._undo_from(replaced, calls)
            raise

    def undo(self) -> None:
        """Restore all originals in reverse order; never raises.

        Attributes and entries that other code has replaced since are left alone.
        """
        self._undo_from(0, 0)

    def _undo_from(self, replaced: int, calls: int) -> None:
        while len(self._undo_calls) > calls:
            self._run(self._undo_calls.pop())
        while len(self.replaced) > replaced:
            owner, name, original, replacement = self.replaced.pop()
            if isinstance(owner, dict):
                if owner.get(name) is replacement:
                    owner[name] = original
            elif vars(owner).get(name) is replacement:
                setattr(owner, name, original)

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # framework code; the remaining calls must still run
            sys.stderr.write(f"stagescope: cannot remove a hook: {error!r}\n")
