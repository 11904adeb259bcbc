"""The chain of actions and transfers that made each step as long as it was, and how much every other action could wait.

An action starts when the one before it on its rank has ended and its inputs are there; whichever came last bound
it (analysis/graph/binding_constraints.py). Followed back from the last end of the pipeline's step, the binding ones
are the critical path: a chain without a break from the first start to the last end, whose parts add up to the step's
length exactly. Of two that came at once, the one of the same rank is followed. Where a chain begins later than the
step, nothing that was recorded says why, and the time before it is a part of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.latest_inputs import NO_ACTION
from stagescope.analysis.idle.window_intervals import find_busy_in_windows, find_idle_in_windows
from stagescope.model.tables import Column, KindType, Table

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.binding_constraints import BindingConstraints
    from stagescope.analysis.graph.latest_inputs import LatestInputs

PARTS = ("compute", "other_work", "transfer", "launch", "transfer_or_launch", "unknown")
COMPUTE, OTHER_WORK, TRANSFER, LAUNCH, TRANSFER_OR_LAUNCH, NOT_KNOWN = range(len(PARTS))
PartType = pl.Enum(list(PARTS))
PART_NAMES = pl.Series(PARTS, dtype=PartType)

CRITICAL_PATH = Table(
    "critical_path",
    "one part of a critical path; the parts of one pipeline and step follow each other without a break",
    ("pipeline", "step", "place"),
    (
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("place", pl.UInt32, "", "Place of the part in the path, from 0."),
        Column(
            "part",
            PartType,
            "",
            "compute: the action itself; before it, transfer: its input was on its way, launch: all was there, "
            "transfer_or_launch: the arrival was not recorded, other_work: the rank computed something else, "
            "not_known: an input was not recorded.",
        ),
        Column("rank", pl.Int32, "", "Rank of the action; of a transfer, the receiver."),
        Column("from_rank", pl.Int32, "", "Sender of a transfer.", nullable=True),
        Column("action", pl.UInt32, "", "The action, or the one that starts after this part."),
        Column("row", pl.UInt32, "", "Row of it in the timeline's spans."),
        Column("kind", KindType, "", "Kind of it."),
        Column("stage", pl.Int32, "", "Global stage of it."),
        Column("microbatch", pl.Int32, "", "Micro-batch of it."),
        Column("start_ns", pl.Int64, "ns", "Start of the part."),
        Column("end_ns", pl.Int64, "ns", "End of the part."),
    ),
)


def find_critical_path(
    actions: Actions, binding_constraints: BindingConstraints, inputs: LatestInputs, busy: pl.DataFrame
) -> pl.DataFrame:
    """Return the table CRITICAL_PATH, one path per pipeline and step.

    `binding_constraints` is what find_binding_constraints, `inputs` what find_latest_inputs, `busy` what unite
    returns for all spans on the compute lane. The parts reach from the first start to the last end of the pipeline's
    actions in the step.
    """
    if actions.table.is_empty():
        return CRITICAL_PATH.empty()
    parts = _parts_of(_walk(actions.table, binding_constraints), actions.table, inputs, busy)
    return _table(parts, actions.table)


def _walk(table: pl.DataFrame, binding_constraints: BindingConstraints) -> pl.DataFrame:
    """Return the actions of all paths, walked back from the last ends of all pipelines and steps at once.

    Columns: back (how many come after it), action, wait_start_ns (when what bound it had ended), start_ns, end_ns. Each
    wait starts where the action before it ends; the first one's where the step starts.
    """
    order = binding_constraints.plan.order
    count = len(order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    last = table.group_by("pipeline", "step", maintain_order=True).agg(
        pl.col("action").get(pl.col("end_ns").arg_max()), pl.min("start_ns"), pl.max("end_ns")
    )
    at, until_ns = place[last["action"].to_numpy()], last["end_ns"].to_numpy()
    begin_ns = last["start_ns"].to_numpy()
    walked: list[pl.DataFrame] = []
    while len(at):
        end_ns = np.minimum(binding_constraints.end_ns[at], until_ns)
        start_ns = np.minimum(binding_constraints.start_ns[at], until_ns)
        bound = binding_constraints.bound[at]
        follows = bound < count
        wait_start_ns = np.where(follows, np.minimum(binding_constraints.end_ns[bound], start_ns), begin_ns)
        here = {"action": order[at].astype(np.int64), "wait_start_ns": wait_start_ns, "start_ns": start_ns}
        walked.append(pl.DataFrame({"back": np.full(len(at), len(walked)), **here, "end_ns": end_ns}))
        at, until_ns, begin_ns = bound[follows], start_ns[follows], begin_ns[follows]
    return pl.concat(walked)


def _parts_of(
    walked: pl.DataFrame, table: pl.DataFrame, inputs: LatestInputs, busy: pl.DataFrame
) -> pl.DataFrame:
    """Return the parts of all paths: back, action, from_op (of transfers), part, start_ns, end_ns."""
    action = walked["action"].to_numpy()
    wait_start_ns, start_ns = (walked[name].to_numpy() for name in ("wait_start_ns", "start_ns"))
    there_ns = np.clip(inputs.there_ns[action], wait_start_ns, start_ns)
    rest = np.where(inputs.is_timed[action], LAUNCH, TRANSFER_OR_LAUNCH)
    rest[inputs.is_lost[action]] = NOT_KNOWN
    told = walked.with_columns(there_ns=there_ns, rest=rest, producer=inputs.producer[action])
    nobody = pl.lit(NO_ACTION, pl.Int64)
    computes = _parts(told, "start_ns", "end_ns", pl.lit(COMPUTE), nobody)
    transfers = _parts(told, "wait_start_ns", "there_ns", pl.lit(TRANSFER), pl.col("producer"))
    rests = _parts(told, "there_ns", "start_ns", pl.col("rest"), nobody)
    waits = pl.concat([transfers, *_split_rests(rests, table, busy)])
    return pl.concat([computes, waits.filter(pl.col("end_ns") > pl.col("start_ns"))])


def _parts(told: pl.DataFrame, start_ns: str, end_ns: str, part: pl.Expr, from_op: pl.Expr) -> pl.DataFrame:
    return told.select(
        "back",
        "action",
        from_op=from_op,
        part=part.cast(pl.UInt8),
        start_ns=pl.col(start_ns),
        end_ns=pl.col(end_ns),
    )


def _split_rests(rests: pl.DataFrame, table: pl.DataFrame, busy: pl.DataFrame) -> list[pl.DataFrame]:
    """Return what is left of waits, cut into where the rank was idle and where it computed something else."""
    windows = rests.select(window_start_ns="start_ns", window_end_ns="end_ns").with_columns(
        rank=table["rank"].gather(rests["action"])
    )
    idle, other = find_idle_in_windows(windows, busy), find_busy_in_windows(windows, busy)
    split = [
        rests[cut.window].with_columns(start_ns=pl.Series(cut.start_ns), end_ns=pl.Series(cut.end_ns))
        for cut in (idle, other)
    ]
    return [split[0], split[1].with_columns(part=pl.lit(OTHER_WORK, pl.UInt8))]


def _table(parts: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return parts as the declared table."""
    of_op = table.select("pipeline", "step", "rank", "row", "kind", "stage", "microbatch")[parts["action"]]
    # The action itself comes after its waits, even where it has no length.
    is_wait = pl.col("part") != COMPUTE
    in_order = (
        pl.concat([parts, of_op], how="horizontal")
        .sort("pipeline", "step", "back", ~is_wait, "start_ns", descending=[False, False, True, False, False])
        .with_columns(place=pl.int_range(pl.len(), dtype=pl.UInt32).over("pipeline", "step"))
    )
    sender = pl.when(pl.col("from_op") != NO_ACTION).then("from_op")
    senders = table["rank"].gather(in_order.select(sender.cast(pl.UInt32)).to_series())
    return in_order.with_columns(
        part=PART_NAMES.gather(in_order["part"]), from_rank=senders, action=pl.col("action").cast(pl.UInt32)
    ).select(CRITICAL_PATH.names)
