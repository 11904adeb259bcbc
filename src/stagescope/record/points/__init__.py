"""The functions of each framework that the recorder needs, in one table per framework.

A `Part` is installed as a whole or not at all: right after `trigger` is imported, all its points are looked up. If a
required one is missing, or lacks a parameter that its hook reads, nothing of the part is wrapped, one line on stderr
states what does not fit, and the recording repeats it for the report. The tables are also held against the signatures
of all releases in tests/data/compatibility, and docs/compatibility.md is generated from both.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple


class Point(NamedTuple):
    """One function of a framework.

    `owner` is a module, or ``module:Class`` for a method. `hook` names the observer, a method of the part's
    `Instrumentation`; without one the function must only exist. `reads` are the parameters that the hook reads by name
    and cannot do without. A required point must exist, whichever version it is; of the points with the same `any_of`,
    one must. `shows` is what is missing from the recording where an optional point is absent. `ignores` names another
    method of the `Instrumentation`, which returns whether a call need not be observed; see hooks.observed.
    """

    owner: str
    name: str
    hook: str = ""
    reads: tuple[str, ...] = ()
    required: bool = True
    any_of: str = ""
    shows: str = ""
    ignores: str = ""

    @property
    def path(self) -> str:
        """``module:Class.name`` or ``module:name``."""
        return f"{self.owner}{'.' if ':' in self.owner else ':'}{self.name}"

    @property
    def module(self) -> str:
        """The module that contains the function."""
        return self.owner.partition(":")[0]


class Part(NamedTuple):
    """The points that are installed together when the module `trigger` has been imported.

    `framework` is the name used in messages, `distribution` the package that has the version, `supported` the range
    of versions in tests/data/compatibility that fit, and `instrumentation` the module of the recorder with the hooks.
    """

    framework: str
    distribution: str
    supported: str
    trigger: str
    instrumentation: str
    points: tuple[Point, ...]


def all_parts() -> tuple[Part, ...]:
    """Return the parts of all frameworks, in the order of the modules of this package."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}."))
    return tuple(part for name in modules for part in importlib.import_module(name).PARTS)
