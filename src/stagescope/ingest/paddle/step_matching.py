"""Which steps of which ranks are the same training step, and what its number is.

Logs may begin or end at different steps, so steps are matched by their times and never counted in parallel: the
ranks of a step wait for each other, hence their windows overlap. Between machines that holds as long as the clocks
are less apart than half a step, and a warning comes well before. Numbers come from the NVTX ranges that are named by
them, else from the banner of the launch, else they count on.
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
"""How many of the windows that end after a step's start are looked at: two may overlap it, and the one after."""

POOR_OVERLAP_FRACTION = 0.7


class Windows(NamedTuple):
    """Intervals, and which of them are the rest of a step whose beginning its log does not have."""

    start_ns: Times
    end_ns: Times
    is_rest: npt.NDArray[np.bool_]


class Launch(NamedTuple):
    """Steps that one launch ran, as places in the order of time, and the numbers that its log announces."""

    first_place: int
    step_count: int
    first: int | None
    stop: int | None


def match_steps(slots: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return rank, slot and step for every slot of every rank, and what had to be decided.

    `slots` has a row per step of one log: rank, clock, slot, launch, banner_first, banner_stop, nvtx_step,
    start_ns, end_ns.
    """
    placed = _with_places(slots)
    steps, notes = _numbered(list(_launches(placed)))
    found = placed.select("rank", "slot", step=pl.col("place").replace_strict(steps, return_dtype=pl.Int32))
    return found, [*notes, *_overlap_note(placed)]


def _with_places(slots: pl.DataFrame) -> pl.DataFrame:
    """Return slots with place, the step's position among the steps of all ranks.

    The rank with the most steps is the measure; what overlaps none of its steps is a step of its own.
    """
    lengths = slots.group_by("rank").len().sort("len", "rank", descending=[True, False])
    known = Windows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
    by_rank = slots.sort("start_ns").partition_by("rank", as_dict=True)
    found: list[tuple[pl.DataFrame, Times]] = []
    for rank in lengths["rank"]:
        own = by_rank[(rank,)]
        windows = Windows(*(own[name].to_numpy() for name in ("start_ns", "end_ns", "is_rest")))
        best = _best(windows, known)
        known, best = _with_new(windows, best, known)
        found.append((own, best))
    order = np.empty(len(known.start_ns), np.int64)
    order[np.argsort(known.start_ns, kind="stable")] = np.arange(len(order))
    return pl.concat(own.with_columns(place=pl.Series(order[best])) for own, best in found)


def _best(windows: Windows, known: Windows) -> Times:
    """Return for each window the known one that it overlaps most, -1 where there is none.

    The rest of a step may also come after all that the other ranks did in it, a beginning that is soon cut off
    before: then the nearest is taken, up to half a step before or the window's own length away. No two windows of a
    rank share a known one, but for pieces that lie in it by half or more.
    """
    best = np.full(len(windows.start_ns), -1, np.int64)
    if not len(known.start_ns):
        return best
    order = np.argsort(known.start_ns, kind="stable")
    start_ns, end_ns = known.start_ns[order], known.end_ns[order]
    length_ns = windows.end_ns - windows.start_ns
    overlap_ns = -np.where(windows.is_rest, np.median(end_ns - start_ns) // 2, length_ns + 1).astype(np.int64)
    first = np.searchsorted(np.maximum.accumulate(end_ns), windows.start_ns, side="right") - 1
    for step in range(NEIGHBORS + 1):
        candidate = np.clip(first + step, 0, len(order) - 1)
        shared_ns = np.minimum(windows.end_ns, end_ns[candidate]) - np.maximum(
            windows.start_ns, start_ns[candidate]
        )
        later = windows.is_rest & (start_ns[candidate] > windows.start_ns) & (shared_ns <= 0)
        closer = (shared_ns > overlap_ns) & ~later
        best[closer], overlap_ns[closer] = order[candidate[closer]], shared_ns[closer]
    by_place = np.lexsort((-overlap_ns, best))
    again = np.zeros(len(best), np.bool_)
    again[by_place[1:]] = best[by_place[1:]] == best[by_place[:-1]]
    best[again & (2 * overlap_ns < length_ns)] = -1
    return best


def _with_new(windows: Windows, best: Times, known: Windows) -> tuple[Windows, Times]:
    """Return the known windows with those added that matched none, and where each window now stands."""
    new = best < 0
    places = best.copy()
    places[new] = len(known.start_ns) + np.arange(new.sum())
    return Windows(
        *(np.concatenate([old, own[new]]) for old, own in zip(known, windows, strict=True))
    ), places


def _launches(placed: pl.DataFrame) -> Iterator[Launch]:
    """Yield the launches in the order of time, each with the numbers that its banner or its NVTX ranges give."""
    count = placed.select(pl.col("place").max()).item() + 1
    for first, stop in pairwise([0, *_boundaries(placed), count]):
        own = placed.filter(pl.col("place").is_between(first, stop - 1))
        named = (pl.col("nvtx_step") - (pl.col("place") - first)).drop_nulls().mode().min()
        announced = own.select(named.alias("named"), pl.min("banner_first"), pl.max("banner_stop")).row(0)
        number = announced[1] if announced[0] is None else announced[0]
        yield Launch(first, stop - first, number, announced[2])


def _boundaries(placed: pl.DataFrame) -> list[int]:
    """Return the places with which a new launch begins: where some rank's log changes to another launch."""
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
    """Return the step of every place; a launch whose numbers are taken already is numbered on."""
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
        notes.append(Diagnostic("info", text, count=len(launches)))
    if all(launch.first is None for launch in launches):
        notes.append(Diagnostic("info", "no log says which training step it begins with: steps count from 0"))
    return steps, notes


def _contradictions(launch: Launch, number: int, first: int) -> Iterator[Diagnostic]:
    """Yield a warning where the steps of a launch cannot have the numbers, or the count, that it announces."""
    if launch.first is None:
        return
    if first != launch.first:
        text = (
            f"launch {number} in these logs announces steps from {launch.first} on, which are taken: "
            f"its steps are numbered on, from {first}"
        )
        yield Diagnostic("warning", text, count=launch.step_count)
    if launch.stop is not None and launch.step_count > (announced := launch.stop - launch.first):
        text = f"launch {number} in these logs has more steps than the {announced} that it announces"
        yield Diagnostic("warning", text, count=launch.step_count - announced)


def _overlap_note(placed: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning when the machines' steps hardly overlap: their clocks may be off by a step or more."""
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
        "steps of different machines hardly overlap in time: their clocks are so far apart that which of them "
        "belong together is uncertain"
    )
    return [Diagnostic("warning", text, count=max(1, poor.height))]
