"""Estimate where an action without an annotation begins and ends, between its operators and the neighboring events.

Transfers, the splitting of the batch (torch 2.13.0, schedules.py, `_split_inputs`) and a loss are directly adjacent to
an action. Any other event may be farther away than it appears, up to the whole interval between them; the stated error
includes it.
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
"""Upper bound of an action's time before its first or after its last operator, at the beginning or end of a trace."""
USUAL_HEAD_NS, USUAL_TAIL_NS = 100_000, 150_000
"""Without other evidence, a forward typically begins half of USUAL_HEAD_NS before its first operator, and an action
ends half of USUAL_TAIL_NS after its last one."""
MOST_BEFORE_SEND_NS = 400_000
"""A send issued within this time after an action's last operator marks the end of the action."""


def place_actions(runs: pl.DataFrame, works: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the actions of runs of operators, and the losses: kind, order, times, marks, lane, holds_loss.

    `runs` has is_backward, order, start_ns, end_ns and graph_ns (start of the first operator that records a graph);
    `works` are the transfers. A forward with `holds_loss` is directly followed by its backward without a recognized
    loss operator: its last operators include the loss, at an unknown position.
    """
    marks = Operators(operators)
    start_ns, end_ns = _starts(runs, marks), runs["end_ns"].to_numpy()
    is_backward = runs["is_backward"].to_numpy()
    loss_ns = np.where(is_backward, NEVER, marks.loss_start(start_ns, end_ns))
    begin_ns, earliest_ns = _beginnings(marks, works, start_ns, is_backward)
    ends = _ends(marks, works, end_ns, np.minimum(following(start_ns, end_ns), loss_ns))
    edges = find_edges(marks, begin_ns, ends.stop_ns, is_backward=is_backward, ends_at_send=ends.sends)
    # The end of an action and the start of the next are estimated in the same interval, and must not cross.
    begun_ns = np.maximum(edges.start_ns, np.minimum(np.append(LONG_AGO, edges.end_ns[:-1]), start_ns))
    holds_loss = _is_before_backward(start_ns, end_ns, is_backward) & ~ends.sends & (loss_ns == NEVER)
    may_unpack = ~is_backward & _follows_exchange(marks, works, start_ns)
    # The stated error is the largest of all reasons for an edge to be elsewhere.
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
    """Return when the first operator of each action starts; those before the splitting of the batch are excluded."""
    start_ns, graph_ns = runs["start_ns"].to_numpy(), _graphs(runs)
    split_ns = preceding(marks.split_end_ns, graph_ns)
    return np.where(split_ns > start_ns, marks.first_start(split_ns, graph_ns), start_ns)


def _graphs(runs: pl.DataFrame) -> Times:
    """Return the start of the first operator that records a graph in each forward; LONG_AGO for a backward."""
    graph_ns: Times = runs["graph_ns"].fill_null(LONG_AGO).to_numpy()
    return graph_ns


def _follows_exchange(marks: Operators, works: pl.DataFrame, start_ns: Times) -> Flags:
    """Return which actions of a first stage directly follow a receive, which is part of the initial shape exchange.

    The operators at the beginning of such an action may belong to the exchange.
    """
    if "recv_forward" in works["kind"].to_list():
        return np.zeros(len(start_ns), np.bool_)
    received_ns = preceding(marks.receive_end_ns, start_ns)
    others_ns = np.maximum(preceding(marks.work_end_ns, start_ns), preceding(marks.message_end_ns, start_ns))
    return (received_ns >= others_ns) & (received_ns > LONG_AGO)


class Ends(NamedTuple):
    """The end of the interval in which an action ends, its latest possible end, and whether a send was issued there."""

    stop_ns: Times
    latest_ns: Times
    sends: Flags


def _ends(marks: Operators, works: pl.DataFrame, end_ns: Times, next_ns: Times) -> Ends:
    """Return the Ends of actions whose last operators end at `end_ns`; the next action or loss starts at `next_ns`.

    A transfer is issued immediately after an action; any other event may come much later and is a weak bound.
    """
    # The operator c10d::send begins before the process group's annotation of the same send.
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
    """Return the assumed and the earliest beginning of actions whose operators start at `start_ns`.

    An action immediately follows a transfer or the splitting of the batch, and a backward its loss. After any other
    event it may begin later.
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
    """Return which runs are forwards directly followed by a backward."""
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
