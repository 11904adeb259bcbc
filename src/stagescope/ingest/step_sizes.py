"""Steps with more stages or micro-batches than the limits allow: each action waits for others, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.limits import changed_limits, limit, require, require_if_stated

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from stagescope.model import Timeline

STATED = frozenset(("stages", "microbatches"))
"""The limits of this module; for recordings, they hold only if they are stated."""


def require_step_sizes(
    timeline: Timeline, where: str | os.PathLike[str] | None = None, *, only_stated: bool = False
) -> None:
    """Raise InputError if a run has more stages, or a step more micro-batches, than the limits allow.

    What counts is how many there are, not how they are numbered: some programs number micro-batches through the run.
    `where` is what was read; None: the first of its files. With `only_stated`, limits count that the caller stated.
    """
    source = where or next(iter(timeline.ranks["source"].drop_nulls()), "the run")
    _require(timeline.spans, source, require_if_stated if only_stated else require)


def stated_sizes(spans: pl.DataFrame) -> pl.DataFrame:
    """Return what require_stated_sizes needs of a part of a run: distinct rows of stage, step and microbatch.

    None unless the caller stated a limit on them.
    """
    sizes = spans.select("stage", "step", "microbatch")
    return sizes.unique() if STATED.intersection(changed_limits()) else sizes.clear()


def require_stated_sizes(sizes: pl.DataFrame, where: str | os.PathLike[str]) -> None:
    """Raise InputError as require_step_sizes does with `only_stated`; `sizes` are those of all parts of a run."""
    _require(sizes, where, require_if_stated)


def _require(
    spans: pl.DataFrame,
    source: str | os.PathLike[str],
    check: Callable[[str, float, str | os.PathLike[str]], None],
) -> None:
    if _may_exceed(spans["stage"], "stages"):
        check("stages", spans["stage"].drop_nulls().n_unique(), source)
    if _may_exceed(spans["microbatch"], "microbatches"):
        counts = spans.drop_nulls("microbatch").group_by("step").agg(count=pl.col("microbatch").n_unique())
        count, step = counts.select("count", "step").sort("count", "step", descending=[True, False]).row(0)
        check("microbatches", count, source if step is None else f"{source}, step {step}")


def _may_exceed(numbers: pl.Series, name: str) -> bool:
    """Return whether so many different numbers are possible at all; counting them takes longer."""
    least, most = numbers.min(), numbers.max()
    return isinstance(least, int) and isinstance(most, int) and most - least >= limit(name)
