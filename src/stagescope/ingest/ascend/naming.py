"""Every marked action gets its place in the schedule: kind, chunk, stage and micro-batch.

Marks of Ascend profiles seldom say which micro-batch they are: only functions that take `current_microbatch` do. So
what each rank did in a step is matched, as a whole, with what the schedule has it do
(schedules/recognition/matching.py): what a mark says is never contradicted, a lost or an extra mark shifts no other,
and where several matches are as near the times decide (clues.py) or the actions concerned stay without a number,
counted in the diagnostics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend import counting
from stagescope.ingest.ascend.choice import choose_plans
from stagescope.ingest.ascend.clues import PRODUCTS, StepClues, When, key_of, usual_lengths
from stagescope.ingest.ascend.naming_diagnostics import what_was_wrong
from stagescope.ingest.ascend.placing import Fitted, Look, expected, find_looks, fit_plan, place, word
from stagescope.ingest.ascend.plan import LOGITS
from stagescope.ingest.ascend.sizes import check_declared, count_actions, list_plans
from stagescope.ingest.ascend.spans import spans_of_actions
from stagescope.model import SPANS
from stagescope.schedules.spellings import known_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.ascend.clues import Key
    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.schedules.recognition.matching import Match

ROUNDS = 3
"""How often the names that have become sure are used to make more sure."""

PLAIN_BACKWARD, GRAPH = "backward_step", "model_graph"
"""MindSpeed's backward of the loss alone, and the word in the names of the other functions."""


def name_actions(
    actions: pl.DataFrame, ranks: pl.DataFrame, declared: PipelineInfo
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the actions as spans, sorted as declared, and what was lost, extra, ambiguous or contradictory.

    `actions` are raw actions (ingest/ascend/pipeline_info.py), `ranks` has rank, pp, dp, tp, cp and clock, which may be
    null. An overlapped mark becomes a forward and a backward with a shared pair id; the backward of the loss on rank
    0 of a DualPipeV is of kind loss, named "logits". A backward that is followed by its own weight gradient is a
    backward_input. The other spans bear the mark's own name. Actions that cannot be told have null in chunk, stage and
    microbatch. Where no step is told apart from another, passes through the schedule are numbered as steps.
    """
    if actions.is_empty():
        return SPANS.empty(), []
    grouped = _grouped(actions, ranks)
    counts = count_actions(grouped)
    stages = ranks["pp"].max()
    plans, notes = list_plans(counts, stages + 1, declared) if isinstance(stages, int) else ([], [])
    looks = find_looks(grouped)
    logits_are_told = LOGITS in grouped["sort"]
    variants = [each for plan in plans for each in plan.variants(logits_are_told=logits_are_told)]
    fitted = fit_plan(looks.values(), choose_plans(looks.values(), variants, declared))
    if fitted is None or not (fitted.is_near or known_schedule(declared.schedule)):
        counted, why = counting.count_along(grouped, declared, counts)
        return spans_of_actions(counted), [*notes, *why]
    placed = _Placed(grouped, looks, fitted, {}).settled()
    if fitted.is_near:
        notes += check_declared(fitted.plan, counts, declared)
    notes += what_was_wrong(grouped, fitted, looks, placed.matches)
    return spans_of_actions(placed.actions(), fitted), notes


def _grouped(actions: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the actions with pp, replica, clock, sort, word and group, sorted by group.

    A group is what one rank did in one step; of what it did outside every step, each stretch between two steps.
    """
    told = actions["step"].n_unique() > 1
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
            may_repeat=pl.col("step").is_null() | pl.lit(not told),
        )
        .with_columns(word=word(), group=pl.struct("rank", "step", "stretch").rle_id())
        .with_columns(group=pl.col("group").first().over("rank", "step", "stretch"))
        .sort("group", "start_ns", maintain_order=True)
    )


@dataclass(frozen=True)
class _Placed:
    """The groups of actions, and the match of each."""

    grouped: pl.DataFrame
    looks: Mapping[int, Look]
    fitted: Fitted
    matches: Mapping[int, Match | None]

    def settled(self) -> _Placed:
        """Return all matches, those of ambiguous groups with the help of the times."""
        by_look: dict[Look, Match | None] = {}
        for look in self.looks.values():
            if look not in by_look:
                by_look[look] = place(look, self.fitted.rows)
        placed = replace(self, matches={group: by_look[look] for group, look in self.looks.items()})
        usual_ns = usual_lengths(self.grouped)
        for _ in range(ROUNDS):
            doubtful = [group for group, found in placed.matches.items() if found and found.ambiguous]
            if not doubtful:
                break
            again = placed.by_times(doubtful, usual_ns)
            stuck = sum(len(found.ambiguous) for found in again.values() if found)
            before = sum(len(found.ambiguous) for group in doubtful if (found := placed.matches[group]))
            placed = replace(placed, matches={**placed.matches, **again})
            if stuck == before:
                break
        return placed

    def actions(self) -> pl.DataFrame:
        """Return the actions with `place` in one pass of the plan, null where it is not known, and steps of passes."""
        places = [
            found.places if (found := self.matches[group]) else (None,) * len(look.words)
            for group, look in self.looks.items()
        ]
        flat = pl.Series("place", [each for row in places for each in row], pl.Int32)
        lengths = {pp: len(row) for pp, row in self.fitted.rows.items()}
        length = pl.col("pp").replace_strict(lengths, default=None, return_dtype=pl.Int32)
        number = pl.col("place") // length
        since, until = (number.fill_null(strategy=way).over("group") for way in ("forward", "backward"))
        # A action of unknown place belongs to the pass of the actions around it, and to none between two.
        around = pl.when(since.fill_null(until) == until.fill_null(since)).then(since.fill_null(until))
        passes = pl.when(number.is_null().all().over("group")).then(0).otherwise(around)
        # Only where the marks tell no steps: a pass outside every step keeps its null.
        step = pl.when(pl.col("may_repeat")).then(pl.col("step") + passes).otherwise("step")
        return self.grouped.with_columns(flat).with_columns(step=step, place=pl.col("place") % length)

    def by_times(
        self, doubtful: list[int], usual_ns: Mapping[int, Mapping[str, int]]
    ) -> dict[int, Match | None]:
        """Return the matches of some groups, decided by their times and those of the actions whose names are sure."""
        concerned = self.grouped.filter(pl.col("group").is_in(doubtful))
        known = self._known_times(concerned)
        found: dict[int, Match | None] = {}
        for actions in concerned.partition_by("group"):
            group = actions.item(0, "group")
            look = self.looks[group]
            rank, step, replica, clock = actions.select("rank", "step", "replica", "clock").row(0)
            due = expected(look, self.fitted.rows)
            one_pass = len(due) == len(self.fitted.rows[look.pp or 0])
            times = [When(*row) for row in actions.select("start_ns", "end_ns").iter_rows()]
            others = known.get((step, replica, clock), {}) if one_pass and step is not None else {}
            plan = self.fitted.plan
            clues = StepClues(times, due, plan.ranks * plan.chunks, usual_ns[rank], others)
            found[group] = place(look, self.fitted.rows, clues)
        return found

    def _known_times(self, concerned: pl.DataFrame) -> dict[tuple[int, str, str], dict[Key, When]]:
        """Return, per step, pipeline and clock, when the actions of sure name ran."""
        same = ["step", "replica", "clock"]
        sure = self.actions().drop_nulls("place").join(concerned.select(same).unique(), on=same, how="semi")
        known: dict[tuple[int, str, str], dict[Key, When]] = {}
        columns = sure.select(*same, "pp", "place", "start_ns", "end_ns")
        for step, replica, clock, pp, at, start_ns, end_ns in columns.iter_rows():
            times = known.setdefault((step, replica, clock), {})
            for action in self.fitted.rows[pp][at].parts:
                if action.kind in PRODUCTS:
                    times[key_of(action)] = When(start_ns, end_ns)
        return known
