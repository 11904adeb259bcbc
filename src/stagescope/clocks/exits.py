"""How far apart the ranks of a collective leave it, which aligns clocks only if they leave at about the same time.

Two parts, for each group of ranks. What differs from call to call, the scatter, is seen in the exits of two clocks,
which would otherwise follow a straight line. What is the same in all calls looks like an offset of a clock in all
exits, but not in the entries: the last rank to enter a call does not wait, so how long it stays is the duration of the
call and its own delay. Where ranks that leave at different times enter last, they stay for different times. Where only
one rank ever enters last, nothing shows how much later another one leaves, and ranks are assumed to leave within the
duration of the shortest call of each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from scipy.special import stdtrit  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Evidence, Floats, Ints

EXIT_NS = 5_000.0
"""How far apart the ranks of any collective may leave it, without anything that shows it: it reaches one rank later
than another, because its ranks form a ring or a tree."""
COVERED, COVERING = 0.995, 3.6
"""An estimated error is that many standard errors (uncertainty.py), which covers 99 % of a Student distribution, 99.5 %
on either side, of 4 degrees of freedom or more. Of fewer, it has to be larger."""
FAR_QUANTILE, FAR, MIDDLE = 0.95, 1.96, 0.6745
"""Quantiles of the absolute values of a normal distribution with standard deviation 1: 95 % and 50 %. The larger of the
two scales counts, so that one clock of a few that leaves at random times is not overlooked."""
MANY = 20
"""Of so many values or more, the 5 % farthest away do not count."""
FEW = 5
"""If fewer clocks ever entered last, what their exits differ by shows little about the others."""
CHANCE = 0.01
"""Of all clocks of a group, one that never waits as little as others do leaves later, unless that is as likely as this.
"""
ALL_PAIRS, SELECTED = 16, 2
"""In a group of more clocks, those are compared with the others that seem to have entered last, which prefers clocks
that leave early: their exits are up to about twice as far from the mean as those of others."""
MOST_VALUES = 2_000_000
"""Calls times clocks of a group that are looked at."""

MEMBER_EXITS = ("scatter_ns", "constant_ns")
"""What is added to each member of a call: how far apart its group leaves."""
OF_EXITS = (*MEMBER_EXITS, "target_constant_ns")
"""What is added to each observation: that of the source, and what is the same in all calls of the target."""

EXITS_SCHEMA = {
    "group": pl.String,
    "clock_count": pl.Int64,
    "call_count": pl.Int64,
    "scatter_ns": pl.Int64,
    "constant_ns": pl.Int64,
    "latest_ns": pl.Int64,
    "is_assumed": pl.Boolean,
}


class Calls(NamedTuple):
    """The calls of one group, in their order, by call (rows) and clock (its numbers): nan where a clock has no part.

    `left_ns` is relative to the first exit, and `stay_ns` from the entry of the last rank of a clock to the exit of the
    first.
    """

    left_ns: Floats
    stay_ns: Floats
    clocks: Ints


class Skew(NamedTuple):
    """How far apart the ranks of a group leave: standard deviations, of one rank for `constant_ns`.

    `scatter_ns` is that of the difference of two ranks in one call. `is_assumed`: only one clock ever entered last, so
    nothing shows `constant_ns`. `late_ns` is what is the same in all calls of each clock, where it is more than that.
    """

    scatter_ns: float
    constant_ns: float
    late_ns: Floats
    is_assumed: bool


def with_exits(members: pl.DataFrame, group: tuple[str, ...]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return members of collectives with how far apart their group leaves, and one row per group.

    Columns of the members: those of `group`, slot (which call of a step it is), call (the number of a call in its
    slot), clock, entered_ns, left_ns and name (of the group). Adds MEMBER_EXITS. The groups have EXITS_SCHEMA. Of calls
    of different sizes, only those of the slot with the shortest are compared.
    """
    if members.is_empty():
        nothing = members.with_columns(pl.lit(None, pl.Int64).alias(name) for name in MEMBER_EXITS)
        return nothing, pl.DataFrame(schema=EXITS_SCHEMA)
    rows, found = [], []
    for own in members.partition_by(*group, maintain_order=True):
        shortest = _shortest_slot(own)
        calls = _calls(shortest)
        skew = skew_of(calls)
        each = {"scatter_ns": round(skew.scatter_ns), "constant_ns": round(skew.constant_ns)}
        latest_ns = max(each["constant_ns"], round(float(skew.late_ns.max())))
        of_clock = dict(
            zip(calls.clocks.tolist(), np.rint(skew.late_ns).astype(np.int64).tolist(), strict=True)
        )
        of_exits = {
            "scatter_ns": pl.lit(each["scatter_ns"] * (SELECTED if len(calls.clocks) > ALL_PAIRS else 1)),
            "constant_ns": pl.col("clock").replace_strict(
                of_clock, default=each["constant_ns"], return_dtype=pl.Int64
            ),
        }
        found.append(own.with_columns(**{name: of_exits[name].cast(pl.Int64) for name in MEMBER_EXITS}))
        count, clocks = calls.stay_ns.shape
        rows.append((own["name"][0], clocks, count, *each.values(), latest_ns, skew.is_assumed))
    return pl.concat(found), pl.DataFrame(rows, schema=EXITS_SCHEMA, orient="row")


def _shortest_slot(members: pl.DataFrame) -> pl.DataFrame:
    """Return the members of the slot whose calls are the shortest for the last rank to enter."""
    if members["slot"].n_unique() == 1:
        return members
    stays = members.group_by("slot", "call").agg(stay_ns=(pl.col("left_ns") - pl.col("entered_ns")).min())
    slots = stays.group_by("slot").agg(pl.median("stay_ns")).sort("stay_ns", "slot")
    return members.filter(pl.col("slot") == slots["slot"][0])


def _calls(members: pl.DataFrame) -> Calls:
    """Return the calls of one slot of a group; of very many, evenly spaced ones."""
    call = members["call"].rank("dense").to_numpy().astype(np.int64) - 1
    clock = members["clock"].rank("dense").to_numpy().astype(np.int64) - 1
    count, clocks = int(call.max()) + 1, int(clock.max()) + 1
    every = -(-count * clocks // MOST_VALUES)
    chosen = call % every == 0
    place = (call[chosen] // every, clock[chosen])
    left_ns = members["left_ns"].to_numpy()[chosen]
    stay_ns = left_ns - members["entered_ns"].to_numpy()[chosen]
    tables = np.full((2, (count - 1) // every + 1, clocks), np.nan)
    tables[0][place] = left_ns - left_ns.min()
    tables[1][place] = stay_ns
    return Calls(tables[0], tables[1], members["clock"].unique().sort().to_numpy().astype(np.int64))


def skew_of(calls: Calls) -> Skew:
    """Return how far apart the ranks of a group leave."""
    shortest_ns = np.nanmin(calls.stay_ns, axis=1)
    last = np.nanargmin(calls.stay_ns, axis=1)
    ever, place = np.unique(last, return_inverse=True)
    own_ns = np.full(len(ever), np.inf)
    np.minimum.at(own_ns, place, shortest_ns)
    scatter_ns = _scatter_ns(calls.left_ns)
    # Anywhere within the duration, on either side: the standard deviation of a uniform distribution.
    assumed_ns = float(max(0.0, shortest_ns.min())) / np.sqrt(3)
    if len(ever) == 1:
        return Skew(scatter_ns, assumed_ns, np.full(calls.stay_ns.shape[1], assumed_ns), is_assumed=True)
    # A wrong timestamp makes one of many stays extreme.
    is_many = len(ever) >= MANY
    spread_ns = _scale(np.abs(own_ns - np.median(own_ns))) if is_many else float(np.std(own_ns, ddof=1))
    # Where others that enter within that time may have been the last ones in truth, those that leave early seem to be
    # the last ones more often than others: what their stays differ by is less than what exits do.
    near = (calls.stay_ns <= shortest_ns[:, None] + spread_ns).sum(axis=1) - 1
    found_ns = spread_ns * max(1.0, float(near.mean()))
    if calls.stay_ns.shape[1] > ALL_PAIRS:
        found_ns *= SELECTED
    if len(ever) < calls.stay_ns.shape[1]:
        found_ns *= _largest_ratio(len(ever) - 1)
        if len(ever) < FEW:
            found_ns = max(spread_ns, min(found_ns, assumed_ns))
    late_ns = _late_ns(calls, float(np.median(own_ns)), assumed_ns)
    return Skew(scatter_ns, found_ns, np.maximum(found_ns, late_ns), is_assumed=False)


def _late_ns(calls: Calls, duration_ns: float, assumed_ns: float) -> Floats:
    """Return how much later or earlier than usual each clock leaves by all that its shortest stay shows, 0 if nothing.

    A clock that leaves late by more than the lead of the last clock to enter never seems to be the last. But then its
    shortest stay is longer than others with as many calls have it by chance. It may also be one that is always early.
    """
    shortest_ns = np.nanmin(calls.stay_ns, axis=0) - duration_ns
    waits_ns = calls.stay_ns - np.nanmin(calls.stay_ns, axis=1)[:, None]
    own = np.isfinite(waits_ns).sum(axis=0)
    waits_ns = np.sort(waits_ns[np.isfinite(waits_ns)])
    others = np.maximum(len(waits_ns) - own, 1)
    usual = np.minimum(np.searchsorted(waits_ns, shortest_ns) / others, 1.0)
    is_late = len(own) * (1 - usual) ** own < CHANCE
    late_ns = np.where(is_late, np.minimum(shortest_ns / np.sqrt(3), assumed_ns), 0.0)
    return np.asarray(np.maximum(late_ns, -shortest_ns))


def _scatter_ns(left_ns: Floats) -> float:
    """Return the standard deviation of the difference of the exits of two clocks, without their offset and drift.

    The exits of clocks next to each other are compared with a straight line through the calls before and after. Two
    calls show the drift as well; one shows nothing, which is returned as 0.
    """
    apart_ns = np.diff(left_ns, axis=1)
    if len(apart_ns) < 2:  # noqa: PLR2004  # calls
        return 0.0
    if len(apart_ns) == 2:  # noqa: PLR2004
        away_ns = np.diff(apart_ns, axis=0) / np.sqrt(2)
    else:
        at_ns = left_ns[:, :-1]
        fraction = (at_ns[1:-1] - at_ns[:-2]) / np.maximum(at_ns[2:] - at_ns[:-2], 1.0)
        line_ns = apart_ns[:-2] * (1 - fraction) + apart_ns[2:] * fraction
        away_ns = (apart_ns[1:-1] - line_ns) / np.sqrt(1 + fraction**2 + (1 - fraction) ** 2)
    known = np.abs(away_ns[np.isfinite(away_ns)])
    if not len(known):
        return 0.0
    # Each call is part of three such comparisons, and each clock of two.
    return _scale(known) * _largest_ratio(max(1.0, len(known) / 2))


def _scale(sizes: Floats) -> float:
    """Return the standard deviation of values of these absolute values, without the few that are extreme."""
    return float(max(np.quantile(sizes, FAR_QUANTILE) / FAR, np.median(sizes) / MIDDLE))


def _largest_ratio(freedom: float) -> float:
    """Return the factor for errors whose standard deviation was estimated, with that many degrees of freedom."""
    return max(1.0, float(stdtrit(freedom, COVERED)) / COVERING)


def compared_by_exits(evidence: Evidence) -> Evidence:
    """Return the observations with reductions without a number from exit to exit, whichever clock entered last.

    Each call then shows the difference of two clocks, as far as they leave together, and how long it took does not
    matter. This is good enough for an estimate, and bounds nothing: what certainly came first is the entry.
    """
    return replace(
        evidence,
        sent_ns=evidence.sent_ns + np.where(evidence.by_exit, evidence.stay_ns, 0.0),
        stay_ns=np.where(evidence.by_exit, 0.0, evidence.stay_ns),
        waited=evidence.waited | evidence.by_exit,
    )


def exit_errors(evidence: Evidence, clocks: int) -> Floats:
    """Return the standard error of the mean exit of each clock, as far as it is more than EXIT_NS.

    All comparisons of a call contain the same exit of a clock, so the calls count, and not the comparisons: one call in
    which a clock entered last and is compared with all others counts as much as its comparisons.
    """
    constant_ns = np.maximum(evidence.constant_ns, evidence.target_constant_ns)
    own = evidence.where((evidence.scatter_ns > 0) | (constant_ns > 0))
    clock = np.concatenate([own.source, own.target])
    left_ns = np.rint(np.concatenate([own.sent_ns + own.stay_ns, own.received_ns])).astype(np.int64)
    count = np.maximum(np.bincount(clock, minlength=clocks), 1)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(clock, values, clocks) / count)

    number = _distinct(clock, left_ns)
    weight = np.bincount(number)
    of = np.zeros(len(weight), np.int64)
    of[number] = clock
    effective = count**2 / np.maximum(np.bincount(of, weight.astype(float) ** 2, clocks), 1)
    constant = mean(np.concatenate([own.constant_ns, own.target_constant_ns]) ** 2)
    variance = constant + mean(np.tile(own.scatter_ns, 2) ** 2) / 2 / effective
    return np.asarray(np.sqrt(np.maximum(variance - EXIT_NS**2, 0.0)))


def _distinct(clock: Ints, left_ns: Ints) -> Ints:
    """Return the same number for the same exit of the same clock."""
    if not len(clock):
        return clock
    order = np.lexsort((left_ns, clock))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(clock[order]) != 0) | (np.diff(left_ns[order]) != 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return number
