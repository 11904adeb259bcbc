"""Calls functions right after a module is imported by other code.

Finder and loader implement the protocols of the import system without its base classes, because importing
importlib.abc would cost every process 5 ms.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportWatch:
    """Calls a function once after each watched module has been executed.

    An error in the function does not affect the import.
    """

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        """Start watching; modules that are already imported are handled now."""
        if self._actions:
            sys.meta_path.insert(0, self)
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None:
                self.act(name, module)

    def remove(self) -> None:
        """Stop watching."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def act(self, name: str, module: ModuleType) -> None:
        """Call the function for `module`, unless that has already happened; never raises."""
        action = self._actions.pop(name, None)
        if action is None:
            return
        if not self._actions:
            self.remove()
        try:
            action(module)
        except Exception as error:  # noqa: BLE001  # an unknown version of a framework must not stop the training
            sys.stderr.write(f"stagescope: cannot record {name}: {error!r}\n")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return for a watched module, with our loader around its loader.

        A spec is not yet a module: code that only checks whether a module exists must not trigger anything.
        """
        if fullname not in self._actions:
            return None
        spec = self._ask_others(fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ActingLoader(spec.loader, fullname, self)  # type: ignore[arg-type, assignment]  # implements the protocol
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec and finder is not self else None
            if spec is not None:
                return spec  # type: ignore[no-any-return]  # defined by the protocol
        return None


class _ActingLoader:
    """Loads like the original loader, restores that loader on the module, then calls the function."""

    def __init__(self, loader: Loader, name: str, watch: ImportWatch) -> None:
        self._loader = loader
        self._name = name
        self._watch = watch

    def __getattr__(self, name: str) -> Any:  # all other methods of the original loader
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._watch.act(self._name, module)
