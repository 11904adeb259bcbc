"""Assign every span of a rank to a training step.

torch.profiler marks steps (``ProfilerStep#3``) if the training calls `step()` and the profiler has a schedule.
Without these marks a step ends after the optimizer, and before an action that the step already contains: gradients may
be accumulated over several pipeline steps without an optimizer between them. If actions have no names, a step ends
when every forward has had its backward. Steps found this way are numbered from 0 in each trace.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stagescope.ingest.annotations.names import step_number
from stagescope.vocabulary.kinds import ACTION_KINDS, EXCHANGING_KINDS, RECEIVES, SENDS

ACTION = ["kind", "stage", "microbatch"]
STEPS_SCHEMA = {"step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}


def profiler_steps(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that torch.profiler marked (step, start_ns, end_ns), sorted by start."""
    rows = [
        (number, start_ns, end_ns)
        for name, start_ns, end_ns in annotations.filter(pl.col("name").str.starts_with("ProfilerStep#"))
        .select("name", "start_ns", "end_ns")
        .iter_rows()
        if (number := step_number(name)) is not None
    ]
    return pl.DataFrame(rows, STEPS_SCHEMA, orient="row").sort("start_ns")


def with_steps(spans: pl.DataFrame, steps: pl.DataFrame, openings: list[int]) -> pl.DataFrame:
    """Return spans with `step`: from their own names, else from `steps`, else from `openings`, the starts of steps."""
    # Marks are host times; the device may run an action only after its step's mark has closed on the host.
    moment = spans.select("mark_start_ns" if "mark_start_ns" in spans.columns else "start_ns").to_series()
    if not steps.is_empty():
        index = np.searchsorted(steps["start_ns"].to_numpy(), moment.to_numpy(), side="right") - 1
        numbers, ends = steps["step"].to_numpy(), steps["end_ns"].to_numpy()
        # Spans between two marks, such as those of an evaluation, belong to no step.
        inside = (index >= 0) & (moment.to_numpy() <= ends[index])
        found = pl.Series(np.where(inside, numbers[index], -1), dtype=pl.Int32)
    else:
        found = pl.Series(
            np.searchsorted(np.array(openings, np.int64), moment.to_numpy(), side="right"), dtype=pl.Int32
        )
    own = pl.col("step") if "step" in spans.columns else pl.lit(None, pl.Int32)
    given = found.to_frame("found").select(pl.when(pl.col("found") >= 0).then("found")).to_series()
    return spans.with_columns(step=pl.coalesce(own, given))


def in_steps_of_actions(transfers: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return transfers with the step of the action they belong to: the next one for a receive, the last for a send.

    With a column `rank`, only actions of the rank of a transfer count.

    Times alone do not determine it: the last send of a step is issued after all of its actions. A transfer without a
    matching action keeps its step.
    """
    key = ["is_backward", "of_stage", "microbatch"]
    if "rank" in actions.columns and "rank" in transfers.columns:
        key.append("rank")
    # join_asof never matches null keys, so a missing stage becomes -1.
    kind = pl.col("kind").cast(pl.String)
    keys = {"is_backward": kind.str.contains("backward"), "of_stage": pl.col("stage").fill_null(-1)}
    is_action = pl.col("kind").is_in(EXCHANGING_KINDS)
    named = actions.filter(is_action & pl.col("microbatch").is_not_null()).with_columns(**keys)
    found = []
    for direction, strategy, moment in DIRECTIONS:
        own = transfers.filter(kind.str.starts_with(direction)).with_columns(**keys)
        steps = named.select(*key, pl.col(moment).alias("moment_ns"), of_action="step").sort("moment_ns")
        joined = own.sort("start_ns").join_asof(
            steps, left_on="start_ns", right_on="moment_ns", by=key, strategy=strategy, check_sortedness=False
        )
        found.append(joined.with_columns(step=pl.coalesce("of_action", "step")).select(transfers.columns))
    return pl.concat(found).sort("start_ns")


DIRECTIONS: tuple[tuple[str, Literal["forward", "backward"], str], ...] = (
    ("recv", "forward", "end_ns"), ("send", "backward", "start_ns"),
)  # fmt: skip


def named_steps(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the steps stated in action names (step, start_ns, end_ns); each begins at the end of the previous one."""
    named = (
        actions.filter(pl.col("kind").is_in(ACTION_KINDS)) if "step" in actions.columns else actions.clear()
    )
    # Partial numbering cannot be combined with counting: the counted steps would collide with the stated ones.
    if named.is_empty() or named["step"].null_count():
        return pl.DataFrame(schema=STEPS_SCHEMA)
    ends = named.group_by("step").agg(pl.max("mark_end_ns"), pl.min("mark_start_ns")).sort("mark_start_ns")
    return ends.select(
        pl.col("step").cast(pl.Int32),
        start_ns=pl.col("mark_end_ns").shift(1, fill_value=-(2**62)),
        end_ns=pl.when(pl.int_range(pl.len()) < pl.len() - 1).then("mark_end_ns").otherwise(2**62),
    )


def step_openings(actions: pl.DataFrame) -> list[int]:
    """Return the times at which each step but the first opens, for a trace of one rank without step marks."""
    pipeline, optimizers = _in_order(actions, "mark_start_ns")
    if "order" not in actions.columns:
        return _openings(_arrays(pipeline), optimizers["end_ns"].to_numpy())
    openings, parts = _after_optimizers(pipeline["mark_start_ns"].to_numpy(), optimizers["end_ns"].to_numpy())
    divided = pipeline.with_columns(pl.Series("part", parts))
    return sorted(openings + _at_returns(divided, is_marked=optimizers.height > 0))


def steps_of_ranks(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of many ranks, with `step` for traces without step marks, in the order of their ranks.

    It is what `step_openings`, `with_steps` and `in_steps_of_actions` lead to for each rank, with a few microseconds
    of work per rank: a trace may have as many processes as its writer likes.
    """
    ordered = spans.sort("rank", maintain_order=True)
    pipeline, optimizers = _in_order(ordered.with_columns(mark_start_ns="start_ns"), "rank", "mark_start_ns")
    arrays, ends, starts = _arrays(pipeline), optimizers["end_ns"].to_numpy(), ordered["start_ns"].to_numpy()
    numbers = np.unique(ordered["rank"].to_numpy())
    edges = [np.searchsorted(frame["rank"].to_numpy(), [*numbers, numbers[-1] + 1]).tolist()
             for frame in (pipeline, optimizers, ordered)]  # fmt: skip
    steps = np.empty(len(starts), np.int32)
    for row in range(len(numbers)):
        own, finished, all_own = (slice(edge[row], edge[row + 1]) for edge in edges)
        openings = _openings(tuple(array[own] for array in arrays), ends[finished])
        steps[all_own] = np.searchsorted(np.array(openings, np.int64), starts[all_own], side="right")
    stepped = ordered.with_columns(pl.Series("step", steps))
    is_transfer = pl.col("kind").is_in((*SENDS, *RECEIVES))
    actions = stepped.filter(~is_transfer)
    return pl.concat([actions, in_steps_of_actions(stepped.filter(is_transfer), actions)])


def _in_order(actions: pl.DataFrame, *order: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the actions of the pipeline and the optimizers, each in the order in which a rank ran them.

    The mark decides, during which an action certainly runs: its estimated start may precede the end of the optimizer.
    """
    by_end = [*order[:-1], "end_ns"]
    optimizers = actions.filter(pl.col("kind") == "optimizer").sort(by_end, maintain_order=True)
    return actions.filter(pl.col("kind").is_in(ACTION_KINDS)).sort(order, maintain_order=True), optimizers


def _arrays(pipeline: pl.DataFrame) -> tuple[np.ndarray, ...]:
    """Return starts, ends and a number of each action: equal numbers mean the same action of a step."""
    numbers = pipeline.select(pl.struct(ACTION).rank("dense")).to_series()
    return pipeline["mark_start_ns"].to_numpy(), pipeline["end_ns"].to_numpy(), numbers.to_numpy()


def _openings(arrays: tuple[np.ndarray, ...], optimizers: np.ndarray) -> list[int]:
    """Return the openings of one rank, from the arrays of its actions and the ends of its optimizers."""
    starts, ends, numbers = arrays
    openings, parts = _after_optimizers(starts, optimizers)
    return sorted(openings + _at_repetitions(parts, numbers, ends))


def _after_optimizers(starts: np.ndarray, optimizers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return the ends of optimizers that open a step, and for each action the number of those before it."""
    # Several optimizers may step in a row: the next action after them opens the step.
    rows = np.unique(np.searchsorted(starts, optimizers))
    rows = rows[(rows > 0) & (rows < len(starts))]
    openings = optimizers[np.searchsorted(optimizers, starts[rows], side="right") - 1].tolist()
    return openings, np.searchsorted(rows, np.arange(len(starts)), side="right")


def _at_returns(actions: pl.DataFrame, *, is_marked: bool) -> list[int]:
    """Return the ends of actions after which no micro-batch is in flight, except at the end of each `part`.

    On a last stage this holds after every micro-batch. There it is ignored if optimizers mark the steps.
    """
    change = pl.when(pl.col("kind") == "forward").then(1).otherwise(-1)
    counted = actions.with_columns(in_flight=change.cum_sum().over("part"))
    is_evidence = pl.col("in_flight").max().over("part") > 1 if is_marked else pl.lit(value=True)
    is_last = pl.col("part") != pl.col("part").shift(-1)
    returns = counted.filter(is_evidence & (pl.col("in_flight") == 0) & ~is_last.fill_null(value=True))
    found: list[int] = returns["mark_end_ns"].to_list()
    return found


def _at_repetitions(parts: np.ndarray, numbers: np.ndarray, ends: np.ndarray) -> list[int]:
    """Return the end of the last action before each step; a step begins when its part repeats an action."""
    if len(ends) == 0:
        return []
    order = np.lexsort((numbers, parts))
    is_again = (np.diff(parts[order]) == 0) & (np.diff(numbers[order]) == 0)
    following = np.full(len(ends), len(ends))
    following[order[:-1][is_again]] = order[1:][is_again]
    # For each row, the first row from there on that repeats an action at or after it: the next step begins there.
    repeated = np.minimum.accumulate(following[::-1])[::-1]
    row, openings = int(repeated[0]), []
    while row < len(ends):
        openings.append(int(ends[row - 1]))
        row = int(repeated[row])
    return openings
