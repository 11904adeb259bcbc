"""Choose the plan that the marks confirm, where none is declared or the declared one does not fit.

Once marks are missing, a plan of other sizes can be as close as the right one. An undeclared plan is therefore accepted
only if all three hold: some rank executed exactly what the plan prescribes in some step, no conflicting plan is
confirmed as often, and hardly any group has more forwards than prescribed. A declared plan is kept until such a plan
contradicts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.ascend.pipeline_info import FORWARD, OVERLAP
from stagescope.ingest.ascend.plan_matching import expected, sample
from stagescope.ingest.ascend.sizes import ONE_F_ONE_B
from stagescope.schedules.recognition.matching import Mark
from stagescope.schedules.spellings import known_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.ingest.ascend.plan import Plan, PlannedAction, PlannedMark
    from stagescope.ingest.ascend.plan_matching import MarkSequence

MAX_OVERFULL_FRACTION = 0.1
"""Maximum share of the groups with more forwards than the plan prescribes: a recorded step can hold two passes."""


class Support(NamedTuple):
    """A plan and its marks; how many groups match it exactly, and how many have more forwards than prescribed."""

    plan: Plan
    rows: dict[int, tuple[PlannedMark, ...]]
    whole: int
    overfull: int


def choose_plans(
    sequences: Iterable[MarkSequence], plans: Iterable[Plan], declared: PipelineInfo
) -> list[Plan]:
    """Return the plans to match the marks with: all variants of the declared or confirmed plan, possibly none."""
    samples = list(sample(sequences))
    supports = [_support(plan, rows, samples) for plan in plans if (rows := plan.rows()) is not None]
    groups = sum(times for _, times in samples)
    agreed = [each for each in supports if _agrees(each.plan, declared)]
    if not (agreed and known_schedule(declared.schedule) and declared.microbatches):
        return _confirmed(agreed or supports, groups)
    # One exact group is enough for a declared plan; an undeclared one also has to beat all others.
    if any(each.whole for each in agreed):
        return _fullest(agreed)
    others = [each for each in supports if each not in agreed]
    return _confirmed(others, groups) or [each.plan for each in agreed]


def _support(
    plan: Plan, rows: dict[int, tuple[PlannedMark, ...]], samples: Sequence[tuple[MarkSequence, int]]
) -> Support:
    whole = overfull = 0
    for sequence, times in samples:
        planned = [each.mark for each in expected(sequence, rows)]
        if len(planned) == len(sequence.keys) and all(map(Mark.fits, sequence.marks, planned)):
            whole += times
        # A missing mark makes a group shorter; only a wrong plan makes it longer. Groups that may repeat are
        # longer anyway.
        elif not sequence.may_repeat and _forwards(sequence.marks) > _forwards(planned):
            overfull += times
    return Support(plan, rows, whole, overfull)


def _forwards(marks: Iterable[Mark]) -> int:
    return sum(mark.sort in (FORWARD, OVERLAP) for mark in marks)


def _agrees(plan: Plan, declared: PipelineInfo) -> bool:
    """Return whether a plan is consistent with the declaration, which may be incomplete."""
    name = known_schedule(declared.schedule)
    is_named = name is None or plan.schedule == name or {plan.schedule, name} <= set(ONE_F_ONE_B)
    return is_named and declared.microbatches in (None, plan.microbatches)


def _confirmed(supports: Sequence[Support], groups: int) -> list[Plan]:
    """Return all variants of the plan with the most exact groups; an empty list where two such plans conflict."""
    possible = [each for each in supports if each.whole and each.overfull <= MAX_OVERFULL_FRACTION * groups]
    best = _fullest(possible)
    prescribed = [_actions(each.rows) for each in possible if each.plan in best]
    return best if all(each == prescribed[0] for each in prescribed) else []


def _actions(rows: Mapping[int, Sequence[PlannedMark]]) -> dict[int, list[tuple[PlannedAction, ...]]]:
    return {pp: [planned.parts for planned in row] for pp, row in rows.items()}


def _fullest(supports: Sequence[Support]) -> list[Plan]:
    most = max((each.whole for each in supports), default=0)
    return [each.plan for each in supports if each.whole == most]
