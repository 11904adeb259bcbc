"""Messages that the identified actions must have exchanged: sender, receiver, and the times that bound the transfer.

A forward on stage s produces the input of the same micro-batch's forward on stage s + 1; backwards go the other way.
Nothing is sent between two stages of one rank. Where only one of the two actions is known, it still implies the
message, as long as the rank of the neighboring stage is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.parallel import DIMENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTIONS = {"forward": "forward", "backward": "backward", "backward_input": "backward"}
"""Direction of the messages of every kind of action that sends and receives."""

ALONG = [name for name in DIMENSIONS if name != "pp"]
MESSAGE = ["pipeline", "step", "direction", "to_stage", "microbatch"]


def expect_messages(spans: pl.DataFrame, coordinates: pl.DataFrame) -> pl.DataFrame:
    """Return the messages that the identified actions exchanged, in the order in which each pair of ranks sends them.

    Columns: source, target (ranks), step, direction, stage and chunk (of the sender), to_stage and to_chunk,
    microbatch, ready_ns (end of the producing action, on the source's clock), needed_ns (start of the consuming action)
    and free_ns (end of the action before that; needed_ns for the two halves of a pair), both on the target's clock;
    sent_ns is ready_ns, or its estimate; shares_clock is true where both clocks are the same. Times and chunks are null
    where an action is not known. `coordinates` has rank, clock, pp, dp, tp and cp. Of two messages that one overlapped
    pair produces, the forward's is sent first, as in MindSpeed (core/pipeline_parallel/dualpipev: its hook runs first).
    """
    actions = _actions(spans, coordinates)
    stages = _stage_ranks(actions, coordinates)
    last = stages["stage"].max()
    made = actions.select(
        *MESSAGE[:3], "microbatch", "stage", "chunk",
        to_stage=pl.col("stage") + pl.when(pl.col("direction") == "forward").then(1).otherwise(-1),
        ready_ns="end_ns",
    ).filter(pl.col("to_stage").is_between(0, last))  # fmt: skip
    taken = actions.select(
        *MESSAGE[:3], "microbatch", "free_ns", to_stage="stage", to_chunk="chunk", needed_ns="start_ns"
    )
    known = made.join(taken, on=MESSAGE, how="full", coalesce=True, nulls_equal=True)
    every = _all_messages(actions, stages)
    messages = known.join(every, on=MESSAGE, how="full", coalesce=True, nulls_equal=True).with_columns(
        stage=pl.col("to_stage") - pl.when(pl.col("direction") == "forward").then(1).otherwise(-1)
    )
    ranked = (
        messages.filter(pl.col("stage").is_between(0, last))
        .join(stages.rename({"rank": "source"}), on=["pipeline", "stage"], how="inner")
        .join(
            stages.rename({"rank": "target", "stage": "to_stage"}), on=["pipeline", "to_stage"], how="inner"
        )
        .filter(pl.col("source") != pl.col("target"))
    )
    clocks = coordinates.select("rank", "clock")
    clocked = ranked.join(clocks, left_on="source", right_on="rank", how="left").join(
        clocks, left_on="target", right_on="rank", how="left", suffix="_target"
    )
    same = (pl.col("clock") == pl.col("clock_target")).fill_null(value=False)
    return _in_sending_order(clocked.with_columns(shares_clock=same))


def _actions(spans: pl.DataFrame, coordinates: pl.DataFrame) -> pl.DataFrame:
    """Return each action that sends or receives, with the pipeline of its rank and when the rank became free."""
    replicas = coordinates.select("rank", pipeline=pl.struct(pl.col(ALONG).fill_null(0)))
    compute = spans.filter(pl.col("lane") == "compute").sort("rank", "start_ns", "end_ns")
    before_ns = pl.col("end_ns").cum_max().shift(1)
    # A pair starts with the later of its two inputs: the wait of its rank is no evidence on either of them.
    free_ns = pl.when(pl.col("pair").is_null()).then(before_ns).otherwise("start_ns")
    since = compute.with_columns(free_ns=free_ns.over("rank"))
    return (
        since.filter(pl.col("kind").is_in(list(DIRECTIONS)))
        .drop_nulls(["stage", "microbatch"])
        .join(replicas, on="rank", how="inner")
        .with_columns(direction=pl.col("kind").cast(pl.String).replace(DIRECTIONS))
        .unique(["pipeline", "step", "direction", "stage", "microbatch"], keep="none", maintain_order=True)
    )


def _all_messages(actions: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Return one row (MESSAGE) for every message of every step, even where neither of its actions is known.

    Without a row for a message, its transfers would be paired with another message.
    """
    steps = actions.select("pipeline", "step").unique()
    microbatches = pl.DataFrame({"microbatch": range(int(actions["microbatch"].max() or 0) + 1)})  # type: ignore[arg-type]
    directions = pl.DataFrame({"direction": ["forward", "backward"]})
    grid = (
        stages.select("pipeline", to_stage="stage").join(steps, on="pipeline").join(directions, how="cross")
    )
    return (
        grid.join(microbatches, how="cross")
        .select(*MESSAGE)
        .cast({"to_stage": pl.Int32, "microbatch": pl.Int32})
    )


def _stage_ranks(actions: pl.DataFrame, coordinates: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline, stage, rank: the location of every stage, including stages on ranks without a profile.

    The stages of a missing rank follow from the others where these all follow one rule: chunk c of pipeline rank i
    holds stage c P + i, or c P + P - 1 - i in a V-shaped pipeline.
    """
    seen = actions.select("pipeline", "stage", "rank").unique()
    placed = coordinates.drop_nulls("pp").select("rank", "pp", pipeline=pl.struct(pl.col(ALONG).fill_null(0)))
    if placed.is_empty():
        return seen.unique(["pipeline", "stage"], keep="none")
    size = int(placed["pp"].max()) + 1  # type: ignore[arg-type] # no null is left
    chunk = pl.col("stage") // size
    along = actions.join(placed.select("rank", "pp"), on="rank").group_by(chunk=chunk).agg(
        runs_down=(pl.col("stage") - chunk * size == pl.col("pp")).all(),
        runs_up=(pl.col("stage") - chunk * size == size - 1 - pl.col("pp")).all(),
    )  # fmt: skip
    ruled = along.filter(pl.col("runs_down") | pl.col("runs_up")).join(placed, how="cross")
    place = pl.when("runs_down").then("pp").otherwise(size - 1 - pl.col("pp"))
    guessed = ruled.select("pipeline", (pl.col("chunk") * size + place).alias("stage"), "rank")
    return (
        pl.concat([seen, guessed.cast({"stage": pl.Int32, "rank": pl.Int32})])
        .unique()
        .unique(["pipeline", "stage"], keep="none")
    )


def _in_sending_order(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the messages by source, target and time of sending.

    Messages of one kind between two ranks are sent in the order in which they are consumed, which positions those of
    unknown actions, and within a step in the order of their micro-batches, which positions those without any known
    action. Where two ranks exchange several kinds, their common order is unknown: messages without their sender's
    action are then omitted, and the places where they may belong are marked open.
    """
    pair, sort = ["source", "target"], ["source", "target", "direction", "to_stage"]
    lag_ns = (pl.col("needed_ns") - pl.col("ready_ns")).median().over(sort).fill_null(0).cast(pl.Int64)
    is_only_sort = pl.struct("direction", "to_stage").n_unique().over(pair) == 1
    timed = (
        messages.with_columns(taken_ns=pl.coalesce("needed_ns", pl.col("ready_ns") + lag_ns), lag_ns=lag_ns)
        .sort(*sort, "step", "microbatch")
        .with_columns(pl.col("taken_ns").forward_fill().backward_fill().over([*sort, "step"]))
        .sort(*sort, "taken_ns", "microbatch")
        .with_columns(
            sent_ns=pl.coalesce(
                pl.col("ready_ns").forward_fill().over(sort), pl.col("needed_ns") - pl.col("lag_ns")
            ),
            is_placed=pl.col("ready_ns").is_not_null() | is_only_sort,
        )
        .sort(*pair, "sent_ns", pl.col("direction") == "backward", "taken_ns", maintain_order=True)
    )
    return _with_open(timed).filter("is_placed").select(*pair, *COLUMNS)


def _with_open(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the messages with is_open: whether a message of unknown position may come directly before, after or at it.

    Such a message comes after the previous one of its own kind and before the next one.
    """
    pair, sort = ["source", "target"], ["source", "target", "direction", "to_stage"]
    place = pl.int_range(pl.len()).over(pair)
    known = pl.when("is_placed").then(place)
    ranged = messages.with_columns(place=place, known=known).with_columns(
        since=pl.col("known").forward_fill().over(sort).fill_null(0),
        until=pl.col("known").backward_fill().over(sort).fill_null(pl.len().over(pair) - 1),
    )
    open_ones = ranged.filter(~pl.col("is_placed"))
    begun, ended = (
        open_ones.group_by(*pair, pl.col(column).alias("place")).len(name)
        for column, name in (("since", "begun"), ("until", "ended"))
    )
    return (
        ranged.join(begun, on=[*pair, "place"], how="left", maintain_order="left")
        .join(ended, on=[*pair, "place"], how="left", maintain_order="left")
        .with_columns(pl.col("begun", "ended").fill_null(0).cum_sum().over(pair))
        .with_columns(is_open=pl.col("begun") > pl.col("ended").shift(1, fill_value=0).over(pair))
    )


COLUMNS: Iterable[str] = (
    "step", "direction", "stage", "chunk", "to_stage", "to_chunk", "microbatch", "ready_ns", "sent_ns", "needed_ns",
    "free_ns", "shares_clock", "is_open",
)  # fmt: skip
