"""All that one trace tells of its rank, before the ranks are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.steps import (
    in_steps_of_actions,
    named_steps,
    profiler_steps,
    step_openings,
    with_steps,
)
from stagescope.ingest.kineto.annotated import annotated_spans, named_marks
from stagescope.ingest.kineto.device import on_device
from stagescope.ingest.kineto.evaluations import find_evaluations, without_evaluations
from stagescope.ingest.kineto.facts import RankFacts, rank_facts
from stagescope.ingest.kineto.inferred_actions import Inferred, infer_spans
from stagescope.ingest.kineto.inferred_from_transfers import infer_from_transfers
from stagescope.ingest.kineto.operator_classes import BACKWARD, SEND
from stagescope.ingest.kineto.tables import read_tables
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest.kineto.tables import TraceTables

ACTION_SCHEMA = {
    "kind": pl.String, "lane": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "step": pl.Int32, "pair": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "edge_error_ns": pl.Int64, "name": pl.String,
}  # fmt: skip
TRANSFER_SCHEMA = {
    "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "step": pl.Int32, "peer": pl.Int32,
    "bytes": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64,
}  # fmt: skip


UNMATCHED_BACKWARDS = (
    "backwards belong to no forward in the trace and are left out: it begins in the middle of a step"
)
UNMATCHED_TRANSFERS = (
    "transfers are of no whole step of 1F1B between two marks (those of profiler.step(), or an optimizer's), and no"
    " other order is told without operators"
)
OTHER_TRANSFERS = (
    "transfers are of no action, as those of an evaluation and of the first exchange of shapes; left out"
)
EVALUATIONS = "steps are forwards alone: those of an evaluation, which are no step of the training"
HELD_LOSS = (
    "forwards are drawn with their loss: no operator is called like one, so where it begins is not known"
)
BY_TRANSFERS = "the order of transfers, which is that of 1F1B"


class RankTrace(NamedTuple):
    """One trace: whose it is, its actions, transfers and steps; and what its actions were inferred from, if they were."""

    path: Path
    facts: RankFacts
    actions: pl.DataFrame
    transfers: pl.DataFrame
    steps: pl.DataFrame
    inferred_from: str | None
    diagnostics: list[Diagnostic]


def read_rank(path: Path, pattern: str | None = None) -> RankTrace:
    """Return what the trace in `path` tells, its actions called as `pattern` says where one is given.

    Raises InputError for a file without a list of events.
    """
    read = read_tables(path)
    facts = rank_facts(path, read.facts)
    marks = named_marks(read.tables["annotations"], pattern)
    inferred_from = None
    if marks.filter(pl.col("kind").is_in(ACTION_KINDS)).is_empty():
        inferred, inferred_from, unmatched = _inferred_from(read, facts)
        found = _inferred(read, marks, inferred, unmatched)
    else:
        found = _annotated(read, marks)
    steps = profiler_steps(read.tables["annotations"])
    actions, transfers, notes = (
        found if read.tables["kernels"].is_empty() else _on_device(read, found, marks, facts)
    )
    if read.tables["kernels"].is_empty():
        transfers = _from_their_call(transfers, read.tables["operators"])
    actions, transfers, evaluated = _in_steps(read, found[0], actions, transfers)
    if evaluated:
        notes = [*notes, ("info", EVALUATIONS, evaluated)]
    if actions.is_empty():
        steps = steps.clear()
    diagnostics = [
        *read.diagnostics,
        *(Diagnostic(*note[:2], str(path), facts.rank, count=note[2]) for note in notes),
    ]
    return RankTrace(path, facts, actions, transfers, steps, inferred_from, diagnostics)


def _in_steps(
    read: TraceTables, host_actions: pl.DataFrame, actions: pl.DataFrame, transfers: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return actions and transfers with their steps, and how many evaluations are between these.

    `host_actions` are the same actions as the host ran them.
    """
    marked = profiler_steps(read.tables["annotations"])
    openings = step_openings(host_actions)
    told = named_steps(host_actions) if marked.is_empty() else marked
    actions, transfers = with_steps(actions, told, openings), with_steps(transfers, told, openings)
    operators = read.tables["operators"]
    backward_ns = operators.filter(pl.col("what") == BACKWARD)["start_ns"].sort().to_numpy()
    evaluated = find_evaluations(actions, backward_ns) if marked.is_empty() else []
    actions, transfers = _columns(actions, ACTION_SCHEMA), _columns(transfers, TRANSFER_SCHEMA)
    transfers = in_steps_of_actions(transfers, actions)
    return without_evaluations(actions, evaluated), without_evaluations(transfers, evaluated), len(evaluated)


Found = tuple[pl.DataFrame, pl.DataFrame, list[tuple[str, str, int]]]
"""Actions, transfers, and what is to be said: severity, message, count."""


def _annotated(read: TraceTables, marks: pl.DataFrame) -> Found:
    found = annotated_spans(read.tables, marks)
    notes = []
    if found.unsplit:
        text = "overlapped pairs are drawn as two actions at the same time: no operator tells them apart"
        notes.append(("info", text, found.unsplit))
    return found.actions, _with_waits(found.transfers, found.actions), notes


def _inferred_from(read: TraceTables, facts: RankFacts) -> tuple[Inferred, str, str]:
    """Return what can be inferred, from what, and what is to be said of the rest."""
    found = infer_spans(read.tables)
    if found.actions.height:
        return found, "operators, flows and transfers", UNMATCHED_BACKWARDS
    told = infer_from_transfers(read.tables, facts)
    return told, BY_TRANSFERS, UNMATCHED_TRANSFERS


def _inferred(read: TraceTables, marks: pl.DataFrame, found: Inferred, unmatched: str) -> Found:
    """Return actions and transfers by the order of the forwards; micro-batches are numbered when the steps are known."""
    others = annotated_spans(read.tables, marks).actions
    notes = [("warning", unmatched, found.unmatched)] if found.unmatched else []
    if found.left_out:
        notes.append(("info", OTHER_TRANSFERS, found.left_out))
    if open_ends := int(found.actions["holds_loss"].sum()):
        notes.append(("info", HELD_LOSS, open_ends))
    actions = pl.concat(
        [found.actions.with_columns(stage=pl.lit(None, pl.Int32)), others], how="diagonal_relaxed"
    )
    openings = step_openings(actions)
    steps = profiler_steps(read.tables["annotations"])
    forwards = with_steps(actions.filter(pl.col("kind") == "forward"), steps, openings)
    numbers = forwards.sort("order").select(
        "order", "step", microbatch=pl.int_range(pl.len()).over("step").cast(pl.Int32)
    )
    actions = actions.drop("microbatch", strict=False).join(
        numbers.drop("step"), on="order", how="left", maintain_order="left"
    )
    # A transfer is of its action's step, also where it is made behind the end of it.
    transfers = found.transfers.join(numbers, on="order", how="left", maintain_order="left")
    return actions, _with_waits(transfers, actions), notes


def _from_their_call(transfers: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return transfers whose sends begin with the operator that made them.

    The process group annotates a send when it has been handed over, by when it may have arrived at its receiver.
    """
    calls = operators.filter(pl.col("what") == SEND).select(call_ns="start_ns", call_end_ns="end_ns")
    called = transfers.sort("start_ns").join_asof(
        calls.sort("call_ns"), left_on="start_ns", right_on="call_ns", check_sortedness=False
    )
    is_made = pl.col("kind").is_in(SENDS) & (pl.col("start_ns") <= pl.col("call_end_ns"))
    start_ns = pl.when(is_made).then("call_ns").otherwise("start_ns")
    return called.with_columns(start_ns=start_ns).drop("call_ns", "call_end_ns")


def _with_waits(transfers: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return transfers with the time in which the host was blocked on them: up to the end of a receive.

    Nobody notes when a wait began; it was after the receive was issued, and after the action before.
    """
    if transfers.is_empty() or "mark_end_ns" not in actions.columns:
        return transfers
    ends = actions.select(before_ns="end_ns").sort("before_ns")
    joined = transfers.sort("end_ns").join_asof(
        ends, left_on="end_ns", right_on="before_ns", check_sortedness=False
    )
    is_receive = pl.col("kind").is_in(RECEIVES)
    began_ns = pl.max_horizontal("start_ns", "before_ns")
    return joined.with_columns(
        wait_start_ns=pl.when(is_receive).then(began_ns), wait_end_ns=pl.when(is_receive).then("end_ns")
    )


def _on_device(read: TraceTables, found: Found, marks: pl.DataFrame, facts: RankFacts) -> Found:
    actions, transfers, notes = found
    moved = on_device(read.tables, actions, marks, facts.rank)
    if moved.without_kernels:
        text = "actions have no kernel in the trace and are drawn as the host launched them"
        notes = [*notes, ("warning", text, moved.without_kernels)]
    return moved.actions, moved.transfers if moved.transfers.height else transfers, notes


def _columns(frame: pl.DataFrame, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return `frame` with the columns of a schema, null where it has none."""
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )
