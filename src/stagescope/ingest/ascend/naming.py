"""Identify every marked action: kind, chunk, stage and micro-batch.

Marks of Ascend profiles seldom record their micro-batch: only functions with the parameter `current_microbatch` do. So
each rank's marks of a step are matched as a whole with the plan of the schedule (schedules/recognition/matching.py).
Numbers in a mark are never contradicted, and a missing or surplus mark does not shift the others. Where several matches
are equally close, the times decide (step_timing.py), or the actions concerned get no number and are counted in the
diagnostics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend import numbering_by_count
from stagescope.ingest.ascend.naming_diagnostics import diagnose_naming
from stagescope.ingest.ascend.plan import LOGITS
from stagescope.ingest.ascend.plan_matching import (
    FittedPlan,
    MarkSequence,
    expected,
    find_sequences,
    fit_plan,
    mark_key,
    place,
)
from stagescope.ingest.ascend.plan_selection import choose_plans
from stagescope.ingest.ascend.sizes import check_declared, count_actions, list_plans
from stagescope.ingest.ascend.spans import spans_of_actions
from stagescope.ingest.ascend.step_timing import PRODUCTS, Interval, StepTiming, action_key, usual_lengths
from stagescope.model import SPANS
from stagescope.schedules.spellings import known_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.ingest.ascend.step_timing import ActionKey
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.schedules.recognition.matching import Match

ROUNDS = 3
"""How many times newly identified actions are used to identify more."""

PLAIN_BACKWARD, GRAPH = "backward_step", "model_graph"
"""MindSpeed's backward of the loss alone, and the word in the names of the other functions."""


def name_actions(
    actions: pl.DataFrame, ranks: pl.DataFrame, declared: PipelineInfo
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the actions as spans, sorted as declared, and diagnostics on missing, surplus and ambiguous ones.

    `actions` are raw actions (ingest/ascend/pipeline_info.py), `ranks` has rank, pp, dp, tp, cp and clock, which may be
    null. An overlapped mark becomes a forward and a backward with a shared pair id; the backward of the loss on rank 0
    of a DualPipeV has kind loss and the name "logits". A backward that is followed by its own weight gradient is a
    backward_input. The other spans have the mark's own name. Unidentified actions have null in chunk, stage and
    microbatch. Without recorded step numbers, passes through the schedule are numbered as steps.
    """
    if actions.is_empty():
        return SPANS.empty(), []
    grouped = _grouped(actions, ranks)
    counts = count_actions(grouped)
    stages = ranks["pp"].max()
    plans, notes = list_plans(counts, stages + 1, declared) if isinstance(stages, int) else ([], [])
    sequences = find_sequences(grouped)
    logits_are_marked = LOGITS in grouped["sort"]
    variants = [each for plan in plans for each in plan.variants(logits_are_marked=logits_are_marked)]
    fitted = fit_plan(sequences.values(), choose_plans(sequences.values(), variants, declared))
    if fitted is None or not (fitted.is_near or known_schedule(declared.schedule)):
        counted, why = numbering_by_count.number_by_count(grouped, declared, counts)
        return spans_of_actions(counted), [*notes, *why]
    placed = _MatchedGroups(grouped, sequences, fitted, {}).resolved()
    if fitted.is_near:
        notes += check_declared(fitted.plan, counts, declared)
    notes += diagnose_naming(grouped, fitted, sequences, placed.matches)
    return spans_of_actions(placed.actions(), fitted), notes


def _grouped(actions: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the actions with pp, replica, clock, sort, mark_key and group, sorted by group.

    A group is one rank's actions in one step; outside the steps, each stretch between two steps is a group.
    """
    has_step_numbers = actions["step"].n_unique() > 1
    replica = [pl.col(name).cast(pl.String).fill_null("") for name in ("dp", "tp", "cp")]
    known = ranks.select(
        "rank",
        "pp",
        pl.coalesce("clock", pl.lit("rank ") + pl.col("rank").cast(pl.String)).alias("clock"),
        replica=pl.concat_str(replica, separator=","),
    )
    is_plain = pl.col("message") == PLAIN_BACKWARD
    has_both = (
        is_plain.any()
        & (pl.col("message").str.contains("backward") & pl.col("message").str.contains(GRAPH)).any()
    ).over("rank")
    stretch = pl.when(pl.col("step").is_null()).then(pl.col("step").rle_id().over("rank"))
    return (
        actions.join(known, on="rank", how="left", maintain_order="left")
        .with_columns(
            sort=pl.when(is_plain & has_both).then(pl.lit(LOGITS)).otherwise("marker"),
            stretch=stretch,
            may_repeat=pl.col("step").is_null() | pl.lit(not has_step_numbers),
        )
        .with_columns(mark_key=mark_key(), group=pl.struct("rank", "step", "stretch").rle_id())
        .with_columns(group=pl.col("group").first().over("rank", "step", "stretch"))
        .sort("group", "start_ns", maintain_order=True)
    )


@dataclass(frozen=True)
class _MatchedGroups:
    """The groups of actions, and the match of each."""

    grouped: pl.DataFrame
    sequences: Mapping[int, MarkSequence]
    fitted: FittedPlan
    matches: Mapping[int, Match | None]

    def resolved(self) -> _MatchedGroups:
        """Return all matches, with ambiguous groups resolved by their times where possible."""
        # Steps and replicas repeat: matching every distinct sequence once makes the cost independent of their
        # number.
        by_sequence: dict[MarkSequence, Match | None] = {}
        for sequence in self.sequences.values():
            if sequence not in by_sequence:
                by_sequence[sequence] = place(sequence, self.fitted.rows)
        placed = replace(
            self, matches={group: by_sequence[sequence] for group, sequence in self.sequences.items()}
        )
        usual_ns = usual_lengths(self.grouped)
        for _ in range(ROUNDS):
            doubtful = [group for group, found in placed.matches.items() if found and found.ambiguous]
            if not doubtful:
                break
            again = placed.resolved_by_timing(doubtful, usual_ns)
            unresolved = sum(len(found.ambiguous) for found in again.values() if found)
            before = sum(len(found.ambiguous) for group in doubtful if (found := placed.matches[group]))
            placed = replace(placed, matches={**placed.matches, **again})
            if unresolved == before:
                break
        return placed

    def actions(self) -> pl.DataFrame:
        """Return the actions with `place`, the index in one pass of the plan (or null), and the step of each pass."""
        places = [
            found.places if (found := self.matches[group]) else (None,) * len(sequence.keys)
            for group, sequence in self.sequences.items()
        ]
        flat = pl.Series("place", [each for row in places for each in row], pl.Int32)
        lengths = {pp: len(row) for pp, row in self.fitted.rows.items()}
        length = pl.col("pp").replace_strict(lengths, default=None, return_dtype=pl.Int32)
        number = pl.col("place") // length
        since, until = (number.fill_null(strategy=way).over("group") for way in ("forward", "backward"))
        # An action of unknown place belongs to the pass of the actions around it, and to none between two passes.
        around = pl.when(since.fill_null(until) == until.fill_null(since)).then(since.fill_null(until))
        passes = pl.when(number.is_null().all().over("group")).then(0).otherwise(around)
        # Only where no step numbers are recorded: a pass outside every step keeps its null.
        step = pl.when(pl.col("may_repeat")).then(pl.col("step") + passes).otherwise("step")
        return self.grouped.with_columns(flat).with_columns(step=step, place=pl.col("place") % length)

    def resolved_by_timing(
        self, doubtful: list[int], usual_ns: Mapping[int, Mapping[str, int]]
    ) -> dict[int, Match | None]:
        """Return the matches of some groups, resolved by their times and those of identified actions."""
        concerned = self.grouped.filter(pl.col("group").is_in(doubtful))
        known = self._known_times(concerned)
        found: dict[int, Match | None] = {}
        for actions in concerned.partition_by("group"):
            group = actions.item(0, "group")
            sequence = self.sequences[group]
            rank, step, replica, clock = actions.select("rank", "step", "replica", "clock").row(0)
            planned = expected(sequence, self.fitted.rows)
            one_pass = len(planned) == len(self.fitted.rows[sequence.pp or 0])
            times = [Interval(*row) for row in actions.select("start_ns", "end_ns").iter_rows()]
            others = known.get((step, replica, clock), {}) if one_pass and step is not None else {}
            plan = self.fitted.plan
            clues = StepTiming(times, planned, plan.ranks * plan.chunks, usual_ns[rank], others)
            found[group] = place(sequence, self.fitted.rows, clues)
        return found

    def _known_times(self, concerned: pl.DataFrame) -> dict[tuple[int, str, str], dict[ActionKey, Interval]]:
        """Return, per step, pipeline and clock, the intervals of the identified actions."""
        same = ["step", "replica", "clock"]
        sure = self.actions().drop_nulls("place").join(concerned.select(same).unique(), on=same, how="semi")
        known: dict[tuple[int, str, str], dict[ActionKey, Interval]] = {}
        columns = sure.select(*same, "pp", "place", "start_ns", "end_ns")
        for step, replica, clock, pp, at, start_ns, end_ns in columns.iter_rows():
            times = known.setdefault((step, replica, clock), {})
            for action in self.fitted.rows[pp][at].parts:
                if action.kind in PRODUCTS:
                    times[action_key(action)] = Interval(start_ns, end_ns)
        return known
