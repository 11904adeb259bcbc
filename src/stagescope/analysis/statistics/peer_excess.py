"""How much longer each rank takes than its peers, sample by sample.

Per class of actions and sample, a rank is compared with the median of the others that ran the same class in the same
sample; the classes of a rank are averaged, weighted by the time that they usually take. What slows all peers in a
step equally (a longer sequence, a slow file system) cancels.

The samples of all classes are one array, slots x classes x samples, where the slot of a rank is its place among those
that run the class. Runs have hundreds of classes, so a loop over them would take longer than the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.statistics.estimates import estimate_means, inverse, medians_of_others
from stagescope.analysis.statistics.noise import find_odd
from stagescope.model.large_tables import chosen_rows, united_rows
from stagescope.model.lazy import TableParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Reference = Callable[[Floats, Integers], Floats]

LEAST_SPREAD_FRACTION = 0.01
"""Spreads below this fraction of the duration count as equal: ratios of such small numbers mean nothing."""

VALUES = ("usual_ns", "fast_ns", "spread_ns", "action_count", "total_ns")
SUMS = ("span_count", "busy_ns", "deviation_ns", "excess")
"""Over the samples in which a rank has a peer; the excess over all."""
CELLS_AT_ONCE = 1_000_000
"""Values (by slot, class and sample) that are compared at once; each takes about 120 bytes."""


@dataclass(frozen=True)
class PeerExcess:
    """The comparison of ranks with their peers. Matrices are ranks x samples, NaN without a peer.

    `shift`, `fast` and `spread` are logarithms of ratios to the peers: of the usual duration, of the 20th percentile,
    and of the spread relative to the usual duration. `facts` has a row per rank: rank, peers, span_count (actions with
    a peer), busy_ns (their time), deviation_ns (what they deviate from their median in total), stage and kind (of the
    class that adds most).
    """

    facts: pl.DataFrame
    shift: Floats
    fast: Floats
    spread: Floats


class _Layout(NamedTuple):
    """Where values are: the classes, the ranks, and the number of each rank by slot and class (-1: none).

    `members` has rank, the columns of the classes, class (its number) and slot.
    """

    classes: pl.DataFrame
    ranks: pl.Series
    rank_of_slot: Integers
    members: pl.DataFrame


class _Block(NamedTuple):
    """Some samples: slots x classes x samples, NaN for missing ones, by the names in VALUES."""

    first: int
    stop: int
    cubes: dict[str, Floats]


def compare_ranks(samples: Iterable[pl.DataFrame], count: int) -> PeerExcess:
    """Return ranks compared with the other ranks of their stage, usually data-parallel replicas.

    `samples` are the parts of ActionSamples, `count` is the number of samples.

    Ranks that differ clearly are left out of the reference of the others: among three, one slow rank is half of it.
    """
    classes = ["stage", "kind", "is_pair"]
    is_odd = find_odd(estimate_means(_compare(samples, count, classes, _of_all).shift).value)
    if not is_odd.any():
        return _compare(samples, count, classes, _of_others)

    def of_usual_others(values: Floats, rank_of_slot: Integers) -> Floats:
        odd_slots = (rank_of_slot >= 0) & is_odd[rank_of_slot]
        reference = _of_others(np.where(odd_slots[:, :, None], np.nan, values), rank_of_slot)
        return np.where(np.isfinite(reference), reference, _of_others(values, rank_of_slot))

    return _compare(samples, count, classes, of_usual_others)


def compare_machines(samples: Iterable[pl.DataFrame], count: int, machine_of: dict[int, str]) -> PeerExcess:
    """Return ranks compared with the ranks of *other* machines that run the same stage."""
    has_machine = pl.col("rank").is_in(list(machine_of))
    known = TableParts(samples, lambda rows: chosen_rows(rows, has_machine))
    ranks = united_rows(known, ["rank"])["rank"].sort()
    machine = np.unique([machine_of[rank] for rank in ranks], return_inverse=True)[1].astype(np.int64)

    def of_other_machines(values: Floats, rank_of_slot: Integers) -> Floats:
        return medians_of_other_groups(values, np.where(rank_of_slot >= 0, machine[rank_of_slot], -1))

    return _compare(known, count, ["stage", "kind", "is_pair"], of_other_machines)


def medians_of_other_groups(values: Floats, group_of_slot: Integers) -> Floats:
    """Return for every value the median, along the first axis, of the values of other groups; NaN is missing.

    `values` is slots x classes x samples, `group_of_slot` slots x classes, -1 for no group, which has no result. All
    values are sorted once: without those of a group, their median is a few places further.
    """
    slot, column = np.nonzero(group_of_slot >= 0)
    key = group_of_slot[slot, column] * group_of_slot.shape[1] + column
    order = np.argsort(key, kind="stable")
    slot, column = slot[order], column[order]
    firsts = np.flatnonzero(np.diff(key[order], prepend=-1))
    pair = np.cumsum(np.isin(np.arange(len(slot)), firsts)) - 1
    nth = np.arange(len(slot)) - firsts[pair] if len(slot) else pair
    of_pair = column[firsts]
    # Finite values come first, so their places are below their number.
    ordered, count = np.sort(values, axis=0), np.isfinite(values).sum(axis=0)
    place = inverse(np.argsort(values, axis=0, kind="stable"))
    nowhere = len(values)
    own = np.full((len(firsts), int(nth.max(initial=0)) + 1, values.shape[2]), nowhere)
    own[pair, nth] = np.where(np.isfinite(values[slot, column]), place[slot, column], nowhere)
    own.sort(axis=1)
    others = count[of_pair] - (own < nowhere).sum(axis=1)
    samples = np.arange(values.shape[2])[None, :]
    ends = [
        ordered[_places_among_all(at, own, max(nowhere - 1, 0)), of_pair[:, None], samples]
        for at in ((others - 1) // 2, others // 2)
    ]
    medians = np.where(others > 0, (ends[0] + ends[1]) / 2, np.nan)
    found = np.full_like(values, np.nan)
    found[slot, column] = medians[pair]
    return found


def _places_among_all(place: Integers, own: Integers, last: int) -> Integers:
    """Return places among the values of others as places among all, given the sorted places of the own ones."""
    for each in own.transpose(1, 0, 2):
        place = place + (each <= place)
    found: Integers = np.clip(place, 0, last)
    return found


def compare_all_ranks(samples: Iterable[pl.DataFrame], count: int) -> PeerExcess:
    """Return ranks compared with all other ranks, whatever stage they run.

    Only their spread is comparable, and how their time changes.
    """
    total = pl.col("action_count").sum()
    weighted = (pl.col("usual_ns", "fast_ns", "spread_ns") * pl.col("action_count")).sum() / total
    keys = ["rank", "kind", "is_pair", "sample"]
    ranks = TableParts(
        samples, lambda rows: rows.group_by(keys).agg(weighted, total, pl.col("total_ns").sum())
    )
    return _compare(ranks, count, ["kind", "is_pair"], _of_others)


def _of_others(values: Floats, _ranks: Integers) -> Floats:
    flat = values.reshape(len(values), values.shape[1] * values.shape[2])
    return medians_of_others(flat).reshape(values.shape)


def _of_all(values: Floats, _ranks: Integers) -> Floats:
    return np.broadcast_to(_medians(values)[None], values.shape)


def _medians(values: Floats) -> Floats:
    """Return the medians along the first axis; NaN is missing."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    last = max(len(values) - 1, 0)
    ends = [np.clip(each, 0, last)[None] for each in ((count - 1) // 2, count // 2)]
    low, high = (np.take_along_axis(ordered, each, axis=0)[0] for each in ends)
    found: Floats = np.where(count > 0, (low + high) / 2, np.nan)
    return found


def _compare(
    samples: Iterable[pl.DataFrame], count: int, classes: list[str], reference: Reference
) -> PeerExcess:
    """Return the ranks compared with what `reference` returns for the peers in each class (some columns)."""
    layout = _lay_out(samples, classes)
    weight_ns = _usual_totals(samples, layout.classes)
    matrices = [np.full((len(layout.ranks), count), np.nan) for _ in range(3)]
    sums = np.zeros((len(SUMS), *layout.rank_of_slot.shape))
    for block in _blocks(samples, layout):
        found = _compare_block(block, layout, (weight_ns, reference), sums)
        for matrix, values in zip(matrices, found, strict=True):
            matrix[:, block.first : block.stop] = values
    return PeerExcess(_facts(layout, sums), *matrices)


def _blocks(samples: Iterable[pl.DataFrame], layout: _Layout) -> Iterator[_Block]:
    """Yield the samples, one block after the other."""
    at_once = max(1, CELLS_AT_ONCE // max(layout.rank_of_slot.size, 1))
    for rows in samples:
        keys = layout.members.columns[:-2]
        place = rows.select(keys).join(layout.members, on=keys, maintain_order="left")
        slot, number = place["slot"].to_numpy(), place["class"].to_numpy()
        sample = rows["sample"].to_numpy()
        if not len(sample):
            continue
        begin, end = int(sample.min()), int(sample.max()) + 1
        for first in range(begin, end, at_once):
            stop = min(first + at_once, end)
            own = np.flatnonzero((sample >= first) & (sample < stop))
            cubes = {}
            for name in VALUES:
                cubes[name] = np.full((*layout.rank_of_slot.shape, stop - first), np.nan)
                cubes[name][slot[own], number[own], sample[own] - first] = rows[name].to_numpy()[own]
            yield _Block(first, stop, cubes)


def _compare_block(
    block: _Block, layout: _Layout, peers: tuple[Floats, Reference], sums: Floats
) -> list[Floats]:
    """Return the matrices of some samples, and add them to the SUMS by slot and class."""
    weight_ns, reference = peers
    # Logarithms: "twice as long" and "half as long" are equally far from equal, and classes can be averaged.
    ratios = [each - reference(each, layout.rank_of_slot) for each in _logarithms(block.cubes)]
    known = np.isfinite(ratios[0])
    row = np.where(layout.rank_of_slot >= 0, layout.rank_of_slot, len(layout.ranks)).ravel()
    size = (len(layout.ranks), block.stop - block.first)
    weighted = [np.where(known, each, 0.0) * weight_ns[None, :, None] for each in ratios]
    weights = _summed(known * weight_ns[None, :, None], row, size)
    _add_sums(sums, block.cubes, weighted[0])
    with np.errstate(invalid="ignore"):
        return [np.where(weights > 0, _summed(each, row, size) / weights, np.nan) for each in weighted]


def _usual_totals(samples: Iterable[pl.DataFrame], classes: pl.DataFrame) -> Floats:
    """Return the median time of each class in a sample of a rank: the weight of the class."""
    names = classes.columns[1:]
    times: list[list[Integers]] = [[] for _ in range(classes.height)]
    for each in samples:
        number = each.select(names).join(classes, on=names, nulls_equal=True, maintain_order="left")["class"]
        order = number.arg_sort()
        bounds = np.searchsorted(number.gather(order).to_numpy(), range(1, classes.height))
        of_classes = np.split(each["total_ns"].gather(order).to_numpy(), bounds)
        for every, own in zip(times, of_classes, strict=False):
            every.append(own)
    # One class after the other: those of all ranks and samples take much memory.
    return np.array([_median(parts) for parts in times])


def _median(parts: list[Integers]) -> float:
    values = np.concatenate(parts)
    return float(np.median(values, overwrite_input=True)) if len(values) else 0.0


def _summed(values: Floats, row: Integers, size: tuple[int, int]) -> Floats:
    """Return slots x classes x samples summed to ranks x samples."""
    order = np.argsort(row, kind="stable")
    flat, ordered = values.reshape(len(row), size[1])[order], row[order]
    found = np.zeros(size)
    inside = ordered < size[0]
    if inside.any():
        first = np.flatnonzero(np.diff(ordered[inside], prepend=-1))
        found[ordered[inside][first]] = np.add.reduceat(flat[inside], first, axis=0)
    return found


def _lay_out(samples: Iterable[pl.DataFrame], classes: list[str]) -> _Layout:
    every = united_rows(samples, ["rank", *classes])
    ranks = every["rank"].unique().sort()
    known = every.select(classes).unique().sort(classes).with_row_index("class")
    members = (
        every.join(known, on=classes)
        .sort("class", "rank")
        .with_columns(slot=pl.int_range(pl.len()).over("class"))
    )
    slots = int(members["slot"].to_numpy().max(initial=-1)) + 1
    rank_of_slot = np.full((slots, known.height), -1, dtype=np.int64)
    rank_of_slot[members["slot"], members["class"]] = ranks.search_sorted(members["rank"]).to_numpy()
    return _Layout(known, ranks, rank_of_slot, members.select("rank", *classes, "class", "slot"))


def _logarithms(cubes: dict[str, Floats]) -> list[Floats]:
    """Return the logarithms of the usual duration, the fast end, and the relative spread."""
    relative = np.maximum(cubes["spread_ns"] / cubes["usual_ns"], LEAST_SPREAD_FRACTION)
    return [np.log(cubes["usual_ns"]), np.log(cubes["fast_ns"]), np.log(relative)]


def _add_sums(sums: Floats, cubes: dict[str, Floats], excess: Floats) -> None:
    """Add some samples to the SUMS, one after the other: sums do not depend on how many are looked at together."""
    present = np.isfinite(cubes["usual_ns"])
    compared = present & (present.sum(axis=0) > 1)[None]
    times = (cubes["action_count"], cubes["total_ns"], cubes["spread_ns"] * cubes["action_count"])
    every = (*(np.where(compared, each, 0.0) for each in times), excess)
    for number, values in enumerate(every):
        for sample in range(values.shape[2]):
            sums[number] += values[:, :, sample]


def _facts(layout: _Layout, sums: Floats) -> pl.DataFrame:
    """Return one row per rank, in order; ranks without a peer have 0 peers."""
    peers = np.broadcast_to((layout.rank_of_slot >= 0).sum(axis=0) - 1, layout.rank_of_slot.shape)
    slot, number = np.nonzero(layout.rank_of_slot >= 0)
    names = layout.classes.columns
    rows = pl.DataFrame(
        {
            "rank": layout.ranks.gather(layout.rank_of_slot[slot, number]),
            "peers": peers[slot, number],
            **dict(zip(SUMS, sums[:, slot, number], strict=True)),
            "stage": layout.classes["stage"].gather(number)
            if "stage" in names
            else pl.Series([None] * len(slot), dtype=pl.Int32),
            "kind": layout.classes["kind"].gather(number).cast(pl.String),
        }
    ).with_columns(pl.col("span_count").cast(pl.Int64))
    return (
        rows.sort("excess", descending=True, maintain_order=True)
        .group_by("rank", maintain_order=True)
        .agg(
            pl.col("peers").max(),
            pl.col("span_count", "busy_ns", "deviation_ns").sum(),
            pl.first("stage", "kind"),
        )
        .sort("rank")
    )
