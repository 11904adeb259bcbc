"""The codes of diagnostics: stable names that code and tests match, so that messages may be reworded.

A code is ``area.finding`` in lower case: ``clock.unaligned``, ``spans.dropped``. Codes are never reused for another
meaning. docs/diagnostics.md lists them.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """One code, and what a diagnostic with it reports."""

    name: str
    meaning: str


UNCODED = "uncoded"

CODES: tuple[Code, ...] = (
    Code("clock.pipeline_unaligned", "The machines of a pipeline are not on one clock, so it is not measured."),
    Code("steps.assumed", "No span has a step, so all spans are taken as step 0."),
    Code("steps.slow_first", "The first step took much longer than the others and is not in the totals."),
    Code(UNCODED, "A diagnostic without a code of its own, as third-party readers make."),
)
"""Every code that stagescope itself uses, sorted by name."""

BY_NAME: dict[str, Code] = {code.name: code for code in CODES}
