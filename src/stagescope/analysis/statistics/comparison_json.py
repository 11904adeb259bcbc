"""A comparison of two runs as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from stagescope.analysis.statistics.differences import RATE
from stagescope.analysis.statistics.estimates import CONFIDENCE

if TYPE_CHECKING:
    from stagescope.analysis.statistics.comparison import Comparison

SCHEMA = 2


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return the comparison as dicts, lists, numbers and strings, ready for json.dumps.

    ``schema``: 2; removing a key or changing its meaning makes it 3, adding one does not.

    ``changes``: clauses about what the runs are, such as another schedule; empty if they are alike.

    ``per``: what the times are per, iteration or micro-batch; those of links are per message.

    ``confidence``: of the intervals. ``false_discovery_rate``: the largest expected share of false claims.

    ``differences``: the rows of the table DIFFERENCES, in its order; times are in ns.

    ``outliers``: {steps, left_out, other}: the rows of the table LONG_STEPS, whether ``differences`` is without these
    steps, and the row of the iteration in the other way (null without outliers).

    ``throughput``: {before, after}: {unit, scope, per_second} of each run, see STEP_DATA; null if it counted no data.

    ``unknown_because``: {before, after}: why the bubble of a run is unknown, so that nothing of it can be compared;
    null where it is known.

    ``diagnostics``: a list of {severity, code, message, source, rank, location, count}: what could not be compared.
    """
    return {
        "schema": SCHEMA,
        "confidence": CONFIDENCE,
        "false_discovery_rate": RATE,
        "changes": list(comparison.changes),
        "per": comparison.per,
        "outliers": {
            "steps": [] if comparison.long_steps is None else comparison.long_steps.to_dicts(),
            "left_out": comparison.leaves_out,
            "other": comparison.other,
        },
        "throughput": {
            name: None if each is None else dict(zip(("unit", "scope", "per_second"), each, strict=True))
            for name, each in zip(("before", "after"), comparison.throughput, strict=True)
        },
        "unknown_because": {
            name: because or None
            for name, because in zip(("before", "after"), comparison.unknown_because, strict=True)
        },
        "differences": comparison.table.to_dicts(),
        "diagnostics": [asdict(diagnostic) for diagnostic in comparison.diagnostics],
    }
