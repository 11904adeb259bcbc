"""``--fail-if``: a condition on a report, such as bubble>0.3, that decides the exit code of a command."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.conditions import parse_condition as parse
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagescope.analysis import Report
    from stagescope.vocabulary.conditions import Condition

EXIT_CONDITION = 3
"""The exit code of a command if a condition holds."""

BUBBLES = ("bubble", "rank_bubble")
"""Quantities with the definition of --bubble."""


class Quantity(NamedTuple):
    """A number that a condition can name: its meaning, and the function that gets it, None if it is unknown."""

    meaning: str
    of: Callable[[Report], float | None]
    is_time: bool = False


def _cause(column: str) -> Callable[[Report], float | None]:
    def fraction(report: Report) -> float | None:
        lost = report.explanation.lost_time if report.explanation else None
        if lost is None or column not in lost.causes_ns or column in lost.unrecorded:
            return None
        return lost.fraction(column)

    return fraction


def _step(pick: Callable[[list[int]], float]) -> Callable[[Report], float | None]:
    def length_ns(report: Report) -> float | None:
        windows_ns = report.steps.filter("in_totals")["window_ns"].to_list()
        return pick(windows_ns) if windows_ns else None

    return length_ns


def _iteration(report: Report) -> float | None:
    iterations = report.explanation.iterations if report.explanation else None
    if iterations is None or iterations.is_empty():
        return None
    size = report.steps_per_iteration
    lengths_ns = iterations.unique("step").sort("step")["iteration_ns"].to_list()
    return float(median(sum(lengths_ns[first : first + size]) for first in range(0, len(lengths_ns), size)))


QUANTITIES: dict[str, Quantity] = {
    "bubble": Quantity(
        "idle fraction of the pipeline windows, or as --bubble chooses", lambda report: report.bubble.fraction
    ),
    "rank_bubble": Quantity(
        "the largest bubble of a single rank",
        lambda report: max(report.bubble.per_rank.values(), default=None),
    ),
    **{cause.name: Quantity(f"fraction lost to: {cause.label}", _cause(cause.column)) for cause in CAUSES},
    "iteration": Quantity("median duration of an iteration, such as 120ms", _iteration, is_time=True),
    "step": Quantity("median duration of a pipeline window, such as 120ms", _step(median), is_time=True),
    "longest_step": Quantity("duration of the longest pipeline window", _step(max), is_time=True),
}


def quantities_text(indent: int) -> str:
    """Return one line per quantity, each but the first indented."""
    width = max(map(len, QUANTITIES)) + 2
    lines = (f"  {name:{width}}{quantity.meaning}" for name, quantity in QUANTITIES.items())
    return f"\n{' ' * indent}".join(lines)


def parse_condition(text: str) -> Condition:
    """Return a parsed condition on one of QUANTITIES. Raises UsageError."""
    return parse(text, {name: quantity.is_time for name, quantity in QUANTITIES.items()}, "--fail-if")


class Judgment(NamedTuple):
    """The result of a condition: whether the command fails, and a sentence with the measured value."""

    fails: bool
    text: str


def judge(report: Report, conditions: Sequence[Condition]) -> list[Judgment]:
    """Return the result of each condition; a condition on an unknown quantity fails."""
    return [_judge(report, condition) for condition in conditions]


def _why_unknown(report: Report, quantity: str) -> str:
    lost = report.explanation.lost_time if report.explanation else None
    if lost is not None and f"{quantity}_ns" in lost.unrecorded:
        return f"{quantity} was not recorded, so the condition cannot be judged"
    because = report.bubble.unknown_because
    return f"{quantity} is unknown: {because}" if because else f"{quantity} is unknown"


def _judge(report: Report, condition: Condition) -> Judgment:
    quantity = QUANTITIES[condition.quantity]
    value = quantity.of(report)
    if value is None:
        return Judgment(fails=True, text=f"{condition.text}: {_why_unknown(report, condition.quantity)}")
    fails = condition.holds(value)
    shown = duration_text(round(value)) if quantity.is_time else f"{value:.4f}"
    verb = "holds" if fails else "does not hold"
    of = f" of the {report.bubble.whole}" if condition.quantity in BUBBLES else ""
    return Judgment(fails, f"{condition.text} {verb}: {condition.quantity} is {shown}{of}")
