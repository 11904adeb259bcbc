"""The model: declared tables of spans, ranks, steps, clocks, diagnostics, counters and kernels in one Timeline."""

from stagescope.model.tables import (
    CLOCKS,
    COUNTERS,
    DIAGNOSTICS,
    KERNELS,
    RANKS,
    SPANS,
    STEPS,
    TABLES,
    Column,
    Table,
)
from stagescope.model.timeline import Alignment, Timeline, empty_timeline

__all__ = [
    "CLOCKS",
    "COUNTERS",
    "DIAGNOSTICS",
    "KERNELS",
    "RANKS",
    "SPANS",
    "STEPS",
    "TABLES",
    "Alignment",
    "Column",
    "Table",
    "Timeline",
    "empty_timeline",
]
