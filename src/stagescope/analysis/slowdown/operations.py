"""The operations of a step outside of its actions, and which of them synchronize which ranks.

An operation is any recorded span that is neither an action nor a transfer: collectives, the optimizer, garbage
collection, loading of data. It runs before the first action of its rank, or after the last one; what runs between two
actions counts as their launch delay. Operations of a rank run in the recorded order, one after the other unless they
overlapped.

A collective synchronizes ranks: each leaves it some time after the last one has entered it. Traces do not name the
group of a collective, so it is inferred from times: all ranks, those of one stage (data-parallel replicas), or those of
one pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, COMM, TRANSFERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

BEFORE, AFTER = "before", "after"
RESOLUTION_NS = 20_000
"""Operations that overlap by no more ran one after the other: timestamps may be single-precision seconds."""

CLOCK_ERROR_NS = 1_000_000
"""Clocks of machines may differ by so much; a rank that left a collective this early has not left before the others."""

LEAST_SYNCHRONIZED = 0.9
"""The fraction of the groups of a collective that has to look synchronized."""

OUT_OF_ORDER_NS = 10_000_000
"""A rank that left a collective so long before another one entered it was recorded wrongly: its time is unknown."""

NEARLY_AS_GOOD = 3.0
"""A smaller group has to bring its ranks together so many times better than a larger one."""

GROUPINGS = (("step",), ("step", "place"), ("step", "pipeline"))
"""What ranks of one group have in common, the largest groups first."""


class Slot(NamedTuple):
    """The n-th operation of a type before or after the actions, for every rank and step.

    `place` is the row of the rank and step, `cost_ns` how long the operation took (in a group: since the last rank had
    entered it), `group` the number of its group, `previous` the place of the slot that its rank ran before, -1 if none,
    and `early_ns` how long before the last action's end it started (0 or negative).
    """

    phase: str
    operation: str
    is_collective: bool
    place: Integers
    cost_ns: Floats
    group: Integers
    previous: Integers
    early_ns: Floats


@dataclass(frozen=True)
class Operations:
    """The slots in an order that all ranks follow, and how many ranks and steps there are."""

    slots: tuple[Slot, ...]
    places: int

    def ends_ns(self, phase: str, begin_ns: Floats, costs_ns: list[Floats]) -> Floats:
        """Return when every rank has done its operations of a phase, given when it begins with them.

        `costs_ns` has the costs of each slot, those of the other phase included.
        """
        ends = np.full((len(self.slots) + 1, self.places), -np.inf)
        ends[-1] = begin_ns
        for number, (slot, cost_ns) in enumerate(zip(self.slots, costs_ns, strict=True)):
            if slot.phase != phase:
                continue
            entered = ends[slot.previous, slot.place] + slot.early_ns
            last = np.full(int(slot.group.max(initial=-1)) + 1, -np.inf)
            np.maximum.at(last, slot.group, entered)
            ends[number, slot.place] = last[slot.group] + cost_ns
        latest: Floats = ends.max(axis=0)
        return latest


def find_operations(spans: pl.DataFrame, ranks: pl.DataFrame) -> Operations:
    """Return the operations of the ranks and steps in `ranks`.

    `ranks` has a row per rank and step: step, rank, pipeline, place (of the rank in its pipeline), first_ns and last_ns
    (the first start and the last end of its actions).
    """
    is_operation = ~pl.col("kind").is_in([*ACTION_KINDS, *TRANSFERS]) & pl.col("step").is_not_null()
    found = (
        spans.filter(is_operation)
        .select("step", "rank", "lane", "start_ns", "end_ns", operation=_type())
        .join(ranks.with_row_index("row"), on=["step", "rank"])
        .with_columns(
            phase=pl.when(pl.col("end_ns") <= pl.col("first_ns"))
            .then(pl.lit(BEFORE))
            .when(pl.col("end_ns") >= pl.col("last_ns") - RESOLUTION_NS)
            .then(pl.lit(AFTER))
        )
        .drop_nulls("phase")
        .sort("row", "start_ns", "end_ns")
    )
    of_rank = ["row", "phase"]
    placed = found.with_columns(
        occurrence=pl.int_range(pl.len()).over(*of_rank, "operation"),
        position=pl.int_range(pl.len()).over(of_rank),
    )
    keys = ["phase", "operation", "occurrence"]
    order = placed.group_by(keys).agg(pl.max("position")).sort("position", *keys).with_row_index("slot")
    placed = placed.join(order.drop("position"), on=keys).sort("row", "phase", "position")
    placed = placed.with_columns(previous=_previous(placed)).sort("slot", "row")
    slots = [_slot(rows) for rows in placed.partition_by("slot", maintain_order=True)]
    return Operations(tuple(slots), ranks.height)


def _type() -> pl.Expr:
    """Return the type of an operation: its kind, or its name if it has no other kind."""
    kind = pl.col("kind").cast(pl.String)
    return pl.when(kind == "other").then(pl.col("name").fill_null("other")).otherwise(kind)


def _previous(placed: pl.DataFrame) -> pl.Series:
    """Return the slot that each operation follows on its rank: the last one that ended before it started; else -1."""
    found: list[int] = []
    before: list[tuple[int, int]] = []
    of_rank: tuple[object, ...] = ()
    for *key, slot, start_ns, end_ns in placed.select(
        "row", "phase", "slot", "start_ns", "end_ns"
    ).iter_rows():
        if tuple(key) != of_rank:
            of_rank, before = tuple(key), []
        ended = [(end, one) for end, one in before if end <= start_ns + RESOLUTION_NS]
        found.append(max(ended)[1] if ended else -1)
        before.append((end_ns, slot))
    return pl.Series(found, dtype=pl.Int64)


def _slot(rows: pl.DataFrame) -> Slot:
    is_collective = rows["lane"][0] == COMM
    keys = _find_grouping(rows) if is_collective else ("row",)
    entered_ns = pl.col("start_ns").max().over(keys)
    took_ns = pl.col("end_ns") - entered_ns
    known = rows.select(
        "row",
        "previous",
        cost_ns=pl.when(took_ns > -OUT_OF_ORDER_NS).then(took_ns).otherwise(0).cast(pl.Float64),
        group=pl.struct(keys).rank("dense") - 1,
        early_ns=pl.when((pl.col("phase") == AFTER) & (pl.col("previous") < 0))
        .then((pl.col("start_ns") - pl.col("last_ns")).clip(upper_bound=0))
        .otherwise(0)
        .cast(pl.Float64),
    )
    whole = {name: known[name].cast(pl.Int64).to_numpy() for name in ("row", "group", "previous")}
    return Slot(
        rows["phase"][0],
        rows["operation"][0],
        is_collective,
        whole["row"],
        known["cost_ns"].to_numpy(),
        whole["group"],
        whole["previous"],
        known["early_ns"].to_numpy(),
    )


def _find_grouping(rows: pl.DataFrame) -> tuple[str, ...]:
    """Return what the ranks that a collective synchronizes have in common.

    Ranks that enter a collective at different times leave it together. Of the groupings in which no rank left early,
    the one that brings its ranks together best is chosen; a larger one if it is nearly as good.
    """
    best: tuple[str, ...] = ("row",)
    least = np.inf
    for keys in GROUPINGS:
        groups = rows.group_by(keys).agg(
            ranks=pl.len(),
            is_synchronized=pl.min("end_ns") >= pl.max("start_ns") - CLOCK_ERROR_NS,
            entered_ns=pl.max("start_ns") - pl.min("start_ns"),
            left_ns=pl.max("end_ns") - pl.min("end_ns"),
        )
        shared = groups.filter(pl.col("ranks") > 1)
        if shared.is_empty() or shared["is_synchronized"].sum() < LEAST_SYNCHRONIZED * shared.height:
            continue
        spread = float(
            np.median(shared["left_ns"].to_numpy()) / max(np.median(shared["entered_ns"].to_numpy()), 1)
        )
        if spread * NEARLY_AS_GOOD < least:
            best, least = keys, spread
    return best
