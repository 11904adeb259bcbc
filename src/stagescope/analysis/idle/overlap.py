"""Communication that was hidden behind compute, and exposed, per step and rank.

A message is in transit from when its sender issued it (the end of its action, if the send was not recorded) to when its
receiver knew of its arrival. It counts for the receiver: hidden while the receiver computes, exposed while it does not.
The time that a receive waits before its sender has anything to send is not communication and counts nowhere. A gradient
reduction is in transit for the whole of its span, which includes waiting for the slowest replica. Where no arrival of a
message, no wait, or no reduction was recorded at all, its times are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.bubbles import recorded_waits, unrecorded_waits
from stagescope.model.coverage import covered_ns, unite
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions

OVERLAP = Table(
    "overlap",
    "the communication of one rank in one step",
    ("step", "rank"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the rank's pipeline."),
        Column("rank", pl.Int32, "", "Global rank: the receiver."),
        Column("window_ns", pl.Int64, "ns", "Length of the pipeline's window in this step."),
        Column(
            "messages",
            pl.UInt32,
            "",
            "Messages from other ranks that the actions of this step needed.",
        ),
        Column(
            "timed_messages",
            pl.UInt32,
            "",
            "Messages with a recorded arrival; the others count nowhere.",
        ),
        Column(
            "transfer_ns",
            pl.Int64,
            "ns",
            "Time in the window with a message in transit (union).",
            nullable=True,
        ),
        Column("transfer_hidden_ns", pl.Int64, "ns", "Part of it in which the rank computed.", nullable=True),
        Column("transfer_exposed_ns", pl.Int64, "ns", "The rest.", nullable=True),
        Column(
            "transfer_hidden_fraction",
            pl.Float64,
            "",
            "transfer_hidden_ns / transfer_ns; null without messages.",
            nullable=True,
        ),
        Column(
            "receive_wait_ns",
            pl.Int64,
            "ns",
            "Time in the window in which the host was blocked on receives.",
            nullable=True,
        ),
        Column(
            "send_wait_ns",
            pl.Int64,
            "ns",
            "Time in the window in which the host was blocked on sends.",
            nullable=True,
        ),
        Column(
            "reduce_ns",
            pl.Int64,
            "ns",
            "Time in gradient reductions, until the next step's window begins.",
            nullable=True,
        ),
        Column("reduce_hidden_ns", pl.Int64, "ns", "Part of it in which the rank computed.", nullable=True),
        Column("reduce_exposed_ns", pl.Int64, "ns", "The rest.", nullable=True),
        Column(
            "reduce_hidden_fraction",
            pl.Float64,
            "",
            "reduce_hidden_ns / reduce_ns; null without reductions.",
            nullable=True,
        ),
    ),
)


APART = 8
"""So many steps after each other are looked at apart if they overlap; none of them overlaps the one after the others.
"""


def measure_overlap(
    spans: pl.DataFrame, bubbles: pl.DataFrame, busy: pl.DataFrame, actions: Actions
) -> pl.DataFrame:
    """Return the table OVERLAP: one row per step and rank of `bubbles`, the result of step_bubbles.

    `busy` is the union of all spans on the compute lane, `actions` the result of find_actions. Like busy time,
    reductions count by when they happened, whatever step they are labeled with; messages count in their own step.
    """
    messages = _messages(actions)
    timed = messages.filter(pl.col("end_ns").is_not_null())
    reductions = spans.filter(pl.col("kind") == "grad_reduce")
    windows = bubbles.select("rank", "window_start_ns", "window_end_ns")
    until_next = windows.with_columns(_start_of_next_window())
    counts = messages.group_by("step", "rank").agg(
        pl.len().alias("messages"), pl.col("end_ns").count().alias("timed_messages")
    )
    reduced = bubbles.with_columns(**_communication("reduce", until_next, reductions, busy))
    return (
        _with_transfers(reduced, timed, busy)
        .join(counts, on=["step", "rank"], how="left", maintain_order="left")
        .with_columns(pl.col("messages", "timed_messages").fill_null(0))
        .with_columns(_hidden_fraction("transfer"), _hidden_fraction("reduce"))
        .with_columns(**unrecorded_waits(recorded_waits(spans)))
        .with_columns(_unrecorded(actions, has_reductions=not reductions.is_empty()))
        .select(OVERLAP.names)
        .cast({"messages": pl.UInt32, "timed_messages": pl.UInt32})
        .sort(OVERLAP.order)
    )


def _messages(actions: Actions) -> pl.DataFrame:
    """Return step and rank of every receiver, with start_ns and end_ns of its message; the end is null if unknown."""
    table, needs = actions.table, actions.needs.filter("is_remote")
    receiver = table.select("step", "rank")[needs["action"]]
    made_ns = table["end_ns"].gather(needs["needs"])
    return receiver.with_columns(start_ns=needs["sent_ns"].fill_null(made_ns), end_ns=needs["arrived_ns"])


def _with_transfers(bubbles: pl.DataFrame, messages: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Return windows with the messages of their own step; the next one may begin before a step has ended everywhere."""
    parts = []
    apart = APART if _overlap(bubbles) else 1
    for number in range(apart):
        is_chosen = pl.col("step") % apart == number
        own = bubbles.filter(is_chosen)
        windows = own.select("rank", "window_start_ns", "window_end_ns")
        parts.append(
            own.with_columns(**_communication("transfer", windows, messages.filter(is_chosen), busy))
        )
    return pl.concat(parts)


def _overlap(bubbles: pl.DataFrame) -> bool:
    """Return whether two windows of a rank overlap."""
    windows = bubbles.select("rank", "window_start_ns", "window_end_ns").sort("rank", "window_start_ns")
    begins = (pl.col("rank") == pl.col("rank").shift(1)) & (
        pl.col("window_start_ns") < pl.col("window_end_ns").shift(1)
    )
    return bool(windows.select(begins.any()).item())


def _start_of_next_window() -> pl.Expr:
    """Return the start of the rank's next window as `window_end_ns`; 2**62 for its last window."""
    following_ns = pl.col("window_start_ns").sort().shift(-1, fill_value=2**62)
    order = pl.col("window_start_ns").rank("ordinal") - 1
    next_ns = following_ns.gather(order).over("rank")
    return pl.max_horizontal("window_end_ns", next_ns).alias("window_end_ns")


def _communication(
    name: str, windows: pl.DataFrame, communication: pl.DataFrame, busy: pl.DataFrame
) -> dict[str, pl.Series]:
    """Return the communication of each window in total, hidden and exposed."""
    in_transit = unite(communication)
    whole_ns = covered_ns(windows, in_transit)
    if in_transit.is_empty():
        hidden_ns = whole_ns
    else:
        names = ("rank", "start_ns", "end_ns")
        either_ns = covered_ns(windows, unite(pl.concat([in_transit.select(names), busy.select(names)])))
        # |A and B| = |A| + |B| - |A or B|: unions are cheap, an intersection of intervals is not.
        hidden_ns = whole_ns + covered_ns(windows, busy) - either_ns
    return {
        f"{name}_ns": whole_ns,
        f"{name}_hidden_ns": hidden_ns,
        f"{name}_exposed_ns": whole_ns - hidden_ns,
    }


def _unrecorded(actions: Actions, *, has_reductions: bool) -> list[pl.Expr]:
    """Return null for the times of messages and reductions that were not recorded."""
    known = {"transfer": actions.has_transfers, "reduce": has_reductions}
    times = ("ns", "hidden_ns", "exposed_ns")
    return [
        pl.lit(None, pl.Int64).alias(f"{name}_{time}")
        for name, is_known in known.items()
        if not is_known
        for time in times
    ]


def _hidden_fraction(name: str) -> pl.Expr:
    whole_ns = pl.col(f"{name}_ns")
    fraction = pl.col(f"{name}_hidden_ns") / whole_ns
    return pl.when(whole_ns > 0).then(fraction).alias(f"{name}_hidden_fraction")
