"""The steps of a training that marks its actions, but not its steps.

A step ends with the step of the optimizer, or where a rank runs an action again: within one step, each action runs
once. An evaluation between two steps is therefore a step of its own. Where steps overlap, so that an action of the
next one runs before the last of this one, the n-th time that an action runs is in the n-th step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.ingest.recording.row_blocks import FIRST, and_whether_last
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.tables import KindType
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    BACKWARDS,
    COMPUTE,
    EXCHANGING_KINDS,
    RECEIVES,
    SENDS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEY = ("kind", "stage", "microbatch")
ACTION = ("rank", "start_ns", *KEY)
PASS = ("rank", "stage", "microbatch", "forward")


def divide_into_steps(spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the spans with steps, if nothing states any.

    Micro-batches that are numbered through the whole run count from 0 in every step.

    A marked transfer belongs to the step of its action, any other span to the step whose first action began before it.
    A run without a backward is not a training: its steps stay unknown. A diagnostic counts the steps.
    """
    if spans["step"].null_count() < spans.height:
        return spans, []
    evidence = step_evidence(spans)
    if not evidence.has_backward:
        return spans, []
    way = Way(by_optimizer=len(set(evidence.optimizer_steps)) <= 1)
    if is_out_of_order([spans], way):
        way = way._replace(by_occurrence=True)
    [(known, begun)] = with_steps([spans], way)
    counted_again = with_shifted_microbatches(known, first_microbatches(known))
    return counted_again.select(spans.columns), [note_of_steps(begun["step"].n_unique())]


class StepEvidence(NamedTuple):
    """What the marked actions of some ranks show: whether one is a backward, and how often optimizers stepped.

    `of_ranks` has the number of steps of the optimizer of each rank, and `marked` the ranks with marked actions.
    """

    has_backward: bool
    of_ranks: Mapping[int, int]
    marked: frozenset[int]

    @property
    def optimizer_steps(self) -> tuple[int, ...]:
        """A number for each rank with marked actions."""
        return tuple(self.of_ranks.get(rank, 0) for rank in sorted(self.marked))

    def with_later(self, other: StepEvidence) -> StepEvidence:
        """Return what these spans and others of a run show together."""
        counts = Counter(self.of_ranks) + Counter(other.of_ranks)
        return StepEvidence(self.has_backward or other.has_backward, dict(counts), self.marked | other.marked)


class Way(NamedTuple):
    """How steps are found, the same for all ranks: whether the optimizer ends them, or the n-th run of an action.

    Without marked transfers in the run, none are looked for.
    """

    by_optimizer: bool
    by_occurrence: bool = False
    has_marked_transfers: bool = True


def step_evidence(spans: pl.DataFrame) -> StepEvidence:
    """Return what the marked actions of some ranks, or of all, show about steps."""
    marked = _marked(spans)
    counts = _optimizer_steps(spans).group_by("rank").len()
    return StepEvidence(
        bool(marked["kind"].is_in(BACKWARDS).any()),
        dict(counts.iter_rows()),
        frozenset(marked["rank"].unique()),
    )


def is_out_of_order(blocks: Iterable[pl.DataFrame], way: Way) -> bool:
    """Return whether a backward of one of these ranks would come before its forward in a step, or without it.

    `blocks` are those of `with_steps`, and steps are not found by the n-th run of an action.
    """
    stages = []
    has_forward, has_backward = (pl.col(name).is_not_null() for name in ("forward_ns", "backward_ns"))
    for starts in _starts_in_steps(blocks, way):
        if (starts["backward_ns"] < starts["forward_ns"]).any():
            return True
        is_alone = (has_backward & ~has_forward).any()
        stages.append(starts.group_by("rank", "stage").agg(forward=has_forward.any(), alone=is_alone))
    every = pl.concat(stages).group_by("rank", "stage").agg(pl.any("forward", "alone"))
    return bool((every["forward"] & every["alone"]).any())


def with_steps(blocks: Iterable[pl.DataFrame], way: Way) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield the spans of some ranks with steps, and which steps began: rank, step, start_ns, sorted by start_ns.

    `blocks` are all spans of these ranks: at once, or in the order of their starts, so that no action is in progress
    when a block begins. A marked receive whose action is in a later block is yielded with that one.
    """
    numbers = _no_numbers()
    begun = latest = before = waiting = None
    for block, is_last in and_whether_last(blocks):
        numbered, numbers = _numbered(block, way, numbers)
        began = numbered.group_by("rank", "step").agg(pl.min("start_ns")).sort("start_ns")
        if begun is not None:
            began = began.join(begun, on=["rank", "step"], how="anti", maintain_order="left")
        begun = _joined(begun, began.select("rank", "step"))
        known = _with_own_steps(block, numbered)
        latest = _joined(latest, began)
        known = known.with_columns(latest=_latest_step(known, latest))
        latest = latest.unique("rank", keep="last", maintain_order=True)
        rows = _joined(waiting, known)
        step = pl.coalesce("step", "latest")
        if way.has_marked_transfers:
            found, before = _steps_of_transfers(rows, before)
            waits = _is_waiting(found) if not is_last else pl.lit(value=False)
            waiting = rows.filter(waits)
            rows = rows.with_columns(found=found).filter(~waits)
            step = pl.coalesce("step", "found", "latest")
        yield rows.with_columns(step=step).select(known.columns[:-1]), began


def _with_own_steps(spans: pl.DataFrame, numbered: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with the steps of marked actions."""
    own = numbered.select(*ACTION, pl.col("step").cast(pl.Int32)).unique(ACTION)
    return spans.drop("step").join(own, on=ACTION, how="left", maintain_order="left")


def _latest_step(spans: pl.DataFrame, begun: pl.DataFrame) -> pl.Series:
    """Return the step of its rank that began last before each span."""
    found = spans.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        begun.rename({"step": "latest"}), on="start_ns", by="rank", check_sortedness=False
    )  # fmt: skip
    latest: pl.Series = found.sort("index")["latest"].cast(pl.Int32)
    return latest


def _joined(before: pl.DataFrame | None, rows: pl.DataFrame) -> pl.DataFrame:
    return rows if before is None else pl.concat([before, rows])


def first_microbatches(spans: pl.DataFrame) -> pl.DataFrame:
    """Return step and first of spans with steps: the lowest micro-batch of each step."""
    return spans.filter(pl.col("kind").is_in(ACTION_KINDS)).group_by("step").agg(first=pl.min("microbatch"))


def are_numbered_through(firsts: pl.DataFrame) -> bool:
    """Return whether micro-batches are numbered through the whole run, by `first_microbatches` of all ranks."""
    return firsts.height > 1 and bool((firsts.sort("step")["first"].diff().drop_nulls() > 0).all())


def with_shifted_microbatches(spans: pl.DataFrame, firsts: pl.DataFrame) -> pl.DataFrame:
    """Return spans whose micro-batches count from 0 in every step, if they are numbered through the whole run."""
    if not are_numbered_through(firsts):
        return spans
    shifts = spans.join(firsts, on="step", how="left", maintain_order="left")["first"].fill_null(0)
    return spans.with_columns((pl.col("microbatch") - shifts).cast(pl.Int32))


def note_of_steps(steps: int) -> Diagnostic:
    """Return the diagnostic that states how many steps were found."""
    text = f"the training marks no steps: {counted(steps, 'step')} by the optimizer and by repeated actions"
    return Diagnostic("info", text, count=steps, code="steps.divided")


def _marked(spans: pl.DataFrame) -> pl.DataFrame:
    """Return ACTION of the marked actions, sorted."""
    placed = pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
    marked = spans.filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & placed)
    return marked.select(ACTION).sort("rank", "start_ns")


class _Numbers(NamedTuple):
    """What the steps of later actions depend on.

    `stepped` has how often the optimizer of each rank stepped, its epoch; `runs` how often each action ran in the last
    epoch of its rank; and `latest` epoch, part and step of the last action of each rank.
    """

    stepped: pl.DataFrame
    runs: pl.DataFrame
    latest: pl.DataFrame


def _no_numbers() -> _Numbers:
    of_epoch = {"rank": pl.Int32, "epoch": pl.Int64}
    key: dict[str, Any] = {"kind": KindType, "stage": pl.Int32, "microbatch": pl.Int32}
    of_latest = dict.fromkeys(("last_epoch", "last_part", "last_step"), pl.Int64)
    return _Numbers(
        pl.DataFrame(schema=of_epoch),
        pl.DataFrame(schema={**of_epoch, **key, "runs": pl.Int64}),
        pl.DataFrame(schema={"rank": pl.Int32, **of_latest}),
    )


def _numbered(spans: pl.DataFrame, way: Way, before: _Numbers) -> tuple[pl.DataFrame, _Numbers]:
    """Return the marked actions with their steps, and what those of later spans depend on."""
    of_epoch, stepped = _marked(spans).with_columns(epoch=pl.lit(0, pl.Int64)), before.stepped
    if way.by_optimizer and not way.by_occurrence:
        optimizer = _with_epochs(_optimizer_steps(spans), stepped)
        of_epoch = of_epoch.with_columns(epoch=_epochs_of(of_epoch, optimizer))
        stepped = optimizer.group_by("rank").agg(pl.max("epoch"))
    among = ["rank", "epoch", *KEY]
    counted = of_epoch.with_columns(runs=pl.int_range(pl.len()).over(among))
    if before.runs.height:
        earlier = of_epoch.join(before.runs, on=among, how="left", maintain_order="left")["runs"].fill_null(0)
        counted = counted.with_columns(pl.col("runs") + earlier)
    runs = pl.concat([before.runs, counted.group_by(among).agg(pl.max("runs") + 1)])
    is_last = pl.col("epoch") == pl.col("epoch").max().over("rank")
    runs = runs.group_by(among).agg(pl.max("runs")).filter(is_last)
    if way.by_occurrence:
        return counted.with_columns(step="runs"), before._replace(runs=runs)
    numbered = _by_repetition(counted, before.latest)
    latest = numbered.select("rank", last_epoch="epoch", last_part="part", last_step="step")
    latest = pl.concat([before.latest, latest]).unique("rank", keep="last", maintain_order=True)
    return numbered, _Numbers(stepped, runs, latest)


def _by_repetition(actions: pl.DataFrame, latest: pl.DataFrame) -> pl.DataFrame:
    """Return the actions with part and step: it changes with the optimizer, and where an action is repeated."""
    rows = actions.join(latest, on="rank", how="left", maintain_order="left")
    part = pl.col("runs").cum_max().over("rank", "epoch")
    is_same = pl.col("epoch") == pl.col("last_epoch")
    rows = rows.with_columns(part=pl.when(is_same).then(pl.max_horizontal(part, "last_part")).otherwise(part))
    changes = [
        pl.col(name) != pl.coalesce(pl.col(name).shift(1).over("rank"), f"last_{name}")
        for name in ("epoch", "part")
    ]
    is_new = pl.any_horizontal(*changes).fill_null(value=False)
    return rows.with_columns(step=is_new.cum_sum().over("rank") + pl.col("last_step").fill_null(0))


def _starts_in_steps(blocks: Iterable[pl.DataFrame], way: Way) -> Iterator[pl.DataFrame]:
    """Yield rank, step, stage, microbatch, and when forward and backward first started: each step as a whole."""
    numbers = _no_numbers()
    unfinished = None
    is_forward = pl.col("kind") == "forward"
    times = ("forward_ns", "backward_ns")
    for block, is_last in and_whether_last(blocks):
        actions, numbers = _numbered(block, way, numbers)
        own = actions.select(
            "rank", "step", "stage", "microbatch", forward_ns=pl.when(is_forward).then("start_ns"),
            backward_ns=pl.when(~is_forward).then("start_ns"),
        )  # fmt: skip
        starts = _joined(unfinished, own).group_by("rank", "step", "stage", "microbatch").agg(pl.min(*times))
        is_whole = pl.lit(is_last) | (pl.col("step") < pl.col("step").max().over("rank"))
        unfinished = starts.filter(~is_whole)
        yield starts.filter(is_whole)


def _steps_of_transfers(spans: pl.DataFrame, before: pl.DataFrame | None) -> tuple[pl.Series, pl.DataFrame]:
    """Return the step of each marked transfer: that of the last action before a send, of the next one after a receive.

    The first receive of a step comes before the first action of that step. `before` are the last actions of the spans
    before these; those of these spans are returned too.
    """
    rows = spans.with_row_index("row").with_columns(
        forward=pl.col("kind").is_in(["forward", SENDS[0], RECEIVES[0]]),
    )
    actions = rows.filter(pl.col("kind").is_in(EXCHANGING_KINDS)).drop_nulls(["step", "stage", "microbatch"])
    begun = _joined(before, actions.select("start_ns", *PASS, found="step").sort("start_ns"))
    sends = (
        rows.filter(pl.col("kind").is_in(SENDS))
        .select("row", "start_ns", *PASS)
        .sort("start_ns")
        .join_asof(begun, on="start_ns", by=PASS, check_sortedness=False)
    )
    receives = (
        rows.filter(pl.col("kind").is_in(RECEIVES))
        .select("row", "start_ns", *PASS)
        .sort("start_ns")
        .join_asof(
            actions.select("end_ns", *PASS, found="step").sort("end_ns"),
            left_on="start_ns", right_on="end_ns", by=PASS, strategy="forward", check_sortedness=False,
        )
    )  # fmt: skip
    found = pl.concat(side.select("row", "found") for side in (sends, receives))
    steps = rows.select("row").join(found, on="row", how="left", maintain_order="left")["found"]
    return steps, begun.unique(PASS, keep="last", maintain_order=True)


def _is_waiting(found: pl.Series) -> pl.Expr:
    """Return which spans are marked receives of an action that was not found."""
    is_placed = pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
    return pl.col("kind").is_in(RECEIVES) & is_placed & pl.lit(found).is_null()


def _optimizer_steps(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.filter(pl.col("kind") == "optimizer").select("rank", "start_ns").sort("rank", "start_ns")


def _with_epochs(optimizer: pl.DataFrame, stepped: pl.DataFrame) -> pl.DataFrame:
    """Return rank, epoch and start_ns of steps of optimizers: how often that of the rank had stepped until then.

    The first one of a rank that `stepped` before is the last one of these.
    """
    before = optimizer.join(stepped, on="rank", how="left", maintain_order="left")["epoch"].fill_null(0)
    numbers = before + pl.int_range(1, pl.len() + 1).over("rank")
    known = stepped.with_columns(start_ns=pl.lit(FIRST, pl.Int64))
    return pl.concat([known, optimizer.select("rank", epoch=numbers, start_ns="start_ns")])


def _epochs_of(actions: pl.DataFrame, optimizer: pl.DataFrame) -> pl.Series:
    """Return how often the optimizer had stepped before each action."""
    found = actions.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        optimizer.sort("start_ns"), on="start_ns", by="rank", check_sortedness=False
    )  # fmt: skip
    return found.sort("index")["epoch"].fill_null(0)
