"""Matches every send with its receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.row_numbers import number_rows
from stagescope.vocabulary.kinds import RECEIVES, SENDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

MESSAGE_KEY = ["step", "direction", "source", "target", "to_stage", "microbatch", "occurrence"]
DIRECTIONS = pl.Series(["forward", "backward"])
NONE = -1
"""The index of a message without a receive."""


class _Ends(NamedTuple):
    """The sends or the receives: rows of `spans` and starts, ordered by start within each key.

    `key` has the columns of MESSAGE_KEY without the occurrence; direction 0 is forward.
    """

    row: pl.Series
    start_ns: Integers
    key: pl.DataFrame


def match_messages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message that both ends recorded, sorted by send_start_ns.

    Columns: step, direction (forward or backward), source and target (ranks), to_stage (the receiving stage),
    microbatch, occurrence (a stage may pass several tensors), send_row and recv_row (row numbers of `spans`), bytes,
    send_start_ns, send_end_ns, recv_start_ns, recv_end_ns, wait_start_ns, wait_end_ns. The n-th send of a key matches
    its n-th receive, in the order of their starts.
    """
    sends, receives = _find_ends(spans, SENDS), _find_ends(spans, RECEIVES)
    send, receive, occurrence = _match(sends, receives)
    in_order = np.argsort(sends.start_ns[send], kind="stable")
    send, receive, occurrence = send[in_order], receive[in_order], occurrence[in_order]
    sent, received = sends.row.gather(send), receives.row.gather(receive)
    times = ("start_ns", "end_ns")
    return sends.key.select(pl.all().gather(send)).with_columns(
        DIRECTIONS.gather(sends.key["direction"].gather(send)).alias("direction"),
        pl.Series("occurrence", occurrence, dtype=pl.Int64),
        sent.alias("send_row"),
        received.alias("recv_row"),
        spans["bytes"].gather(sent),
        *(spans[name].gather(sent).alias(f"send_{name}") for name in times),
        *(spans[name].gather(received).alias(f"recv_{name}") for name in times),
        *(spans[f"wait_{name}"].gather(received) for name in times),
    )


def _find_ends(spans: pl.DataFrame, kinds: tuple[str, ...]) -> _Ends:
    """Return the sends or the receives of `spans` with a known peer; `kinds` are their kinds, forward first."""
    is_known = pl.col("peer").is_not_null() & pl.col("stage").is_not_null()
    row = spans.select(row=(pl.col("kind").is_in(kinds) & is_known).arg_true())["row"]
    rank, start_ns = spans["rank"].gather(row).to_numpy(), spans["start_ns"].gather(row).to_numpy()
    if not _is_sorted(rank, start_ns):
        in_order = np.argsort(start_ns, kind="stable")
        row, start_ns = row.gather(in_order), start_ns[in_order]
    backward = pl.col("kind") != kinds[0]
    here, there, to_stage = pl.col("rank"), pl.col("peer"), pl.col("stage")
    if kinds == SENDS:
        to_stage = to_stage + pl.when(backward).then(-1).otherwise(1)
    else:
        here, there = there, here
    ends = spans.select(pl.col("kind", "rank", "peer", "stage", "step", "microbatch").gather(row))
    key = ends.select(
        "step", backward.cast(pl.UInt8).alias("direction"), source=here, target=there, to_stage=to_stage
    )
    return _Ends(row, start_ns, key.with_columns(ends["microbatch"]))


def _is_sorted(rank: Integers, start_ns: Integers) -> bool:
    """Return whether the ends of each rank are adjacent and sorted by start; all ends of one key are on one rank."""
    follows = rank[1:] == rank[:-1]
    return bool(((rank[1:] > rank[:-1]) | (follows & (start_ns[1:] >= start_ns[:-1]))).all())


def _match(sends: _Ends, receives: _Ends) -> tuple[Integers, Integers, Integers]:
    """Return the index of the send and the receive of every message, and its occurrence within its key."""
    # Few peers are at many distances: 10,000 ranks have 2, but 100 million pairs of ranks.
    distance = pl.col("target").cast(pl.Int64) - pl.col("source")
    key = pl.concat([sends.key, receives.key])
    # Ranks and stages before steps and micro-batches, so that the numbers stay small.
    key = key.select("direction", "source", distance.alias("distance"), "to_stage", "step", "microbatch")
    numbers, known = number_rows(key)
    count = len(known)
    of_sends, of_receives = numbers[: len(sends.row)], numbers[len(sends.row) :]
    counts = [np.bincount(each, minlength=count) for each in (of_sends, of_receives)]
    # Each key gets as many places as it has sends or receives; its first send and first receive share the first
    # place.
    places = np.maximum(*counts)
    first = np.cumsum(places) - places
    occurrence = _occurrences(of_sends, counts[0])
    receive_at = np.full(int(places.sum()), NONE, dtype=np.int64)
    receive_at[first[of_receives] + _occurrences(of_receives, counts[1])] = np.arange(len(of_receives))
    receive = receive_at[first[of_sends] + occurrence]
    send = np.flatnonzero(receive != NONE)
    return send, receive[send], occurrence[send]


def _occurrences(numbers: Integers, counts: Integers) -> Integers:
    """Return how many equal numbers precede each number, given how often each occurs."""
    occurrence = np.zeros(len(numbers), dtype=np.int64)
    repeated = np.flatnonzero(counts[numbers] > 1)
    order = repeated[np.argsort(numbers[repeated], kind="stable")]
    new = np.append(True, numbers[order][1:] != numbers[order][:-1])[: len(order)]
    place = np.arange(len(order))
    occurrence[order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return occurrence
