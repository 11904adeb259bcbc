"""Pair every transfer with its message, by the times of the actions that produced and consumed the message.

Transfers between two ranks run in the order in which they are issued, so the observed transfers and the expected
messages are two sequences, either of which may lack entries. They are aligned as a whole, separately for each end: a
send starts when its action has ended and its stream is free; a receive has ended when its action starts and explains
the time that its rank waited. Times of both ranks add one constraint: no receive ends before the action that produced
its message. Where the ranks do not share a clock, the pairs that are certain without this constraint determine the
clock offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.ascend.evidence import (
    CLOCK_TOLERANCE_NS,
    Expected,
    Observed,
    are_trusted,
    fit_any,
    pair_costs,
)
from stagescope.ingest.ascend.messages import DIRECTIONS
from stagescope.ingest.ascend.sequence_alignment import MISSING_COST, NO_PARTNER, UNCLEAR, Sides, align
from stagescope.ingest.ascend.transfers import BATCH, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]

UNPAIRED_COST, UNPAIRED_BATCH_COST = 1.0, 0.05
"""Cost of a transfer without a message, and of a batch, which often transfers nothing in one of its directions."""

MAX_BATCH_COST = 0.35
"""Maximum cost of the pair of a batch, including one unknown time: batches are close together, and match many messages.
"""

NEVER = -1.0
"""Below the cost of any pair, so no pair is possible."""

BATCH_ROUNDS = 2
"""How many times the pairs of batches in one direction are used to decide their other direction."""

SURE_PAIRS = 3
AGREEING = 0.5
"""Number of certain pairs required to determine the offset of two clocks, and the share that has to agree."""


MATCH = {"row": pl.UInt32, "message": pl.UInt32, "end": pl.String, "is_sure": pl.Boolean}
"""Row of a transfer, the message that it carried (null: certainly none), and which end of it: SEND or RECEIVE.

Where `is_sure` is false, the transfer is a batch that may be that end of some message.
"""


def pair_ends(
    transfers: pl.DataFrame, messages: pl.DataFrame, actions: pl.DataFrame, ranks: pl.DataFrame
) -> pl.DataFrame:
    """Return row, message and end (send or receive) of every transfer that certainly carried a message.

    `transfers` are raw ones with `row` and `peer`, sorted by rank and start; `messages` has `message` in addition to
    the columns of `expect_messages`; `actions` are the named actions, `ranks` has rank and clock. A batch can occur
    twice, once per end.
    """
    facts = _RankFacts.of(actions, ranks)
    is_batch = pl.col("role") == BATCH
    tasks = pl.col("tasks").filter(is_batch)
    limits = {
        f"unpaired_cost_{end}": pl.when(is_batch).then(UNPAIRED_BATCH_COST).otherwise(UNPAIRED_COST)
        for end in (SEND, RECEIVE)
    }
    limits |= {
        f"max_cost_{end}": pl.when(is_batch).then(MAX_BATCH_COST).otherwise(MISSING_COST)
        for end in (SEND, RECEIVE)
    }
    # Numbers of tasks are only compared within a rank: a batch with the minimum is assumed to carry one message,
    # one with twice the minimum can carry two.
    does_one = is_batch & (pl.col("tasks") == tasks.min().over("rank")) & (tasks.n_unique().over("rank") > 1)
    does_two = is_batch & (pl.col("tasks") == 2 * tasks.min().over("rank"))
    limited = transfers.with_columns(
        **limits, does_one=does_one.fill_null(value=False), does_two=does_two.fill_null(value=False)
    )
    decided = _decided(limited, messages, facts)
    # All rounds are kept: _without_overload rejects a batch that fits both directions in any of them.
    may = [decided]
    for _ in range(BATCH_ROUNDS if (transfers["role"] == BATCH).any() else 0):
        decided = _decided(_limited(limited, decided), messages, facts)
        may.append(decided)
    return _without_overload(decided, pl.concat(may), limited)


def _without_overload(decided: pl.DataFrame, seen: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs without batches that match a message in each direction but may have the tasks of only one."""
    does_one = transfers.filter(pl.col("role") == BATCH, ~pl.col("does_two"))["row"].implode()
    may = seen.filter(pl.col("message").is_not_null() | ~pl.col("is_sure"))
    both = may.group_by("row").agg(pl.col("end").n_unique()).filter(pl.col("end") > 1)["row"].implode()
    overloaded = pl.col("row").is_in(does_one) & pl.col("row").is_in(both)
    return decided.filter("is_sure", ~overloaded).drop_nulls("message").drop("is_sure")


class _RankFacts(NamedTuple):
    """Typical length of the actions of each rank, and its clock."""

    action_ns: dict[int, float]
    clocks: dict[int, str | None]

    @classmethod
    def of(cls, actions: pl.DataFrame, ranks: pl.DataFrame) -> _RankFacts:
        length_ns = (pl.col("end_ns") - pl.col("start_ns")).median().cast(pl.Float64)
        senders = actions.filter(pl.col("kind").is_in(list(DIRECTIONS)))
        return cls(
            dict(senders.group_by("rank").agg(length_ns).iter_rows()),
            dict(ranks.select("rank", "clock").iter_rows()),
        )

    def share_clock(self, ranks: Iterable[int]) -> bool:
        """Return whether all of the ranks have the same known clock."""
        return len({self.clock(rank) for rank in ranks}) == 1

    def clock(self, rank: int) -> str:
        """Return the name of a rank's clock; a rank without one gets a clock of its own."""
        return self.clocks.get(rank) or f"rank {rank}"


def _decided(transfers: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts) -> pl.DataFrame:
    """Return row, end and message of all certain ends; message is null where the transfer certainly carried none."""
    return pl.concat([pl.DataFrame(schema=MATCH), *_matches(transfers, messages, facts)])


def _limited(transfers: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers with new cost limits for batches, derived from the certain results for their other end.

    A batch that sends nothing receives, and the reverse. A batch that sends, with no more tasks than one message needs,
    receives nothing: next to a missing batch, it could otherwise be paired with the missing one's message.
    """
    rows = {
        (end, is_idle): decided.filter(
            "is_sure", (pl.col("end") == end) & (pl.col("message").is_null() == is_idle)
        )["row"].implode()
        for end in (SEND, RECEIVE)
        for is_idle in (True, False)
    }
    row = pl.col("row")
    return transfers.with_columns(
        pl.when(row.is_in(rows[RECEIVE, True]))
        .then(UNPAIRED_COST)
        .otherwise(f"unpaired_cost_{SEND}")
        .alias(f"unpaired_cost_{SEND}"),
        pl.when(row.is_in(rows[SEND, True]))
        .then(UNPAIRED_COST)
        .otherwise(f"unpaired_cost_{RECEIVE}")
        .alias(f"unpaired_cost_{RECEIVE}"),
        pl.when(row.is_in(rows[SEND, False]) & pl.col("does_one"))
        .then(NEVER)
        .otherwise(f"max_cost_{RECEIVE}")
        .alias(f"max_cost_{RECEIVE}"),
    )


class _Pair(NamedTuple):
    """The transfers between two ranks, sends and receives, and the messages expected between them."""

    source: int
    target: int
    sides: tuple[Observed, Observed]
    expected_messages: Expected


def _matches(transfers: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts) -> Iterator[pl.DataFrame]:
    """Yield which row is which end of which message, per pair of ranks."""
    own = {rank: rows for (rank,), rows in transfers.group_by(["rank"], maintain_order=True)}
    pairs = list(_pairs(own, transfers.clear(), messages, facts))
    offsets_ns = _clock_offsets(pairs, facts)
    for pair in pairs:
        for end, observed in zip((SEND, RECEIVE), pair.sides, strict=True):
            yield _certain(end, observed, pair.expected_messages, offsets_ns[pair.source, pair.target])
    for rank, rows in own.items():
        if rows["peer"].null_count():
            yield from _without_peers(rank, rows, messages, facts)


def _pairs(
    own: dict[int, pl.DataFrame], nothing: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts
) -> Iterator[_Pair]:
    for (source, target), expected in messages.group_by(["source", "target"], maintain_order=True):
        sent, received = (
            _observed(own.get(rank, nothing), end, pl.col("peer") == peer)
            for rank, peer, end in ((source, target, SEND), (target, source, RECEIVE))
        )
        expected_messages = _expected(
            expected, facts.action_ns.get(source) or facts.action_ns.get(target, 1.0)
        )
        yield _Pair(source, target, (sent, received), expected_messages)


def _without_peers(
    rank: int, rows: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts
) -> Iterator[pl.DataFrame]:
    """Yield the same for the transfers of a rank without a recorded peer, which may carry any message of the rank."""
    for end, own, other, order in (
        (SEND, "source", "target", "sent_ns"),
        (RECEIVE, "target", "source", "needed_ns"),
    ):
        expected = messages.filter(pl.col(own) == rank).sort(order, maintain_order=True)
        clock_offset_ns = 0.0 if facts.share_clock([rank, *expected[other]]) else None
        observed = _observed(rows, end, pl.col("peer").is_null())
        yield _certain(end, observed, _expected(expected, facts.action_ns.get(rank, 1.0)), clock_offset_ns)


def _observed(own: pl.DataFrame, end: str, meant: pl.Expr) -> Observed:
    """Return the transfers of a rank that may be one end of certain messages."""
    chosen = own.filter(pl.col("role").is_in([end, BATCH]) & meant)
    start_ns, end_ns = _floats(chosen, "start_ns"), _floats(chosen, "end_ns")
    # All transfers of the rank count, not only those with this peer: they share the communication stream.
    ends_ns = np.concatenate([[-np.inf], np.sort(_floats(own, "end_ns"))])
    free_ns = ends_ns[np.searchsorted(ends_ns, start_ns, side="right") - 1]
    rows = chosen["row"].to_numpy().astype(np.int64)
    unpaired_cost, max_cost = (chosen[f"{limit}_{end}"].to_numpy() for limit in ("unpaired_cost", "max_cost"))
    is_batch = (chosen["role"] == BATCH).to_numpy()
    return Observed(rows, start_ns, end_ns, free_ns, unpaired_cost, max_cost, is_batch)


def _expected(messages: pl.DataFrame, action_ns: float) -> Expected:
    ready_ns, needed_ns, free_ns = (_floats(messages, name) for name in ("ready_ns", "needed_ns", "free_ns"))
    rows = messages["message"].to_numpy().astype(np.int64)
    is_open = messages["is_open"].to_numpy().astype(bool)
    return Expected(rows, ready_ns, needed_ns, free_ns, np.full(len(rows), action_ns), is_open)


def _floats(frame: pl.DataFrame, name: str) -> Floats:
    """Return times as floats, NaN for null; near 10^18 ns a float is precise to 128 ns, far below the tolerances."""
    times: Floats = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return times


def _certain(end: str, observed: Observed, expected: Expected, clock_offset_ns: float | None) -> pl.DataFrame:
    """Return row, message and end of the transfers whose message is certain, or certainly none (null).

    Without the action on its own rank, only the order identifies a message, which is not enough. Without the action on
    the other rank, order and one action are enough where no entry is missing.
    """
    partner = _align(end, observed, expected, clock_offset_ns)
    ready, needed = np.isnan(expected.ready_ns), np.isnan(expected.needed_ns)
    own, other = (ready, needed) if end == SEND else (needed, ready)
    # With equal counts nothing is missing, so the order is evidence even where the other rank's action is
    # unknown.
    is_thin = own | (other & (len(observed.rows) != len(expected.rows)))
    # The appended False is the entry for NO_PARTNER, whose index -1 selects the last one.
    clear = (partner != UNCLEAR) & ~np.append(is_thin, [False])[partner.clip(NO_PARTNER)]
    clear &= (partner == NO_PARTNER) | are_trusted(end, observed, expected, partner, clock_offset_ns)
    messages = [int(expected.rows[place]) if place != NO_PARTNER else None for place in partner[clear]]
    fits = fit_any(end, observed, expected, partner, clock_offset_ns) | (partner == UNCLEAR)
    may = fits & observed.is_batch
    sure = {"row": observed.rows[clear], "message": messages, "end": [end] * len(messages), "is_sure": True}
    fitting = {"row": observed.rows[may], "message": None, "end": [end] * int(may.sum()), "is_sure": False}
    return pl.concat([pl.DataFrame(each, MATCH) for each in (sure, fitting)])


def _align(end: str, observed: Observed, expected: Expected, clock_offset_ns: float | None) -> Indices:
    sides = Sides(len(observed.rows), len(expected.rows), observed.unpaired_cost, observed.max_cost)
    return align(sides, lambda i, j: pair_costs(end, observed.at(i), expected.at(j), clock_offset_ns))


def _clock_offsets(pairs: Sequence[_Pair], facts: _RankFacts) -> dict[tuple[int, int], float | None]:
    """Return per source and target the offset to add to the target's times to get the source's; None where unknown.

    All pairs of ranks on the same two clocks are combined. Both ends of a transfer end at nearly the same time, so the
    differences of correct pairs are nearly constant, while those of wrong pairs vary like the lengths of the actions.
    """
    found: dict[tuple[str, str], list[Floats]] = {}
    for pair in pairs:
        one, other = (facts.clock(rank) for rank in (pair.source, pair.target))
        # Ranks on one clock need no estimate: their offset is 0 by definition.
        if one != other:
            differences = _differences(pair)
            found.setdefault((one, other), []).append(differences)
            found.setdefault((other, one), []).append(-differences)
    agreed = {clocks: _agreed(np.concatenate(each)) for clocks, each in found.items()}
    return {
        (pair.source, pair.target): agreed.get((facts.clock(pair.source), facts.clock(pair.target)), 0.0)
        for pair in pairs
    }


def _differences(pair: _Pair) -> Floats:
    """Return how much later each message's send ended than its receive, where both appear to be known."""
    ends = np.full((2, len(pair.expected_messages.rows)), np.nan)
    for side, (end, observed) in enumerate(zip((SEND, RECEIVE), pair.sides, strict=True)):
        partner = _align(end, observed, pair.expected_messages, None)
        ends[side, partner[partner >= 0]] = observed.end_ns[partner >= 0]
    differences: Floats = ends[0] - ends[1]
    return differences[~np.isnan(differences)]


def _agreed(differences: Floats) -> float | None:
    if len(differences) < SURE_PAIRS:
        return None
    clock_offset_ns = float(np.median(differences))
    # The median of wrong pairs is a number as well; only the agreement of most differences shows that it is
    # an offset.
    is_constant = np.mean(np.abs(differences - clock_offset_ns) < CLOCK_TOLERANCE_NS) > AGREEING
    return clock_offset_ns if is_constant else None
