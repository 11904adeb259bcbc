"""Act right after a module is imported, without importing it ourselves.

Finder and loader follow the import system's protocols without its base classes: importlib.abc would cost every
process of a training 5 ms.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportWatch:
    """Calls a function once after each watched module has been executed."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        """Begin to watch; modules that are imported already are acted on now."""
        for name in [name for name in self._actions if name in sys.modules]:
            self._actions.pop(name)(sys.modules[name])
        if self._actions:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give for a watched module, with our loader around theirs."""
        del path, target
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        if not self._actions:
            self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, action)
        return spec


class _ActingLoader:
    """Loads as the original loader does, steps out of the way, then acts."""

    def __init__(self, loader: Loader, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action(module)
