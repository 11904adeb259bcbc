"""Diagnostics about what the recorder could not record of a framework; see record/coverage.py for the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.ingest.recording.values import storable
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_NAMED = 3
"""Missing functions named in a message. The header has more of them."""

MAX_COUNT = 2**63 - 1
"""A larger number is damage, and does not fit the table of diagnostics."""


def coverage_of(header: Mapping[str, Any], source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield what one process could not record, framework by framework."""
    frameworks = header.get("frameworks")
    for name, facts in frameworks.items() if isinstance(frameworks, dict) else ():
        if isinstance(facts, dict):
            title = storable(f"{name} {facts.get('version') or '(unknown version)'}")
            yield from _of_framework(title, facts, source, rank)


def _of_framework(name: str, facts: dict[str, Any], source: str, rank: int) -> Iterator[Diagnostic]:
    missing = _listed(facts.get("missing"))
    if facts.get("recorded") is False:
        supported = f"; supported {storable(facts['supported'])}" if facts.get("supported") else ""
        text = f"{name} does not fit, so nothing of it was recorded: {missing or 'reason unknown'}{supported}"
        yield Diagnostic("error", text, source, rank, code="framework.refused")
    elif missing:
        text = f"{name} is recorded in part; not recorded: {missing}"
        yield Diagnostic("warning", text, source, rank, code="framework.partial")
    if errors := _count(facts.get("errors")):
        text = f"the hooks of {name} failed, and an action may be missing: {storable(facts.get('error'))}"
        yield Diagnostic("error", text, source, rank, count=errors, code="hooks.failed")
    if facts.get("disabled") is True:
        text = f"the hooks of {name} were turned off after repeated errors; what followed was not recorded"
        yield Diagnostic("error", text, source, rank, code="hooks.disabled")
    if schedules := _listed(facts.get("unrecorded_schedules")):
        text = f"the steps of {name} have no actions, because its schedule is not recorded: {schedules}"
        yield Diagnostic("error", text, source, rank, code="schedule.unrecorded")
    if steps := _count(facts.get("empty_steps")):
        text = f"steps of {name} ended without a recorded action: their schedule is not recorded"
        yield Diagnostic("error", text, source, rank, count=steps, code="steps.without_actions")


def _listed(missing: object) -> str:
    names = [storable(name) for name in missing] if isinstance(missing, list) else []
    return ", ".join(names[:MAX_NAMED]) + (" and more" if len(names) > MAX_NAMED else "")


def _count(number: object) -> int:
    return number if isinstance(number, int) and 0 < number <= MAX_COUNT else 0
