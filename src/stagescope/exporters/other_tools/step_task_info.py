"""Rows of StepTaskInfo, the table from which MindStudio Insight draws its pipeline chart.

One row per mark: name, start, end, and a type that only determines the color. Names and types are those of the recipe
pp_chart of msprof-analyze 26.2.0 (cluster_analyse/recipes/pp_chart/pp_chart.py) wherever these are correct:

* in a schedule without overlap FP (0) and BP (1);
* in a DualPipeV of p ranks and m micro-batches the micro-batch, with numbers from m on in the second chunk and b, w
  or B appended for a backward, 3F+9B for an overlapped pair, logits for the loss's backward; the type is the phase.

An action without a number has its mark's own name, or "?", and the type UNKNOWN, which no phase has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from stagescope.model import Timeline

FORWARD, BACKWARD = 0, 1
(WARMUP, INTERLEAVED_FORWARD, ONE_B_ONE_W_ONE_F, OVERLAP, ONE_B_OVERLAP, INTERLEAVED_BACKWARD, COOLDOWN) = (
    range(7)
)
WEIGHT, PAIR, LOSS, UNKNOWN = range(7, 11)
"""Types that pp_chart does not have: distinct from its own, so that Insight gives them other colors."""

DUALPIPEV = "dualpipev"
SCHEMA = {
    "rank": pl.Int32(),
    "name": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "type": pl.Int64(),
}
PLAIN = {
    "forward": ("FP", FORWARD),
    "backward": ("BP", BACKWARD),
    "backward_input": ("BP", BACKWARD),
    "backward_weight": ("W", WEIGHT),
    "loss": ("logits", LOSS),
}
LETTERS = {"forward": "F", "backward": "B", "backward_input": "B", "backward_weight": "W", "loss": "L"}


def step_task_rows(timeline: Timeline, *, step: int | None = None, numbered: bool = False) -> pl.DataFrame:
    """Return rank, name, start_ns, end_ns and type of every marked action, sorted by rank and start.

    `numbered` writes F3, B3 and W3 (with several chunks per rank F1.3, stage and micro-batch) instead of FP and BP; the
    names of a DualPipeV are always numbered.
    """
    marks = _marks(timeline, step)
    if _is_dualpipev(timeline):
        named = _named_by_phase(marks, timeline)
    elif numbered:
        named = _numbered(marks, timeline)
    else:
        named = _plain(marks)
    return named.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()).sort("rank", "start_ns")


def _is_dualpipev(timeline: Timeline) -> bool:
    """Return whether the run was a DualPipeV: declared, or undeclared with overlapped actions in a V shape."""
    declared = timeline.ranks["schedule"].drop_nulls().str.to_lowercase()
    if len(declared):
        return DUALPIPEV in declared
    pairs = timeline.spans.filter(pl.col("pair").is_not_null() & (pl.col("chunk") == 1))
    placed = pairs.join(timeline.ranks.select("rank", "pp"), on="rank")
    folded = placed.select((pl.col("stage") + pl.col("pp")).n_unique() == 1).item()
    return bool(folded) and not placed.is_empty()


def _marks(timeline: Timeline, step: int | None) -> pl.DataFrame:
    """Return one row per mark: its action, and the backward of an overlapped pair as `back_` columns."""
    actions = timeline.spans.filter(pl.col("kind").is_in([*ACTION_KINDS, "loss"])).cast({"kind": pl.String})
    if step is not None:
        actions = actions.filter(pl.col("step") == step)
    actions = actions.join(timeline.ranks.select("rank", "pp"), on="rank", how="left")
    own = ["rank", "pair", "kind", "stage", "chunk", "microbatch", "start_ns", "end_ns", "name", "pp"]
    # The row number replaces the pair of actions without one.
    actions = actions.select(own).with_row_index("row").with_columns(is_pair=pl.col("pair").is_not_null())
    second = (pl.col("kind") != "forward") & pl.col("is_pair")
    backs = actions.filter(second).select(
        "rank", "pair", *(pl.col(name).alias(f"back_{name}") for name in ("stage", "chunk", "microbatch"))
    )
    return actions.filter(~second).join(backs, on=["rank", "pair"], how="left")


def _plain(marks: pl.DataFrame) -> pl.DataFrame:
    name = pl.col("kind").replace_strict({kind: name for kind, (name, _) in PLAIN.items()})
    number = pl.col("kind").replace_strict({kind: number for kind, (_, number) in PLAIN.items()})
    return marks.with_columns(
        name=pl.when(pl.col("is_pair")).then(pl.lit("F+B")).otherwise(name),
        type=pl.when(pl.col("is_pair")).then(PAIR).otherwise(number),
    )


def _numbered(marks: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    several = (timeline.spans["chunk"].max() or 0) != 0

    def number(prefix: str) -> pl.Expr:
        microbatch = pl.col(f"{prefix}microbatch").cast(pl.String).fill_null("?")
        return (
            pl.col(f"{prefix}stage").cast(pl.String).fill_null("?") + "." + microbatch
            if several
            else microbatch
        )

    own = pl.col("kind").replace_strict(LETTERS) + number("")
    name = pl.when(pl.col("is_pair")).then(own + "+B" + number("back_")).otherwise(own)
    return _plain(marks).with_columns(name=name)


def _named_by_phase(marks: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return the marks of a DualPipeV with the names of its chart and the phases as types."""
    p = int(marks["pp"].max() or 0) + 1  # type: ignore[arg-type] # a number
    m = int(timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))["microbatch"].max() or 0) + 1  # type: ignore[arg-type] # same
    phases = _Phases(p, m)
    number = (pl.col("microbatch") + pl.col("chunk") * m).cast(pl.String)
    back = (pl.col("back_microbatch") + pl.col("back_chunk") * m).cast(pl.String)
    kind = pl.col("kind")
    forward = phases.forward(pl.col("chunk"), pl.col("microbatch"))
    backward = phases.backward(pl.col("chunk"), pl.col("microbatch"))
    pair = phases.backward(pl.col("back_chunk"), pl.col("back_microbatch"))
    # Only the innermost rank has an unpaired forward in the overlap phase: DualPipeV does not overlap its first pair.
    unpaired = (forward == OVERLAP) & ~pl.col("is_pair")
    name = (
        pl.when(pl.col("is_pair")).then(number + "F+" + back + "B")
        .when(kind == "forward").then(number + pl.when(unpaired).then(pl.lit("F")).otherwise(pl.lit("")))
        .when(kind == "backward_input").then(number + "b")
        .when(kind == "backward_weight").then(number + "w")
        .when(kind == "loss").then(pl.lit("logits"))
        .otherwise(number + "B")
    )  # fmt: skip
    phase = pl.when(pl.col("is_pair")).then(pair).when(kind == "forward").then(forward).otherwise(backward)
    known = number.is_not_null() & (back.is_not_null() | ~pl.col("is_pair")) & pl.col("pp").is_not_null()
    return marks.with_columns(
        name=pl.when(known).then(name).otherwise(pl.coalesce("name", pl.lit("?"))),
        type=pl.when(known).then(phase).otherwise(UNKNOWN),
    )


class _Phases:
    """Phase of every action of a DualPipeV of P ranks and m micro-batches, on rank `pp` (p below).

    Forwards of the first chunk: 2 (P - p - 1) in the warm-up, p + 1 interleaved, the others overlapped. Backwards of
    the second chunk: P - p - 1 split, then as many overlapped as there are pairs, m - 2 P + p + 1, and so on.
    """

    def __init__(self, ranks: int, microbatches: int) -> None:
        self.ranks, self.m = ranks, microbatches
        self.p = pl.col("pp")
        self.outer = ranks - self.p - 1
        self.pairs = microbatches - 2 * ranks + self.p + 1

    def forward(self, chunk: pl.Expr, j: pl.Expr) -> pl.Expr:
        """Return the phase of a forward; in the second chunk only for forwards that are not part of a pair."""
        first = (
            pl.when(j < 2 * self.outer).then(WARMUP)
            .when(j < 2 * self.outer + self.p + 1).then(INTERLEAVED_FORWARD)
            .otherwise(OVERLAP)
        )  # fmt: skip
        second = pl.when(j < self.p + 1).then(INTERLEAVED_FORWARD).otherwise(ONE_B_ONE_W_ONE_F)
        return pl.when(chunk == 1).then(second).otherwise(first)

    def backward(self, chunk: pl.Expr, j: pl.Expr) -> pl.Expr:
        """Return the phase of a backward, complete, split or in a pair.

        The last p + 1 of the second chunk and P of the first alternate at the end: p + 1 turns, then the cool-down.
        """
        of_second = chunk == 1
        second_turn, first_turn = 2 * (j - (self.m - self.p - 1)), 2 * (j - (self.m - self.ranks)) + 1
        turn = pl.when(of_second).then(second_turn).otherwise(first_turn)
        overlapped = pl.when(of_second).then(j < self.outer + self.pairs).otherwise(j < self.pairs)
        return (
            pl.when(of_second & (j < self.outer)).then(ONE_B_ONE_W_ONE_F)
            .when(overlapped).then(OVERLAP)
            .when(turn < 0).then(ONE_B_OVERLAP)
            .when(turn < self.p + 1).then(INTERLEAVED_BACKWARD)
            .otherwise(COOLDOWN)
        )  # fmt: skip
