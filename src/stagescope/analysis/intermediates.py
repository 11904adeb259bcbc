"""Intermediate results that several analyses of one run share, each computed once, on first use."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.collectives.meetings import find_meetings
from stagescope.analysis.completeness.incomplete_steps import find_incomplete_steps
from stagescope.analysis.completeness.missing_data import StepCounts, count_steps
from stagescope.analysis.completeness.missing_ranks import (
    MissingRanks,
    find_missing_ranks,
    find_peers,
    suspect_missing_last_stage,
)
from stagescope.analysis.completeness.unaligned import drop_ranks
from stagescope.analysis.graph.actions import Actions, find_actions, find_turns
from stagescope.analysis.graph.binding_constraints import BindingConstraints, find_binding_constraints
from stagescope.analysis.graph.critical_path import find_critical_path
from stagescope.analysis.graph.latest_inputs import LatestInputs, find_latest_inputs
from stagescope.analysis.graph.replay_basis import ReplayBasis, find_replay_basis
from stagescope.analysis.graph.slack import measure_slack
from stagescope.analysis.idle.action_costs import ActionCosts, find_action_costs
from stagescope.analysis.idle.intervals import find_idle_intervals
from stagescope.analysis.idle.late_receivers import with_late_receivers
from stagescope.analysis.idle.ledger import Ledger, build_ledger
from stagescope.analysis.idle.other_compute import without_other_compute
from stagescope.analysis.idle.other_windows import idle_of_iterations, idle_of_own_spans
from stagescope.analysis.idle.step_windows import count_microbatches, windows_with_work
from stagescope.analysis.iteration.accumulation import Accumulation, find_accumulation, steps_with_optimizer
from stagescope.analysis.iteration.activities import (
    ActivityUnions,
    name_activities,
    shows_activity,
    without_waits,
)
from stagescope.analysis.iteration.between_steps import BetweenSteps, find_between_steps
from stagescope.analysis.iteration.boundaries import find_iteration_steps, find_recorded
from stagescope.analysis.iteration.chained_losses import (
    StepChain,
    find_step_chain,
    measure_chained_losses,
)
from stagescope.analysis.iteration.ledger import (
    IterationLedger,
    build_iteration_ledger,
    find_late_starts,
    measure_before_windows,
)
from stagescope.analysis.other_pipelines import OtherPipelines, spans_of, windows_with
from stagescope.analysis.prediction.ideal import Ideal, declared_schedule, lay_ideal, unknown_ideal
from stagescope.analysis.run_sample import find_sample
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.analysis.unrecorded import find_unrecorded
from stagescope.analysis.usual_values import UsualValues
from stagescope.analysis.windows import Windows, measure_windows
from stagescope.model.bubbles import recorded_waits
from stagescope.model.collectives import find_collectives
from stagescope.model.coverage import unite_computing
from stagescope.model.large_tables import united_rows
from stagescope.model.messages import match_messages
from stagescope.model.outlines import of_ranks, with_others
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE
from stagescope.vocabulary.steps import StepRanges

if TYPE_CHECKING:
    from stagescope.analysis.prediction.schedule_ranges import SchedulePredictions
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange


@dataclass(frozen=True)
class Intermediates:
    """Shared results for all steps of the pipelines that can be measured.

    `timeline` holds the spans of those pipelines only. `span_rows` maps its rows to rows of the timeline that the
    caller has; None if both are the same. Columns such as `row` and `before_row` are rows of the caller's timeline.
    `steps` are those whose actions are analyzed, None for all; spans of the steps before and after them are there, too.
    For a large run each of these results takes seconds, and some of them take GiBs. What is usual is learned from the
    `sample`, which also answers what is asked about single actions.
    """

    timeline: Timeline
    windows: Windows
    span_rows: pl.Series | None = None
    steps: StepRange | StepRanges | None = None

    def with_results(self, **results: object) -> Intermediates:
        """Return the same with some results that are known already, by the names of these properties."""
        known = replace(self)
        names = {field.name for field in fields(self)}
        kept = {name: value for name, value in self.__dict__.items() if name not in names}
        known.__dict__.update(kept | results)
        return known

    def without_results(self, *results: str) -> Intermediates:
        """Return the same without some results, which take memory as long as anything has them."""
        known = self.with_results()
        for name in results:
            known.__dict__.pop(name, None)
        return known

    @property
    def sample(self) -> Intermediates:
        """The results of the sample of the run (sampled_steps.py): the same unless it is large."""
        return self if self.own_sample is None else self.own_sample

    @cached_property
    def own_sample(self) -> Intermediates | None:
        """The sample if it is not the whole run: what refers to itself would stay in memory when nothing uses it."""
        return None if self.steps is not None else find_sample(self)

    @cached_property
    def others(self) -> OtherPipelines | None:
        """What is known of other pipelines; None if these results are those of all."""
        return None

    @property
    def own_spans(self) -> pl.DataFrame:
        """The spans without those of the steps next to the steps that are analyzed, of which only a part is there."""
        if self.steps is None:
            return self.timeline.spans
        return self.timeline.spans.filter(pl.col("step").is_null() | is_in_steps(self.steps))

    @property
    def spans_with_others(self) -> pl.DataFrame:
        """The own spans and, without transfers, what is known of those of other pipelines in the same steps."""
        others = spans_of(self.others)
        own = pl.col("step").is_null() | is_in_steps(self.steps)
        return with_others(self.own_spans, None if others is None else others.filter(own))

    @cached_property
    def sample_ratio(self) -> float:
        """How many times as many steps the run has as this sample of it; 1 for the whole run."""
        return 1.0

    @cached_property
    def usual(self) -> UsualValues | None:
        """What is usual in the run; None for what is its own sample, from which it is learned on the way.

        A sample of some pipelines of large steps does not show it, and is given it (run_sample.py).
        """
        return None if self.sample is self else self.sample.usual or self.sample.learned

    @property
    def learned(self) -> UsualValues:
        """What these results show to be usual."""
        return UsualValues(self.basis.usual, self.costs.usual)

    @cached_property
    def actions(self) -> Actions:
        """The result of find_actions."""
        actions = find_actions(self.timeline, self.windows.pipelines, self.steps, spans_of(self.others))
        return actions if self.span_rows is None else actions.in_rows(self.span_rows.cast(pl.UInt32))

    @cached_property
    def turns(self) -> pl.DataFrame:
        """The result of find_turns."""
        return find_turns(self.timeline.spans, self.windows.pipelines)

    @cached_property
    def messages(self) -> pl.DataFrame:
        """The result of match_messages."""
        return match_messages(self.timeline.spans)

    @cached_property
    def transfers(self) -> pl.DataFrame:
        """The result of measure_transfers for all messages."""
        return measure_transfers(self.messages)

    @cached_property
    def busy(self) -> pl.DataFrame:
        """The union of all spans on the compute lane, per rank."""
        return unite_computing(self.timeline.spans)

    @cached_property
    def recorded(self) -> pl.DataFrame:
        """The result of find_recorded."""
        return find_recorded(self.timeline.spans)

    @cached_property
    def recorded_waits(self) -> frozenset[str]:
        """The result of recorded_waits."""
        return recorded_waits(self.timeline.spans)

    @cached_property
    def steps_with_optimizer(self) -> pl.Series:
        """The result of steps_with_optimizer."""
        return steps_with_optimizer(self.timeline.spans)

    @cached_property
    def incomplete_steps(self) -> frozenset[int]:
        """The result of find_incomplete_steps."""
        return frozenset(find_incomplete_steps(self.timeline.spans, self.windows.pipelines))

    @cached_property
    def step_counts(self) -> StepCounts:
        """The result of count_steps."""
        return count_steps(self.timeline.spans)

    @cached_property
    def rank_stages(self) -> pl.DataFrame:
        """The stages of every rank, sorted, as a list: rank and stages."""
        actions = self.timeline.spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS))
        stages = pl.col("stage").drop_nulls().unique().sort().alias("stages")
        return actions.group_by("rank").agg(stages).sort("rank").collect()

    @cached_property
    def microbatch_counts(self) -> pl.DataFrame:
        """The result of count_microbatches."""
        return count_microbatches(self.timeline.spans, self.windows.pipelines)

    @cached_property
    def step_windows(self) -> pl.DataFrame:
        """The result of windows_with_work."""
        return windows_with_work(self.windows.bubbles, self.microbatch_counts)

    @cached_property
    def idle_of_iterations(self) -> pl.DataFrame:
        """The result of idle_of_iterations."""
        bubbles = windows_with(self.windows, self.others).bubbles
        every = idle_of_iterations(bubbles, self.recorded, self.busy)
        return every.filter(of_ranks(self.windows.pipelines))

    @cached_property
    def idle_of_own_spans(self) -> pl.DataFrame:
        """The result of idle_of_own_spans."""
        return idle_of_own_spans(self.timeline.spans, self.windows.pipelines, self.busy)

    @cached_property
    def basis(self) -> ReplayBasis:
        """The result of find_replay_basis, with late receivers."""
        usual = self.usual and self.usual.transfers
        basis = find_replay_basis(self.actions, usual)
        return with_late_receivers(self.actions, basis, self.timeline.spans, usual)

    @cached_property
    def inputs(self) -> LatestInputs:
        """The result of find_latest_inputs."""
        return find_latest_inputs(self.actions)

    @cached_property
    def costs(self) -> ActionCosts:
        """The result of find_action_costs."""
        usual = self.usual and self.usual.causes
        return find_action_costs(self.actions, self.basis, self.timeline.spans, usual)

    @cached_property
    def ledger(self) -> Ledger:
        """The result of build_ledger with origins, for all steps, in which ranks are busy during all compute."""
        # Nothing asks for where lost time comes from in the sample.
        with_origins = not isinstance(self.steps, StepRanges)
        ledger = build_ledger(self.actions, self.basis, costs=self.costs, with_origins=with_origins)
        spans, bubbles = self.timeline.spans, self.windows.bubbles
        ranks = without_other_compute(ledger.ranks, self.actions, bubbles, self.busy, spans)
        return replace(ledger, ranks=ranks)

    @cached_property
    def unrecorded(self) -> frozenset[str]:
        """The result of find_unrecorded."""
        return find_unrecorded(self.timeline, self.actions)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """The result of find_collectives."""
        every = with_others(self.timeline.spans, spans_of(self.others))
        return find_collectives(every, self.timeline.ranks).filter(of_ranks(self.timeline.spans))

    @cached_property
    def meetings(self) -> pl.DataFrame:
        """The result of find_meetings."""
        # A recording may have millions of collectives inside of actions, which are no meetings.
        inside = (pl.col("kind") == COLLECTIVE) & pl.col("stage").is_not_null()
        outside = find_collectives(self.timeline.spans.filter(~inside))
        return find_meetings(outside, self.turns, self.timeline.spans)

    @cached_property
    def between_steps(self) -> BetweenSteps:
        """The result of find_between_steps."""
        named = without_waits(name_activities(self.timeline.spans.filter(shows_activity())), self.meetings)
        return find_between_steps(self.meetings, self.turns, self.iteration_steps, ActivityUnions(named))

    @cached_property
    def accumulation(self) -> Accumulation:
        """The result of find_accumulation for all steps with a window."""
        steps = united_rows(self.windows.parts, ["step"])["step"]
        return find_accumulation(steps, self.steps_with_optimizer)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """The table of build_iteration_ledger."""
        return self.iteration_ledger.table

    @cached_property
    def iteration_ledger(self) -> IterationLedger:
        """The result of build_iteration_ledger."""
        tables = (self.windows.bubbles, self.iteration_steps, self.ledger.ranks)
        return build_iteration_ledger(*tables, self.between_steps, self.before_windows)

    @cached_property
    def before_windows(self) -> pl.DataFrame:
        """The result of measure_before_windows."""
        steps, unions = self.iteration_steps, self.between_steps.unions
        return measure_before_windows(self.windows.bubbles, steps, unions, self.turns)

    @cached_property
    def late_starts(self) -> pl.DataFrame:
        """The result of find_late_starts."""
        return find_late_starts(self.before_windows)

    @cached_property
    def iteration_steps(self) -> pl.DataFrame:
        """The result of find_iteration_steps."""
        return find_iteration_steps(self.windows.bubbles, self.recorded, self.ledger.steps)

    @cached_property
    def step_chain(self) -> StepChain | None:
        """The result of find_step_chain: of the sample, because a chain is replayed as a whole."""
        if self.sample is not self:
            return self.sample.step_chain
        steps = self.iteration_steps
        return find_step_chain(self.actions, self.basis, self.timeline.spans, steps, self.meetings)

    @cached_property
    def chained_losses(self) -> pl.DataFrame | None:
        """The result of measure_chained_losses for the sample, None if its steps do not overlap."""
        if self.sample is not self:
            return self.sample.chained_losses
        chain = self.step_chain
        return None if chain is None else measure_chained_losses(chain, self.actions, self.basis, self.ledger)

    @cached_property
    def ideal(self) -> Ideal:
        """The result of lay_ideal, with the declared schedule if all ranks declared the same one.

        Unknown if ranks are or seem to be missing: what is left of one schedule can look like another one.
        """
        if self.sample is not self:
            return self.sample.ideal
        if self.missing:
            return unknown_ideal(str(self.missing))
        laid = lay_ideal(self.actions, declared_schedule(self.timeline.ranks))
        recognized = laid.schedule if laid.source == "recognized" else None
        suspect = suspect_missing_last_stage(self.actions, recognized)
        return unknown_ideal(suspect.message, suspect) if suspect else laid

    @cached_property
    def predictions(self) -> SchedulePredictions | None:
        """The result of predict_other_schedules for the steps in the totals, None where it is not known yet."""
        return None

    @cached_property
    def peers(self) -> frozenset[int]:
        """The result of find_peers."""
        return find_peers(self.timeline.spans, self.windows.pipelines)

    @cached_property
    def outliers(self) -> pl.DataFrame | None:
        """The result of find_outliers for the steps in the totals, None where it is not known yet."""
        return None

    @cached_property
    def missing(self) -> MissingRanks:
        """The result of find_missing_ranks."""
        ranks, pipelines = self.timeline.ranks, self.windows.pipelines
        return find_missing_ranks(ranks, pipelines, self.peers, self.rank_stages)

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """The result of find_critical_path."""
        return find_critical_path(self.actions, self._find_constraints(), self.inputs, self.busy)

    @cached_property
    def slack(self) -> pl.DataFrame:
        """The result of measure_slack."""
        return measure_slack(self.actions, self._find_constraints())

    @cached_property
    def idle_intervals(self) -> pl.DataFrame:
        """The result of find_idle_intervals."""
        return find_idle_intervals(self.windows.bubbles, self.busy, self.actions, self.inputs)

    def _find_constraints(self) -> BindingConstraints:
        # Not cached: they take more memory than anything else here, and few ask for both critical path and slack.
        return find_binding_constraints(self.actions, self.basis.plan, self.basis.lag_ns)


def intermediates_of(timeline: Timeline, windows: Windows | None = None) -> Intermediates:
    """Return the intermediate results of a timeline, none of them computed yet."""
    windows = measure_windows(timeline) if windows is None else windows
    if not windows.unaligned:
        return Intermediates(timeline, windows)
    kept = (~timeline.spans["rank"].is_in(windows.unaligned)).arg_true()
    return Intermediates(drop_ranks(timeline, windows.unaligned), windows, kept)
