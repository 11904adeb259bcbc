"""Extract the annotated actions and transfers of one rank, without the waits that annotations include.

The annotation ``PP:1F0`` includes the wait for the activations (torch 2.13.0, schedules.py, `_perform_action`), and
``Forward 0`` of GPipe includes both transfers, before and after the compute. The annotations of the process group
separate them: ``gloo:recv`` begins when a receive is issued and ends when the wait for it returns, so the compute of
the action begins after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.annotations.names import ACTION, MIRROR, PLAIN, PLAIN_NAME, meanings, pattern_meanings
from stagescope.ingest.kineto.edges import HALF_OF_START_NS, NEVER, Operators, find_edges, following
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, RECEIVES, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping


RECEIVED, SENT = r"^(gloo|nccl|mpi|ucc|xccl|hccl|comm):recv", r"^(gloo|nccl|mpi|ucc|xccl|hccl|comm):send"
"""Annotations of process groups; NCCL appends the ranks, as in ``nccl:recv 1<-0``; `comm` is of named_works.py."""

FED_BY = {"forward": "recv_forward", "backward": "recv_backward", "backward_input": "recv_backward"}
FEEDS = {"forward": "send_forward", "backward": "send_backward"}
BETWEEN_PAIR_NS = 120_000
"""Upper bound of the time torch spends between the last operator of a pair's forward and the start of its backward."""

MEANING_SCHEMA = {
    "name": pl.String, "style": pl.String, "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32,
    "step": pl.Int32, "place": pl.Int32, "text": pl.String,
}  # fmt: skip


class Annotated(NamedTuple):
    """Annotated actions (edge_error_ns: estimated error of the edges) and transfers; `unsplit` counts unsplit pairs."""

    actions: pl.DataFrame
    transfers: pl.DataFrame
    unsplit: int


def named_marks(annotations: pl.DataFrame, pattern: str | None = None) -> pl.DataFrame:
    """Return one row per meaning of an annotation: the columns of Meaning, mark, thread, start_ns, end_ns.

    If stagescope's mirror, or annotations that match the caller's `pattern`, name actions of a kind, torch's own
    names of that kind are dropped: they describe the same actions less exactly.
    """
    known = meanings_of_names(annotations["name"].unique(maintain_order=True), pattern)
    marks = _without_nested(
        annotations.with_row_index("mark")
        .join(known, on="name", how="inner")
        .sort("start_ns", "mark", "place")
    )
    is_action = pl.col("kind").is_in([*ACTION_KINDS, "optimizer", "loss", "grad_reduce"])
    # Only whole kinds are replaced: the mirror may name fewer kinds than torch does.
    mirrored = marks.filter(pl.col("style") == MIRROR)["kind"].unique()
    kept = marks.filter(~is_action | (pl.col("style") == MIRROR) | ~pl.col("kind").is_in(mirrored.implode()))
    return kept if pattern is None else _with_their_transfers(kept, annotations)


def _with_their_transfers(marks: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Return marks that match the caller's pattern as those with waits, if any transfer is issued in one of them."""
    is_feeding = (pl.col("style") == MIRROR) & pl.col("kind").is_in(list(FEEDS))
    works = annotations.filter(pl.col("name").str.contains(f"{RECEIVED}|{SENT}"))
    inside = (
        works.select("thread", issued_ns="start_ns")
        .sort("issued_ns")
        .join_asof(
            marks.filter(is_feeding).select("thread", "start_ns", "end_ns").sort("start_ns"),
            left_on="issued_ns", right_on="start_ns", by="thread", check_sortedness=False,
        )
        .filter(pl.col("issued_ns") < pl.col("end_ns"))
    )  # fmt: skip
    style = pl.when(is_feeding).then(pl.lit(PLAIN)).otherwise("style")
    return marks.with_columns(style=style) if inside.height else marks


def _without_nested(marks: pl.DataFrame) -> pl.DataFrame:
    """Return the marks without those of hand-written loops if some are inside one another, as those of modules are."""
    is_plain = (pl.col("style") == PLAIN) & pl.col("kind").is_in(ACTION_KINDS)
    by_hand = is_plain & ~pl.col("name").str.contains(f"^{PLAIN_NAME.pattern}$")
    open_until_ns = pl.col("end_ns").cum_max().shift(1).over("thread")
    is_nested = marks.filter(is_plain).select(((pl.col("start_ns") < open_until_ns).any()).alias("is_nested"))
    return marks.filter(~by_hand) if is_nested.item() else marks


def meanings_of_names(names: pl.Series, pattern: str | None = None) -> pl.DataFrame:
    """Return one row per meaning of each name (MEANING_SCHEMA); unrelated names have none."""
    meanings_of = meanings if pattern is None else pattern_meanings(pattern)
    # Each row is the name followed by the fields of Meaning, in the order of MEANING_SCHEMA.
    rows = [(name, *meaning) for name in names for meaning in meanings_of(name)]
    return pl.DataFrame(rows, MEANING_SCHEMA, orient="row")


def annotated_spans(tables: Mapping[str, pl.DataFrame], marks: pl.DataFrame) -> Annotated:
    """Return the actions and transfers of one rank at host times; `marks` is the result of named_marks."""
    operators = Operators(tables["operators"])
    transfers = _transfers(tables["annotations"], marks)
    actions = marks.filter(~pl.col("kind").is_in(TRANSFERS))
    outer = _without_waits(actions, transfers, operators)
    outer, unsplit = _split_pairs(outer, operators)
    edged = _with_edges(outer, operators)
    return Annotated(_with_losses(edged, operators), transfers, unsplit)


def _transfers(annotations: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers: kind, stage, microbatch, step, start_ns (issued) and end_ns (the wait for it returned).

    A send or receive belongs to the annotation in which it is issued: ``PP:1RECV_F0``, or GPipe's ``Forward 0``.
    """
    issued = [
        _issued_in(marks, annotations, pattern, sends=sends)
        for pattern, sends in ((RECEIVED, False), (SENT, True))
    ]
    return pl.concat(issued).sort("start_ns")


def _issued_in(marks: pl.DataFrame, annotations: pl.DataFrame, pattern: str, *, sends: bool) -> pl.DataFrame:
    direction = "send" if sends else "recv"
    works = annotations.filter(pl.col("name").str.contains(pattern)).select(
        "thread", issued_ns="start_ns", done_ns="end_ns", title="name"
    )
    own = marks.filter(pl.col("kind").str.starts_with(direction))
    # GPipe has no annotation per transfer: both are issued inside `Forward 0` and take its kind.
    plain = marks.filter((pl.col("style") == PLAIN) & pl.col("kind").is_in(list(FEEDS))).with_columns(
        kind=direction + "_" + pl.col("kind")
    )
    enclosing = pl.concat([own, plain]).sort("start_ns")
    found = works.sort("issued_ns").join_asof(
        enclosing, left_on="issued_ns", right_on="start_ns", by="thread", check_sortedness=False
    )
    inside = found.filter(pl.col("issued_ns") <= pl.col("end_ns"))
    return inside.select(
        "kind", "stage", "microbatch", "step", "mark", "title", start_ns="issued_ns", end_ns="done_ns",
        # `PP:1SEND_F0` begins with its preparation, before the process group's annotation of the issue.
        issue_start_ns=pl.when(pl.col("style") == ACTION).then("start_ns").otherwise("issued_ns"),
    )  # fmt: skip


def _without_waits(actions: pl.DataFrame, transfers: pl.DataFrame, operators: Operators) -> pl.DataFrame:
    """Return the actions with outer_start_ns and outer_end_ns: after the receive of their input, before their send."""
    fed = pl.col("kind").replace_strict(FED_BY, default=None, return_dtype=pl.String)
    # join_asof never matches null keys, so an unknown stage or micro-batch becomes -1 on both sides.
    known = [pl.col(name).fill_null(-1).alias(f"of_{name}") for name in ("stage", "microbatch")]
    key = ["fed", "of_stage", "of_microbatch"]
    receives = transfers.filter(pl.col("kind").is_in(RECEIVES)).select(
        *known, fed="kind", received_ns="end_ns"
    )
    # An as-of join picks the last receive before the action's end. A plain join on the micro-batch would pair every
    # action with the receives of all steps, which is quadratic in the number of steps.
    joined = (
        actions.with_columns(*known, fed=fed)
        .with_row_index("action")
        .sort("end_ns")
        .join_asof(
            receives.sort("received_ns"),
            left_on="end_ns", right_on="received_ns", by=key, check_sortedness=False,
        )
        .sort("action")
        .with_columns(wait_end_ns=pl.when(pl.col("received_ns") >= pl.col("start_ns")).then("received_ns"))
    )  # fmt: skip
    # Mirror annotations are placed around the compute alone and contain no wait.
    starts = pl.max_horizontal("start_ns", pl.when(pl.col("style") != MIRROR).then("wait_end_ns"))
    joined = joined.with_columns(outer_start_ns=starts, outer_end_ns=pl.col("end_ns"))
    sends_ns = following(operators.send_ns, joined["outer_start_ns"].to_numpy())
    before_send = pl.min_horizontal("end_ns", pl.lit(pl.Series(sends_ns, dtype=pl.Int64)))
    is_plain = (pl.col("style") == PLAIN) & pl.col("kind").is_in(list(FEEDS))
    return joined.with_columns(outer_end_ns=pl.when(is_plain).then(before_send).otherwise("end_ns"))


def _split_pairs(actions: pl.DataFrame, operators: Operators) -> tuple[pl.DataFrame, int]:
    """Return the actions with `pair`, pairs split into forward and backward, and the number of unsplit pairs.

    Unless the user supplies a custom function, torch runs the forward and then the backward of an overlapped pair
    (2.13.0, `_perform_action`), so the first operator of the autograd engine separates them.
    """
    sizes = actions.group_by("mark").agg(size=pl.len())
    actions = actions.join(sizes, on="mark", how="left", maintain_order="left").with_columns(
        pair=pl.when(pl.col("size") > 1).then(pl.col("mark").cast(pl.Int32))
    )
    paired = (actions["size"] > 1).to_numpy()
    if not paired.any():
        return actions.with_columns(is_second=pl.lit(value=False), between_ns=pl.lit(0, pl.Int64)), 0
    mark_start, mark_end, place, wait = (
        actions[name].to_numpy() for name in ("start_ns", "end_ns", "place", "outer_start_ns")
    )
    # The forward of a pair runs no operator of the autograd engine, so the first one begins the backward.
    backward_ns = following(operators.backward_ns, mark_start)
    split = paired & (backward_ns < mark_end)
    forward_end = operators.last_end(mark_start, np.where(split, backward_ns, mark_end))
    # The backward may begin with a wait, while the forward ends soon after its last operator. Without a wait, the
    # backward begins about halfway between its first operator and the forward's last one; see find_edges.
    soon_ns = np.minimum(backward_ns, forward_end + BETWEEN_PAIR_NS)
    outer_end = actions["outer_end_ns"].to_numpy()
    before_half_way = np.maximum(forward_end, (forward_end + backward_ns) // 2 - HALF_OF_START_NS)
    start = np.where(split & (place == 1), np.where(wait > forward_end, wait, before_half_way), wait)
    end = np.where(split & (place == 0), np.maximum(soon_ns, wait), outer_end)
    edged = actions.with_columns(
        outer_start_ns=pl.Series(start),
        outer_end_ns=pl.Series(end),
        is_second=pl.Series(split & (place == 1)),
        between_ns=pl.Series(np.where(split, backward_ns - forward_end, 0)),
    )  # the boundary is uncertain by between_ns
    return edged, int((paired & ~split).sum()) // 2


def _with_edges(actions: pl.DataFrame, operators: Operators) -> pl.DataFrame:
    """Return the actions with start_ns, end_ns and edge_error_ns; a forward with a loss ends before the loss."""
    outer_start, outer_end = (actions[name].to_numpy() for name in ("outer_start_ns", "outer_end_ns"))
    loss_ns = operators.loss_start(outer_start, outer_end)
    is_forward = (actions["kind"] == "forward").to_numpy() & (actions["style"] != MIRROR).to_numpy()
    has_loss = is_forward & (loss_ns < NEVER)
    loss_ns = np.where(has_loss, loss_ns, outer_end)
    edges = find_edges(
        operators,
        outer_start,
        loss_ns,
        is_backward=(actions["kind"] == "backward").to_numpy(),
        ends_at_send=(actions["style"] == PLAIN).to_numpy(),
    )
    exact = (actions["style"] == MIRROR).to_numpy()
    edged = actions.with_columns(
        start_ns=pl.Series(np.where(exact, outer_start, edges.start_ns)),
        end_ns=pl.Series(np.where(exact, outer_end, edges.end_ns)),
        edge_error_ns=pl.Series(np.where(exact, 0, np.maximum(edges.error_ns, actions["between_ns"]))),
        loss_ns=pl.Series(np.where(has_loss, loss_ns, -1)),
    )
    # The second action of a pair is in the row after the first; it must not begin before the first ends.
    after_first = pl.max_horizontal("start_ns", pl.min_horizontal("end_ns", pl.col("end_ns").shift(1)))
    return edged.with_columns(start_ns=pl.when("is_second").then(after_first).otherwise("start_ns"))


def _with_losses(actions: pl.DataFrame, operators: Operators) -> pl.DataFrame:
    """Return the actions as spans, plus the losses, which run in the annotation of a forward or, in GPipe, after it."""
    marks = np.sort(actions["start_ns"].to_numpy())
    forwards = actions.filter((pl.col("kind") == "forward") & (pl.col("style") != MIRROR))
    end_ns = forwards["outer_end_ns"].to_numpy()
    after_ns = operators.loss_end(end_ns, following(marks, end_ns))
    inside = (forwards["loss_ns"] >= 0).to_numpy()
    begins_ns = np.where(inside, forwards["end_ns"].to_numpy(), end_ns)
    losses = forwards.with_columns(
        kind=pl.lit("loss"),
        start_ns=pl.Series(begins_ns),
        end_ns=pl.Series(np.where(inside, end_ns, after_ns)),
        pair=pl.lit(None, pl.Int32),
    ).filter(pl.col("end_ns") < NEVER)
    spans = pl.concat([actions, losses])
    lanes = {kind.name: kind.lane for kind in BY_NAME.values()}
    return spans.select(
        "kind", "stage", "microbatch", "step", "pair", "start_ns", "end_ns", "edge_error_ns", "mark", "thread",
        mark_start_ns="outer_start_ns", mark_end_ns="outer_end_ns",
        lane=pl.col("kind").replace_strict(lanes, return_dtype=pl.String),
        name="text",
    )  # fmt: skip
