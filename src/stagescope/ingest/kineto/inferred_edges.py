"""Where a action begins and ends that no annotation holds: between its operators and what happens before and behind them.

A transfer, the splitting of the batch (torch 2.13.0, schedules.py, `_split_inputs`) and a loss stand right beside a
action. Anything else may be farther from it than it looks, up to the whole stretch in between, and that is stated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.kineto.edges import NEVER, Operators, find_edges, following, preceding

if TYPE_CHECKING:
    import numpy.typing as npt

    Times = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

LONG_AGO = -(2**62)
MOST_AROUND_NS = 200_000
"""What a action does at most before its first and behind its last operator, where the trace begins or ends there."""
USUAL_HEAD_NS, USUAL_TAIL_NS = 100_000, 150_000
"""Where nothing else is known: a forward usually begins half of this before its first operator, and a action usually ends
half of this behind its last one."""
MOST_BEFORE_SEND_NS = 400_000
"""How long behind a action's last operator its send may be issued to tell where the action ended."""


def place_actions(runs: pl.DataFrame, works: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the actions of some runs of operators, and the losses: kind, order, times, marks, lane, holds_loss.

    `runs` has is_backward, order, start_ns, end_ns and graph_ns, where the first operator of a forward begins that
    records a graph; `works` are the transfers. A forward that `holds_loss` is followed by its backward and by nothing
    that is known to be a loss: the loss is among its last operators, and no one tells which.
    """
    marks = Operators(operators)
    start_ns, end_ns = _starts(runs, marks), runs["end_ns"].to_numpy()
    is_backward = runs["is_backward"].to_numpy()
    loss_ns = np.where(is_backward, NEVER, marks.loss_start(start_ns, end_ns))
    begin_ns, earliest_ns = _beginnings(marks, works, start_ns, is_backward)
    ends = _ends(marks, works, end_ns, np.minimum(following(start_ns, end_ns), loss_ns))
    edges = find_edges(marks, begin_ns, ends.stop_ns, is_backward=is_backward, sends_behind=ends.sends)
    # The end of a action and the start of the next are looked for in the same stretch, and must not cross.
    begun_ns = np.maximum(edges.start_ns, np.minimum(np.append(LONG_AGO, edges.end_ns[:-1]), start_ns))
    holds_loss = _is_before_backward(start_ns, end_ns, is_backward) & ~ends.sends & (loss_ns == NEVER)
    may_unpack = ~is_backward & _follows_exchange(marks, works, start_ns)
    errors_ns = [
        edges.error_ns,
        begun_ns - earliest_ns,
        ends.latest_ns - edges.end_ns,
        np.where(holds_loss, edges.end_ns - begun_ns, 0),
        np.where(may_unpack, _graphs(runs) - begun_ns, 0),
    ]
    actions = runs.select(
        "order",
        kind=pl.when("is_backward").then(pl.lit("backward")).otherwise(pl.lit("forward")),
        start_ns=pl.Series(begun_ns),
        end_ns=pl.Series(edges.end_ns),
        edge_error_ns=pl.Series(np.maximum.reduce(errors_ns)),
        mark_start_ns=pl.Series(start_ns),
        mark_end_ns="end_ns",
        lane=pl.lit("compute"),
        holds_loss=pl.Series(holds_loss),
    )
    return pl.concat([actions, _losses(runs, edges.end_ns, loss_ns, marks).select(actions.columns)])


def _starts(runs: pl.DataFrame, marks: Operators) -> Times:
    """Return when the first operator of each action starts: what stands before the splitting of the batch is of none."""
    start_ns, graph_ns = runs["start_ns"].to_numpy(), _graphs(runs)
    split_ns = preceding(marks.split_end_ns, graph_ns)
    return np.where(split_ns > start_ns, marks.first_start(split_ns, graph_ns), start_ns)


def _graphs(runs: pl.DataFrame) -> Times:
    """Return when the first operator of each forward begins that records a graph; long ago for a backward."""
    graph_ns: Times = runs["graph_ns"].fill_null(LONG_AGO).to_numpy()
    return graph_ns


def _follows_exchange(marks: Operators, works: pl.DataFrame, start_ns: Times) -> Flags:
    """Tell which actions of a first stage come right behind a receive: one of the first exchange of shapes.

    Operators of the exchange may stand before those of such a action.
    """
    if "recv_forward" in works["kind"].to_list():
        return np.zeros(len(start_ns), np.bool_)
    received_ns = preceding(marks.receive_end_ns, start_ns)
    others_ns = np.maximum(preceding(marks.work_end_ns, start_ns), preceding(marks.message_end_ns, start_ns))
    return (received_ns >= others_ns) & (received_ns > LONG_AGO)


class Ends(NamedTuple):
    """What is behind actions: where to look for the end, the latest it may be, and whether a send was issued there."""

    stop_ns: Times
    latest_ns: Times
    sends: Flags


def _ends(marks: Operators, works: pl.DataFrame, end_ns: Times, next_ns: Times) -> Ends:
    """Return what is behind actions whose last operators end then; `next_ns` is when the next action or the loss begins.

    A transfer is issued at once behind a action; what else comes next may come much later, and bounds little.
    """
    issue_ns = following(np.sort(np.concatenate([works["start_ns"].to_numpy(), marks.send_ns])), end_ns)
    sends = issue_ns < next_ns
    after_ns = np.minimum(next_ns, following(marks.start_ns, end_ns))
    within_ns = end_ns + np.where(sends, MOST_BEFORE_SEND_NS, USUAL_TAIL_NS)
    stop_ns = np.minimum(np.minimum(issue_ns, after_ns), within_ns)
    after_ns = np.where(after_ns < NEVER, after_ns, end_ns + MOST_AROUND_NS)
    return Ends(stop_ns, np.where(sends, issue_ns, after_ns), sends)


def _beginnings(
    marks: Operators, works: pl.DataFrame, start_ns: Times, is_backward: Flags
) -> tuple[Times, Times]:
    """Return what to take for the end of what was before actions whose operators start then, and the earliest it may be.

    A action follows at once on the transfers before it, on the splitting of the batch, and a backward on its loss; on
    anything else perhaps not.
    """
    at_once = [works["end_ns"].to_numpy(), marks.message_end_ns, marks.split_end_ns]
    done_ns = preceding(np.sort(np.concatenate(at_once)), start_ns)
    before_ns = preceding(marks.work_end_ns, start_ns)
    loss_end_ns = preceding(marks.loss_end_ns, start_ns)
    follows_loss = is_backward & (loss_end_ns >= np.maximum(before_ns, done_ns))
    at_once_ns = np.where(follows_loss, loss_end_ns, done_ns)
    follows = follows_loss | ((done_ns >= before_ns) & (done_ns > LONG_AGO))
    since_ns = np.where(before_ns > LONG_AGO, before_ns, start_ns - MOST_AROUND_NS)
    earliest_ns = np.where(follows, at_once_ns, since_ns)
    usual_ns = np.where(follows | is_backward, earliest_ns, start_ns - USUAL_HEAD_NS)
    return np.maximum(usual_ns, earliest_ns), earliest_ns


def _is_before_backward(start_ns: Times, end_ns: Times, is_backward: Flags) -> Flags:
    """Tell which of some runs are forwards whose next run is a backward."""
    next_run = np.searchsorted(start_ns, end_ns)
    followed: Flags = np.append(is_backward, np.False_)[next_run]  # nothing follows the last one
    return ~is_backward & followed


def _losses(runs: pl.DataFrame, forward_end_ns: Times, loss_ns: Times, marks: Operators) -> pl.DataFrame:
    end_ns = marks.loss_end(loss_ns, np.where(loss_ns < NEVER, runs["end_ns"].to_numpy(), loss_ns))
    losses = runs.select(
        "order",
        kind=pl.lit("loss"),
        start_ns=pl.Series(forward_end_ns),
        end_ns=pl.Series(end_ns),
        edge_error_ns=pl.Series(loss_ns - forward_end_ns),
        mark_start_ns=pl.Series(loss_ns),
        mark_end_ns=pl.Series(end_ns),
        lane=pl.lit("compute"),
        holds_loss=pl.lit(value=False),
    )
    return losses.filter((pl.col("mark_start_ns") < NEVER) & (pl.col("end_ns") < NEVER))
