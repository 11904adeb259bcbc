"""How much of the communication was hidden behind computing, per step and rank.

A message is under way from the moment at which its sender issued it (the end of the action that made it, where the
send was not recorded) to the moment at which its receiver knew that it was there. It counts for the receiver: while
it is under way and the receiver computes, it is hidden; while the receiver computes nothing, it is exposed. What a
receive waits before its sender has anything to send is no communication and in neither figure. A reduction of
gradients is under way as long as its span: that includes waiting for the slowest replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

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
            "Messages that the rank's actions of this step needed from other ranks.",
        ),
        Column(
            "timed_messages",
            pl.UInt32,
            "",
            "Those of which the arrival was recorded; the rest counts nowhere.",
        ),
        Column("transfer_ns", pl.Int64, "ns", "Time in the window with a message under way (union)."),
        Column("transfer_hidden_ns", pl.Int64, "ns", "The part in which the rank computed."),
        Column("transfer_exposed_ns", pl.Int64, "ns", "The rest."),
        Column(
            "transfer_hidden_fraction",
            pl.Float64,
            "",
            "transfer_hidden_ns / transfer_ns; null without messages.",
            nullable=True,
        ),
        Column(
            "receive_wait_ns", pl.Int64, "ns", "Time in the window in which the host was blocked on receives."
        ),
        Column("send_wait_ns", pl.Int64, "ns", "Time in the window in which the host was blocked on sends."),
        Column(
            "reduce_ns", pl.Int64, "ns", "Time in gradient reductions, until the next step's window begins."
        ),
        Column("reduce_hidden_ns", pl.Int64, "ns", "The part in which the rank computed."),
        Column("reduce_exposed_ns", pl.Int64, "ns", "The rest."),
        Column(
            "reduce_hidden_fraction",
            pl.Float64,
            "",
            "reduce_hidden_ns / reduce_ns; null without reductions.",
            nullable=True,
        ),
    ),
)


def measure_overlap(
    spans: pl.DataFrame, bubbles: pl.DataFrame, busy: pl.DataFrame, actions: Actions
) -> pl.DataFrame:
    """Return the table OVERLAP: one row per step and rank of `bubbles`, what step_bubbles returns.

    `busy` is what unite returns for all spans on the compute lane, `actions` what find_actions returns. Like
    busy time, communication counts by its time, whatever step it names.
    """
    messages = _messages(actions)
    timed = messages.filter(pl.col("end_ns").is_not_null())
    reductions = spans.filter(pl.col("kind") == "grad_reduce")
    windows = bubbles.select("rank", "window_start_ns", "window_end_ns")
    until_next = windows.with_columns(_start_of_next_window())
    counts = messages.group_by("step", "rank").agg(
        pl.len().alias("messages"), pl.col("end_ns").count().alias("timed_messages")
    )
    return (
        bubbles.with_columns(
            **_figures("transfer", windows, timed, busy), **_figures("reduce", until_next, reductions, busy)
        )
        .join(counts, on=["step", "rank"], how="left", maintain_order="left")
        .with_columns(pl.col("messages", "timed_messages").fill_null(0))
        .with_columns(_hidden_fraction("transfer"), _hidden_fraction("reduce"))
        .select(OVERLAP.names)
        .cast({"messages": pl.UInt32, "timed_messages": pl.UInt32})
        .sort(OVERLAP.order)
    )


def _messages(actions: Actions) -> pl.DataFrame:
    """Return step and rank of every receiver with start_ns and end_ns of its message, the end null if unknown."""
    table, needs = actions.table, actions.needs.filter("is_remote")
    receiver = table.select("step", "rank")[needs["action"]]
    made_ns = table["end_ns"].gather(needs["needs"])
    return receiver.with_columns(start_ns=needs["sent_ns"].fill_null(made_ns), end_ns=needs["arrived_ns"])


def _start_of_next_window() -> pl.Expr:
    """Return where the rank's next window begins, in `window_end_ns`; the end of time for its last one."""
    following_ns = pl.col("window_start_ns").sort().shift(-1, fill_value=2**62)
    order = pl.col("window_start_ns").rank("ordinal") - 1
    next_ns = following_ns.gather(order).over("rank")
    return pl.max_horizontal("window_end_ns", next_ns).alias("window_end_ns")


def _figures(
    name: str, windows: pl.DataFrame, communication: pl.DataFrame, busy: pl.DataFrame
) -> dict[str, pl.Series]:
    """Return how long the communication of each window lasted, hidden, exposed and altogether."""
    under_way = unite(communication)
    whole_ns = covered_ns(windows, under_way)
    if under_way.is_empty():
        hidden_ns = whole_ns
    else:
        names = ("rank", "start_ns", "end_ns")
        either_ns = covered_ns(windows, unite(pl.concat([under_way.select(names), busy.select(names)])))
        hidden_ns = whole_ns + covered_ns(windows, busy) - either_ns
    return {
        f"{name}_ns": whole_ns,
        f"{name}_hidden_ns": hidden_ns,
        f"{name}_exposed_ns": whole_ns - hidden_ns,
    }


def _hidden_fraction(name: str) -> pl.Expr:
    whole_ns = pl.col(f"{name}_ns")
    fraction = pl.col(f"{name}_hidden_ns") / whole_ns
    return pl.when(whole_ns > 0).then(fraction).alias(f"{name}_hidden_fraction")
