"""The cost of one micro-batch on every stage, as a text table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.reports.aligned import aligned
from stagescope.reports.sampled import evenly_chosen
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import localized
from stagescope.vocabulary.ratios import change_text

if TYPE_CHECKING:
    import polars as pl

MOST_STAGES = 16
TIMES = ("forward_ns", "backward_ns", "weight_ns", "work_ns")


def stage_lines(stage_work: pl.DataFrame) -> list[str]:
    """Return the table STAGE_WORK as lines; of more than 16 stages, 16 evenly spaced ones."""
    if stage_work.is_empty():
        return []
    every = stage_work.to_dicts()
    shown = [every[index] for index in evenly_chosen(len(every), MOST_STAGES)]
    has_weight = any(row["weight_ns"] for row in every)
    times = [name for name in TIMES if has_weight or name != "weight_ns"]
    rows = [
        (
            str(row["stage"]),
            *(time_text(row[name]) for name in times),
            versus_others_text(row["work_to_others"]),
        )
        for row in shown
    ]
    head = ("stage", *(name.removesuffix("_ns") for name in times), "vs. others")
    lines = aligned(head, rows)
    if len(shown) < len(every):
        lines.append(localized(f"{len(every) - len(shown)} stages not shown"))
    return [localized("per micro-batch"), *lines]


def time_text(work_ns: int) -> str:
    """Return how long a stage computes, a dash if no action of that kind ran or was recorded.

    >>> time_text(1_500_000), time_text(0)
    ('1.500 ms', '-')
    """
    return duration_text(work_ns) if work_ns else "-"


def versus_others_text(work_to_others: float | None) -> str:
    """Return the difference of a stage's work from the mean of the other stages, an empty text if it is unknown.

    >>> versus_others_text(1.12)
    '+12.0 %'
    """
    return "" if work_to_others is None else change_text(work_to_others)
