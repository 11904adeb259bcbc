"""A comparison of two runs in sentences: what the runs are, whether the iteration changed, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.analysis.statistics.differences import RUNS
from stagescope.reports.counter_text import compared_throughput
from stagescope.vocabulary.causes import BY_COLUMN
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.ratios import LARGEST_PERCENT_RATIO, comparative_text, percent_text

if TYPE_CHECKING:
    from stagescope.analysis.statistics.comparison import Comparison

Row = dict[str, Any]

NOTHING = "The runs have nothing in common that could be compared."
LEAST_WINDOW_FRACTION = 0.001
"""A window that is shorter than the iteration by less than this has no sentence of its own."""

PLACES = {"straggler": ("rank",), "exposed_communication": ("link",), "blocked_on_send": ("link", "actions")}
"""Where a part of the iteration is looked for; the others in the actions of stages."""


def comparison_sentences(comparison: Comparison) -> list[str]:
    """Return what changed between the runs, whether the iteration got longer or shorter, and where."""
    rows = comparison.table.to_dicts()
    whole = next((row for row in rows if row["subject"] == "iteration"), None)
    if whole is None:
        return [NOTHING, *_unknown(comparison)]
    return [
        *_changes(comparison),
        _change(comparison, whole),
        *filter(None, (compared_throughput(comparison),)),
        *_windows(comparison, rows, whole),
        *_outliers(comparison),
        *(_where(rows, whole) if whole["is_claimed"] else _elsewhere(rows)),
    ]


def _unknown(comparison: Comparison) -> list[str]:
    """Return why the bubble of the runs is unknown."""
    before, after = comparison.unknown_because
    if before and before == after:
        return [f"The bubble of both runs is unknown: {before}."]
    named = zip(RUNS, comparison.unknown_because, strict=True)
    return [f"The bubble of the {name} run is unknown: {because}." for name, because in named if because]


def name_of(row: Row) -> str:
    """Return the subject of a row in words."""
    kind = str(row["kind"]).replace("_", " ")
    if row["subject"] == "actions":
        return f"{kind} of stage {row['stage']}"
    if row["subject"] == "rank":
        return f"actions of rank {row['rank']}"
    if row["subject"] == "link":
        return f"{kind} message from rank {row['rank']} to {row['peer']}"
    if row["subject"] == "part":
        cause = BY_COLUMN.get(f"{row['part']}_ns")
        return cause.label if cause else str(row["part"]).replace("_", " ")
    return {"iteration": "iteration", "step": "pipeline window"}[row["subject"]]


def interval_text(row: Row) -> str:
    """Return the confidence interval of a row."""
    if row["low_ns"] is None:
        return "-"
    return f"{signed_text(row['low_ns'])} to {signed_text(row['high_ns'])}"


def signed_text(duration_ns: float) -> str:
    """Return a difference with its sign."""
    text = duration_text(round(duration_ns))
    return text if text.startswith("-") else f"+{text}"


def is_sure(row: Row) -> bool:
    """Return whether zero is outside the interval of a difference."""
    return row["low_ns"] is not None and row["low_ns"] * row["high_ns"] > 0


def _changes(comparison: Comparison) -> list[str]:
    """Return the sentence about what the runs are, if that differs."""
    if not comparison.changes:
        return []
    first, *others = comparison.changes
    listed = "".join(f", {each}" for each in others[:-1]) + f", and {others[-1]}" if others else ""
    sentence = f"{first.replace(' from ', ' changed from ', 1)}{listed}."
    return [sentence[0].upper() + sentence[1:]]


def _change(comparison: Comparison, row: Row) -> str:
    subject = "iteration" if comparison.per == "iteration" else f"time per {comparison.per}"
    the = "Without outliers, the" if comparison.leaves_out else "The"
    between = (
        f"{duration_text(round(row['before_ns']))} before, {duration_text(round(row['after_ns']))} after"
    )
    counts = f"n = {row['steps_before']} and {row['steps_after']} steps"
    if row["low_ns"] is None:
        return f"Too few steps to distinguish a difference from noise ({counts}): {between}."
    evidence = f"{between} (95 % CI {interval_text(row)}, {counts})"
    if row["is_claimed"]:
        return f"{the} {subject} got {_amount(row)}: {evidence}."
    least = comparison.least.step_fraction
    most = max(abs(row["low_ns"]), abs(row["high_ns"])) / row["before_ns"] if row["before_ns"] else 0.0
    if most <= least:
        return (
            f"{the} {subject} did not change: a difference of {percent_text(least)} is excluded; {evidence}."
        )
    if is_sure(row):
        change = "longer" if row["difference_ns"] > 0 else "shorter"
        return f"{the} {subject} got {change}, but by too little to claim, at most {percent_text(most)}: {evidence}."
    no = "Without outliers, no" if comparison.leaves_out else "No"
    return (
        f"{no} difference of the {subject} was found, but one of up to {percent_text(most)} could have been missed: "
        f"{evidence}."
    )


def _amount(row: Row) -> str:
    """Return how much longer or shorter something is."""
    if not row["before_ns"]:
        return f"{duration_text(round(abs(row['difference_ns'])))} longer"
    ratio = row["after_ns"] / row["before_ns"]
    if ratio > 1:
        return comparative_text("longer", ratio, decimals=1)
    if ratio > 0 and 1 / ratio > LARGEST_PERCENT_RATIO:
        return f"{1 / ratio:.0f}x shorter"
    return f"{percent_text(1 - ratio)} shorter"


def _windows(comparison: Comparison, rows: list[Row], whole: Row) -> list[str]:
    """Return what the pipeline window did, unless it is almost all of the iteration."""
    window = next((row for row in rows if row["subject"] == "step"), None)
    if window is None or window["low_ns"] is None or not whole["before_ns"] or not window["before_ns"]:
        return []
    outside = max(1 - window[name] / whole[name] for name in ("before_ns", "after_ns") if whole[name])
    if outside < LEAST_WINDOW_FRACTION:
        return []
    between = f"{duration_text(round(window['before_ns']))} before, {duration_text(round(window['after_ns']))} after"
    per = "" if comparison.per == "iteration" else f" per {comparison.per}"
    did = f"got {_amount(window)}" if window["is_claimed"] else "did not change beyond noise"
    return [f"The pipeline window{per} {did}: {between}."]


def _outliers(comparison: Comparison) -> list[str]:
    """Return which steps were outliers, and the difference with or without them."""
    long_steps, other = comparison.long_steps, comparison.other
    if long_steps is None or long_steps.is_empty():
        return []
    found = []
    for (run,), steps in long_steps.group_by("run", maintain_order=True):
        most = steps["excess_fraction"].max()
        noun = "step" if steps.height == 1 else "steps"
        longer = comparative_text("longer", 1 + float(most), decimals=1)  # type: ignore[arg-type]  # a number
        up_to = "" if steps.height == 1 else "up to "
        found.append(f"{noun} {compact_ranges(steps['step'])} of the {run} run ({up_to}{longer})")
    listed = f"{counted(long_steps.height, 'outlier')}: {' and '.join(found)}"
    if other is None or not other["before_ns"]:
        return [f"{listed}."]
    done, without = ("left out", "With") if comparison.leaves_out else ("included", "Without")
    them = "it" if long_steps.height == 1 else "them"
    ratio = percent_text(abs(other["difference_ns"]) / other["before_ns"])
    change = "longer" if other["difference_ns"] > 0 else "shorter"
    return [f"{listed}; {done}. {without} {them}, the mean is {ratio} {change}."]


def _where(rows: list[Row], whole: Row) -> list[str]:
    """Return the part of the iteration, and the stage, rank or link, that changed most in its direction."""
    same_way = [
        row for row in rows if row["is_claimed"] and row["difference_ns"] * whole["difference_ns"] > 0
    ]
    parts = [row for row in same_way if row["subject"] == "part"]
    if not parts:
        return ["No single part of it changed in that direction beyond noise."]
    most = max(parts, key=_size)
    sentence = f"Most of it: {name_of(most)}, {signed_text(most['difference_ns'])}"
    subjects = PLACES.get(most["part"], ("actions",))
    # Between links and actions, the ratio decides: their times are not comparable.
    places = [row for row in same_way if row["subject"] in subjects]
    if not places:
        return [f"{sentence}."]
    place = max(places, key=_size)
    unit = " per message" if place["subject"] == "link" else ""
    return [
        f"{sentence}; of all places, {name_of(place)} changed most, {signed_text(place['difference_ns'])}{unit}."
    ]


def _elsewhere(rows: list[Row]) -> list[str]:
    """Return the largest claimed difference of a part, where none of the iteration is claimed."""
    parts = [row for row in rows if row["is_claimed"] and row["subject"] == "part"]
    if not parts:
        return []
    most = max(parts, key=_size)
    return [f"Its parts changed, most of all {name_of(most)}: {signed_text(most['difference_ns'])}."]


def _size(row: Row) -> float:
    return abs(float(row["difference_ns"]))
