"""What a change saves outside the windows: before a pipeline begins, and after the last one has ended.

What delays the first action of one pipeline makes the iteration longer only until another pipeline is the last. What
follows the last window delays all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.iteration_totals import reach_beyond_windows
from stagescope.model.large_tables import few_rows, united_rows
from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class MeasuredIterations(NamedTuple):
    """What candidates need to know of the iterations.

    `mean_ns` is the mean iteration; None if nothing but the windows was recorded. `outside` has a row per step: step,
    and the time of every cause outside the window, in the columns of the causes, as the mean of the ranks of the last
    pipeline. `members` are the ranks of each pipeline with a ledger: rank and pipeline. `late_starts` are rows of
    find_late_starts of the steps that are replayed, `last_starts` those of the pipelines that ended last, in all steps.
    """

    mean_ns: float | None
    outside: pl.DataFrame
    members: pl.DataFrame
    late_starts: pl.DataFrame
    last_starts: pl.DataFrame


class OutsideSaving(NamedTuple):
    """What a change saves outside the windows, per iteration.

    `after_ns` is what it saves for all pipelines. `sooner_ns` is how much sooner each pipeline begins each step, in the
    rows of StepGroups; None: none does. `last_ns` is how much sooner the last pipelines begin, on average.
    """

    after_ns: float = 0.0
    last_ns: float = 0.0
    sooner_ns: Floats | None = None

    @property
    def total_ns(self) -> float:
        """What the change saves if the same pipelines stay the last."""
        return self.after_ns + self.last_ns


NOTHING_OUTSIDE = OutsideSaving()


class _Part(NamedTuple):
    """What some steps add to MeasuredIterations: whether anything but the windows was recorded, sums, and tables."""

    reaches_beyond: bool
    iteration_ns: int
    row_count: int
    outside: pl.DataFrame
    late_starts: pl.DataFrame
    last_starts: pl.DataFrame


def measure_iterations(
    parts: Iterable[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]], is_replayed: pl.Expr
) -> MeasuredIterations:
    """Return what candidates need of the iterations of the steps in the totals.

    `parts` are rows of the tables ITERATIONS and IDLE_LEDGER and of find_late_starts for the same steps: the tables of
    all steps, or those of one range after the other. `is_replayed` is whether the step of a row is one of those whose
    actions are replayed.
    """
    found: list[_Part] = []

    def of_ranks() -> Iterator[pl.DataFrame]:
        for iterations, ranks, late_starts in parts:
            found.append(_of_part(iterations, ranks, late_starts, is_replayed))
            yield ranks

    members = united_rows(of_ranks(), ["rank", "pipeline"])
    reaches_beyond = any(each.reaches_beyond for each in found)
    total_ns, count = sum(each.iteration_ns for each in found), sum(each.row_count for each in found)
    return MeasuredIterations(
        total_ns / count if reaches_beyond else None,
        pl.concat([each.outside for each in found]),
        members,
        pl.concat([each.late_starts for each in found]),
        pl.concat([each.last_starts for each in found]),
    )


def _of_part(
    iterations: pl.DataFrame, ranks: pl.DataFrame, late_starts: pl.DataFrame, is_replayed: pl.Expr
) -> _Part:
    keys = ["step", "rank"]
    last = few_rows(iterations, pl.col("is_last")).select(*keys, "pipeline", *CAUSE_COLUMNS)
    inside = ranks.select(*keys, *CAUSE_COLUMNS).join(last, on=keys, how="semi")
    both = last.join(inside, on=keys, how="left", suffix="_inside", maintain_order="left")
    outside = [pl.col(name) - pl.col(f"{name}_inside").fill_null(0) for name in CAUSE_COLUMNS]
    by_step = both.select("step", *outside).group_by("step", maintain_order=True)
    last_pipelines = last.select("step", "pipeline").unique()
    return _Part(
        reach_beyond_windows(iterations),
        int(iterations["iteration_ns"].cast(pl.Int128).sum()),
        iterations.height,
        by_step.agg(pl.col(CAUSE_COLUMNS).mean()),
        few_rows(late_starts, is_replayed),
        late_starts.join(last_pipelines, on=["step", "pipeline"], how="semi", maintain_order="left"),
    )


def save_outside(
    iterations: MeasuredIterations, steps: pl.DataFrame, cause: str, fraction: float
) -> OutsideSaving:
    """Return what is saved outside the windows without that fraction of a cause; `steps` are those of StepGroups."""
    name = f"{cause}_ns"
    total_ns = max(_mean(iterations.outside[name]), 0.0) * fraction
    late = iterations.late_starts
    last_ns = _mean(iterations.last_starts[name]) * fraction
    keys = ["step", "pipeline"]
    sooner = steps.select(keys).join(late.select(*keys, name), on=keys, how="left", maintain_order="left")
    sooner_ns = sooner[name].fill_null(0).cast(pl.Float64).to_numpy() * fraction
    return OutsideSaving(total_ns - last_ns, last_ns, sooner_ns if sooner_ns.any() else None)


def _mean(values: pl.Series) -> float:
    return float(values.mean() or 0.0)  # type: ignore[arg-type]  # a column of numbers
