"""The actions of a timeline, one row each, and which results of other actions each of them needed.

Every analysis of waiting starts here. An action is one forward, backward or weight gradient on the compute lane. An
overlapped pair counts as one row if its two actions really overlapped: a runtime that cannot run two actions at once
executes a declared pair one after the other, and then they are two rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.action_cells import codes_of
from stagescope.analysis.graph.causality import (
    CONTRADICTIONS,
    LARGE,
    UNALIGNED,
    UNCERTAIN,
    find_contradictions,
    judge_clocks,
    judge_contradictions,
)
from stagescope.analysis.graph.dependencies import DirectionType, find_dependencies
from stagescope.analysis.graph.inner_waits import find_inner_waits
from stagescope.analysis.graph.reduction_waits import (
    HeldMessages,
    ReductionWaits,
    Waits,
    find_held_messages,
    find_reduction_waits,
    no_reduction_waits,
)
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.outlines import of_ranks, with_others
from stagescope.model.pipelines import find_pipelines
from stagescope.model.row_numbers import order_rows
from stagescope.model.simulated import is_simulated
from stagescope.model.step_ranges import is_in_steps
from stagescope.model.tables import Column, KindType, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE, HOST, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange, StepRanges

PAIR = 2

ACTIONS = Table(
    "actions",
    "one action, or one overlapped pair, on the compute lane of one rank",
    ("pipeline", "step", "rank", "start_ns"),
    (
        Column("action", pl.UInt32, "", "Number of the action: its row in this table."),
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("place", pl.UInt32, "", "Index in the rank's execution order of that step, from 0."),
        Column(
            "kind", KindType, "", "Kind; of a pair, the kind of its first action: the forward if it has one."
        ),
        Column("is_pair", pl.Boolean, "", "Whether it is an overlapped pair."),
        Column("stage", pl.Int32, "", "Global stage of that action."),
        Column("chunk", pl.Int32, "", "Local model chunk of that action.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch of that action."),
        Column("start_ns", pl.Int64, "ns", "Start; of a pair, the earlier start of its actions."),
        Column("end_ns", pl.Int64, "ns", "End; of a pair, the later end of its actions."),
        Column("row", pl.UInt32, "", "Row of that action in the spans of the run."),
    ),
)

NEEDS = Table(
    "needs",
    "one result that an action needed from another action before it could start",
    ("action", "direction"),
    (
        Column("action", pl.UInt32, "", "Action that needed it."),
        Column("needs", pl.UInt32, "", "Action that produced it."),
        Column(
            "direction",
            DirectionType,
            "",
            "forward: an activation; backward: a gradient; own: a result of its own stage.",
        ),
        Column("is_remote", pl.Boolean, "", "Whether the producer ran on another rank."),
        Column("sent_ns", pl.Int64, "ns", "When the message was issued; null: not recorded.", nullable=True),
        Column(
            "arrived_ns",
            pl.Int64,
            "ns",
            "When the receiver knew of its arrival; null: not recorded.",
            nullable=True,
        ),
        Column(
            "posted_ns", pl.Int64, "ns", "When its receive was posted; null: not recorded.", nullable=True
        ),
        Column(
            "awaited_ns",
            pl.Int64,
            "ns",
            "When its sender began to wait for the send; null: it did not wait, or that was not recorded.",
            nullable=True,
        ),
        Column(
            "released_ns",
            pl.Int64,
            "ns",
            "When its sender went on after that wait.",
            nullable=True,
        ),
    ),
)

PARTNERS = Table(
    "partners",
    "the second action of an overlapped pair",
    ("action",),
    (
        Column("action", pl.UInt32, "", "The pair, a row of actions."),
        Column("kind", KindType, "", "Its kind."),
        Column("stage", pl.Int32, "", "Global stage."),
        Column("chunk", pl.Int32, "", "Local model chunk.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch."),
        Column("row", pl.UInt32, "", "Row in the spans of the run."),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Actions:
    """The tables ACTIONS, NEEDS and PARTNERS of a timeline, and diagnostics for what they leave out.

    `has_transfers` is False if messages between ranks are needed, but the arrival of none was recorded. `reductions` is
    when ranks waited for reductions of gradients, `inside` when they waited for data-parallel collectives inside of
    actions. `contradictions` is from find_contradictions.
    """

    table: pl.DataFrame
    needs: pl.DataFrame
    partners: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    has_transfers: bool = True
    reductions: ReductionWaits = field(default_factory=no_reduction_waits)
    inside: ReductionWaits = field(default_factory=no_reduction_waits)
    contradictions: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CONTRADICTIONS))

    @cached_property
    def inner(self) -> Waits:
        """How long the rank of every action did not compute within it, but waited for data-parallel collectives."""
        start_ns, end_ns = (self.table[name].to_numpy() for name in ("start_ns", "end_ns"))
        return self.inside.in_intervals(self.table["rank"], start_ns, end_ns)

    def duration_ns(self) -> NDArray[np.int64]:
        """Return how long every action took, with these waits."""
        duration_ns: NDArray[np.int64] = (self.table["end_ns"] - self.table["start_ns"]).to_numpy()
        return duration_ns

    def computing_ns(self) -> NDArray[np.int64]:
        """Return how long every action took without these waits."""
        # Most runs have none. Arrays of a value per action are most of the memory of a report.
        return (
            self.duration_ns() if self.inside.every.is_empty() else self.duration_ns() - self.inner.total_ns
        )

    @cached_property
    def held(self) -> HeldMessages:
        """The messages that were sent only after a wait for a reduction."""
        return find_held_messages(self.table, self.needs, self.reductions)

    def in_rows(self, row: pl.Series) -> Actions:
        """Return the same actions, given the row that each span has in the spans of the caller."""
        table, partners = (
            each.with_columns(row=row.gather(each["row"])) for each in (self.table, self.partners)
        )
        return replace(self, table=table, partners=partners)

    @property
    def is_contradictory(self) -> bool:
        """Whether timestamps contradict the dependencies, or may be wrong, so much that idle time is not explained."""
        return any(found.code in (LARGE, UNCERTAIN) for found in self.diagnostics)

    @property
    def is_uncertain(self) -> bool:
        """Whether the clocks of machines are too uncertain to explain idle time."""
        return any(found.code == UNCERTAIN for found in self.diagnostics)


def find_actions(
    timeline: Timeline,
    pipelines: pl.DataFrame | None = None,
    steps: StepRange | StepRanges | None = None,
    others: pl.DataFrame | None = None,
) -> Actions:
    """Return the actions of a timeline, or of some of its steps, and what each of them needed.

    `pipelines` is what find_pipelines returns; None: it is computed here. `others` are spans of ranks of other
    pipelines, which those of the timeline meet at collectives. Spans without step, stage or micro-batch and
    spans that only record a launch on the host are left out and counted in a diagnostic. Needs follow
    `find_dependencies`, without those between the two actions of one pair. Ranks of one pipeline that run the same
    actions (tensor parallelism without coordinates) look like duplicate actions.
    """
    if pipelines is None:
        pipelines = find_pipelines(timeline.spans, timeline.ranks)
    spans = timeline.spans
    is_chosen = is_in_steps(steps)
    actions, excluded = _find_parts(spans, pipelines, is_chosen)
    actions = _in_order(actions)
    moments = [f"{bound}_ns" for bound in ("start", "end", "wait_start", "wait_end")]
    is_transfer = pl.col("kind").is_in(TRANSFERS) & _is_placed() & is_chosen
    exchanged = (
        spans.lazy().filter(is_transfer).select("rank", "kind", "step", "stage", "microbatch", *moments)
    )
    transfers = _with_pipeline(exchanged.collect(), pipelines)
    found = find_dependencies(actions, transfers)
    del transfers
    table, partners, united = _unite_pairs(actions)
    needs = _needs_of_actions(found.rows, united)
    contradictions = find_contradictions(table, needs, clock_errors(timeline))
    arrived_ns = needs.filter("is_remote")["arrived_ns"]
    # A simulation without transfers has ones that take no time.
    has_transfers = is_simulated(timeline) or arrived_ns.is_empty() or arrived_ns.is_not_null().any()
    judged = judge_timestamps(timeline, [contradictions], table["rank"])
    diagnostics = (*excluded, *found.diagnostics, *judged)
    every = with_others(spans, others)
    reductions, inside = find_reduction_waits(every), find_inner_waits(every, timeline.ranks)
    if others is not None:
        reductions, inside = (waits.filter(of_ranks(spans)) for waits in (reductions, inside))
    return Actions(table, needs, partners, diagnostics, has_transfers, reductions, inside, contradictions)


def judge_timestamps(timeline: Timeline, found: Iterable[pl.DataFrame], ranks: pl.Series) -> list[Diagnostic]:
    """Return diagnostics about timestamps that contradict dependencies, and about uncertain clocks of ranks.

    `found` is from find_contradictions for all steps, some after the others.
    """
    is_unaligned = bool(timeline.diagnostics["code"].is_in(UNALIGNED).any())
    clocks = clock_errors(timeline).filter(pl.col("rank").is_in(ranks.unique().implode()))
    return [
        *judge_contradictions(found, is_unaligned=is_unaligned),
        *judge_clocks(found, clocks),
    ]


def _is_placed() -> pl.Expr:
    return pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())


def find_turns(spans: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return when every rank began its first action of every step, and ended the last one.

    Columns: rank, step, began_ns and ended_ns, sorted by began_ns.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & _is_placed()
    actions = spans.lazy().filter(is_action).join(pipelines.lazy().select("rank"), on="rank", how="semi")
    turns = actions.group_by("rank", "step").agg(
        began_ns=pl.min("start_ns"), ended_ns=pl.max_horizontal("start_ns", "end_ns").max()
    )
    return turns.sort("began_ns", "rank").collect()


def _find_parts(
    spans: pl.DataFrame, pipelines: pl.DataFrame, is_chosen: pl.Expr
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the spans that are actions, with their pipeline, and diagnostics that count the others."""
    names = ["rank", "kind", "step", "stage", "chunk", "microbatch", "pair", "start_ns", "end_ns"]
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    on_device = pl.col("lane") == COMPUTE
    kept = is_action & on_device & _is_placed() & is_chosen
    actions = spans.lazy().with_row_index("row").filter(kept).select("row", *names).collect()
    counts = spans.select(
        host=(is_action & is_chosen & (pl.col("lane") == HOST)).sum(),
        unplaced=(is_action & is_chosen & on_device & pl.col("step").is_not_null() & ~_is_placed()).sum(),
    ).row(0, named=True)
    messages = {
        "host": "forward or backward spans are only launches on the host lane; they are not analyzed",
        "unplaced": "forward or backward spans have no stage or micro-batch; they are not analyzed",
    }
    diagnostics = [
        Diagnostic("warning", messages[name], count=count, code=f"actions.{name}")
        for name, count in counts.items()
        if count
    ]
    # A clock that was set back can make a span end before it starts: it counts as having no length.
    actions = actions.with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))
    return _with_pipeline(actions, pipelines), diagnostics


def _with_pipeline(frame: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose rank is in a pipeline, with that pipeline. A join does the same, but takes longer."""
    known = pipelines.sort("rank")
    place = codes_of(frame["rank"].to_numpy(), known["rank"].to_numpy().astype(np.int64))
    if (place < 0).any():
        frame, place = frame.filter(pl.Series(place >= 0)), place[place >= 0]
    return frame.with_columns(known["pipeline"].gather(place))


def _in_order(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions sorted by pipeline, step, rank and start.

    Spans are sorted by rank and start already, so one stable sort by an integer key is enough.
    """
    return actions[order_rows(actions.select("pipeline", "step", "rank"))]


def _unite_pairs(actions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, NDArray[np.uint32]]:
    """Return the actions with pairs united, the second actions of pairs, and the row that every span became."""
    numbers = np.arange(actions.height, dtype=np.uint32)
    actions = actions.with_columns(action=pl.Series(numbers), is_pair=pl.lit(value=False))
    partners = PARTNERS.empty()
    if actions["pair"].null_count() < actions.height:
        actions, partners, numbers = _with_pairs(actions)
    return actions.with_columns(place=_places(actions)).select(ACTIONS.names), partners, numbers


def _places(actions: pl.DataFrame) -> pl.Series:
    """Return the number of each action within its pipeline, step and rank, by which the actions are sorted."""
    turn = actions.select(pl.struct("pipeline", "step", "rank").rle_id()).to_series().to_numpy()
    number = np.arange(actions.height)
    first = np.flatnonzero(np.diff(turn.astype(np.int64), prepend=-1))
    return pl.Series((number - first[turn]).astype(np.uint32))


def _with_pairs(actions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, NDArray[np.uint32]]:
    """Return the actions with overlapping pairs united, their second actions, and the row that every span became."""
    key = ["pipeline", "step", "rank", "pair"]
    paired = (
        actions.filter(pl.col("pair").is_not_null())
        .with_columns(
            action_count=pl.len().over(key),
            leader=pl.min("action").over(key),
            kind_order=pl.col("kind").to_physical(),
            is_together=pl.max("start_ns").over(key) < pl.min("end_ns").over(key),
        )
        .filter((pl.col("action_count") == PAIR) & pl.col("is_together"))
    )
    united = (
        paired.sort("leader", "kind_order", "action")
        .group_by("leader", maintain_order=True)
        .agg(
            pl.first("kind", "stage", "chunk", "microbatch", "row"),
            *(
                pl.last(name).name.prefix("second_")
                for name in ("kind", "stage", "chunk", "microbatch", "row")
            ),
            pl.min("start_ns"),
            pl.max("end_ns"),
            follower=pl.max("action"),
        )
    )
    leaders, followers = united["leader"].to_numpy(), united["follower"].to_numpy()
    keeps = np.ones(actions.height, dtype=np.bool_)
    keeps[followers] = False
    numbers = (np.cumsum(keeps) - 1).astype(np.uint32)
    numbers[followers] = numbers[leaders]
    changed = united.select(
        "kind",
        "stage",
        "chunk",
        "microbatch",
        "row",
        "start_ns",
        "end_ns",
        action="leader",
        is_pair=pl.lit(value=True),
    )
    table = (
        actions.update(changed, on="action")
        .filter(pl.Series(keeps))
        .with_columns(action=pl.int_range(pl.len(), dtype=pl.UInt32))
    )
    partners = united.select(
        pl.Series("action", numbers[leaders]),
        *(pl.col(f"second_{name}").alias(name) for name in ("kind", "stage", "chunk", "microbatch", "row")),
    )
    return table, partners, numbers


def _needs_of_actions(rows: pl.DataFrame, united: NDArray[np.uint32]) -> pl.DataFrame:
    """Return the needs of spans as needs of united actions; a pair does not need itself."""
    action, needs = united[rows["action"].to_numpy()], united[rows["needs"].to_numpy()]
    table = rows.with_columns(action=pl.Series(action), needs=pl.Series(needs)).select(NEEDS.names)
    if len(united) and int(united[-1]) + 1 == len(united):  # no pairs, so the order is unchanged
        return table
    return table.filter(pl.col("action") != pl.col("needs")).sort(NEEDS.order, maintain_order=True)


def clock_errors(timeline: Timeline) -> pl.DataFrame:
    """Return the clock of every rank, its error bound and its estimated error, null if unknown."""
    off = pl.max_horizontal(pl.col("error_lo_ns").abs(), pl.col("error_hi_ns").abs())
    estimated = pl.col("estimated_error_ns").max()
    errors = timeline.clocks.group_by("clock").agg(error_ns=off.max(), estimated_ns=estimated)
    return timeline.ranks.select("rank", "clock").join(errors, on="clock", how="left")
