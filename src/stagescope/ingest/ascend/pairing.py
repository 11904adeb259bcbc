"""Which message every transfer carried, found from the times of the actions that made and took it.

The transfers between two ranks run in the order in which they are issued, so the observed ones and the expected ones
are two sequences, of which either may lack entries. They are aligned as a whole, each end by itself: a send starts
when its action has ended and its stream is free, a receive has ended when its action starts and accounts for the time
that its rank waited. Both clocks together say more: no receive ends before the action that made its message. Where
the clocks are not the same, the transfers that are clear without this say how far they are apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.ascend.alignment import LOST, NOBODY, UNCLEAR, Sides, align
from stagescope.ingest.ascend.evidence import (
    CLOCK_TOLERANCE_NS,
    Expected,
    Observed,
    are_trusted,
    fit_any,
    pair_costs,
)
from stagescope.ingest.ascend.messages import DIRECTIONS
from stagescope.ingest.ascend.transfers import BATCH, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]

EXTRA, EXTRA_HALF = 1.0, 0.05
"""Cost of a transfer that carried no message; a batch may well do nothing in one of its two directions."""

MOST_OF_BATCH = 0.35
"""What the pair of a batch costs at most, one unknown time included: batches stand close together, and fit much."""

NEVER = -1.0
"""No pair costs as little as that."""

BATCH_ROUNDS = 2
"""How often what batches do in one direction is used to tell what they do in the other."""

SURE_PAIRS = 3
AGREEING = 0.5
"""How many clear pairs it takes to say how far two clocks are apart, and what share of them has to agree."""


MATCH = {"row": pl.UInt32, "message": pl.UInt32, "end": pl.String, "is_sure": pl.Boolean}
"""Row of a transfer, the message that it carried (null: clearly none), and which end of it: SEND or RECEIVE.

Where that is not sure, the transfer is a batch that may be that end of some message.
"""


def pair_ends(
    transfers: pl.DataFrame, messages: pl.DataFrame, actions: pl.DataFrame, ranks: pl.DataFrame
) -> pl.DataFrame:
    """Return row, message and end (send or receive) of every transfer that clearly carried a message.

    `transfers` are raw ones with `row` and `peer`, sorted by rank and start; `messages` has `message` beside the
    columns of `expect_messages`; `actions` are the named actions, `ranks` has rank and clock. A batch may stand there
    twice, once per end.
    """
    facts = _RankFacts.of(actions, ranks)
    is_batch = pl.col("way") == BATCH
    tasks = pl.col("tasks").filter(is_batch)
    limits = {f"extra_{end}": pl.when(is_batch).then(EXTRA_HALF).otherwise(EXTRA) for end in (SEND, RECEIVE)}
    limits |= {
        f"most_{end}": pl.when(is_batch).then(MOST_OF_BATCH).otherwise(LOST) for end in (SEND, RECEIVE)
    }
    does_one = is_batch & (pl.col("tasks") == tasks.min().over("rank")) & (tasks.n_unique().over("rank") > 1)
    does_two = is_batch & (pl.col("tasks") == 2 * tasks.min().over("rank"))
    limited = transfers.with_columns(
        **limits, does_one=does_one.fill_null(value=False), does_two=does_two.fill_null(value=False)
    )
    decided = _decided(limited, messages, facts)
    may = [decided]
    for _ in range(BATCH_ROUNDS if (transfers["way"] == BATCH).any() else 0):
        decided = _decided(_limited(limited, decided), messages, facts)
        may.append(decided)
    return _without_overload(decided, pl.concat(may), limited)


def _without_overload(decided: pl.DataFrame, seen: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
    """Return the messages without those of batches that would do for one each way and may have the tasks of one."""
    does_one = transfers.filter(pl.col("way") == BATCH, ~pl.col("does_two"))["row"].implode()
    may = seen.filter(pl.col("message").is_not_null() | ~pl.col("is_sure"))
    both = may.group_by("row").agg(pl.col("end").n_unique()).filter(pl.col("end") > 1)["row"].implode()
    overloaded = pl.col("row").is_in(does_one) & pl.col("row").is_in(both)
    return decided.filter("is_sure", ~overloaded).drop_nulls("message").drop("is_sure")


class _RankFacts(NamedTuple):
    """What is known of each rank: the usual length of its actions, and its clock."""

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
        """Tell whether all of the ranks stamp with one known clock."""
        return len({self.clock(rank) for rank in ranks}) == 1

    def clock(self, rank: int) -> str:
        """Return the name of a rank's clock, one of its own where it has none."""
        return self.clocks.get(rank) or f"rank {rank}"


def _decided(transfers: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts) -> pl.DataFrame:
    """Return row, end and message of all ends that are clear: message is null where it is clearly none."""
    return pl.concat([pl.DataFrame(schema=MATCH), *_matches(transfers, messages, facts)])


def _limited(transfers: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers with new limits for batches, after what is clear of their other end.

    A batch that sends nothing receives, and the other way round. One that sends and has no more tasks than batches
    need for one message receives nothing: where a batch was lost, another one near it may seem to have done its work.
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
        pl.when(row.is_in(rows[RECEIVE, True])).then(EXTRA).otherwise(f"extra_{SEND}").alias(f"extra_{SEND}"),
        pl.when(row.is_in(rows[SEND, True]))
        .then(EXTRA)
        .otherwise(f"extra_{RECEIVE}")
        .alias(f"extra_{RECEIVE}"),
        pl.when(row.is_in(rows[SEND, False]) & pl.col("does_one"))
        .then(NEVER)
        .otherwise(f"most_{RECEIVE}")
        .alias(f"most_{RECEIVE}"),
    )


class _Pair(NamedTuple):
    """The transfers between two ranks, sends and receives, and the messages of which they are the ends."""

    source: int
    target: int
    sides: tuple[Observed, Observed]
    due: Expected


def _matches(transfers: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts) -> Iterator[pl.DataFrame]:
    """Yield which row is which end of which message, pair of ranks by pair of ranks."""
    own = {rank: rows for (rank,), rows in transfers.group_by(["rank"], maintain_order=True)}
    pairs = list(_pairs(own, transfers.clear(), messages, facts))
    apart_ns = _clocks_apart(pairs, facts)
    for pair in pairs:
        for end, observed in zip((SEND, RECEIVE), pair.sides, strict=True):
            yield _certain(end, observed, pair.due, apart_ns[pair.source, pair.target])
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
        due = _expected(expected, facts.action_ns.get(source) or facts.action_ns.get(target, 1.0))
        yield _Pair(source, target, (sent, received), due)


def _without_peers(
    rank: int, rows: pl.DataFrame, messages: pl.DataFrame, facts: _RankFacts
) -> Iterator[pl.DataFrame]:
    """Yield the same for the transfers of a rank that do not tell their peer: all messages of the rank may be meant."""
    for end, own, other, order in (
        (SEND, "source", "target", "sent_ns"),
        (RECEIVE, "target", "source", "needed_ns"),
    ):
        expected = messages.filter(pl.col(own) == rank).sort(order, maintain_order=True)
        apart_ns = 0.0 if facts.share_clock([rank, *expected[other]]) else None
        observed = _observed(rows, end, pl.col("peer").is_null())
        yield _certain(end, observed, _expected(expected, facts.action_ns.get(rank, 1.0)), apart_ns)


def _observed(own: pl.DataFrame, end: str, meant: pl.Expr) -> Observed:
    """Return the transfers of a rank that may be one end of certain messages."""
    chosen = own.filter(pl.col("way").is_in([end, BATCH]) & meant)
    start_ns, end_ns = _floats(chosen, "start_ns"), _floats(chosen, "end_ns")
    ends_ns = np.concatenate([[-np.inf], np.sort(_floats(own, "end_ns"))])
    free_ns = ends_ns[np.searchsorted(ends_ns, start_ns, side="right") - 1]
    rows = chosen["row"].to_numpy().astype(np.int64)
    extra, most = (chosen[f"{limit}_{end}"].to_numpy() for limit in ("extra", "most"))
    is_batch = (chosen["way"] == BATCH).to_numpy()
    return Observed(rows, start_ns, end_ns, free_ns, extra, most, is_batch)


def _expected(messages: pl.DataFrame, action_ns: float) -> Expected:
    ready_ns, needed_ns, free_ns = (_floats(messages, name) for name in ("ready_ns", "needed_ns", "free_ns"))
    rows = messages["message"].to_numpy().astype(np.int64)
    is_open = messages["is_open"].to_numpy().astype(bool)
    return Expected(rows, ready_ns, needed_ns, free_ns, np.full(len(rows), action_ns), is_open)


def _floats(frame: pl.DataFrame, name: str) -> Floats:
    """Return times as numbers, nan for null; what is lost of 10^18 ns to a float is less than 300 ns."""
    times: Floats = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return times


def _certain(end: str, observed: Observed, expected: Expected, apart_ns: float | None) -> pl.DataFrame:
    """Return row, message and end of the observed whose message is clear, or clearly none (null).

    Without the action on its own rank, order alone speaks for a message, which is not enough; without the action on the
    other, order and one action do where nothing was lost.
    """
    partner = _align(end, observed, expected, apart_ns)
    ready, needed = np.isnan(expected.ready_ns), np.isnan(expected.needed_ns)
    own, other = (ready, needed) if end == SEND else (needed, ready)
    is_thin = own | (other & (len(observed.rows) != len(expected.rows)))
    clear = (partner != UNCLEAR) & ~np.append(is_thin, [False])[partner.clip(NOBODY)]
    clear &= (partner == NOBODY) | are_trusted(end, observed, expected, partner, apart_ns)
    messages = [int(expected.rows[place]) if place != NOBODY else None for place in partner[clear]]
    fits = fit_any(end, observed, expected, partner, apart_ns) | (partner == UNCLEAR)
    may = fits & observed.is_batch
    sure = {"row": observed.rows[clear], "message": messages, "end": [end] * len(messages), "is_sure": True}
    fitting = {"row": observed.rows[may], "message": None, "end": [end] * int(may.sum()), "is_sure": False}
    return pl.concat([pl.DataFrame(each, MATCH) for each in (sure, fitting)])


def _align(end: str, observed: Observed, expected: Expected, apart_ns: float | None) -> Indices:
    sides = Sides(len(observed.rows), len(expected.rows), observed.extra, observed.most)
    return align(sides, lambda i, j: pair_costs(end, observed.at(i), expected.at(j), apart_ns))


def _clocks_apart(pairs: Sequence[_Pair], facts: _RankFacts) -> dict[tuple[int, int], float | None]:
    """Return per source and target what to add to the target's times to have the source's; None where nothing tells.

    All ranks of two clocks tell together. Both ends of a transfer end at about the same moment, so that most
    differences are the same. Those of pairs that do not belong together vary as the actions do.
    """
    found: dict[tuple[str, str], list[Floats]] = {}
    for pair in pairs:
        one, other = (facts.clock(rank) for rank in (pair.source, pair.target))
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
    """Return how much later each message's send ended than its receive, for those of which both seem to be known."""
    ends = np.full((2, len(pair.due.rows)), np.nan)
    for side, (end, observed) in enumerate(zip((SEND, RECEIVE), pair.sides, strict=True)):
        partner = _align(end, observed, pair.due, None)
        ends[side, partner[partner >= 0]] = observed.end_ns[partner >= 0]
    differences: Floats = ends[0] - ends[1]
    return differences[~np.isnan(differences)]


def _agreed(differences: Floats) -> float | None:
    if len(differences) < SURE_PAIRS:
        return None
    apart_ns = float(np.median(differences))
    is_constant = np.mean(np.abs(differences - apart_ns) < CLOCK_TOLERANCE_NS) > AGREEING
    return apart_ns if is_constant else None
