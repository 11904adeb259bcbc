"""What a comparison of two runs needs of their spans; those of some pipelines and steps can be added to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.idle.step_windows import count_microbatches
from stagescope.analysis.statistics.link_samples import StepLinks, sample_step_links, unite_links
from stagescope.model.messages import match_messages
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_COMPARED = 1_000_000
"""Ranks x steps of a run whose actions and messages are compared; each takes about 500 bytes."""

BACKWARDS = ("backward", "backward_input", "backward_weight")


class ComparedSpans(NamedTuple):
    """What a comparison needs of some spans.

    `actions` has the time of the actions of each rank, step, stage and kind (sum_actions). `links` are samples of the
    messages, step by step. Both are of the steps in which they are compared. `microbatches` is the result of
    count_microbatches: a row per pipeline and step. `pipelines` are the numbers of all pipelines.
    """

    actions: pl.DataFrame
    links: StepLinks
    microbatches: pl.DataFrame
    pipelines: pl.Series


def choose_compared(steps: Sequence[int], ranks: int) -> list[int]:
    """Return the steps in which actions and messages are compared: those of a run of days would not fit into memory.

    Of twice MOST_COMPARED, these are every second step.

    >>> choose_compared([3, 4, 5, 6, 7], 500_000)
    [3, 6]
    """
    return list(steps[:: max(1, -(-len(steps) * ranks // MOST_COMPARED))])


def measure_compared(spans: pl.DataFrame, pipelines: pl.DataFrame, steps: Sequence[int]) -> ComparedSpans:
    """Return what a comparison needs of spans: of actions and messages, those in some steps.

    `pipelines` is the result of find_pipelines.
    """
    chosen = spans.filter(pl.col("step").is_in(list(steps)))
    return ComparedSpans(
        sum_actions(chosen),
        sample_step_links(match_messages(chosen)),
        count_microbatches(spans, pipelines),
        pipelines["pipeline"].unique(),
    )


def unite_compared(parts: Sequence[ComparedSpans]) -> ComparedSpans:
    """Return the same of all steps and pipelines, given parts with other steps or other pipelines each."""
    return ComparedSpans(
        pl.concat([part.actions for part in parts]),
        unite_links([part.links for part in parts]),
        pl.concat([part.microbatches for part in parts]),
        pl.concat([part.pipelines for part in parts]).unique(),
    )


def sum_actions(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the actions that a comparison can match: rank, step, stage, kind and the sum of their duration_ns."""
    placed = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE)
    duration_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(0)
    groups = spans.lazy().filter(is_action & placed).group_by("rank", "step", "stage", "kind")
    return groups.agg(duration_ns=duration_ns.sum()).with_columns(pl.col("kind").cast(pl.String)).collect()


def with_whole_backwards(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions in which both halves of a backward are named backward, like a full one."""
    return actions.with_columns(pl.col("kind").replace(dict.fromkeys(BACKWARDS[1:], BACKWARDS[0])))
