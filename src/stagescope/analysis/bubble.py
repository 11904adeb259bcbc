"""The bubble of a run under each definition in use: idle time over window, iteration, compute time or own span.

window        idle time / window. The fraction of the pipeline's window in which a rank does not compute.
iteration     idle time / iteration. The same for whole iterations, with all that happens between two windows.
ideal-ratio   (T - W) / W, the window T over the compute W in it. With equal stages 1F1B has (p-1)/m (Megatron-LM,
              arXiv 2104.04473, section 2.2), where the window has (p-1)/(m+p-1).
own-span      (T - W) / T with the longest own span T of a rank, first start to last end of its actions (Zero Bubble,
              arXiv 2401.10241, section 5.3). Simulation.own_span_bubble_fraction is the same of a simulated step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.ledger import DENOMINATOR as ITERATION_DENOMINATOR
from stagescope.model.bubbles import DENOMINATOR as WINDOW_DENOMINATOR
from stagescope.model.large_tables import reduced
from stagescope.model.lazy import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stagescope.analysis.intermediates import Intermediates

WINDOW, ITERATION, IDEAL_RATIO, OWN_SPAN = "window", "iteration", "ideal-ratio", "own-span"


class Definition(NamedTuple):
    """What a bubble divides by: for the run and for one rank in one to three words, and as a description."""

    whole: str
    of_rank: str
    denominator: str


DEFINITIONS: dict[str, Definition] = {
    WINDOW: Definition("pipeline window", "window", WINDOW_DENOMINATOR),
    ITERATION: Definition("iteration", "iteration", ITERATION_DENOMINATOR),
    IDEAL_RATIO: Definition(
        "compute time",
        "compute time",
        "compute time: time in which the ranks compute inside their windows, per step",
    ),
    OWN_SPAN: Definition(
        "longest own span",
        "pipeline's longest own span",
        "own span: first start to last end of the actions of one rank, the longest of each pipeline, per step",
    ),
}


@dataclass(frozen=True)
class Bubble:
    """The bubble of a run: idle time over a denominator, both summed over all ranks and the steps in the totals.

    `name` is its definition, by default that of the window, and `denominator` states in words what the fractions
    divide by. `steps` lists the steps in the totals. `fraction` is None if the bubble is unknown, and `unknown_because`
    is a clause that states why; otherwise that is empty. `per_rank` has that of
    every rank, `per_step` that of every step, in the totals or not. `idle_ns` is the mean idle time of a rank per step.
    """

    fraction: float | None
    per_rank: dict[int, float]
    denominator: str
    steps: tuple[int, ...]
    name: str = WINDOW
    per_step: dict[int, float] = field(default_factory=dict)
    idle_ns: int = 0
    unknown_because: str = ""
    measure: Callable[[str], Bubble] | None = field(default=None, repr=False, compare=False)

    @property
    def whole(self) -> str:
        """What the fraction divides by, in one to three words."""
        return DEFINITIONS[self.name].whole

    @property
    def of_rank(self) -> str:
        """The same for a single rank."""
        return DEFINITIONS[self.name].of_rank

    @property
    def definitions(self) -> dict[str, Bubble]:
        """The bubble under every definition, by name: window, iteration, ideal-ratio and own-span."""
        return {name: self.of(name) for name in DEFINITIONS}

    def of(self, name: str) -> Bubble:
        """Return the bubble under another definition; KeyError for an unknown name."""
        if name == self.name or self.measure is None:
            return self if name == self.name else {self.name: self}[name]
        return self.measure(name)


ONLY_PARTS = "actions.only_parts"
NO_STEP = "no step with a forward or backward action was recorded"
WHY_UNKNOWN = {
    ONLY_PARTS: "the trace names parts of overlapped pairs, such as attn(F), but no micro-batch, stage or step",
}
"""By the code of a diagnostic of the reader: why its actions have no step."""


def measure_bubble(intermediates: Intermediates, steps: Sequence[int], name: str = WINDOW) -> Bubble:
    """Return the bubble of a run under a definition; `steps` are those in the totals."""
    chosen = pl.col("step").is_in(list(steps))
    of_steps: list[pl.DataFrame] = []

    def of_ranks_in_parts() -> Iterator[pl.DataFrame]:
        for rows in MEASURES[name](intermediates):
            of_steps.append(_sums(rows, "step"))
            yield _sums(rows.filter(chosen), "rank")

    of_ranks = reduced(of_ranks_in_parts(), _added)
    idle_ns, whole_ns, count = (int(of_ranks[column].sum()) for column in ("idle_ns", "whole_ns", "count"))
    return Bubble(
        fraction=(idle_ns / whole_ns if whole_ns else 0.0) if steps else None,
        per_rank=_fractions(of_ranks),
        denominator=DEFINITIONS[name].denominator,
        steps=tuple(steps),
        name=name,
        per_step=_fractions(_added(pl.concat(of_steps))),
        idle_ns=idle_ns // max(count, 1),
        unknown_because="" if steps else _why_unknown(intermediates),
        measure=lambda other: measure_bubble(intermediates, steps, other),
    )


def _why_unknown(intermediates: Intermediates) -> str:
    if intermediates.windows.unaligned:
        return "no pipeline has all its machines on one clock"
    codes = intermediates.timeline.diagnostics["code"]
    return next((reason for code, reason in WHY_UNKNOWN.items() if code in codes), NO_STEP)


def _sums(times: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return idle time, the whole and the number of rows by rank or step."""
    sums = pl.col("idle_ns", "whole_ns").cast(pl.Int128).sum()
    return times.group_by(key).agg(sums, count=pl.len().cast(pl.Int64))


def _added(sums: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of all parts, sorted by their key, the first column."""
    key = sums.columns[0]
    return sums.group_by(key).agg(pl.sum("idle_ns", "whole_ns", "count")).sort(key)


def _fractions(sums: pl.DataFrame) -> dict[int, float]:
    """Return idle time over the whole, 0 without a length, by the first column."""
    key = sums.columns[0]
    fraction = pl.when(pl.col("whole_ns") > 0).then(pl.col("idle_ns") / pl.col("whole_ns")).otherwise(0.0)
    return dict(zip(sums[key].to_list(), sums.select(fraction).to_series().to_list(), strict=True))


def _of_windows(intermediates: Intermediates) -> Iterable[pl.DataFrame]:
    return (
        rows.select("step", "rank", "idle_ns", whole_ns="window_ns") for rows in intermediates.windows.parts
    )


def _of_compute(intermediates: Intermediates) -> Iterable[pl.DataFrame]:
    return (
        rows.select("step", "rank", "idle_ns", whole_ns="busy_ns") for rows in intermediates.windows.parts
    )


def _of_iterations(intermediates: Intermediates) -> Iterable[pl.DataFrame]:
    return parts_of(intermediates, "idle_of_iterations")


def _of_own_spans(intermediates: Intermediates) -> Iterable[pl.DataFrame]:
    return parts_of(intermediates, "idle_of_own_spans")


MEASURES: dict[str, Callable[[Intermediates], Iterable[pl.DataFrame]]] = {
    WINDOW: _of_windows,
    ITERATION: _of_iterations,
    IDEAL_RATIO: _of_compute,
    OWN_SPAN: _of_own_spans,
}
"""Return step, rank, idle_ns and whole_ns, for every step and rank with a window, some steps after the others."""
