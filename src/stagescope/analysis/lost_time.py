"""The time of a run by cause, as every text and condition shows it: of iterations, or of windows without iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.idle.ledger import DENOMINATOR as WINDOW
from stagescope.analysis.idle.savings import offset_whole_savings
from stagescope.analysis.iteration.ledger import DENOMINATOR as ITERATION
from stagescope.analysis.statistics.rates import LEAST_COST_FRACTION
from stagescope.vocabulary.causes import ALWAYS_SHOWN, CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from stagescope.analysis.iteration.iteration_totals import IterationTotals


class LostTime(NamedTuple):
    """Time by cause, summed over ranks and steps: busy_ns + sum(causes_ns) = whole_ns for several pipelines.

    A single pipeline is the one that sets its iterations, so its causes are those of the table LOSSES: they include the
    compute by which single actions took longer than usual, which is idle time of other ranks only.

    `basis` is ``iteration``, or ``window`` if nothing but one window was recorded of each iteration.
    `denominator` states in words what whole_ns is, `iterations` how many iterations (or steps) there are. `rows`
    counts the ranks and iterations; an iteration has `steps_per_iteration` steps. `causes_ns` has the columns of the
    causes as keys, in their order, and none is negative (idle/savings.py); those of `unrecorded` are 0 because nothing
    of them was recorded (analysis/unrecorded.py).
    """

    basis: str
    denominator: str
    iterations: int
    rows: int
    whole_ns: int
    busy_ns: int
    causes_ns: dict[str, int]
    unrecorded: tuple[str, ...] = ()
    steps_per_iteration: int = 1

    @property
    def lost_ns(self) -> int:
        """The sum of all causes."""
        return sum(self.causes_ns.values())

    @property
    def is_idle(self) -> bool:
        """Whether the lost time is all time but the compute, as far as whole percents show it."""
        return round(100 * self.lost_fraction) == round(100 * (1 - self.busy_ns / self.whole_ns))

    @property
    def mean_ns(self) -> float:
        """The mean iteration, or window."""
        return self.whole_ns / self.rows if self.rows else 0.0

    @property
    def mean_step_ns(self) -> float:
        """The mean time of a step in an iteration."""
        return self.mean_ns / self.steps_per_iteration

    def shown_ns(self) -> dict[str, int | None]:
        """Return the causes to show, per rank and step: those that every run has, and others that are not 0.

        None: not recorded.
        """
        return {
            name: None if name in self.unrecorded else time_ns // self.rows
            for name, time_ns in self.causes_ns.items()
            if time_ns or name in ALWAYS_SHOWN
        }

    def fraction(self, column: str) -> float:
        """Return the fraction of a cause; 0 if nothing was measured."""
        return self.causes_ns.get(column, 0) / self.whole_ns if self.whole_ns else 0.0

    @property
    def lost_fraction(self) -> float:
        """The fraction of `lost_ns`."""
        return self.lost_ns / self.whole_ns if self.whole_ns else 0.0


def measure_lost_time(
    idle_shares: pl.DataFrame,
    windows: Iterable[pl.DataFrame],
    iterations: IterationTotals,
    unrecorded: frozenset[str] = frozenset(),
    losses: pl.DataFrame | None = None,
) -> LostTime | None:
    """Return the lost time of a run, None if nothing was measured.

    `idle_shares` is the table IDLE_SHARES, whose last row is the run, of `windows`, the rows of step_bubbles,
    some steps after the others; `iterations` is from sum_iterations for the steps in the totals. `unrecorded` is from
    find_unrecorded, `losses` is the table LOSSES of these steps.
    """
    if iterations.reaches_beyond:
        total = iterations.sums_ns
        causes = _chosen(total, CAUSE_COLUMNS)
        is_single = iterations.ranks["pipeline"].n_unique() == 1
        if is_single and losses is not None and losses.height:
            fractions = dict(losses.select("part", "fraction").iter_rows())
            causes = {
                name: round(fractions[name.removesuffix("_ns")] * total["iteration_ns"]) for name in causes
            }
        size = (iterations.steps, iterations.rows)
        whole = (total["iteration_ns"], total["busy_ns"])
        return LostTime("iteration", ITERATION, *size, *whole, causes, _unknown(causes, unrecorded))
    if idle_shares.is_empty():
        return None
    total = idle_shares.row(-1, named=True)
    if not total["window_ns"]:
        return None
    busy_ns = total["window_ns"] - total["idle_ns"]
    size = _steps_and_rows(windows)
    causes = _chosen(total, CAUSE_COLUMNS)
    whole = (total["window_ns"], busy_ns)
    return LostTime("window", WINDOW, *size, *whole, causes, _unknown(causes, unrecorded))


def _steps_and_rows(parts: Iterable[pl.DataFrame]) -> tuple[int, int]:
    """Return the numbers of steps and rows of a table, given the rows of some steps after those of others."""
    sizes = [(rows["step"].n_unique(), rows.height) for rows in parts]
    return sum(steps for steps, _ in sizes), sum(rows for _, rows in sizes)


def least_cost_ns(lost: LostTime | None) -> float:
    """Return what a straggler has to add to a step to be a finding: a part of the iteration, or of the window without.

    0 if nothing was measured.
    """
    return LEAST_COST_FRACTION * lost.mean_step_ns if lost else 0.0


def unite_lost_steps(lost: LostTime | None, steps_per_iteration: int) -> LostTime | None:
    """Return lost time in which every iteration counts as a step as lost time per iteration of several steps.

    Its denominator states how many those are.
    """
    if lost is None or lost.basis != "iteration" or steps_per_iteration == 1:
        return lost
    stated = f"; gradients are accumulated over the {steps_per_iteration} steps of an iteration"
    return lost._replace(
        denominator=lost.denominator + stated,
        iterations=lost.iterations // steps_per_iteration,
        rows=lost.rows // steps_per_iteration,
        steps_per_iteration=steps_per_iteration,
    )


def _unknown(causes_ns: dict[str, int], unrecorded: frozenset[str]) -> tuple[str, ...]:
    """Return the causes of which nothing was recorded in their order: a saved report has the same bytes every time."""
    return tuple(name for name, time_ns in causes_ns.items() if name in unrecorded and not time_ns)


def _chosen(total: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return causes of a total, without negative ones."""
    parts = offset_whole_savings({name.removesuffix("_ns"): total[name] for name in names})
    return {f"{name}_ns": part_ns for name, part_ns in parts.items()}
