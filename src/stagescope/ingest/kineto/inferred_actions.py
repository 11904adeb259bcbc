"""Infer the actions of a rank whose schedule has no annotations (1F1B) from operators, flows and transfers.

Forward operators that record a graph begin a flow (category ``fwdbwd``), and operators of the autograd engine end it.
A run of operators with flow starts is therefore a forward, a run of engine operators with flow ends is a backward, and
the flows match each backward to its forward. Forwards run in the order of their micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.kineto.inferred_edges import place_actions
from stagescope.ingest.kineto.inferred_transfers import Surroundings, find_transfers, without_first_exchange
from stagescope.ingest.kineto.operator_classes import BACKWARD, HANDLINGS, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Mapping

SPANS_SCHEMA = {
    "kind": pl.String, "order": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "edge_error_ns": pl.Int64,
    "mark_start_ns": pl.Int64, "mark_end_ns": pl.Int64, "lane": pl.String, "holds_loss": pl.Boolean,
}  # fmt: skip
WORKS_SCHEMA = {
    "kind": pl.String,
    "order": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "title": pl.String,
}


NO_ACTION = 2


class Inferred(NamedTuple):
    """Inferred actions and transfers; `order` is the number of the action's forward in this trace.

    `unmatched` counts backwards without a forward or, in inferred_from_transfers.py, transfers that match no step.
    `left_out` counts transfers that belong to no action, such as those of an evaluation.
    """

    actions: pl.DataFrame
    transfers: pl.DataFrame
    unmatched: int
    left_out: int = 0


def infer_spans(tables: Mapping[str, pl.DataFrame]) -> Inferred:
    """Return the actions inferred from the operators of one rank; nothing if the trace has no fwdbwd flows."""
    nothing = Inferred(pl.DataFrame(schema=SPANS_SCHEMA), pl.DataFrame(schema=WORKS_SCHEMA), 0)
    flows = tables["flows"]
    if flows.is_empty() or tables["operators"].is_empty():
        return nothing
    runs = _runs(tables["operators"], tables["annotations"])
    actions, unmatched = _with_orders(runs, flows)
    around = Surroundings.of(tables, runs)
    actions = without_first_exchange(actions, around)
    if actions.is_empty():
        return nothing
    works, left_out = find_transfers(tables["annotations"], actions, around)
    works = works.select(pl.col(name).cast(kind) for name, kind in WORKS_SCHEMA.items())
    spans = place_actions(actions, works, tables["operators"]).select(SPANS_SCHEMA.keys())
    return Inferred(spans, works, unmatched, left_out)


def _runs(operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return runs of operators of one sort without a transfer between them: is_backward, start_ns, end_ns, run.

    Rows are in time order. A nested operator has the sort of its parent, so only outermost operators count. Operators
    of an optimizer separate runs like transfers do: the first stage goes from them to the next forward without one.
    """
    ordered = operators.filter(~pl.col("what").is_in(HANDLINGS)).sort(
        "start_ns", "end_ns", descending=[False, True]
    )
    # Sorted by start with the longer one first, a nested operator starts before the maximum end so far.
    before_ns = pl.col("end_ns").cum_max().shift(1).over("thread").fill_null(-(2**62))
    outer = ordered.filter(pl.col("start_ns") >= before_ns)
    optimizers = annotations.filter(pl.col("name").str.starts_with("Optimizer.")).select(
        optimizer_ns="start_ns", optimizer_end_ns="end_ns"
    )
    outer = outer.join_asof(
        optimizers.sort("optimizer_ns"), left_on="start_ns", right_on="optimizer_ns", check_sortedness=False
    )
    is_action = pl.col("start_ns") > pl.col("optimizer_end_ns").fill_null(-1)
    sort = pl.when(pl.col("what").is_in([SEND, RECEIVE]) | ~is_action).then(NO_ACTION)
    outer = outer.with_columns(sort=sort.otherwise((pl.col("what") == BACKWARD).cast(pl.Int32)))
    changed = (pl.col("sort") != pl.col("sort").shift(1)).fill_null(value=True)
    grouped = outer.with_columns(run=changed.cum_sum()).group_by("run", maintain_order=True)
    runs = grouped.agg(pl.first("sort"), pl.min("start_ns"), pl.max("end_ns"))
    return runs.filter(pl.col("sort") != NO_ACTION).with_columns(is_backward=pl.col("sort") == 1)


def _with_orders(runs: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the runs that are actions, with `order` and `graph_ns`; and the number of backwards without a forward.

    `graph_ns` is the start of the first operator that records a graph; null for a backward.
    """
    ends = flows.sort("start_ns").join_asof(
        runs.select("run", "is_backward", run_start_ns="start_ns", run_end_ns="end_ns").sort("run_start_ns"),
        left_on="start_ns", right_on="run_start_ns", check_sortedness=False,
    )  # fmt: skip
    # Only flows that start in a forward run and end in a backward run match a backward to its forward.
    ends = ends.filter(
        (pl.col("start_ns") <= pl.col("run_end_ns")) & (pl.col("is_start") != pl.col("is_backward"))
    )
    forwards = ends.filter("is_start").select("flow", "start_ns", forward="run")
    # Flow ids are reused; the last forward before the backward is the right one.
    pairs = ends.filter(~pl.col("is_start")).join_asof(
        forwards, on="start_ns", by="flow", check_sortedness=False
    )
    pairs = pairs.drop_nulls("forward").group_by("run").agg(pl.max("forward"))
    begun = forwards["forward"].unique().sort()
    order = pl.DataFrame({"run": begun}).with_row_index("order")
    back = pairs.join(order, left_on="forward", right_on="run", how="left").select("run", "order")
    orders = pl.concat([order.select("run", "order"), back])
    graphs = forwards.group_by(run="forward").agg(graph_ns=pl.min("start_ns"))
    actions = runs.join(orders.with_columns(pl.col("order").cast(pl.Int32)), on="run", how="inner")
    actions = actions.join(graphs, on="run", how="left").sort("start_ns")
    ended = ends.filter(~pl.col("is_start"))["run"].n_unique()
    return actions, ended - back.height
