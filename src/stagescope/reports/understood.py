"""What was understood of a trace whose actions were mapped or inferred, as a table before any conclusion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.analysis.understood import understood
from stagescope.vocabulary.language import localized, padded
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from stagescope.model import Timeline


def understood_lines(timeline: Timeline) -> list[str]:
    """Return ranks, stages, micro-batches, steps and actions per step, and what share of the slices is used.

    Empty for a run whose recording states its actions.
    """
    found = understood(timeline)
    if found is None:
        return []
    rows = [(localized(name), localized(printable(text))) for name, text in found.rows]
    return [localized("understood as:"), *(f"  {padded(name, 16)}  {text}" for name, text in rows)]
