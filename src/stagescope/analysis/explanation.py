"""The explanation of a run: the results of every analysis, over the steps in the totals of the report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stagescope.analysis.cause_details import unrecorded_place
from stagescope.analysis.collectives.late_ranks import find_late_ranks
from stagescope.analysis.completeness.missing_ranks import MAYBE_MISSING
from stagescope.analysis.counters.lengths import lengths_sentence_part
from stagescope.analysis.counters.slow_clocks import clock_notes
from stagescope.analysis.idle.shares import share_idle
from stagescope.analysis.idle.step_windows import windows_of_bubbles
from stagescope.analysis.iteration.culprits import find_outside_culprits
from stagescope.analysis.iteration.last_pipeline import last_pipelines, measure_losses
from stagescope.analysis.lost_time import measure_lost_time, unite_lost_steps
from stagescope.analysis.prediction.fix_candidates import Evidence
from stagescope.analysis.prediction.improvements import find_improvements
from stagescope.analysis.prediction.tried_changes import NOTHING_TRIED, TriedChanges
from stagescope.analysis.statistics.action_samples import join_samples
from stagescope.analysis.statistics.link_samples import join_links
from stagescope.analysis.statistics.outlier_patterns import find_outlier_pattern
from stagescope.analysis.statistics.rates import LEAST_COST_FRACTION
from stagescope.analysis.statistics.replicas import compare_replicas
from stagescope.analysis.statistics.stage_costs import measure_stage_costs
from stagescope.analysis.statistics.step_trend import explain_step_trends, find_outlier_windows
from stagescope.analysis.statistics.stragglers import DEFAULT_LIMITS, compare_subjects
from stagescope.analysis.step_results import ChosenSteps, StepResults, measure_steps
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.idle.ledger import Ledger
    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.lost_time import LostTime
    from stagescope.analysis.prediction.ideal import Ideal
    from stagescope.analysis.statistics.outlier_patterns import OutlierPattern
    from stagescope.analysis.statistics.replicas import Replicas
    from stagescope.analysis.statistics.step_trend import StepTrends
    from stagescope.analysis.statistics.stragglers import Stragglers
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Explanation:
    """The results that explain the time of some steps; every table is declared in the module that computes it.

    `ledger` (idle/ledger.py), `outside_culprits` (rows of CULPRITS), `outliers` (OUTLIER_ACTIONS) and
    `outlier_pattern`, which they share, `idle` (IDLE_SHARES: the bubble by cause), `iterations` (ITERATIONS), `losses`
    (LOSSES), `lost_time` (what texts show of these, None if nothing was measured or timestamps contradict the order of
    the actions), `ideal` (the schedule that ran),
    `phases` (STEP_PHASES), `stage_costs`, `stage_work`, `overlap`, `critical_path`, `stragglers`, `trends`, `replicas`,
    `improvements` (IMPROVEMENTS, fixes first), `tested` (which changes were tested for them),
    `clock_notes` (what counters show of slow clocks, by rank),
    `lengths_note` (how the lengths of micro-batches relate to their sizes, None if unknown), `late_ranks` (LATE_RANKS),
    `steps_per_iteration`, `waits_inside` (ranks that wait for collectives inside of actions), `other_work`
    (what ranks did outside of actions, by name), and `unrecorded`, the
    columns of causes of which nothing was recorded (analysis/unrecorded.py); they are 0 in these tables, and null in
    those of the report.
    """

    ledger: Ledger
    outside_culprits: pl.DataFrame
    outliers: pl.DataFrame
    outlier_pattern: OutlierPattern
    idle: pl.DataFrame
    iterations: pl.DataFrame
    losses: pl.DataFrame
    lost_time: LostTime | None
    ideal: Ideal
    phases: pl.DataFrame
    stage_costs: pl.DataFrame
    stage_work: pl.DataFrame
    overlap: pl.DataFrame
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
    improvements: pl.DataFrame = field(default_factory=pl.DataFrame)
    critical_path: pl.DataFrame = field(default_factory=pl.DataFrame)
    diagnostics: tuple[Diagnostic, ...] = ()


def explain(
    intermediates: Intermediates,
    steps: Collection[int],
    layers: tuple[int, ...] = (),
    results: StepResults | None = None,
) -> Explanation:
    """Return the explanation of `steps`, those in the totals.

    `results` is from measure_steps; None: computed here. Never raises: for a timeline without actions all tables are
    empty.
    """
    timeline, (pipelines, bubbles, _) = intermediates.timeline, intermediates.windows
    chosen = pl.col("step").is_in(list(steps))
    actions, ledger, ideal = intermediates.actions, intermediates.ledger, intermediates.ideal
    windows = bubbles.filter(chosen)
    step_windows = windows_of_bubbles(windows)
    unusual = find_outlier_windows(step_windows)
    results = results or measure_steps(
        intermediates, ChosenSteps(steps, unusual[1]["step"].unique().to_list())
    )
    # The costs of single actions need their spans.
    counted = timeline.with_spans(timeline.spans.filter(chosen & ~pl.col("kind").is_in(TRANSFERS)))
    idle, iterations = share_idle(windows, ledger.ranks), intermediates.iterations.filter(chosen)
    size = intermediates.accumulation.size_among(steps)
    losses = _measure_losses(intermediates, iterations, size)
    lost_time = measure_lost_time(idle, windows, iterations, intermediates.unrecorded, losses)
    lost_time = None if actions.is_contradictory else unite_lost_steps(lost_time, size)
    least_cost_ns = LEAST_COST_FRACTION * (lost_time.mean_step_ns if lost_time else 0.0)
    samples = join_samples([results.samples])
    links = join_links(timeline, [results.links], samples.sampling)
    limits = DEFAULT_LIMITS._replace(least_cost_ns=least_cost_ns)
    stragglers = compare_subjects(timeline.ranks, pipelines, (samples, links), limits)
    trends = explain_step_trends(unusual, pipelines, samples, (links, results.messages))
    replicas = compare_replicas(
        timeline, (step_windows, results.reduction_waits), pipelines, stragglers.rank_error, least_cost_ns
    )
    explained = Explanation(
        ledger=replace(
            ledger,
            steps=ledger.steps.filter(chosen),
            ranks=ledger.ranks.filter(chosen),
            origins=ledger.origins.filter(chosen),
        ),
        outside_culprits=_outside_culprits(intermediates, iterations),
        late_ranks=_late_ranks(intermediates, steps, lost_time),
        outliers=results.outliers,
        outlier_pattern=_pattern(results.outliers, actions.table, steps),
        idle=idle,
        iterations=iterations,
        losses=losses,
        unrecorded=intermediates.unrecorded,
        lost_time=lost_time,
        ideal=ideal,
        phases=results.phases,
        stage_costs=measure_stage_costs(counted.spans),
        stage_work=stragglers.stage_work,
        overlap=results.overlap,
        stragglers=stragglers,
        trends=trends,
        replicas=replicas,
        clock_notes=clock_notes(timeline.counters, steps),
        lengths_note=lengths_sentence_part(
            actions, ledger.classes.length_of_action, timeline.counters, pipelines, steps
        ),
        steps_per_iteration=size,
        waits_inside=results.waits_inside,
        other_work=results.other_work,
    )
    return _with_improvements(explained, intermediates, counted.spans, steps, layers)


def _with_improvements(
    explained: Explanation,
    intermediates: Intermediates,
    spans: pl.DataFrame,
    steps: Collection[int],
    layers: tuple[int, ...],
) -> Explanation:
    """Return an explanation with its improvements, then its critical path; `spans` are those of its steps."""
    actions, ideal, size = intermediates.actions, explained.ideal, explained.steps_per_iteration
    evidence = Evidence(
        explained.stragglers.table,
        explained.outliers,
        explained.late_ranks.with_columns(pl.col("lost_ns") / size),
        intermediates.ledger,
        explained.iterations,
        spans,
        unrecorded_place(explained, last_pipelines(explained)),
        layers,
        bool(intermediates.missing) or MAYBE_MISSING in {each.code for each in ideal.diagnostics},
        intermediates.step_chain,
    )
    # Before the critical path, which keeps its inputs: both at once would be the peak memory of a report.
    improvements = find_improvements(actions, evidence, ideal.schedule, steps, intermediates.basis)
    statistics = (explained.stragglers, explained.trends, explained.replicas)
    found = (actions, intermediates.ledger, ideal, *statistics, improvements)
    return replace(
        explained,
        improvements=_of_iterations(improvements.table, explained.lost_time),
        tested=improvements.tested,
        critical_path=intermediates.critical_path.filter(pl.col("step").is_in(list(steps))),
        diagnostics=tuple(dict.fromkeys(each for one in found for each in one.diagnostics)),
    )


def _measure_losses(
    intermediates: Intermediates, iterations: pl.DataFrame, steps_per_iteration: int
) -> pl.DataFrame:
    """Return the table LOSSES per iteration; `iterations` has a row per step."""
    ledger, chained = intermediates.ledger, intermediates.chained_losses
    of_steps = measure_losses(iterations, ledger.losses, ledger.orders, chained, ledger.steps)
    return of_steps.with_columns(cs.ends_with("ns") * steps_per_iteration)


def _outside_culprits(intermediates: Intermediates, iterations: pl.DataFrame) -> pl.DataFrame:
    ranks = intermediates.ledger.ranks.filter(pl.col("step").is_in(iterations["step"].unique().implode()))
    spans, between = intermediates.timeline.spans, intermediates.between_steps.parts
    return find_outside_culprits(iterations, ranks, spans, between)


def _late_ranks(intermediates: Intermediates, steps: Collection[int], lost: LostTime | None) -> pl.DataFrame:
    """Return the table LATE_RANKS of some steps; nothing is claimed if nothing else can be explained."""
    known = intermediates.iteration_steps.filter(pl.col("step").is_in(list(steps)))
    iterations = intermediates.accumulation.table.select("step", "iteration")
    least_ns = LEAST_COST_FRACTION * lost.mean_ns if lost else float("inf")
    return find_late_ranks(
        intermediates.meetings, known.join(iterations, on="step"), intermediates.timeline.spans, least_ns
    )


def _of_iterations(improvements: pl.DataFrame, lost: LostTime | None) -> pl.DataFrame:
    """Return predictions for steps as predictions for iterations of several steps."""
    if lost is None or lost.steps_per_iteration == 1:
        return improvements
    return improvements.with_columns(
        (cs.ends_with("_step_ns") | cs.by_name("gain_ns")) * lost.steps_per_iteration
    )


def _pattern(outliers: pl.DataFrame, actions: pl.DataFrame, steps: Collection[int]) -> OutlierPattern:
    return find_outlier_pattern(outliers, actions["rank"].n_unique(), actions["microbatch"].n_unique(), steps)
