"""Which plan the marks bear out, where nobody declares one or the declared one does not hold.

A plan of other sizes can be as near as the right one once marks are lost. So a plan that nobody has declared is only
believed if what some rank did in some step is exactly what it prescribes, if no other plan can say as much of as many,
and if next to nobody did more than it prescribes. What is declared is believed until such a plan contradicts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.ascend.pipeline_info import FORWARD, OVERLAP
from stagescope.ingest.ascend.placing import expected, sample
from stagescope.ingest.ascend.sizes import ONE_F_ONE_B
from stagescope.schedules.recognition.matching import Mark
from stagescope.schedules.spellings import known_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.ingest.ascend.placing import Look
    from stagescope.ingest.ascend.plan import Due, Plan, PlannedAction

MOST_OVERFULL = 0.1
"""The share of the groups that may have more forwards than a plan prescribes: steps that hold two passes."""


class Support(NamedTuple):
    """A plan and its marks, how many groups are exactly it, and how many have more forwards than it prescribes."""

    plan: Plan
    rows: dict[int, tuple[Due, ...]]
    whole: int
    overfull: int


def choose_plans(looks: Iterable[Look], plans: Iterable[Plan], declared: PipelineInfo) -> list[Plan]:
    """Return the plans to match the marks with: the declared one or the one borne out, in its variants; or none."""
    samples = list(sample(looks))
    supports = [_support(plan, rows, samples) for plan in plans if (rows := plan.rows()) is not None]
    groups = sum(times for _, times in samples)
    agreed = [each for each in supports if _agrees(each.plan, declared)]
    if not (agreed and known_schedule(declared.schedule) and declared.microbatches):
        return _borne_out(agreed or supports, groups)
    if any(each.whole for each in agreed):
        return _fullest(agreed)
    others = [each for each in supports if each not in agreed]
    return _borne_out(others, groups) or [each.plan for each in agreed]


def _support(plan: Plan, rows: dict[int, tuple[Due, ...]], samples: Sequence[tuple[Look, int]]) -> Support:
    whole = overfull = 0
    for look, times in samples:
        due = [each.mark for each in expected(look, rows)]
        if len(due) == len(look.words) and all(map(Mark.fits, look.marks, due)):
            whole += times
        elif not look.may_repeat and _forwards(look.marks) > _forwards(due):
            overfull += times
    return Support(plan, rows, whole, overfull)


def _forwards(marks: Iterable[Mark]) -> int:
    return sum(mark.sort in (FORWARD, OVERLAP) for mark in marks)


def _agrees(plan: Plan, declared: PipelineInfo) -> bool:
    """Tell whether a plan is what is declared, as far as anything is."""
    name = known_schedule(declared.schedule)
    is_named = name is None or plan.schedule == name or {plan.schedule, name} <= set(ONE_F_ONE_B)
    return is_named and declared.microbatches in (None, plan.microbatches)


def _borne_out(supports: Sequence[Support], groups: int) -> list[Plan]:
    """Return the plan with the most groups that are exactly it, in its variants; none where two say other things."""
    possible = [each for each in supports if each.whole and each.overfull <= MOST_OVERFULL * groups]
    best = _fullest(possible)
    told = [_actions(each.rows) for each in possible if each.plan in best]
    return best if all(each == told[0] for each in told) else []


def _actions(rows: Mapping[int, Sequence[Due]]) -> dict[int, list[tuple[PlannedAction, ...]]]:
    return {pp: [due.parts for due in row] for pp, row in rows.items()}


def _fullest(supports: Sequence[Support]) -> list[Plan]:
    most = max((each.whole for each in supports), default=0)
    return [each.plan for each in supports if each.whole == most]
