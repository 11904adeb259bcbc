"""stagescope: see, explain and shrink the bubble of pipeline-parallel training.

>>> import stagescope as ss
>>> run = ss.read("recording", pp=4, dp=2)                   # doctest: +SKIP
>>> report = ss.analyze(run)                                 # doctest: +SKIP
>>> ss.what_if(run, ss.Slower(stage=3, factor=0.9)).table    # doctest: +SKIP
>>> ss.export(report, "run.html")                            # doctest: +SKIP

Names are imported on first use, because a training run that records must not pay for the libraries of analysis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope import record, schedules
    from stagescope.analysis import Report
    from stagescope.analysis.prediction.changes import EqualStages, FreeTransfers, OtherSchedule, Slower
    from stagescope.analysis.prediction.what_if import WhatIf
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.api import (
        SimulatedStep,
        Viewer,
        analyze,
        compare,
        export,
        open,  # noqa: A004 - the public verb, as in gzip.open
        read,
        simulate,
        sql,
        store,
        what_if,
    )
    from stagescope.clocks import ClockReport, MachineClock
    from stagescope.model import Timeline
    from stagescope.schedules import Costs
    from stagescope.vocabulary.errors import (
        CommandError,
        InputError,
        OutputError,
        ScheduleError,
        StagescopeError,
        TableError,
        UsageError,
    )

__version__ = "0.1.0"

_MODULES = {
    "stagescope.api": (
        "SimulatedStep", "Viewer",
        "analyze", "compare", "export", "open", "read", "simulate", "sql", "store", "what_if",
    ),
    "stagescope.model": ("Timeline",),
    "stagescope.analysis": ("Report",),
    "stagescope.analysis.prediction.changes": ("EqualStages", "FreeTransfers", "OtherSchedule", "Slower"),
    "stagescope.analysis.prediction.what_if": ("WhatIf",),
    "stagescope.analysis.statistics.comparison": ("Comparison",),
    "stagescope.clocks": ("ClockReport", "MachineClock"),
    "stagescope.schedules": ("Costs",),
    "stagescope.vocabulary.errors": (
        "CommandError", "InputError", "OutputError", "ScheduleError", "StagescopeError", "TableError", "UsageError",
    ),
}  # fmt: skip
"""The public names by the module that defines them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

_FOLDERS = ("record", "schedules")
"""Parts that are public as a whole: stagescope.record.start(), stagescope.schedules.order()."""

__all__ = [
    "ClockReport",
    "CommandError",
    "Comparison",
    "Costs",
    "EqualStages",
    "FreeTransfers",
    "InputError",
    "MachineClock",
    "OtherSchedule",
    "OutputError",
    "Report",
    "ScheduleError",
    "SimulatedStep",
    "Slower",
    "StagescopeError",
    "TableError",
    "Timeline",
    "UsageError",
    "Viewer",
    "WhatIf",
    "__version__",
    "analyze",
    "compare",
    "export",
    "open",
    "read",
    "record",
    "schedules",
    "simulate",
    "sql",
    "store",
    "what_if",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    if name in _FOLDERS:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    if not module.startswith("stagescope.vocabulary"):
        import_module("stagescope.api.notebook")  # sets the notebook representations of results
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    """Return the public names, imported already or not."""
    return sorted({*globals(), *__all__})
