"""A comparison of two runs as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from stagescope.analysis.statistics.comparison import RATE
from stagescope.analysis.statistics.estimates import CONFIDENCE

if TYPE_CHECKING:
    from stagescope.analysis.statistics.comparison import Comparison

SCHEMA = 1


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return the comparison as dicts, lists, numbers and strings, ready for json.dumps.

    ``schema``: 1; removing a key or changing its meaning makes it 2, adding one does not.

    ``confidence``: of the intervals. ``false_discovery_rate``: the largest expected share of false claims.

    ``differences``: the rows of the table DIFFERENCES, in its order; times are ns per step.

    ``diagnostics``: a list of {severity, code, message, source, rank, location, count}: what could not be compared.
    """
    return {
        "schema": SCHEMA,
        "confidence": CONFIDENCE,
        "false_discovery_rate": RATE,
        "differences": comparison.table.to_dicts(),
        "diagnostics": [asdict(diagnostic) for diagnostic in comparison.diagnostics],
    }
