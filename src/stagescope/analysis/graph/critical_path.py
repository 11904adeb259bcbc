"""The critical path: the chain of actions and transfers that made each step as long as it was.

Every action was bound by the previous action of its rank or by one of its inputs (binding_constraints.py). Followed
back from the last end of the pipeline's step, the binding ones form the critical path: an unbroken chain from the first
start to the last end, whose parts sum to the length of the step exactly. Of two constraints at the same time the one on
the same rank is followed. If the chain begins later than the step, no recorded cause explains the time before it, and
that time is a part of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.latest_inputs import NO_ACTION
from stagescope.analysis.idle.window_intervals import find_busy_in_windows, find_idle_in_windows
from stagescope.model.tables import Column, KindType, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.binding_constraints import BindingConstraints
    from stagescope.analysis.graph.blocking_sends import BlockingSends
    from stagescope.analysis.graph.latest_inputs import LatestInputs

    Integers = NDArray[np.int64]

PARTS = ("compute", "other_work", "transfer", "launch", "transfer_or_launch", "unknown", "send", "reduction")
COMPUTE, OTHER_WORK, TRANSFER, LAUNCH, TRANSFER_OR_LAUNCH, UNKNOWN, SEND, REDUCTION = range(len(PARTS))
PartType = pl.Enum(list(PARTS))
PART_NAMES = pl.Series(PARTS, dtype=PartType)
WALKED = ("back", "event", "action", "wait_start_ns", "start_ns", "end_ns")

CRITICAL_PATH = Table(
    "critical_path",
    "one part of a critical path; the parts of one pipeline and step are contiguous",
    ("pipeline", "step", "place"),
    (
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("place", pl.UInt32, "", "Index of the part in the path, from 0."),
        Column(
            "part",
            PartType,
            "",
            "compute: the action itself; before it transfer: its input was in transit, launch: all inputs had arrived, "
            "transfer_or_launch: the arrival was not recorded, other_work: the rank computed something else, "
            "unknown: an input was not recorded, send: the rank was blocked in a send, reduction: gradients were "
            "reduced, by the rank itself or, with from_rank, before its input was sent.",
        ),
        Column("rank", pl.Int32, "", "Rank of the action; of a transfer, the receiver."),
        Column(
            "from_rank", pl.Int32, "", "Sender of a transfer, or of what a reduction held.", nullable=True
        ),
        Column(
            "action",
            pl.UInt32,
            "",
            "The action, or the one that starts after this part; null: the run was analyzed in ranges of steps.",
            nullable=True,
        ),
        Column(
            "row",
            pl.UInt32,
            "",
            "Its row in the spans of the run; null: the run was analyzed in ranges of steps.",
            nullable=True,
        ),
        Column("kind", KindType, "", "Its kind."),
        Column("stage", pl.Int32, "", "Its global stage."),
        Column("microbatch", pl.Int32, "", "Its micro-batch."),
        Column("start_ns", pl.Int64, "ns", "Start of the part."),
        Column("end_ns", pl.Int64, "ns", "End of the part."),
    ),
)


def find_critical_path(
    actions: Actions, binding_constraints: BindingConstraints, inputs: LatestInputs, busy: pl.DataFrame
) -> pl.DataFrame:
    """Return the table CRITICAL_PATH, one path per pipeline and step.

    `binding_constraints` is from find_binding_constraints, `inputs` from find_latest_inputs, `busy` the union of all
    spans on the compute lane. The parts cover the time from the first start to the last end of the pipeline's actions
    in the step.
    """
    if actions.table.is_empty():
        return CRITICAL_PATH.empty()
    walked, sends = _walk(actions.table, binding_constraints), binding_constraints.plan.sends
    parts = _parts_of(walked, actions, inputs, busy, sends)
    return _table(parts, actions.table)


def _walk(table: pl.DataFrame, binding_constraints: BindingConstraints) -> pl.DataFrame:
    """Return the events of all paths, walking back from the last end of every pipeline and step at once.

    Columns: back (how many events follow), event, action (the event, or the action that follows a send), wait_start_ns
    (when its binding constraint was met), start_ns, end_ns. Each wait starts where the previous event ends; the first
    one starts with the step.
    """
    plan = binding_constraints.plan
    order, count = plan.order, len(plan.order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    last = table.group_by("pipeline", "step", maintain_order=True).agg(
        pl.col("action").get(pl.col("end_ns").arg_max()), pl.min("start_ns"), pl.max("end_ns")
    )
    at, until_ns = place[last["action"].to_numpy()], last["end_ns"].to_numpy()
    action, begin_ns = order[at].astype(np.int64), last["start_ns"].to_numpy()
    walked: list[tuple[Integers, ...]] = []
    # One iteration per event on the longest path, for all pipelines and steps together.
    while len(at):
        event = order[at].astype(np.int64)
        action = np.where(event < plan.actions, event, action)
        end_ns = np.minimum(binding_constraints.end_ns[at], until_ns)
        start_ns = np.minimum(binding_constraints.start_ns[at], until_ns)
        bound = binding_constraints.bound[at]
        follows = bound < count
        met_ns = binding_constraints.end_ns[bound]
        by_start = binding_constraints.bound_by_start[at]
        met_ns[by_start] = binding_constraints.start_ns[bound[by_start]]
        wait_start_ns = np.where(follows, np.minimum(met_ns, start_ns), begin_ns)
        walked.append((np.full(len(at), len(walked)), event, action, wait_start_ns, start_ns, end_ns))
        # What only had to start is not executed on the path.
        until_ns = np.where(by_start, wait_start_ns, start_ns)[follows]
        at, action, begin_ns = bound[follows], action[follows], begin_ns[follows]
    return pl.DataFrame(dict(zip(WALKED, map(np.concatenate, zip(*walked, strict=True)), strict=True)))


def _parts_of(
    walked: pl.DataFrame, actions: Actions, inputs: LatestInputs, busy: pl.DataFrame, sends: BlockingSends
) -> pl.DataFrame:
    """Return the parts of all paths: back, action, from_action (of transfers), part, start_ns, end_ns."""
    table, reductions = actions.table, actions.reductions
    is_send = pl.col("event") >= table.height
    sent = _parts_of_sends(walked.filter(is_send), table, sends)
    walked = walked.filter(~is_send)
    action = walked["action"].to_numpy()
    wait_start_ns, start_ns = (walked[name].to_numpy() for name in ("wait_start_ns", "start_ns"))
    there_ns = np.clip(inputs.there_ns[action], wait_start_ns, start_ns)
    rest = np.where(inputs.is_timed[action], LAUNCH, TRANSFER_OR_LAUNCH)
    rest[inputs.is_lost[action]] = UNKNOWN
    sent_ns = np.clip(inputs.sent_ns[action], wait_start_ns, there_ns)
    held = inputs.held.total_ns[action] > 0
    sent_ns = np.where(held, sent_ns, wait_start_ns)
    # While its rank waits for a reduction, it cannot receive: an arrival that is noticed later was no longer travel.
    reduced_ns = reductions.last_end_ns(table["rank"].gather(walked["action"]), sent_ns, start_ns)
    there_ns = np.maximum(there_ns, reduced_ns)
    waits_of = walked.with_columns(
        there_ns=there_ns,
        sent_ns=sent_ns,
        reduced_ns=reduced_ns,
        rest=rest,
        producer=inputs.producer[action],
    )
    no_sender = pl.lit(NO_ACTION, pl.Int64)
    computes = _parts(waits_of, "start_ns", "end_ns", pl.lit(COMPUTE), no_sender)
    # An action without a length is on the path, but not one that only had to start.
    lasts = (table["end_ns"] > table["start_ns"]).gather(computes["action"])
    computes = computes.filter((pl.col("end_ns") > pl.col("start_ns")) | ~lasts)
    held_up = _parts(waits_of, "wait_start_ns", "sent_ns", pl.lit(REDUCTION), pl.col("producer"))
    own = _parts(waits_of, "sent_ns", "reduced_ns", pl.lit(REDUCTION), no_sender)
    transfers = _parts(waits_of, "reduced_ns", "there_ns", pl.lit(TRANSFER), pl.col("producer"))
    rests = _parts(waits_of, "there_ns", "start_ns", pl.col("rest"), no_sender)
    waits = pl.concat([held_up, own, transfers, *_split_rests(rests, table, busy), sent])
    return pl.concat([computes, waits.filter(pl.col("end_ns") > pl.col("start_ns"))])


def _parts_of_sends(walked: pl.DataFrame, table: pl.DataFrame, sends: BlockingSends) -> pl.DataFrame:
    """Return the parts of sends: for the receiver a transfer, for the sender itself a send."""
    sender = sends.after[(walked["event"] - table.height).to_numpy()]
    is_own = table["rank"].gather(sender) == table["rank"].gather(walked["action"])
    walked = walked.with_columns(sender=pl.Series(sender, dtype=pl.Int64), is_own=is_own)
    part = pl.when("is_own").then(pl.lit(SEND)).otherwise(pl.lit(TRANSFER))
    from_action = pl.when("is_own").then(pl.lit(NO_ACTION, pl.Int64)).otherwise("sender")
    return _parts(walked, "wait_start_ns", "end_ns", part, from_action)


def _parts(
    walked: pl.DataFrame, start_ns: str, end_ns: str, part: pl.Expr, from_action: pl.Expr
) -> pl.DataFrame:
    return walked.select(
        "back",
        "action",
        from_action=from_action,
        part=part.cast(pl.UInt8),
        start_ns=pl.col(start_ns),
        end_ns=pl.col(end_ns),
    )


def _split_rests(rests: pl.DataFrame, table: pl.DataFrame, busy: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the rest of waits, split into times when the rank was idle and when it computed something else."""
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
    facts = table.select("pipeline", "step", "rank", "row", "kind", "stage", "microbatch")[parts["action"]]
    # The action itself comes after its waits, even if it has no length.
    is_wait = pl.col("part") != COMPUTE
    in_order = pl.concat([parts, facts], how="horizontal").sort(
        "pipeline", "step", "back", ~is_wait, "start_ns", descending=[False, False, True, False, False]
    )
    window = in_order.select(pl.struct("pipeline", "step").rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(window.astype(np.int64), prepend=-1))
    in_order = in_order.with_columns(
        place=pl.Series((np.arange(len(window)) - first[window]).astype(np.uint32))
    )
    sender = pl.when(pl.col("from_action") != NO_ACTION).then("from_action")
    senders = table["rank"].gather(in_order.select(sender.cast(pl.UInt32)).to_series())
    return in_order.with_columns(
        part=PART_NAMES.gather(in_order["part"]), from_rank=senders, action=pl.col("action").cast(pl.UInt32)
    ).select(CRITICAL_PATH.names)
