"""The jobs of a rank whose schedule annotates nothing, as 1F1B: found by operators, flows and transfers.

Forward operators that record a graph begin a flow (category ``fwdbwd``), and the operators of the autograd engine end
it. So a run of operators with beginnings of flows is a forward, one of the engine's with ends of flows a backward, and
the flows say which forward a backward belongs to. Forwards run in the order of their micro-batches. A send belongs to
the job before it, a receive to the job behind it (torch 2.13.0, schedules.py, `Schedule1F1B._step_microbatches`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.kineto.annotated import RECEIVED, SENT
from stagescope.ingest.kineto.edges import NEVER, Operators, find_edges, following, preceding
from stagescope.ingest.kineto.operator_classes import BACKWARD, HANDLING, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Times = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

SPANS_SCHEMA = {
    "kind": pl.String, "order": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "edge_error_ns": pl.Int64,
    "mark_start_ns": pl.Int64, "mark_end_ns": pl.Int64, "lane": pl.String,
}  # fmt: skip
WORKS_SCHEMA = {
    "kind": pl.String,
    "order": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "title": pl.String,
}


NO_JOB = 2


class Inferred(NamedTuple):
    """Jobs and transfers by `order`, the number of the job's forward in this trace; and what tells no job.

    `unmatched` counts backwards without a forward, or transfers where these alone tell (by_transfers.py).
    """

    jobs: pl.DataFrame
    transfers: pl.DataFrame
    unmatched: int


def infer_spans(tables: Mapping[str, pl.DataFrame]) -> Inferred:
    """Return what the operators of one rank tell; nothing where there are no flows between forward and backward."""
    nothing = Inferred(pl.DataFrame(schema=SPANS_SCHEMA), pl.DataFrame(schema=WORKS_SCHEMA), 0)
    flows = tables["flows"]
    if flows.is_empty() or tables["operators"].is_empty():
        return nothing
    runs = _runs(tables["operators"], tables["annotations"])
    runs, unmatched = _with_orders(runs, flows)
    if runs.is_empty():
        return nothing
    works = _works(tables["annotations"], runs)
    jobs = _jobs(runs, works, tables["operators"])
    return Inferred(jobs, works, unmatched)


def _runs(operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return runs of operators of one sort with no transfer between: is_backward, start_ns, end_ns, run, in time order.

    An operator that lies in another is of that one's sort, so only the outermost count. Those of an optimizer are of
    no sort: the first stage goes from them to the next forward without a transfer.
    """
    ordered = operators.filter(pl.col("what") != HANDLING).sort(
        "start_ns", "end_ns", descending=[False, True]
    )
    before_ns = pl.col("end_ns").cum_max().shift(1).over("thread").fill_null(-(2**62))
    outer = ordered.filter(pl.col("start_ns") >= before_ns)
    optimizers = annotations.filter(pl.col("name").str.starts_with("Optimizer.")).select(
        optimizer_ns="start_ns", optimizer_end_ns="end_ns"
    )
    outer = outer.join_asof(
        optimizers.sort("optimizer_ns"), left_on="start_ns", right_on="optimizer_ns", check_sortedness=False
    )
    is_job = pl.col("start_ns") > pl.col("optimizer_end_ns").fill_null(-1)
    sort = pl.when(pl.col("what").is_in([SEND, RECEIVE]) | ~is_job).then(NO_JOB)
    outer = outer.with_columns(sort=sort.otherwise((pl.col("what") == BACKWARD).cast(pl.Int32)))
    changed = (pl.col("sort") != pl.col("sort").shift(1)).fill_null(value=True)
    grouped = outer.with_columns(run=changed.cum_sum()).group_by("run", maintain_order=True)
    runs = grouped.agg(pl.first("sort"), pl.min("start_ns"), pl.max("end_ns"))
    return runs.filter(pl.col("sort") != NO_JOB).with_columns(is_backward=pl.col("sort") == 1)


def _with_orders(runs: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the runs that are jobs, with `order`; and how many backwards belong to no forward in the trace."""
    ends = flows.sort("start_ns").join_asof(
        runs.select("run", "is_backward", run_start_ns="start_ns", run_end_ns="end_ns").sort("run_start_ns"),
        left_on="start_ns", right_on="run_start_ns", check_sortedness=False,
    )  # fmt: skip
    ends = ends.filter(
        (pl.col("start_ns") <= pl.col("run_end_ns")) & (pl.col("is_start") != pl.col("is_backward"))
    )
    forwards = ends.filter("is_start").select("flow", "start_ns", forward="run")
    # An identifier may come again: the forward before the backward is meant.
    pairs = ends.filter(~pl.col("is_start")).join_asof(
        forwards, on="start_ns", by="flow", check_sortedness=False
    )
    pairs = pairs.drop_nulls("forward").group_by("run").agg(pl.max("forward"))
    begun = forwards["forward"].unique().sort()
    order = pl.DataFrame({"run": begun}).with_row_index("order")
    back = pairs.join(order, left_on="forward", right_on="run", how="left").select("run", "order")
    orders = pl.concat([order.select("run", "order"), back])
    jobs = runs.join(orders.with_columns(pl.col("order").cast(pl.Int32)), on="run", how="inner").sort(
        "start_ns"
    )
    ended = ends.filter(~pl.col("is_start"))["run"].n_unique()
    return jobs, ended - back.height


def _works(annotations: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers, each with the kind and the order of the job that it feeds or empties."""
    found = []
    sides: tuple[tuple[str, str, Literal["forward", "backward"], str], ...] = (
        (RECEIVED, "recv", "forward", "start_ns"),
        (SENT, "send", "backward", "end_ns"),
    )
    for pattern, direction, strategy, moment in sides:
        works = annotations.filter(pl.col("name").str.contains(pattern)).select(
            "start_ns", "end_ns", title="name"
        )
        jobs = runs.select("is_backward", "order", moment_ns=moment).sort("moment_ns")
        joined = works.sort("start_ns").join_asof(
            jobs, left_on="start_ns", right_on="moment_ns", strategy=strategy, check_sortedness=False
        )
        kind = (
            pl.when("is_backward")
            .then(pl.lit(f"{direction}_backward"))
            .otherwise(pl.lit(f"{direction}_forward"))
        )
        found.append(joined.drop_nulls("order").select("order", "start_ns", "end_ns", "title", kind=kind))
    return (
        pl.concat(found)
        .select(pl.col(name).cast(kind) for name, kind in WORKS_SCHEMA.items())
        .sort("start_ns")
    )


def _jobs(runs: pl.DataFrame, works: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs between what happens before and behind them: a transfer, or another job."""
    start_ns, end_ns = runs["start_ns"].to_numpy(), runs["end_ns"].to_numpy()
    marks = Operators(operators)
    is_backward = runs["is_backward"].to_numpy()
    loss_ns = np.where(is_backward, NEVER, marks.loss_start(start_ns, end_ns))
    waited_ns = np.sort(np.concatenate([works["end_ns"].to_numpy(), marks.message_end_ns]))
    begin_ns, earliest_ns = _beginnings(marks, waited_ns, start_ns, is_backward)
    issued_ns = np.sort(np.concatenate([works["start_ns"].to_numpy(), marks.send_ns]))
    issue_ns, next_ns = following(issued_ns, end_ns), np.minimum(following(start_ns, end_ns), loss_ns)
    # A transfer is issued at once behind a job; what else comes next may come much later, and bounds little.
    sends = issue_ns < next_ns
    within_ns = end_ns + np.where(sends, MOST_BEFORE_SEND_NS, USUAL_TAIL_NS)
    stop_ns = np.minimum(np.minimum(issue_ns, next_ns), within_ns)
    latest_ns = np.where(sends, issue_ns, np.minimum(next_ns, end_ns + MOST_AROUND_NS))
    edges = find_edges(marks, begin_ns, stop_ns, is_backward=is_backward, sends_behind=sends)
    outer_error_ns = np.maximum(edges.start_ns - earliest_ns, latest_ns - edges.end_ns)
    jobs = runs.select(
        "order",
        kind=pl.when("is_backward").then(pl.lit("backward")).otherwise(pl.lit("forward")),
        start_ns=pl.Series(edges.start_ns),
        end_ns=pl.Series(edges.end_ns),
        edge_error_ns=pl.Series(np.maximum(edges.error_ns, outer_error_ns)),
        mark_start_ns="start_ns",
        mark_end_ns="end_ns",
        lane=pl.lit("compute"),
    )
    return pl.concat([jobs, _losses(runs, edges.end_ns, loss_ns, marks)])


def _beginnings(
    marks: Operators, waited_ns: Times, start_ns: Times, is_backward: Flags
) -> tuple[Times, Times]:
    """Return what to take for the end of what was before jobs whose operators start then, and the earliest it may be.

    A job follows at once on the transfers before it (`waited_ns` are their ends), and a backward on its loss; on
    anything else perhaps not.
    """
    done_ns, before_ns = preceding(waited_ns, start_ns), preceding(marks.work_end_ns, start_ns)
    loss_end_ns = preceding(marks.loss_end_ns, start_ns)
    follows_loss = is_backward & (loss_end_ns >= np.maximum(before_ns, done_ns))
    at_once_ns = np.where(follows_loss, loss_end_ns, done_ns)
    follows = follows_loss | (done_ns > before_ns)
    earliest_ns = np.where(follows, at_once_ns, np.maximum(before_ns, start_ns - MOST_AROUND_NS))
    usual_ns = np.where(follows | is_backward, earliest_ns, start_ns - USUAL_HEAD_NS)
    return np.maximum(usual_ns, earliest_ns), earliest_ns


MOST_AROUND_NS = 200_000
"""What a job does at most before its first and behind its last operator, where nothing else is known."""
USUAL_HEAD_NS, USUAL_TAIL_NS = 100_000, 150_000
"""Where nothing else is known: a forward usually begins half of this before its first operator, and a job usually ends
half of this behind its last one."""
MOST_BEFORE_SEND_NS = 400_000
"""How long behind a job's last operator its send may be issued to tell where the job ended."""


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
    )
    return losses.filter((pl.col("mark_start_ns") < NEVER) & (pl.col("end_ns") < NEVER)).select(SPANS_ORDER)


SPANS_ORDER = ["order", "kind", "start_ns", "end_ns", "edge_error_ns", "mark_start_ns", "mark_end_ns", "lane"]
