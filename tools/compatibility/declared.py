"""The points that the recorder declares, and which of them a release lacks."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from stagescope.record.installation import required_faults
from stagescope.record.points import all_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.points import Part, Point

    from .table import Snapshot


def declared_names(packages: Sequence[str]) -> list[str]:
    """Return the paths of all declared points below some top-level packages, and the modules that trigger parts."""
    names = {part.trigger for part in all_parts()}
    names |= {point.path for part in all_parts() for point in part.points}
    return sorted(name for name in names if name.partition(".")[0] in packages)


def applies(part: Part, packages: Sequence[str], snapshot: Snapshot) -> bool:
    """Return whether a release has the module whose import installs a part."""
    return part.trigger.partition(".")[0] in packages and part.trigger in snapshot.points


def reasons_for_refusal(part: Part, packages: Sequence[str], snapshot: Snapshot) -> list[str]:
    """Return why the recorder refuses a part with a release, in the words that it prints; none if it fits.

    Points of other packages, such as those of Megatron in MindSpeed's part, are not looked at.
    """
    own = [point for point in part.points if point.owner.partition(".")[0] in packages]
    return required_faults(own, unfit_points(own, snapshot))


def unfit_points(own: Sequence[Point], snapshot: Snapshot) -> dict[Point, str]:
    """Return the points that a release lacks or defines with other parameters, and what is wrong with each."""
    return {point: fault for point in own if (fault := _fault(point, snapshot.points.get(point.path)))}


def _fault(point: Point, definition: str | None) -> str:
    if definition is None:
        return f"`{point.path}` not found"
    names = parameter_names(definition)
    lacking = [] if names is None else [name for name in point.reads if name not in names]
    return f"`{point.path}` has no parameter `{'`, `'.join(lacking)}`" if lacking else ""


@cache
def parameter_names(definition: str) -> frozenset[str] | None:
    """Return the names of the parameters in a definition; None if it accepts any, or is not that of a function.

    >>> sorted(parameter_names("classmethod (cls, chunk=0)"))
    ['chunk', 'cls']
    """
    if "(" not in definition:
        return None
    parameters = definition[definition.index("(") :]
    arguments = ast.parse(f"def f{parameters}: ...").body[0].args  # type: ignore[attr-defined]  # a function
    if arguments.vararg or arguments.kwarg:
        return None
    return frozenset(each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
