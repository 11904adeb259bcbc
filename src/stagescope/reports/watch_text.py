"""A training that is being watched, as sentences about its alarms, lines of a view, and JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stagescope.analysis.watching.step_values import BUBBLE, ITERATION, LINK, PART, QUANTITIES, RANK, Subject
from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.analysis.watching.alarms import Alarm, Alarms, Change
    from stagescope.analysis.watching.series_history import SeriesHistory
    from stagescope.analysis.watching.step_values import StepValues

LABELS = {cause.name: cause.label for cause in CAUSES}
LEVELS = "▁▂▃▄▅▆▇█"
LEAST_ALSO = 0.005
"""Smaller changes beside that of an alarm would be shown as 0, or as less."""

MOST_ALSO = 4
MOST_CAUSES = 6
LEAST_SHOWN = 0.0005
"""Share of the iteration below which a cause would be printed as 0.0 %."""

LEAST_OWN = 0.5
"""If the values of a rank rose by less than this share of what it fell behind the others, these became faster."""
RECENT = 8
"""Steps whose mean is shown as the present value."""


def subject_text(subject: Subject) -> str:
    """Return what a value is about, as the beginning of a sentence.

    >>> subject_text(Subject("link", rank=1, peer=2, direction="forward"))
    'Each forward message from rank 1 to rank 2'
    """
    if subject.kind == RANK:
        return f"Rank {subject.rank}"
    if subject.kind == LINK:
        direction = f"{subject.direction} " if subject.direction else ""
        return f"Each {direction}message from rank {subject.rank} to rank {subject.peer}"
    if subject.kind == PART:
        label = LABELS[subject.part or ""]
        return label[0].upper() + label[1:]
    return f"The {subject.kind}"


def change_text(change: Change) -> str:
    """Return what has changed, and by how much, without the step."""
    name = subject_text(change.subject)
    if change.subject.kind == PART:
        more, share = duration_text(round(change.now - change.usual)), 100 * change.size
        return f"{name} takes {more} more per iteration ({share:.0f} % of the usual iteration)"
    before, now = duration_text(round(change.usual)), duration_text(round(change.now))
    is_rank, size, relative_size = change.subject.kind == RANK, change.size, change.relative_size
    if relative_size is not None and size < LEAST_OWN * relative_size:
        share = 100 * relative_size
        if is_rank:
            return (
                f"{name} is {share:.0f} % slower relative to the other ranks, which became faster "
                f"(its actions take {now} per step, {before} before)"
            )
        return (
            f"{name} takes {share:.0f} % longer relative to the other links, which became faster "
            f"({now}, {before} before)"
        )
    if is_rank:
        return f"{name} is {100 * size:.0f} % slower (its actions take {now} per step, {before} before)"
    return f"{name} takes {100 * size:.0f} % longer ({now}, {before} before)"


def value_text(quantity: str, value: float) -> str:
    """Return the value of a quantity.

    >>> value_text("bubble", 0.4125), value_text("step", 1.2e9)
    ('41.2 %', '1.200 s')
    """
    return duration_text(round(value)) if QUANTITIES[quantity] else f"{100 * value:.1f} %"


def alarm_sentences(alarm: Alarm) -> list[str]:
    """Return what an alarm is about, and what else changed at the same time."""
    if alarm.condition is not None and alarm.value is not None:
        quantity = alarm.condition.condition.quantity
        found = (
            f"{alarm.condition.text}: true since step {alarm.step}; "
            f"{quantity} was {value_text(quantity, alarm.value)} in step {alarm.found_step}."
        )
        return [found, *_ending(alarm)]
    main, *others = alarm.changes
    # The medians of few steps may differ by less than it took to notice that a level rose, or not at all.
    others = [change for change in others if change.size >= LEAST_ALSO]
    found = f"{change_text(main)} since step {main.step}; found at step {alarm.found_step}."
    also = [change_text(change) for change in others[:MOST_ALSO]]
    if len(others) > MOST_ALSO:
        also.append(f"and {len(others) - MOST_ALSO} more changes")
    return [found, *([f"At the same time: {'; '.join(also)}."] if also else []), *_ending(alarm)]


def _ending(alarm: Alarm) -> list[str]:
    return [] if alarm.end_step is None else [f"Resolved at step {alarm.end_step}."]


def headline(alarms: Alarms, last: StepValues | None, skipped: int, dropped: int | None = None) -> str:
    """Return the last step, its iteration and bubble, the usual iteration, and what is missing.

    That is how many steps were not measured, and how many spans the recorder dropped. The iteration of the last step of
    a training is unknown, because no step follows it.
    """
    missing = [f"{skipped:,} step{'s' if skipped > 1 else ''} could not be measured"] if skipped else []
    missing += [f"{counted(dropped, 'span')} dropped by the recorder"] if dropped else []
    if last is None:
        return ", ".join(missing) or "no complete step yet"
    parts = [f"step {last.step}"]
    for name in (ITERATION, BUBBLE):
        value = last.quantity(name)
        if value is not None:
            parts.append(f"{name} {value_text(name, value)}")
        elif name == ITERATION:
            parts.append("iteration unknown")
    usual = alarms.history.usual(Subject(ITERATION))
    if not math.isnan(usual):
        parts.append(f"usual iteration {duration_text(round(usual))}")
    return ", ".join([*parts, *missing])


def sparkline(history: SeriesHistory, width: int) -> str:
    """Return the last iterations as a line of bars, from the shortest to the longest; empty without any."""
    values = history.recent(Subject(ITERATION), width)
    if not len(values):
        return ""
    low, high = float(values.min()), float(values.max())
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((value - low) * scale)] for value in values)


def cause_rows(history: SeriesHistory) -> list[tuple[str, str, str]]:
    """Return the largest causes of lost time: label, share of the iteration in the last steps, and its usual share."""
    whole, usual = history.recent(Subject(ITERATION), RECENT), history.usual(Subject(ITERATION))
    rows = []
    for cause in CAUSES:
        subject = Subject(PART, cause.name)
        recent = history.recent(subject, RECENT)
        if len(recent) and len(whole):
            rows.append((float(recent.sum() / whole.sum()), cause.label, history.usual(subject) / usual))
    rows = sorted((row for row in rows if max(row[0], row[2]) >= LEAST_SHOWN), reverse=True)
    return [
        (label, f"{100 * share:.1f} %", f"{100 * before:.1f} %")
        for share, label, before in rows[:MOST_CAUSES]
    ]


def alarm_json(alarm: Alarm) -> dict[str, Any]:
    """Return an alarm as plain data: times in nanoseconds, sizes as fractions."""
    return {
        "alarm": alarm.number,
        "step": alarm.step,
        "found_step": alarm.found_step,
        "end_step": alarm.end_step,
        "condition": None if alarm.condition is None else alarm.condition.text,
        "value": alarm.value,
        "changes": [
            {
                **change.subject._asdict(),
                "step": change.step,
                "size": change.size,
                "relative_size": change.relative_size,
                "usual_ns": change.usual,
                "now_ns": change.now,
            }
            for change in alarm.changes
        ],
        "sentences": alarm_sentences(alarm),
    }


def step_json(values: StepValues) -> dict[str, Any]:
    """Return the values of a step as plain data: times in nanoseconds; causes as fractions of the iteration."""
    return {"step": values.step, "values": {name: values.quantity(name) for name in QUANTITIES}}


def event_lines(alarm: Alarm) -> Iterator[str]:
    """Yield the lines that a log of alarms has for an alarm."""
    first, *others = alarm_sentences(alarm)
    yield f"alarm {alarm.number}: {first}"
    yield from (f"  {sentence}" for sentence in others)
