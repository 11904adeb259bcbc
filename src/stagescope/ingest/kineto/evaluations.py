"""Separate evaluations from training steps: they run forwards without backwards and belong to no step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.vocabulary.kinds import BACKWARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def find_evaluations(actions: pl.DataFrame, backward_ns: npt.NDArray[np.int64]) -> list[int]:
    """Return the steps that are evaluations: as many forwards as a training step, and no backwards.

    Schedules also annotate backwards during an evaluation. These are recognized as empty because no operator of the
    autograd engine starts in them; `backward_ns` has the sorted start times of all such operators of the trace.
    """
    since, until = (np.searchsorted(backward_ns, actions[side]) for side in ("mark_start_ns", "mark_end_ns"))
    # A trace without any engine operator cannot show that annotated backwards are empty; believe the annotations.
    works = pl.Series(until > since) if len(backward_ns) else pl.lit(value=True)
    counts = (
        actions.with_columns(is_backward=pl.col("kind").is_in(BACKWARDS) & works)
        .group_by("step")
        .agg(forwards=(pl.col("kind") == "forward").sum(), backwards=pl.sum("is_backward"))
    )
    # A step that is cut off by the end of the trace also has forwards only, but possibly fewer of them.
    usual = counts.filter(pl.col("backwards") > 0)["forwards"].to_list()
    alone = counts.filter((pl.col("backwards") == 0) & pl.col("forwards").is_in(usual))
    return [step for step in alone["step"].to_list() if step is not None]


def without_evaluations(spans: pl.DataFrame, evaluated: Sequence[int]) -> pl.DataFrame:
    """Return the spans with the `evaluated` steps set to null and the later steps renumbered.

    The empty backwards of evaluations are dropped.
    """
    if not evaluated:
        return spans
    is_evaluation = pl.col("step").is_in(evaluated)
    before = sum((pl.col("step") > step).cast(pl.Int32) for step in evaluated)
    kept = spans.filter(~(is_evaluation & pl.col("kind").is_in(BACKWARDS)).fill_null(value=False))
    return kept.with_columns(step=pl.when(~is_evaluation).then(pl.col("step") - before))
