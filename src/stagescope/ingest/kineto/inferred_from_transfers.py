"""Infer the actions of a 1F1B rank from its transfers alone, for traces without operators.

An action runs between the end of its receive and its own send. If the host also waited for an earlier send in between,
or two actions ran without a transfer between them, the typical durations on that rank divide the interval, and the
stated error covers the whole divided interval.
"""

from __future__ import annotations

from itertools import chain, pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.kineto.annotated import RECEIVED, SENT
from stagescope.ingest.kineto.inferred_actions import SPANS_SCHEMA, WORKS_SCHEMA, Inferred
from stagescope.ingest.kineto.operator_classes import RECEIVE, SEND
from stagescope.ingest.kineto.transfer_order import Item, Work, match_transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from stagescope.ingest.kineto.facts import RankFacts

    Times = npt.NDArray[np.int64]
    Bounds = tuple[int | None, int | None]

AROUND_NS = 500_000
"""Largest distance between an action and its neighboring transfers, unless the process was descheduled there."""

USUAL_NS = {"after a receive": 20_000, "before a send": 80_000}
"""Typical distances, measured against the recorder's spans; at most a twentieth of a short interval is used."""

USUAL_WORK = {"forward": 1, "backward": 2}
"""Relative durations assumed if the trace has no evidence: a backward takes twice as long, as in the papers."""


class Interval(NamedTuple):
    """The time between two transfers, and the actions that ran in it without a transfer between them.

    A side is None if nothing bounds it. A hard side is a transfer directly next to the actions; a `soft` side may be
    farther away from them.
    """

    items: tuple[Item, ...]
    start_ns: int | None
    end_ns: int | None
    soft_start: bool
    soft_end: bool


class Action(NamedTuple):
    """An inferred action, its interval, and the largest error of its edges."""

    item: Item
    start_ns: int
    end_ns: int
    error_ns: int


def infer_from_transfers(tables: Mapping[str, pl.DataFrame], facts: RankFacts) -> Inferred:
    """Return the actions inferred from the order of a rank's transfers if that is the order of 1F1B, else nothing."""
    is_work = pl.col("name").str.contains(RECEIVED) | pl.col("name").str.contains(SENT)
    works = _works(tables["annotations"].filter(is_work), tables["operators"])
    others = tables["annotations"].filter(~is_work).sort("start_ns")
    # Traces without process groups are assumed to have one pipeline over all ranks.
    groups = facts.groups or ((tuple(range(facts.world_size)),) if facts.world_size else ())
    if not works or facts.rank is None:
        return Inferred(
            pl.DataFrame(schema=SPANS_SCHEMA), pl.DataFrame(schema=WORKS_SCHEMA), unmatched=len(works)
        )
    steps, left_out = match_transfers(works, _breaks(others), groups, facts.rank)
    intervals = [interval for items in steps for interval in _intervals(items, others)]
    usual_ns = _usual(intervals)
    actions = [action for interval in intervals for action in _placed(interval, usual_ns)]
    return Inferred(_action_table(actions), _work_table(chain.from_iterable(steps)), left_out)


def _works(annotations: pl.DataFrame, operators: pl.DataFrame) -> list[Work]:
    """Return the sends and receives of a rank in the order of issue."""
    calls = operators.filter(pl.col("what").is_in([SEND, RECEIVE])).sort("start_ns")
    rows = annotations.sort("start_ns").join_asof(
        calls.select(called_ns="start_ns", call_end_ns="end_ns"),
        left_on="start_ns", right_on="called_ns", check_sortedness=False,
    )  # fmt: skip
    in_call = pl.col("start_ns") <= pl.col("call_end_ns")
    called = pl.when(in_call).then("called_ns").otherwise("start_ns")
    columns = rows.select(pl.col("name").str.contains(SENT), called, "start_ns", "end_ns", title="name")
    return [Work(*row) for row in columns.iter_rows()]


def _breaks(others: pl.DataFrame) -> list[int]:
    """Return times between steps: those of the optimizer, else the profiler's step marks."""
    name = pl.col("name")
    for prefix, moment in (("Optimizer.step", "start_ns"), ("ProfilerStep#", "start_ns")):
        found = others.filter(name.str.starts_with(prefix))[moment]
        if len(found):
            return found.to_list()
    return []


def _intervals(items: Sequence[Item], others: pl.DataFrame) -> Iterator[Interval]:
    """Yield the intervals of a step between transfers in which actions ran, in time order.

    An action begins after the wait for its receive has returned, but a send is only issued: the next action does not
    wait for it to complete.
    """
    works = [item.work for item in items if item.work is not None]
    send_ends_ns = np.sort([work.end_ns for work in works if work.sends])
    start_ns, is_first = _last_end(others, works[0].called_ns), True
    run: list[Item] = []
    for item in items:
        if item.work is None:
            run.append(item)
            continue
        if run:
            yield _interval(run, (start_ns, item.work.called_ns), send_ends_ns, (is_first, False))
            run, is_first = [], False
        start_ns, is_first = item.work.issued_ns if item.work.sends else item.work.end_ns, False
    if run:
        yield _interval(
            run, (start_ns, _next_start(others, works[-1].end_ns)), send_ends_ns, (is_first, True)
        )


def _interval(
    run: Sequence[Item], within_ns: Bounds, send_ends_ns: Times, soft: tuple[bool, bool]
) -> Interval:
    """Return the interval between two transfers; a wait for a send that ends in it makes its end soft."""
    start_ns, end_ns = within_ns
    inside = (send_ends_ns > (start_ns or 0)) & (send_ends_ns <= (end_ns or 2**62))
    if inside.any():
        return Interval(tuple(run), start_ns, int(send_ends_ns[inside][-1]), soft[0], soft_end=True)
    return Interval(tuple(run), start_ns, end_ns, *soft)


def _last_end(others: pl.DataFrame, until_ns: int) -> int | None:
    ends = others.filter(pl.col("end_ns") <= until_ns)["end_ns"]
    return int(ends.max()) if len(ends) else None  # type: ignore[arg-type] # a number


def _next_start(others: pl.DataFrame, since_ns: int) -> int | None:
    starts = others.filter(pl.col("start_ns") >= since_ns)["start_ns"]
    return int(starts.min()) if len(starts) else None  # type: ignore[arg-type] # a number


def _usual(intervals: Sequence[Interval]) -> dict[str, float]:
    """Return the typical duration in ns of a forward and of a backward, from intervals with one action; 0 if unknown.

    If all intervals of a kind are soft, the shortest is the tightest bound. A kind that never ran alone is derived
    from the other by USUAL_WORK.
    """
    usual_ns: dict[str, float] = {}
    for kind in USUAL_WORK:
        alone = [
            (interval.soft_start or interval.soft_end, interval.end_ns - interval.start_ns)
            for interval in intervals
            if len(interval.items) == 1
            and interval.items[0].kind == kind
            and interval.start_ns is not None
            and interval.end_ns is not None
        ]
        hard = [length_ns for soft, length_ns in alone if not soft]
        if alone:
            usual_ns[kind] = median(hard) if hard else min(length_ns for _, length_ns in alone)
    for kind, other in (("forward", "backward"), ("backward", "forward")):
        if kind not in usual_ns and other in usual_ns:
            usual_ns[kind] = usual_ns[other] * USUAL_WORK[kind] / USUAL_WORK[other]
    return {kind: usual_ns.get(kind, 0.0) for kind in USUAL_WORK}


def _placed(interval: Interval, usual_ns: dict[str, float]) -> Iterator[Action]:
    """Yield the actions of an interval; they fill it unless a side is soft and they typically take less time."""
    expected = [usual_ns[item.kind] for item in interval.items]
    length_ns = round(sum(expected))
    start_ns, end_ns = interval.start_ns, interval.end_ns
    if start_ns is None:
        start_ns = (end_ns or 0) - length_ns
    if end_ns is None:
        end_ns = start_ns + length_ns
    slack_ns = max(end_ns - start_ns - length_ns, 0) if length_ns else 0
    earliest_ns, latest_ns = start_ns, end_ns
    most_ns = (
        end_ns - start_ns
    ) // 20  # in short intervals the typical distances would take up most of the time
    if interval.soft_end:
        end_ns -= slack_ns
    elif interval.soft_start:
        start_ns += slack_ns
    most_ns = min(most_ns, (end_ns - start_ns) // 2)
    start_ns += 0 if interval.soft_start else min(USUAL_NS["after a receive"], most_ns)
    end_ns -= 0 if interval.soft_end else min(USUAL_NS["before a send"], most_ns)
    weights = expected if length_ns else [float(USUAL_WORK[item.kind]) for item in interval.items]
    shares = np.cumsum([0.0, *weights]) / sum(weights)
    cuts_ns = [start_ns + round((end_ns - start_ns) * share) for share in shares]
    # The cut between two actions may be anywhere in between.
    inner_ns = max((max(cut_ns - start_ns, end_ns - cut_ns) for cut_ns in cuts_ns[1:-1]), default=0)
    error_ns = max(AROUND_NS, start_ns - earliest_ns, latest_ns - end_ns, inner_ns)
    for item, (since_ns, until_ns) in zip(interval.items, pairwise(cuts_ns), strict=True):
        yield Action(item, since_ns, until_ns, error_ns)


def _action_table(actions: Sequence[Action]) -> pl.DataFrame:
    rows = [
        (
            action.item.kind,
            action.item.order,
            action.start_ns,
            action.end_ns,
            action.error_ns,
            action.start_ns,
            action.end_ns,
            "compute",
            False,
        )
        for action in actions
    ]
    return pl.DataFrame(rows, SPANS_SCHEMA, orient="row")


def _work_table(items: Iterable[Item]) -> pl.DataFrame:
    rows = [
        (
            f"{'send' if work.sends else 'recv'}_{item.kind}",
            item.order,
            work.issued_ns,
            work.end_ns,
            work.title,
        )
        for item in items
        if (work := item.work) is not None
    ]
    return pl.DataFrame(rows, WORKS_SCHEMA, orient="row").sort("start_ns")
