"""Installs the hooks of a part of a framework: all that it requires, or none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Signature
from stagescope.record.hooks import Guard, can_be_observed
from stagescope.record.patching import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.points import Part, Point
    from stagescope.record.recorder import Recorder


class Installation:
    """Installs parts of frameworks into one process, with one guard per framework."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches

    def guard(self, framework: str) -> Guard:
        """Return the guard that all hooks of a framework share."""
        guards = self._recorder.guards
        if framework not in guards:
            guards[framework] = Guard(self._recorder, framework)
            self._patches.on_undo(lambda: _turn_off(guards.pop(framework, None)))
        return guards[framework]

    def install(
        self,
        part: Part,
        hooks: object,
        modules: Mapping[str, object],
        more: Callable[[], object] | None = None,
    ) -> bool:
        """Wrap the points of `part` with the methods of `hooks`, and return whether they fit.

        `modules` are modules by name that take precedence over ``sys.modules``. `more` installs what cannot be
        declared as a point, such as callbacks; if it raises, nothing of the part stays installed.
        """
        found = {point: owner_of(point, modules) for point in part.points}
        unfit = {point: fault for point in part.points if (fault := fault_of(point, found[point]))}
        reasons = required_faults(part.points, unfit)
        version = version_of(part.distribution, part.trigger)
        if reasons:
            self._recorder.coverage.refused(part.framework, version, reasons, part.supported)
            return False
        fitting = {point: found[point] for point in part.points if point.hook and point not in unfit}
        try:
            with self._patches.all_or_none():
                self._observe(fitting, hooks, self.guard(part.framework))
                if more is not None:
                    more()
        except Exception as error:  # noqa: BLE001  # an unknown version must not stop the training
            reasons = [f"cannot be observed: {error!r}"]
            self._recorder.coverage.refused(part.framework, version, reasons, part.supported)
            return False
        missing = [point.shows for point in unfit if point.shows]
        self._recorder.coverage.installed(part.framework, version, missing)
        return True

    def _observe(self, points: Mapping[Point, object], hooks: object, guard: Guard) -> None:
        for point, owner in points.items():
            ignores = getattr(hooks, point.ignores) if point.ignores else None
            self._patches.observe(owner, point.name, getattr(hooks, point.hook), guard, ignores)


def owner_of(point: Point, modules: Mapping[str, object]) -> object:
    """Return the module or class that has the point, None if it does not exist."""
    module, _, path = point.owner.partition(":")
    owner: Any = modules.get(module) or sys.modules.get(module)
    for name in path.split(".") if path else ():
        owner = getattr(owner, name, None)
    return owner


def fault_of(point: Point, owner: object) -> str:
    """Return what is wrong with a point, an empty text if it fits."""
    if owner is None:
        return f"`{point.owner}` not found"
    attribute = vars(owner).get(point.name)
    if attribute is None:
        return f"`{point.path}` not found"
    function: Any = getattr(attribute, "__func__", attribute)
    if not point.hook or hasattr(function, MARK):
        return ""
    if not can_be_observed(function):
        return f"`{point.path}` is not a plain function"
    lacking = Signature(function).lacks(point.reads)
    return f"`{point.path}` has no parameter `{'`, `'.join(lacking)}`" if lacking else ""


def required_faults(points: Sequence[Point], unfit: Mapping[Point, str]) -> list[str]:
    """Return the faults for which a part is refused."""
    faults = [fault for point, fault in unfit.items() if point.required and not point.any_of]
    for group in dict.fromkeys(point.any_of for point in points if point.any_of):
        members = [point for point in points if point.any_of == group]
        if all(point in unfit for point in members):
            faults.append(" and ".join(dict.fromkeys(unfit[point] for point in members)))
    return list(dict.fromkeys(faults))


def version_of(distribution: str, module: str = "") -> str | None:
    """Return the version of a package, from the package itself or from its metadata.

    `module` is one of its modules: a package may be distributed under several names (paddlepaddle-gpu), or be a part of
    a namespace (``megatron-core`` is imported as ``megatron.core``).
    """
    packages = (*(distribution.replace("-", sign) for sign in "_."), module.partition(".")[0])
    found = (getattr(sys.modules.get(name), "__version__", None) for name in packages)
    version = next((version for version in found if version is not None), None)
    if version is None:
        from importlib import metadata  # slow, and most packages have __version__

        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None
    return str(version)


def _turn_off(guard: Guard | None) -> None:
    if guard is not None:
        guard.is_off = True


def modules_by_name(*modules: ModuleType) -> dict[str, object]:
    """Return modules by their names."""
    return {module.__name__: module for module in modules}
