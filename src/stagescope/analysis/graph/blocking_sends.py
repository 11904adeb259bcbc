"""Blocking sends: sends that kept their rank waiting, and what each of them waited for on the receiver's side.

The next action of a rank cannot start before a blocking send has ended. The message leaves when its rank has got to the
send and the receiver lets it: that moment is the gate. Which moment it is depends on the library: the receive was
posted (rendezvous), or the receiver began to consume an earlier message and so freed its buffer. It is inferred from
the run: a send that ended before a moment cannot have waited for it, so the latest moment that no send contradicts is
taken, if it explains why some sends took longer than others. Otherwise sends wait for nothing but their transfer. What
they wait for is a property of the training: it is found once for a run. A rank that reduces gradients between its
action and the send gets to the send only after that.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.graph.reduction_waits import Waits
from stagescope.model.segments import search_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

NO_GATE = NO_SEND = NO_GATES = -1
MOST_BUFFERS = 3
"""A link is tried with buffers for up to this many messages."""

CONTRADICTED_FRACTION = 0.05
"""So many of the sends that had to wait for a gate may have ended before it: clocks of two ranks differ a little."""

FEWEST_OTHERS = 6
"""The median of fewer has no confidence interval of 95 %: all of them are on one side of it in 1 of 16 cases."""


class BlockingSends(NamedTuple):
    """One entry per blocking send, sorted by rank and time; numbers of actions are rows of their table.

    `need` is the row in `needs` of its message, `consumer` the action that needed it, `after` the action after which
    its rank waited, `free_ns` when the rank had got to the send, `left_ns` when the message left, and `end_ns` when the
    rank went on. `gate` is the action that let it leave, or the number of actions plus that of a send, NO_GATE without
    one; it left `gate_lag_ns` after the end of the gate, or after its start if `gate_is_start`. `is_only_path`: the
    message cannot have arrived before `end_ns`. `held` is how much later the message left because its rank waited for a
    reduction of gradients, `got_ns` when the rank would have got to it without. `behind` has an entry per row of
    `needs`: the send that blocked the rank after the action that made the result and before it issued that message,
    NO_SEND without one or if the result came by a send of its own. `gates` is the number of the possible gates that are
    those of this run, NO_GATES without any.
    """

    need: Integers
    consumer: Integers
    after: Integers
    free_ns: Integers
    left_ns: Integers
    end_ns: Integers
    gate: Integers
    gate_lag_ns: Integers
    gate_is_start: Booleans
    is_only_path: Booleans
    held: Waits
    got_ns: Integers
    behind: Integers
    gates: int = NO_GATES

    @property
    def carried(self) -> Integers:
        """The rows in `needs` of the results that left with or after a send, instead of at the end of their action."""
        rows: Integers = np.append(self.need[self.is_only_path], np.flatnonzero(self.behind != NO_SEND))
        return rows

    def carriers(self) -> Integers:
        """Return the number of that send for every row of `carried`."""
        numbers: Integers = np.append(np.flatnonzero(self.is_only_path), self.behind[self.behind != NO_SEND])
        return numbers

    @property
    def lasting_ns(self) -> Integers:
        """How long each message took after it had left."""
        lasting: Integers = self.end_ns - self.left_ns
        return lasting


def no_blocking_sends() -> BlockingSends:
    """Return no sends, for replays in which none blocks its rank."""
    none = np.empty(0, dtype=np.int64)
    return BlockingSends(
        none, none, none, none, none, none, none, none, none > 0, none > 0, Waits(none, none), none, none
    )


class _Gates(NamedTuple):
    """One possible gate per send: its number (NO_GATE: none), whether its start counts, and when it let the send go."""

    source: Integers
    is_start: Booleans
    time_ns: Integers
    lag_ns: Integers


def find_blocking_sends(actions: Actions, gates: int | None = None) -> BlockingSends:
    """Return the sends that blocked their ranks; empty if no waits for sends were recorded.

    `gates` are those of the run; None: they are chosen from these sends.
    """
    needs = actions.needs
    waited = needs["released_ns"].is_not_null() & needs["awaited_ns"].is_not_null()
    need = waited.arg_true().to_numpy().astype(np.int64)
    sends = _place(actions, need)
    if not len(sends.need):
        return sends if gates is None else sends._replace(gates=gates)
    if gates is None:
        gates = _choose_gates(sends, _possible_gates(actions, sends))
    sends = sends._replace(gates=gates)
    if gates == NO_GATES:
        return sends._replace(behind=_find_behind(actions, sends, sends.is_only_path))
    chosen = next(islice(_possible_gates(actions, sends), gates, None))
    holds = (chosen.source != NO_GATE) & (chosen.time_ns <= sends.end_ns)
    binds = holds & (chosen.time_ns > sends.free_ns)
    # A reduction during which the gate was closed did not hold the message.
    open_ns = np.where(holds, np.maximum(chosen.time_ns, sends.got_ns), sends.got_ns)
    is_only_path = sends.is_only_path | (binds & (sends.after == _producers(actions, sends.need)))
    return sends._replace(
        held=sends.held.at_most(np.maximum(sends.free_ns - open_ns, 0)),
        left_ns=np.where(binds, chosen.time_ns, sends.free_ns),
        gate=np.where(holds, chosen.source, NO_GATE),
        gate_lag_ns=np.where(holds, chosen.lag_ns, 0),
        gate_is_start=holds & chosen.is_start,
        is_only_path=is_only_path,
        behind=_find_behind(actions, sends, is_only_path),
    )


def _producers(actions: Actions, need: Integers) -> Integers:
    return actions.needs["needs"].to_numpy()[need].astype(np.int64)


def _place(actions: Actions, need: Integers) -> BlockingSends:
    """Return the sends among `need` that kept their rank from its next action, without gates."""
    table, rows = actions.table, actions.needs[need]
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    released_ns, awaited_ns = rows["released_ns"].to_numpy(), rows["awaited_ns"].to_numpy()
    producer = _producers(actions, need)
    first, stop = _turns(table["place"].to_numpy())
    after = search_segments(start_ns, first[producer], stop[producer], released_ns) - 1
    blocks = (after >= producer) & (end_ns[after] < released_ns)
    order = np.lexsort((need, released_ns, after))
    order = order[blocks[order]]
    after, released_ns, awaited_ns = after[order], released_ns[order], awaited_ns[order]
    # Several sends after one action block the rank one after the other.
    free_ns = end_ns[after]
    follows = np.flatnonzero(after[1:] == after[:-1]) + 1
    free_ns[follows] = np.maximum(free_ns[follows], released_ns[follows - 1])
    got_ns, held = free_ns, actions.reductions.in_intervals(table["rank"].gather(after), free_ns, awaited_ns)
    free_ns = got_ns + held.total_ns
    # A wait that began late was not what the rank waited for until then.
    kept = (released_ns > free_ns) & (awaited_ns - free_ns <= released_ns - awaited_ns)
    order, after, free_ns, released_ns = order[kept], after[kept], free_ns[kept], released_ns[kept]
    got_ns, held = got_ns[kept], Waits(held.reduction_ns[kept], held.replicas_ns[kept])
    arrived_ns = rows["arrived_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()[order]
    is_only_path = (after == producer[order]) & (arrived_ns >= released_ns)
    none = np.zeros(len(order), dtype=np.int64)
    no_gate = none + NO_GATE
    consumer = rows["action"].to_numpy().astype(np.int64)[order]
    return BlockingSends(
        need[order],
        consumer,
        after,
        free_ns,
        free_ns,
        released_ns,
        no_gate,
        none,
        none > 0,
        is_only_path,
        held,
        got_ns,
        np.full(actions.needs.height, NO_SEND, dtype=np.int64),
    )


def _find_behind(actions: Actions, sends: BlockingSends, is_only_path: Booleans) -> Integers:
    """Return for every row of `needs` the send behind which its message was issued; see BlockingSends.

    Such as in 1F1B of torch: a rank waits for the send of a forward after the next forward, whose own send it issues
    then.
    """
    needs = actions.needs
    behind = np.full(needs.height, NO_SEND, dtype=np.int64)
    has = (needs["is_remote"] & needs["sent_ns"].is_not_null()).to_numpy()
    has[sends.need[is_only_path]] = False
    rows = np.flatnonzero(has)
    producer = needs["needs"].to_numpy()[rows].astype(np.int64)
    first, stop = (np.searchsorted(sends.after, producer, side=side) for side in ("left", "right"))
    sent_ns = needs["sent_ns"].to_numpy()[rows].astype(np.int64)
    last = search_segments(sends.end_ns, first, stop, sent_ns + 1) - 1
    is_behind = last >= first
    behind[rows[is_behind]] = last[is_behind]
    return behind


def _turns(place: NDArray[np.uint32]) -> tuple[Integers, Integers]:
    """Return the first action of every action's rank and step, and the first of the following one."""
    firsts = np.flatnonzero(place == 0)
    turn = np.cumsum(place == 0) - 1
    return firsts[turn], np.append(firsts[1:], len(place))[turn]


def _possible_gates(actions: Actions, sends: BlockingSends) -> Iterator[_Gates]:
    """Yield possible gates, the latest moments first."""
    yield _posted(actions, sends)
    needs, table = actions.needs, actions.table
    remote = (needs["is_remote"] & (needs["direction"] != "own")).arg_true().to_numpy()
    producer, consumer = (needs[name].to_numpy()[remote].astype(np.int64) for name in ("needs", "action"))
    first, _ = _turns(table["place"].to_numpy())
    direction = needs["direction"].to_physical().to_numpy()[remote]
    link = (direction, first[consumer], table["stage"].to_numpy()[producer], first[producer])
    order = np.lexsort((producer, *link))
    start_ns = table["start_ns"].to_numpy()
    for buffers in range(1, MOST_BUFFERS + 1):
        same = np.ones(max(len(order) - buffers, 0), dtype=np.bool_)
        for key in link:
            same &= key[order[buffers:]] == key[order[:-buffers]]
        earlier = np.full(needs.height, NO_GATE, dtype=np.int64)
        earlier[remote[order[buffers:][same]]] = consumer[order[:-buffers][same]]
        source = earlier[sends.need]
        is_start = np.ones(len(source), dtype=np.bool_)
        yield _Gates(source, is_start, start_ns[source], np.zeros(len(source), dtype=np.int64))


def _posted(actions: Actions, sends: BlockingSends) -> _Gates:
    """Return the posting of the receives: it follows the last end or start of an action or send of its rank."""
    table, rows = actions.table, actions.needs[sends.need]
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    is_known = rows["posted_ns"].is_not_null().to_numpy()
    posted_ns = rows["posted_ns"].fill_null(0).to_numpy()
    consumer = rows["action"].to_numpy().astype(np.int64)
    first, _ = _turns(table["place"].to_numpy())
    before = search_segments(start_ns, first[consumer], consumer, posted_ns + 1) - 1
    is_known &= before >= first[consumer]
    is_start = is_known & (posted_ns < end_ns[before])
    time_ns = np.where(is_start, start_ns[before], end_ns[before])
    # The receiver may have been blocked in sends of its own, after its last action.
    low, high = (np.searchsorted(sends.after, before, side=side) for side in ("left", "right"))
    blocked = search_segments(sends.end_ns, low, high, posted_ns + 1) - 1
    is_send = is_known & ~is_start & (blocked >= low)
    source = np.where(is_send, table.height + blocked, np.where(is_known, before, NO_GATE))
    time_ns[is_send] = sends.end_ns[blocked[is_send]]
    return _Gates(source, is_start, posted_ns, posted_ns - time_ns)


def _choose_gates(sends: BlockingSends, possible: Iterator[_Gates]) -> int:
    """Return the number of the first gates that sends do not contradict and that explain why some took longer."""
    took_ns = sends.end_ns - sends.free_ns
    for number, gates in enumerate(possible):
        waits = (gates.source != NO_GATE) & (gates.time_ns > sends.free_ns)
        if not waits.any():
            continue
        rest_ns = (sends.end_ns - gates.time_ns)[waits]
        if (rest_ns < 0).mean() > CONTRADICTED_FRACTION:
            continue
        if _explains(took_ns[waits], rest_ns, took_ns[~waits]):
            return number
    return NO_GATES


def _explains(took_ns: Integers, rest_ns: Integers, others_ns: Integers) -> bool:
    """Return whether what gates leave of the sends that waited for them is more like a transfer than all they took.

    A transfer takes as long as the other sends, which did not wait. If these are too few to show how long that is, such
    as one that a busy machine delayed, all sends have to differ less from each other without the waits.
    """
    if not len(others_ns):
        return True
    if len(others_ns) < FEWEST_OTHERS:
        with_waits_ns, without_ns = (np.append(each, others_ns) for each in (took_ns, rest_ns))
        return _deviation(without_ns, np.median(without_ns)) <= _deviation(
            with_waits_ns, np.median(with_waits_ns)
        )
    usual_ns = np.median(others_ns)
    return _deviation(rest_ns, usual_ns) < _deviation(took_ns, usual_ns)


def _deviation(times_ns: Integers, usual_ns: np.floating) -> float:
    return float(np.median(np.abs(times_ns - usual_ns)))
