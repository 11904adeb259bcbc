"""Why a rank was idle in one interval: the cause that delayed most what it waited for, and the action that did.

Every action ends some time after what it waited for: the end of the action before it on its rank, or of the action that
computed its last input. That time is divided as in the ledger (ledger.py): transfer, delays by their recorded reason,
and duration, of which the mean over the stages is the schedule's. Summed along what each action waited for, back to the
start of the step, these parts show why the action that an idle rank waited for ended later than the one that the rank
had ended before: the difference of both sums is the length of the interval, part by part. What both have in common
cancels out. The largest part is the cause of the interval; what no cause makes longer is the schedule bubble.

The culprit is the action with the largest part by that cause on the way back from the action waited for to where both
ways meet. A rank that is done waits for the last action of its pipeline.

This is one cause per interval, not the ledger: what several causes contribute to one interval goes to the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.latest_inputs import NO_ACTION
from stagescope.analysis.graph.reduction_waits import Waits
from stagescope.analysis.idle.intervals import CauseType
from stagescope.analysis.idle.send_parts import LATE, find_send_parts, limited
from stagescope.vocabulary.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.latest_inputs import LatestInputs
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.idle.ledger import Ledger
    from stagescope.analysis.idle.send_parts import SendParts

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

NAMES = [cause.name for cause in CAUSES]
SCHEDULE, EXPOSED, REDUCTION, REPLICAS, OTHER_WORK, UNATTRIBUTED = (
    NAMES.index(name)
    for name in (
        "schedule_bubble",
        "exposed_communication",
        "gradient_reduction",
        "data_parallel_wait",
        "other_work",
        "unattributed",
    )
)
REDUCTIONS = (REDUCTION, REPLICAS)
CHAINED = ("compute", "nothing")
"""Waits for an action of another rank, which have a way back."""

EXPLAINED = (
    "gradient_reduction",
    "data_parallel_wait",
    "blocked_on_send",
    "launch_overhead",
    "data_loading",
    "optimizer",
    "other_work",
)
DELAYS = (*EXPLAINED, "unattributed")
UNTIMED = ("transfer_or_launch", "unknown")
MOST_MOVES = 1_000
"""Actions on the way back from an interval, at most. Most ways meet within one round trip."""


class _Parts(NamedTuple):
    """What every action waited for (NO_ACTION: the start), and its own time by cause, by the place of the cause.

    `is_sent`: its input traveled for longer than it waited for collectives inside. `is_held`: its input was late
    because of a reduction of gradients more than it was itself. `late_ns` is its own time after the input was there.
    """

    source: Integers
    is_input: NDArray[np.bool_]
    is_sent: NDArray[np.bool_]
    is_held: NDArray[np.bool_]
    own_ns: dict[int, Floats]
    late_ns: dict[int, Floats]


class _Ways(NamedTuple):
    """The action that each idle interval waited for, and the one that its rank had ended before; NO_ACTION: none."""

    waited: Integers
    had: Integers


def name_interval_culprits(
    idle: pl.DataFrame, actions: Actions, inputs: LatestInputs, ledger: Ledger, basis: ReplayBasis
) -> pl.DataFrame:
    """Return idle intervals (IDLE_INTERVALS) with their cause and culprit.

    `inputs` is from find_latest_inputs, `ledger` from build_ledger, `basis` has late receivers, all for these actions.
    """
    if idle.is_empty() or actions.table.is_empty():
        return idle
    sent = find_send_parts(actions, basis)
    parts = _parts(actions, inputs, ledger, _Sends(sent, _unread(actions, inputs, basis)))
    ways = _ways(idle, actions)
    cause = _largest_causes(idle, parts, ways)
    culprit = _on_the_way(actions, parts, cause, ways)
    _of_local_waits(idle, parts, cause, culprit)
    receiver = np.append(sent.receiver, NO_ACTION)[culprit]
    by_receiver = (receiver != NO_ACTION) & np.isin(cause, [NAMES.index(name) for name in LATE])
    culprit = np.where(by_receiver, receiver, culprit)
    return _named(idle, actions, parts, cause, culprit)


class _Sends(NamedTuple):
    """What find_send_parts returns, and for how long the input of every action was there before it was received."""

    parts: SendParts
    unread_ns: Floats


def _unread(actions: Actions, inputs: LatestInputs, basis: ReplayBasis) -> Floats:
    """Return how long the latest input of every action had traveled for more than it usually does.

    Its receiver did something else before it posted the receive. What a blocking send carried was on its way.
    """
    carried = np.zeros(actions.needs.height + 1, dtype=np.bool_)
    carried[basis.plan.sends.need] = True
    usual_ns = np.append(np.maximum(basis.lag_ns[: actions.needs.height], 0), 0)
    unread_ns: Floats = np.where(
        (inputs.need == NO_ACTION) | carried[inputs.need],
        0.0,
        np.maximum(inputs.there_ns - inputs.made_ns - usual_ns[inputs.need], 0),
    )
    return unread_ns


def _parts(actions: Actions, inputs: LatestInputs, ledger: Ledger, sends: _Sends) -> _Parts:
    table, classes, delays = actions.table, ledger.classes, ledger.delays
    start_ns, end_ns = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    previous = np.arange(-1, table.height - 1)
    previous[table["place"].to_numpy() == 0] = NO_ACTION
    free_ns = np.where(previous == NO_ACTION, np.iinfo(np.int64).min, end_ns[previous])
    is_input = (inputs.producer != NO_ACTION) & (inputs.there_ns > free_ns)
    source = np.where(is_input, inputs.producer, previous)
    ready_ns = np.minimum(np.where(is_input, inputs.there_ns, free_ns), start_ns)
    ready_ns = np.where(source == NO_ACTION, start_ns, ready_ns)
    fitted_ns, inner = classes.fitted_ns(), actions.inner
    duration_ns = (end_ns - start_ns - inner.total_ns).astype(np.float64)
    balanced_ns, peer_ns, stage_ns = (
        classes.costs_ns(f"{name}_ns") for name in ("balanced", "peer", "stage")
    )
    lag_ns = np.where(is_input, ready_ns - end_ns[source], 0)
    held = Waits(*(np.where(is_input, each, 0) for each in inputs.held)).at_most(np.maximum(lag_ns, 0))
    # What a rank notices only after a reduction of its own did not travel meanwhile.
    sent_ns = np.where(is_input, np.maximum(inputs.sent_ns, free_ns), ready_ns)
    own = actions.reductions.in_intervals(table["rank"], sent_ns, ready_ns)
    lag_ns = np.where(own.total_ns > 0, np.maximum(lag_ns - own.total_ns, held.total_ns), lag_ns)
    # What a rank notices only after a blocking send of its own did not travel meanwhile, either.
    noticed_ns = np.minimum(sum(sends.parts.after.values()), np.maximum(ready_ns - sent_ns, 0))
    unread_ns = np.where(is_input, np.maximum(sends.unread_ns, noticed_ns), 0.0)
    unread_ns = np.minimum(unread_ns, np.maximum(lag_ns - held.total_ns, 0))
    before = limited(
        {name: is_input * each for name, each in sends.parts.before.items()}, lag_ns - held.total_ns
    )
    waited_ns = unread_ns + sum(before.values())
    travel_ns = lag_ns - held.total_ns - waited_ns
    named = {
        "stage_imbalance": peer_ns - stage_ns,
        "straggler": balanced_ns - peer_ns,
        "data_imbalance": fitted_ns - balanced_ns,
        "jitter": duration_ns - fitted_ns,
        "exposed_communication": travel_ns + delays.sends_ns + inner.reduction_ns,
        **{name: getattr(delays, f"{name}_ns") for name in EXPLAINED},
    }
    explained_ns = delays.sends_ns + sum(named[name] for name in EXPLAINED)
    rest_ns = np.maximum(start_ns - ready_ns + unread_ns - explained_ns, 0)
    after = limited(sends.parts.after, rest_ns)
    named["unattributed"] = rest_ns - sum(after.values())
    own_ns = {NAMES.index(name): part_ns.astype(np.float64) for name, part_ns in named.items()}
    for name, part_ns in [*after.items(), *before.items()]:
        own_ns[NAMES.index(name)] = own_ns[NAMES.index(name)] + part_ns
    late_ns = {number: own_ns[number] for number in map(NAMES.index, DELAYS)}
    is_held = held.total_ns > delays.gradient_reduction_ns + delays.data_parallel_wait_ns
    own_ns[REDUCTION] = own_ns[REDUCTION] + held.reduction_ns
    own_ns[REPLICAS] = own_ns[REPLICAS] + held.replicas_ns + inner.replicas_ns
    is_sent = is_input & (travel_ns >= np.maximum(inner.reduction_ns, waited_ns))
    return _Parts(source, is_input, is_sent, is_held, own_ns, late_ns)


def _ways(idle: pl.DataFrame, actions: Actions) -> _Ways:
    """Return both ends of the ways of intervals that waited for other ranks; the others have none."""
    table = actions.table
    last = table.group_by("step", "rank").agg(last=pl.max("action"))
    pick = pl.col("action").sort_by("end_ns").last()
    end = table.group_by("step", "pipeline").agg(final=pick)
    place = pl.Series(table["place"])
    waiting = pl.col("waiting_for").cast(pl.String)
    ends = (
        idle.select("step", "rank", "pipeline", waiting, "waits_for_action", "before_action")
        .join(last, on=["step", "rank"], how="left", maintain_order="left")
        .join(end, on=["step", "pipeline"], how="left", maintain_order="left")
        .with_columns(is_done=pl.col("waiting_for") == "nothing")
    )
    before = ends["before_action"]
    follows = (place.gather(before) > 0).fill_null(value=False)
    ends = ends.with_columns(previous=pl.when(follows).then(pl.col("before_action").cast(pl.Int64) - 1))
    chosen = pl.col("waiting_for").is_in(CHAINED)
    found = ends.select(
        waited=pl.when(chosen).then(pl.when("is_done").then("final").otherwise("waits_for_action")),
        had=pl.when("is_done").then("last").otherwise("previous"),
    ).cast(pl.Int64)
    waited, had = (found[name].fill_null(NO_ACTION).to_numpy() for name in ("waited", "had"))
    return _Ways(waited, np.where(waited == NO_ACTION, NO_ACTION, had))


def _largest_causes(idle: pl.DataFrame, parts: _Parts, ways: _Ways) -> Integers:
    """Return the cause with the largest part of every interval that waited for another rank."""
    cause = np.full(idle.height, SCHEDULE, dtype=np.int64)
    rest_ns = (idle["end_ns"] - idle["start_ns"]).to_numpy().astype(np.float64)
    most_ns = np.zeros(idle.height)
    for number, total_ns in _totals(parts):
        padded = np.append(total_ns, 0.0)  # NO_ACTION is the last entry
        part_ns = padded[ways.waited] - padded[ways.had]
        rest_ns -= part_ns
        is_more = part_ns > most_ns
        cause[is_more], most_ns[is_more] = number, part_ns[is_more]
    cause[rest_ns >= most_ns] = SCHEDULE
    return cause


def _totals(parts: _Parts) -> Iterator[tuple[int, Floats]]:
    """Yield every cause with its sums from the start of the step, along what each action waited for."""
    # Pointer doubling: after n rounds a sum reaches 2**n actions back.
    jumps = [parts.source]
    while (jumps[-1] != NO_ACTION).any():
        jumps.append(np.append(jumps[-1], NO_ACTION)[jumps[-1]])
    for number, own_ns in parts.own_ns.items():
        if not own_ns.any():
            continue
        total_ns = own_ns.copy()
        for jump in jumps:
            total_ns += np.append(total_ns, 0.0)[jump]
        yield number, total_ns


def _on_the_way(actions: Actions, parts: _Parts, cause: Integers, ways: _Ways) -> Integers:
    """Return the action with the largest part by the cause of each interval, before both ways meet."""
    causes = [SCHEDULE, *parts.own_ns]
    nothing = np.zeros(actions.table.height)
    own_ns = np.stack([parts.own_ns.get(number, nothing) for number in causes])
    row = np.searchsorted(np.array(causes), cause)
    end_ns = np.append(actions.table["end_ns"].to_numpy(), np.iinfo(np.int64).min)
    source = np.append(parts.source, NO_ACTION)
    culprit = np.full(len(cause), NO_ACTION, dtype=np.int64)
    most_ns = np.zeros(len(cause))
    at = np.flatnonzero((ways.waited != NO_ACTION) & (cause != SCHEDULE))
    left, right = ways.waited[at], ways.had[at]
    for _ in range(MOST_MOVES):
        if not len(at):
            break
        moves = end_ns[left] >= end_ns[right]
        part_ns = own_ns[row[at], left]
        is_more = moves & (part_ns > most_ns[at])
        culprit[at[is_more]], most_ns[at[is_more]] = left[is_more], part_ns[is_more]
        left, right = np.where(moves, source[left], left), np.where(moves, right, source[right])
        goes_on = (left != right) & (left != NO_ACTION)
        at, left, right = at[goes_on], left[goes_on], right[goes_on]
    return culprit


def _of_local_waits(idle: pl.DataFrame, parts: _Parts, cause: Integers, culprit: Integers) -> None:
    """Fill in the intervals that waited for a transfer, for a launch or for other work of the rank."""
    waiting = idle["waiting_for"].cast(pl.String)
    before = idle["before_action"].cast(pl.Int64).fill_null(NO_ACTION).to_numpy()
    is_transfer = (waiting == "transfer").to_numpy()
    culprit[is_transfer] = before[is_transfer]
    traveled = is_transfer & np.append(parts.is_sent, False)[before]
    cause[traveled] = EXPOSED
    is_reduced = (waiting == "reduction").to_numpy()
    reduction_ns, replicas_ns = (np.append(parts.own_ns[each], 0)[before] for each in (REDUCTION, REPLICAS))
    cause[is_reduced] = np.where(reduction_ns >= replicas_ns, REDUCTION, REPLICAS)[is_reduced]
    culprit[is_reduced] = before[is_reduced]
    cause[(waiting == "other_work").to_numpy()] = OTHER_WORK
    is_late = (~waiting.is_in([*CHAINED, "reduction", "other_work"])).to_numpy() & ~traveled
    cause[is_late] = UNATTRIBUTED
    late = np.flatnonzero(is_late & (before != NO_ACTION))
    delays_ns = np.stack([part_ns[before[late]] for part_ns in parts.late_ns.values()])
    cause[late] = np.array([*parts.late_ns])[delays_ns.argmax(axis=0)]
    # After a transfer of unknown length, what nothing explains may have been the transfer.
    known = ~(waiting.is_in(UNTIMED).to_numpy()[late] & (cause[late] == UNATTRIBUTED))
    culprit[late[known]] = before[late[known]]


def _last_replicas(
    actions: Actions, is_waiting: NDArray[np.bool_], ranks: pl.Series, of: pl.Series
) -> pl.Series:
    """Return the ranks, and instead of those that wait in a reduction the replica that came to it last."""
    if not is_waiting.any():
        return ranks
    last = pl.concat([actions.reductions.last, actions.inside.last])
    known = last.sort("end_ns").select("last_rank", by="rank", moment_ns="end_ns")
    # A wait for a reduction ends before the action, one for a collective inside of it.
    waits_inside = pl.Series(actions.inner.replicas_ns > 0)
    moment_ns = pl.select(
        pl.when(waits_inside).then(actions.table["end_ns"]).otherwise(actions.table["start_ns"])
    )
    rows = pl.DataFrame({"by": ranks, "moment_ns": moment_ns.to_series().gather(of)}).with_row_index()
    waited = rows.filter(pl.Series(is_waiting) & pl.col("moment_ns").is_not_null()).sort("moment_ns")
    found = waited.join_asof(known, on="moment_ns", by="by", check_sortedness=False)
    named = rows.join(found.select("index", "last_rank"), on="index", how="left", maintain_order="left")
    return named.select(pl.coalesce("last_rank", "by")).to_series()


def _named(
    idle: pl.DataFrame, actions: Actions, parts: _Parts, cause: Integers, culprit: Integers
) -> pl.DataFrame:
    table = actions.table
    has = culprit != NO_ACTION
    # A transfer is caused by its link: its sender is named, and so is who reduced gradients before it sent them.
    sends = np.append(parts.is_sent, False)[culprit] & (cause == EXPOSED)
    is_own = (idle["waiting_for"] == "reduction") & idle["waits_for_action"].is_null()
    sends |= np.append(parts.is_held, False)[culprit] & np.isin(cause, REDUCTIONS) & ~is_own.to_numpy()
    sends &= has
    by = np.where(sends, np.append(parts.source, NO_ACTION)[culprit], culprit)
    numbers = pl.DataFrame({"of": culprit, "by": by}).select(
        pl.when(pl.col(name) != NO_ACTION).then(name).cast(pl.UInt32) for name in ("of", "by")
    )
    own_rank = pl.Series((cause == OTHER_WORK) & ~has)
    ranks = _last_replicas(actions, cause == REPLICAS, table["rank"].gather(numbers["by"]), numbers["of"])
    causes = pl.Series(NAMES, dtype=CauseType).gather(cause)
    return idle.with_columns(
        cause=causes,
        culprit_rank=pl.when(own_rank).then("rank").otherwise(ranks),
        culprit_action=numbers["of"],
        culprit_row=table["row"].gather(numbers["of"]),
    )
