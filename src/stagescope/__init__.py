"""stagescope: see, explain and shrink the bubble of pipeline-parallel training.

>>> import stagescope
>>> timeline = stagescope.read("runs/today")        # doctest: +SKIP
>>> report = stagescope.analyze(timeline)           # doctest: +SKIP
>>> stagescope.export(timeline, "today.pftrace")    # doctest: +SKIP

Everything is imported when it is first used: a training run that records must not pay for the analysis.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope import record, schedules
    from stagescope.analysis import Report
    from stagescope.api import analyze, compare, export, read, what_if
    from stagescope.model import Timeline

__version__ = "0.1.0"

__all__ = [
    "Report",
    "Timeline",
    "__version__",
    "analyze",
    "compare",
    "export",
    "read",
    "record",
    "schedules",
    "what_if",
]

_HOME = {
    "Report": "stagescope.analysis",
    "Timeline": "stagescope.model",
    "analyze": "stagescope.api",
    "compare": "stagescope.api",
    "export": "stagescope.api",
    "read": "stagescope.api",
    "what_if": "stagescope.api",
}

_FOLDERS = ("record", "schedules")
"""Parts that are public as a whole: stagescope.record.start(), stagescope.schedules.order()."""


def __getattr__(name: str) -> object:
    """Return a public name from the module that it lives in."""
    if name in _FOLDERS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names, imported already or not."""
    return sorted({*globals(), *__all__})


def _show_in_notebooks() -> None:
    """Let a notebook show a Timeline as the viewer; does nothing outside a kernel, and imports nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        bundles = shell.display_formatter.mimebundle_formatter
        bundles.for_type_by_name("stagescope.model.timeline", "Timeline", _inline_view)


def _inline_view(timeline: Timeline, **_: object) -> object:
    """Return the display of a timeline; IPython calls this when one is the value of a cell."""
    return import_module("stagescope.viewer.notebook").inline_view(timeline)


_show_in_notebooks()
