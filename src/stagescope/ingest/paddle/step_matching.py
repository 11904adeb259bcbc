"""Match the steps of all ranks that are the same training step, and number them.

Logs may begin or end at different steps, so steps are matched by time instead of by counting: the ranks of a step wait
for each other, so their windows overlap. Across machines this holds while the clocks differ by less than half a step; a
warning is given well before that. Numbers are those of NVTX ranges named by a step, otherwise those of the launch's
banner, otherwise they continue the previous ones.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Times = npt.NDArray[np.int64]

NEIGHBORS = 3
"""How many windows that end after a step's start are compared: up to two can overlap it, plus the next one."""

POOR_OVERLAP_FRACTION = 0.7


class Windows(NamedTuple):
    """Intervals, and which of them are the tail of a step whose beginning is not in its log."""

    start_ns: Times
    end_ns: Times
    is_tail: npt.NDArray[np.bool_]


class Launch(NamedTuple):
    """Steps of one launch, as places in time order, and the numbers that its log announces."""

    first_place: int
    step_count: int
    first: int | None
    stop: int | None


def match_steps(slots: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return rank, slot and step for every slot of every rank, and diagnostics.

    `slots` has one row per step of one log: rank, clock, slot, launch, banner_first, banner_stop, nvtx_step, start_ns,
    end_ns, is_tail.
    """
    placed = _with_places(slots)
    steps, notes = _numbered(list(_launches(placed)))
    found = placed.select("rank", "slot", step=pl.col("place").replace_strict(steps, return_dtype=pl.Int32))
    return found, [*notes, *_overlap_note(placed)]


def _with_places(slots: pl.DataFrame) -> pl.DataFrame:
    """Return slots with place, the step's position among the steps of all ranks.

    The rank with the most steps is the reference; a window that overlaps none of its steps is a step of its own.
    """
    lengths = slots.group_by("rank").len().sort("len", "rank", descending=[True, False])
    known = Windows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
    by_rank = slots.sort("start_ns").partition_by("rank", as_dict=True)
    found: list[tuple[pl.DataFrame, Times]] = []
    for rank in lengths["rank"]:
        own = by_rank[(rank,)]
        windows = Windows(*(own[name].to_numpy() for name in ("start_ns", "end_ns", "is_tail")))
        best = _best(windows, known)
        known, best = _with_new(windows, best, known)
        found.append((own, best))
    order = np.empty(len(known.start_ns), np.int64)
    # Places are numbered only now: new windows may precede known ones.
    order[np.argsort(known.start_ns, kind="stable")] = np.arange(len(order))
    return pl.concat(own.with_columns(place=pl.Series(order[best])) for own, best in found)


def _best(windows: Windows, known: Windows) -> Times:
    """Return for each window the known one with the largest overlap, -1 if there is none.

    The tail of a step may follow all activity of the other ranks in it, and a beginning that is soon truncated may
    precede it: then the nearest is used, up to half a step before or the window's own length away. Two windows of a
    rank never share a known one, except for pieces at least half inside it.
    """
    best = np.full(len(windows.start_ns), -1, np.int64)
    if not len(known.start_ns):
        return best
    order = np.argsort(known.start_ns, kind="stable")
    start_ns, end_ns = known.start_ns[order], known.end_ns[order]
    length_ns = windows.end_ns - windows.start_ns
    overlap_ns = -np.where(windows.is_tail, np.median(end_ns - start_ns) // 2, length_ns + 1).astype(np.int64)
    first = np.searchsorted(np.maximum.accumulate(end_ns), windows.start_ns, side="right") - 1
    for step in range(NEIGHBORS + 1):
        candidate = np.clip(first + step, 0, len(order) - 1)
        shared_ns = np.minimum(windows.end_ns, end_ns[candidate]) - np.maximum(
            windows.start_ns, start_ns[candidate]
        )
        later = windows.is_tail & (start_ns[candidate] > windows.start_ns) & (shared_ns <= 0)
        closer = (shared_ns > overlap_ns) & ~later
        best[closer], overlap_ns[closer] = order[candidate[closer]], shared_ns[closer]
    by_place = np.lexsort((-overlap_ns, best))
    again = np.zeros(len(best), np.bool_)
    again[by_place[1:]] = best[by_place[1:]] == best[by_place[:-1]]
    # Of several windows of a rank on one known window, those mostly outside it become steps of their own.
    best[again & (2 * overlap_ns < length_ns)] = -1
    return best


def _with_new(windows: Windows, best: Times, known: Windows) -> tuple[Windows, Times]:
    """Return the known windows plus those without a match, and the index of each window in them."""
    new = best < 0
    places = best.copy()
    places[new] = len(known.start_ns) + np.arange(new.sum())
    return Windows(
        *(np.concatenate([old, own[new]]) for old, own in zip(known, windows, strict=True))
    ), places


def _launches(placed: pl.DataFrame) -> Iterator[Launch]:
    """Yield the launches in time order, each with the numbers of its NVTX ranges or its banner."""
    count = placed.select(pl.col("place").max()).item() + 1
    for first, stop in pairwise([0, *_boundaries(placed), count]):
        own = placed.filter(pl.col("place").is_between(first, stop - 1))
        named = (pl.col("nvtx_step") - (pl.col("place") - first)).drop_nulls().mode().min()
        announced = own.select(named.alias("named"), pl.min("banner_first"), pl.max("banner_stop")).row(0)
        number = announced[1] if announced[0] is None else announced[0]
        yield Launch(first, stop - first, number, announced[2])


def _boundaries(placed: pl.DataFrame) -> list[int]:
    """Return the places at which a new launch begins: where the log of some rank changes to another launch."""
    ordered = placed.sort("rank", "place", "slot").with_columns(
        before=pl.col("place").shift(1).over("rank"), changed=pl.col("launch").diff().over("rank") != 0
    )
    changes = ordered.filter(pl.col("changed") & (pl.col("place") > pl.col("before")))
    found: list[int] = []
    narrow_first = (
        changes.select("before", "place", gap=pl.col("place") - pl.col("before"))
        .unique()
        .sort("gap", "place")
    )
    for before, place, _ in narrow_first.iter_rows():
        if not any(before < one <= place for one in found):
            found.append(place)
    return sorted(found)


def _numbered(launches: list[Launch]) -> tuple[dict[int, int], list[Diagnostic]]:
    """Return the step of every place; a launch with numbers that are already used continues the previous numbers."""
    steps: dict[int, int] = {}
    notes: list[Diagnostic] = []
    free = 0
    for number, launch in enumerate(launches, 1):
        first = free if launch.first is None else max(launch.first, free)
        notes += _contradictions(launch, number, first)
        steps |= {launch.first_place + index: first + index for index in range(launch.step_count)}
        free = first + launch.step_count
    if len(launches) > 1:
        text = "launches are appended to one another in these logs"
        notes.append(Diagnostic("info", text, count=len(launches), code="launches.several"))
    if all(launch.first is None for launch in launches):
        text = "the first training step is not recorded: steps are numbered from 0"
        notes.append(Diagnostic("info", text, code="steps.numbered_from_0"))
    return steps, notes


def _contradictions(launch: Launch, number: int, first: int) -> Iterator[Diagnostic]:
    """Yield a warning where the steps of a launch cannot have the announced numbers or count."""
    if launch.first is None:
        return
    if first != launch.first:
        text = (
            f"launch {number} in these logs announces steps from {launch.first} on, which are already used: "
            f"its steps are numbered from {first}"
        )
        yield Diagnostic("warning", text, count=launch.step_count, code="steps.contradictory")
    if launch.stop is not None and launch.step_count > (announced := launch.stop - launch.first):
        text = f"launch {number} in these logs has more steps than the {announced} that it announces"
        surplus = launch.step_count - announced
        yield Diagnostic("warning", text, count=surplus, code="steps.contradictory")


def _overlap_note(placed: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning if the machines' steps hardly overlap: their clocks may differ by a step or more."""
    machines = placed.group_by("clock", "place").agg(pl.min("start_ns"), pl.max("end_ns"))
    shared = machines.group_by("place").agg(
        pl.len(),
        within_ns=pl.min("end_ns") - pl.max("start_ns"),
        shortest_ns=(pl.col("end_ns") - pl.col("start_ns")).min(),
    )
    poor = shared.filter(
        (pl.col("len") > 1) & (pl.col("within_ns") < POOR_OVERLAP_FRACTION * pl.col("shortest_ns"))
    )
    alone = placed["clock"].n_unique() > 1 and shared["len"].max() == 1
    if poor.is_empty() and not alone:
        return []
    text = (
        "steps of different machines hardly overlap in time: their clocks differ so much that the matching of "
        "steps is uncertain"
    )
    return [Diagnostic("warning", text, count=max(1, poor.height), code="clock.steps_apart")]
