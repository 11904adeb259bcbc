"""Match transfers to actions that have no annotation.

A send belongs to the action before it, a receive to the action after it (torch 2.13.0, schedules.py,
`Schedule1F1B._step_microbatches`), provided that neither a step boundary nor other work with transfers, such as the
forwards of an evaluation, is between them. In the first step of a run the stages exchange the shapes of what they will
send: they run one extra forward and backward, whose results are sent as objects (stage.py, `_shape_inference`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.kineto.annotated import RECEIVED, SENT
from stagescope.ingest.kineto.operator_classes import PACKING, RECEIVE, SEND, SPLITTING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Times = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


class Surroundings(NamedTuple):
    """Other events on a rank, as sorted times.

    `run_start_ns` and `run_end_ns` cover all runs of operators, including those that are not actions. `call_ns` has
    the calls of sends and receives, with `is_send` per call; `message_ns` also has their annotations. `boundary_ns`
    has the step boundaries: the splitting of a batch, and the optimizer. `packing_ns` has the packing of tensors from
    bytes, which happens when an object is sent.
    """

    run_start_ns: Times
    run_end_ns: Times
    message_ns: Times
    call_ns: Times
    is_send: Flags
    boundary_ns: Times
    packing_ns: Times

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], runs: pl.DataFrame) -> Surroundings:
        """Return the surroundings from the tables of one trace and its runs of operators."""
        operators, annotations = tables["operators"], tables["annotations"]
        calls = operators.filter(pl.col("what").is_in([SEND, RECEIVE])).sort("start_ns")
        splits, packings = (
            operators.filter(pl.col("what") == sort)["start_ns"] for sort in (SPLITTING, PACKING)
        )
        works = annotations.filter(pl.col("name").str.contains(f"{RECEIVED}|{SENT}"))["start_ns"]
        optimizers = annotations.filter(pl.col("name").str.starts_with("Optimizer."))["start_ns"]
        ordered = runs.sort("start_ns")
        return cls(
            ordered["start_ns"].to_numpy(),
            ordered["end_ns"].to_numpy(),
            pl.concat([calls["start_ns"], works]).sort().to_numpy(),
            calls["start_ns"].to_numpy(),
            (calls["what"] == SEND).to_numpy(),
            pl.concat([splits, optimizers]).sort().to_numpy(),
            packings.sort().to_numpy(),
        )


def find_transfers(
    annotations: pl.DataFrame, actions: pl.DataFrame, around: Surroundings
) -> tuple[pl.DataFrame, int]:
    """Return the transfers with kind and order of the action they belong to, and the number of transfers without one.

    Columns: kind, order, start_ns, end_ns, title. A stage sends or receives for all actions of a kind or for none, so
    if fewer than half of the actions have a transfer of some kind, those transfers belong to no action.
    """
    found = []
    for verb, pattern, find_action in (("recv", RECEIVED, _action_after), ("send", SENT, _action_before)):
        works = annotations.filter(pl.col("name").str.contains(pattern))
        row, is_own = find_action(works["start_ns"].to_numpy(), actions, around)
        action = actions.select("order", "is_backward")[row]
        direction = pl.when(action["is_backward"]).then(pl.lit("_backward")).otherwise(pl.lit("_forward"))
        order = pl.when(pl.Series(is_own)).then(action["order"])
        found.append(works.select("start_ns", "end_ns", title="name", kind=verb + direction, order=order))
    every = pl.concat(found)
    own = every.drop_nulls("order")
    actions_of_kind = pl.when(pl.col("kind").str.ends_with("backward")).then(actions["is_backward"].sum())
    # Half instead of all: at the beginning and end of a trace, single transfers may be missing.
    is_usual = 2 * pl.col("order").n_unique() >= actions_of_kind.otherwise((~actions["is_backward"]).sum())
    kept = own.filter(is_usual.over("kind")).sort("start_ns")
    return kept, every.height - kept.height


Adjacent = tuple["npt.NDArray[np.intp]", "Flags"]
"""For each transfer the row of the adjacent action, and whether the transfer belongs to it."""


def _action_before(sent_ns: Times, actions: pl.DataFrame, around: Surroundings) -> Adjacent:
    ends_ns = actions["end_ns"].to_numpy()
    row = np.searchsorted(ends_ns, sent_ns, side="right") - 1
    action_end_ns = ends_ns[row]
    work_ns = around.run_start_ns[np.searchsorted(around.run_start_ns, sent_ns) - 1]
    foreign = _any_between(around.message_ns, action_end_ns, np.maximum(work_ns, action_end_ns))
    parted = _any_between(around.boundary_ns, action_end_ns, sent_ns)
    return np.maximum(row, 0), (row >= 0) & ~foreign & ~parted


def _action_after(received_ns: Times, actions: pl.DataFrame, around: Surroundings) -> Adjacent:
    starts_ns, work_end_ns = actions["start_ns"].to_numpy(), around.run_end_ns
    row = np.searchsorted(starts_ns, received_ns)
    is_there, row = row < len(starts_ns), np.minimum(row, len(starts_ns) - 1)
    action_ns = starts_ns[row]
    work = np.minimum(np.searchsorted(around.run_start_ns, received_ns), len(work_end_ns) - 1)
    foreign = _any_between(around.message_ns, np.minimum(work_end_ns[work], action_ns), action_ns)
    parted = _any_between(around.boundary_ns, received_ns, action_ns)
    return row, is_there & ~foreign & ~parted


def _any_between(moments: Times, since_ns: Times, until_ns: Times) -> Flags:
    """Return for each interval whether it contains one of the sorted moments (its end is excluded)."""
    return np.searchsorted(moments, until_ns) > np.searchsorted(moments, since_ns)


def without_first_exchange(actions: pl.DataFrame, around: Surroundings) -> pl.DataFrame:
    """Return the actions without the initial shape exchange: its results are sent as objects.

    An object is packed into bytes and sent in two messages, its length first.
    """
    if actions.is_empty():
        return actions
    end_ns = actions["end_ns"].to_numpy()
    # A forward's result may be packed while its last operators still run, but not before it records a graph.
    inside_ns = np.where(
        actions["is_backward"].to_numpy(), end_ns, actions["graph_ns"].fill_null(NEVER).to_numpy()
    )
    first = np.searchsorted(around.call_ns, end_ns)
    calls_ns, sends = np.append(around.call_ns, [NEVER, NEVER]), np.append(around.is_send, [False, False])
    packed_ns = np.append(around.packing_ns, NEVER)[np.searchsorted(around.packing_ns, inside_ns)]
    is_exchange = (packed_ns < calls_ns[first]) & sends[first] & sends[first + 1]
    # A forward and its backward share `order`, so the pair is removed even if only one of them was recognized.
    orders = actions.filter(pl.Series(is_exchange))["order"]
    return actions.filter(~pl.col("order").is_in(orders.implode()))
