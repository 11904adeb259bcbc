"""Actions with the time that they took; the two of an overlapped pair share one interval."""

from __future__ import annotations

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

ACTIONS_OF_A_PAIR = 2


def time_actions(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the actions on the compute lane: stage, chunk, kind, rank, step, microbatch, is_pair, duration_ns.

    An overlapped pair takes from the earlier start to the later end, and each of its actions has the whole time.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE)
    names = ("stage", "chunk", "kind", "rank", "step", "microbatch", "pair", "start_ns", "end_ns")
    actions = spans.lazy().filter(is_action).select(names).collect()
    # A clock that was set back can make a span end before it starts: it counts as having no length.
    duration_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0)
    actions = actions.with_columns(is_pair=pl.lit(value=False), duration_ns=duration_ns)
    if actions["pair"].null_count() < actions.height:
        actions = _with_times_of_pairs(actions)
    return actions.drop("pair", "start_ns", "end_ns")


def _with_times_of_pairs(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions with each half of a pair lasting as long as the pair."""
    key = ["rank", "step", "pair"]
    is_pair = pl.col("pair").is_not_null() & (pl.len().over(key) == ACTIONS_OF_A_PAIR)
    together_ns = (pl.max("end_ns").over(key) - pl.min("start_ns").over(key)).clip(lower_bound=0)
    return actions.with_columns(is_pair=is_pair).with_columns(
        duration_ns=pl.when("is_pair").then(together_ns).otherwise("duration_ns")
    )
