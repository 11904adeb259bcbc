"""The explanation of a run: the results of every analysis, over the steps in the totals of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import polars.selectors as cs

from stagescope.analysis.cause_details import unrecorded_place
from stagescope.analysis.collectives.late_ranks import find_late_ranks
from stagescope.analysis.completeness.missing_ranks import MAYBE_MISSING
from stagescope.analysis.counters.lengths import lengths_sentence_part
from stagescope.analysis.counters.slow_clocks import clock_notes
from stagescope.analysis.idle.shares import share_idle
from stagescope.analysis.idle.step_windows import windows_alike
from stagescope.analysis.iteration.iteration_totals import sum_iterations
from stagescope.analysis.iteration.last_pipeline import last_pipelines, measure_losses, of_last_pipelines
from stagescope.analysis.iteration.outside_culprits import (
    OutsideCulprits,
    Participants,
    find_outside_culprits,
)
from stagescope.analysis.iteration.outside_times import outside_windows
from stagescope.analysis.lost_time import least_cost_ns, measure_lost_time, unite_lost_steps
from stagescope.analysis.prediction.evidence import Evidence
from stagescope.analysis.prediction.improvements import find_improvements
from stagescope.analysis.prediction.not_replayed import not_replayed, shown_meetings, shown_spans
from stagescope.analysis.prediction.outside_savings import measure_iterations
from stagescope.analysis.prediction.tried_changes import NOTHING_TRIED, TriedChanges
from stagescope.analysis.statistics.outlier_patterns import find_outlier_pattern
from stagescope.analysis.statistics.rates import LEAST_COST_FRACTION
from stagescope.analysis.statistics.replicas import compare_replicas
from stagescope.analysis.statistics.stage_costs import measure_stage_costs
from stagescope.analysis.statistics.step_trend import find_outlier_windows
from stagescope.analysis.statistics.stragglers import DEFAULT_LIMITS, claim_subjects
from stagescope.analysis.step_results import (
    ChosenSteps,
    choose_divided_sampling,
    find_outliers,
    join_one,
    measure_steps,
)
from stagescope.model.large_tables import chosen_rows
from stagescope.model.lazy import InParts, TableParts, in_parts, parts_of, with_known, with_later
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.collectives.lateness import Lateness
    from stagescope.analysis.idle.ledger import Ledger
    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.lost_time import LostTime
    from stagescope.analysis.prediction.ideal import Ideal
    from stagescope.analysis.statistics.outlier_patterns import OutlierPattern
    from stagescope.analysis.statistics.replicas import Replicas
    from stagescope.analysis.statistics.step_trend import StepTrends
    from stagescope.analysis.statistics.stragglers import Stragglers
    from stagescope.analysis.step_results import JoinedResults, StepResults
    from stagescope.analysis.windows import Windows
    from stagescope.model.diagnostics import Diagnostic


OF_LAST = ("steps", "losses", "orders")
"""Tables of a Ledger of which an explanation needs the rows of the last pipelines."""


@dataclass(frozen=True)
class Explanation:
    """The results that explain the time of some steps; every table is declared in the module that computes it.

    `ledger` (idle/ledger.py), `outside_culprits` (iteration/outside_culprits.py), `outliers` (OUTLIER_ACTIONS) and
    `outlier_pattern`, which they share, `idle` (IDLE_SHARES: the bubble by cause), `iterations` (ITERATIONS), `losses`
    (LOSSES), `lost_time` (what texts show of these, None if nothing was measured or timestamps contradict the order of
    the actions), `ideal` (the schedule that ran),
    `phases` (STEP_PHASES), `stage_costs`, `stage_work`, `overlap`, `critical_path`, `stragglers`, `trends`, `replicas`,
    `improvements` (IMPROVEMENTS, fixes first), `tested` (which changes were tested for them),
    `clock_notes` (what counters show of slow clocks, by rank),
    `lengths_note` (how the lengths of micro-batches relate to their sizes, None if unknown), `late_ranks` (LATE_RANKS),
    `steps_per_iteration`, `waits_inside` (ranks that wait for collectives inside of actions), `other_work`
    (what ranks did outside of actions, by name), `pauses` (those of an IterationLedger), and `unrecorded`, the
    columns of causes of which nothing was recorded (analysis/unrecorded.py); they are 0 in these tables, and null in
    those of the report.
    """

    ledger: Ledger
    outside_culprits: OutsideCulprits
    outliers: pl.DataFrame
    outlier_pattern: OutlierPattern
    idle: pl.DataFrame
    losses: pl.DataFrame
    lost_time: LostTime | None
    ideal: Ideal
    stage_costs: pl.DataFrame
    stage_work: pl.DataFrame
    stragglers: Stragglers
    trends: StepTrends
    replicas: Replicas
    clock_notes: dict[int, str]
    lengths_note: str | None
    unrecorded: frozenset[str]
    late_ranks: pl.DataFrame
    steps_per_iteration: int = 1
    tested: TriedChanges = NOTHING_TRIED
    waits_inside: tuple[int, ...] = ()
    other_work: pl.DataFrame = field(default_factory=pl.DataFrame)
    pauses: pl.DataFrame = field(default_factory=pl.DataFrame)
    improvements: pl.DataFrame = field(default_factory=pl.DataFrame)
    iterations: pl.DataFrame = field(default_factory=pl.DataFrame)
    phases: pl.DataFrame = field(default_factory=pl.DataFrame)
    overlap: pl.DataFrame = field(default_factory=pl.DataFrame)
    critical_path: pl.DataFrame = field(default_factory=pl.DataFrame)
    diagnostics: tuple[Diagnostic, ...] = ()


def explain(
    intermediates: Intermediates,
    steps: Collection[int],
    layers: tuple[int, ...] = (),
    joined: JoinedResults | None = None,
) -> Explanation:
    """Return the explanation of `steps`, those in the totals.

    `joined` are the results of all these steps; None: computed here. Tables with a row per rank and step are taken from
    results whenever they are used, as those of a large run are larger than memory. Never raises: for a timeline without
    actions all tables are empty.
    """
    timeline, pipelines = intermediates.timeline, intermediates.windows.pipelines
    chosen = pl.col("step").is_in(list(steps))
    sample, ledger = intermediates.sample, _explained_ledger(intermediates)
    windows = TableParts(parts_of(intermediates, "step_windows"), lambda rows: chosen_rows(rows, chosen))
    if joined is None:
        unusual = find_outlier_windows(TableParts(windows, windows_alike))
        sampling = choose_divided_sampling(steps, parts_of(intermediates, "microbatch_counts"))
        chosen_steps = ChosenSteps(steps, unusual.windows["step"].unique().to_list(), sampling)
        joined = join_one(measure_steps(intermediates, chosen_steps), intermediates, chosen_steps, unusual)
    results, counters = joined.of_steps, joined.counters
    shown = results.pipelines
    lost = _measure_lost_time(intermediates, steps, results)
    compared = joined.compare()
    late_ranks = _late_ranks(intermediates, joined.lateness, lost.lost_time)
    waits, pauses = (windows, joined.reduction_waits), in_parts(joined.pauses)
    del joined
    least_ns = least_cost_ns(lost.lost_time)
    stragglers = claim_subjects(compared.subjects, DEFAULT_LIMITS._replace(least_cost_ns=least_ns))
    replicas = compare_replicas(timeline, waits, pipelines, stragglers.rank_error, least_ns)
    # The costs of single actions need their spans.
    counted = sample.own_spans.filter(_is_shown(steps))
    explained = Explanation(
        **lost._asdict(),
        ledger=ledger,
        late_ranks=late_ranks,
        outliers=shown.waits.outliers,
        outlier_pattern=_pattern(shown.waits.outliers, intermediates, steps),
        unrecorded=intermediates.unrecorded,
        ideal=intermediates.ideal,
        stage_costs=measure_stage_costs(counted),
        stage_work=stragglers.stage_work,
        stragglers=stragglers,
        trends=compared.trends,
        replicas=replicas,
        clock_notes=clock_notes(counters.readings),
        lengths_note=lengths_sentence_part(
            sample.actions, ledger.classes.length_of_action, counters.sizes, counters.units, steps
        ),
        waits_inside=shown.waits.waits_inside,
        other_work=shown.other_work,
    )
    with_tables = with_later(_with_tables(explained, intermediates, results, chosen), {"pauses": pauses})
    return _with_improvements(with_tables, intermediates, steps, layers)


def _explained_ledger(intermediates: Intermediates) -> Ledger:
    """Return the ledger with the costs of the actions of the sample."""
    of_actions = intermediates.sample.ledger
    return with_known(intermediates.ledger, classes=of_actions.classes, delays=of_actions.delays)


def find_least_cost_ns(intermediates: Intermediates, steps: Collection[int]) -> float:
    """Return what least_cost_ns does in an explanation of some steps, without the rest of it."""
    if intermediates.actions.is_contradictory:
        return 0.0
    chosen = pl.col("step").is_in(list(steps))
    windows, iterations, of_ranks = (
        _chosen(of, name, chosen)
        for of, name in (
            (intermediates.windows, "bubbles"),
            (intermediates, "iterations"),
            (intermediates.ledger, "ranks"),
        )
    )
    idle = share_idle(windows.parts(), of_ranks.parts())
    lost = measure_lost_time(idle, windows.parts(), sum_iterations(iterations.parts()))
    return least_cost_ns(unite_lost_steps(lost, intermediates.accumulation.size_among(steps)))


class _LostTime(NamedTuple):
    """What is known of the time of iterations; see the fields of Explanation."""

    idle: pl.DataFrame
    losses: pl.DataFrame
    lost_time: LostTime | None
    outside_culprits: OutsideCulprits
    steps_per_iteration: int


def _measure_lost_time(
    intermediates: Intermediates, steps: Collection[int], results: StepResults
) -> _LostTime:
    """Return where the time of some steps went; `results` are those of these steps."""
    chosen = pl.col("step").is_in(list(steps))
    ledger, chained = intermediates.ledger, intermediates.chained_losses
    size = intermediates.accumulation.size_among(steps)
    windows = _chosen(intermediates.windows, "bubbles", chosen)
    iterations, of_ranks = _chosen(intermediates, "iterations", chosen), _chosen(ledger, "ranks", chosen)
    idle = share_idle(windows.parts(), of_ranks.parts())
    outside = outside_windows(zip(iterations.parts(), of_ranks.parts(), strict=True))
    totals = sum_iterations(iterations.parts())
    of_last = {name: of_last_pipelines(totals.last, parts_of(ledger, name)) for name in OF_LAST}
    losses = measure_losses(totals.last, of_last["losses"], of_last["orders"], chained, of_last["steps"])
    losses = losses.with_columns(cs.ends_with("ns") * size)
    lost_time = measure_lost_time(idle, windows.parts(), totals, intermediates.unrecorded, losses)
    return _LostTime(
        idle,
        losses,
        None if intermediates.actions.is_contradictory else unite_lost_steps(lost_time, size),
        find_outside_culprits(
            Participants(totals.ranks, iterations.parts()),
            outside,
            results.outside.activity,
            intermediates.between_steps.parts,
            results.outside.own_work,
        ),
        size,
    )


def _with_tables(
    explained: Explanation, intermediates: Intermediates, results: StepResults, chosen: pl.Expr
) -> Explanation:
    """Return an explanation with the tables that have a row per rank and step, each made when it is used."""
    ledger = explained.ledger
    names = ("steps", "ranks", "origins")
    of_ledger = {name: _chosen(ledger, name, chosen) for name in names}
    of_steps = {name: _chosen(intermediates, name, chosen) for name in ("iterations", "critical_path")}
    phases, overlap = results.pipelines.phases, results.pipelines.waits.overlap
    return with_later(
        with_known(explained, ledger=with_later(ledger, of_ledger)),
        of_steps | {"phases": lambda: phases, "overlap": lambda: overlap},
    )


def _chosen(instance: Intermediates | Ledger | Windows, name: str, chosen: pl.Expr) -> InParts:
    """Return what loads some rows of a table."""
    return InParts(
        lambda: chosen_rows(getattr(instance, name), chosen),
        lambda: (chosen_rows(rows, chosen) for rows in parts_of(instance, name)),
    )


def _with_improvements(
    explained: Explanation, intermediates: Intermediates, steps: Collection[int], layers: tuple[int, ...]
) -> Explanation:
    """Return an explanation with its improvements."""
    sample, ideal, size = intermediates.sample, explained.ideal, explained.steps_per_iteration
    parts = zip(
        parts_of(explained, "iterations"),
        parts_of(intermediates.ledger, "ranks"),
        parts_of(intermediates, "late_starts"),
        strict=True,
    )
    evidence = Evidence(
        explained.stragglers.table,
        _outliers_of_sample(explained, intermediates, steps),
        explained.late_ranks.with_columns(pl.col("lost_ns") / size),
        _explained_ledger(intermediates),
        measure_iterations(parts, is_in_steps(sample.steps)),
        shown_spans(sample).filter(_is_shown(steps)),
        unrecorded_place(explained, last_pipelines(explained)),
        layers,
        bool(intermediates.missing) or MAYBE_MISSING in {each.code for each in ideal.diagnostics},
        intermediates.step_chain,
        sample.predictions,
        shown_meetings(intermediates),
        not_replayed(intermediates),
    )
    improvements = find_improvements(sample.actions, evidence, ideal.schedule, steps, sample.basis)
    statistics = (explained.stragglers, explained.trends, explained.replicas)
    found = (intermediates.actions, intermediates.ledger, ideal, *statistics, improvements)
    return with_known(
        explained,
        improvements=_of_iterations(improvements.table, explained.lost_time),
        tested=improvements.tested,
        diagnostics=tuple(dict.fromkeys(each for one in found for each in one.diagnostics)),
    )


def _outliers_of_sample(
    explained: Explanation, intermediates: Intermediates, steps: Collection[int]
) -> pl.DataFrame:
    """Return the outliers among the actions of the sample, by their numbers there."""
    sample = intermediates.sample
    if sample is intermediates:
        return explained.outliers
    return find_outliers(sample, steps) if sample.outliers is None else sample.outliers


def _late_ranks(intermediates: Intermediates, lateness: Lateness, lost: LostTime | None) -> pl.DataFrame:
    """Return the table LATE_RANKS of some steps; nothing is claimed if nothing else can be explained."""
    least_ns = LEAST_COST_FRACTION * lost.mean_ns if lost else float("inf")
    iterations, spans = intermediates.accumulation.table, intermediates.sample.spans_with_others
    return find_late_ranks(lateness, iterations, spans, least_ns)


def _of_iterations(improvements: pl.DataFrame, lost: LostTime | None) -> pl.DataFrame:
    """Return predictions for steps as predictions for iterations of several steps."""
    if lost is None or lost.steps_per_iteration == 1:
        return improvements
    return improvements.with_columns(
        (cs.ends_with("_step_ns") | cs.by_name("gain_ns")) * lost.steps_per_iteration
    )


def _is_shown(steps: Collection[int]) -> pl.Expr:
    return pl.col("step").is_in(list(steps)) & ~pl.col("kind").is_in(TRANSFERS)


def _pattern(outliers: pl.DataFrame, intermediates: Intermediates, steps: Collection[int]) -> OutlierPattern:
    sample = intermediates.sample
    actions = sample.actions.table
    acting = actions if sample.others is None else intermediates.windows.pipelines
    return find_outlier_pattern(outliers, acting["rank"].n_unique(), actions["microbatch"].n_unique(), steps)
