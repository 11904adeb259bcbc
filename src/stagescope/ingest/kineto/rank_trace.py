"""Turn one trace into the actions, transfers and steps of its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.name_pattern import common_pattern
from stagescope.ingest.annotations.steps import (
    STEPS_SCHEMA,
    in_steps_of_actions,
    named_steps,
    profiler_steps,
    step_openings,
    with_steps,
)
from stagescope.ingest.kineto.annotated import annotated_spans, named_marks
from stagescope.ingest.kineto.collectives import (
    COLLECTIVES_SCHEMA,
    find_collectives_of_rank,
    without_replaced,
)
from stagescope.ingest.kineto.device import on_device
from stagescope.ingest.kineto.evaluations import find_evaluations, without_evaluations
from stagescope.ingest.kineto.facts import RankFacts, rank_facts
from stagescope.ingest.kineto.findings import (
    EVALUATIONS,
    FORWARDS_WITH_LOSS,
    IN_GRAPHS,
    ONLY_PARTS,
    TRANSFERS_WITHOUT_ACTION,
    UNMATCHED_BACKWARDS,
    UNMATCHED_ON_FILES,
    UNMATCHED_TRANSFERS,
    UNPLACED_TRANSFERS,
    UNSPLIT_PAIRS,
    WITHOUT_KERNELS,
    Finding,
)
from stagescope.ingest.kineto.graph_actions import find_graph_actions, with_owners
from stagescope.ingest.kineto.inferred_actions import Inferred, infer_spans
from stagescope.ingest.kineto.inferred_from_transfers import infer_from_transfers
from stagescope.ingest.kineto.kernels import owned_kernels
from stagescope.ingest.kineto.native_trace import read_native
from stagescope.ingest.kineto.operator_classes import BACKWARD, SEND
from stagescope.ingest.kineto.parts import find_parts, parts_on_device
from stagescope.ingest.kineto.tables import read_tables
from stagescope.ingest.reader import HEAD_BYTES
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_proto.recognition import is_perfetto_trace
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.ingest.kineto.graph_actions import GraphActions
    from stagescope.ingest.kineto.tables import TraceTables

ACTION_SCHEMA = {
    "kind": pl.String, "lane": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "step": pl.Int32, "pair": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "edge_error_ns": pl.Int64, "name": pl.String, "own_row": pl.Int64,
}  # fmt: skip
TRANSFER_SCHEMA = {
    "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "step": pl.Int32, "peer": pl.Int32,
    "bytes": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64,
}  # fmt: skip
OPERATORS, TRANSFER_ORDER, FILES_ORDER = (
    "operators",
    "transfer order",
    "transfer order on numbered files",
)
"""The evidence from which actions are inferred: operators with flows and transfers, or the order of transfers alone."""


class RankTrace(NamedTuple):
    """One trace: its identity, actions, transfers and steps, and the evidence of inferred actions (None: annotated).

    `kernels` is what owned_kernels returns, whose `action` is an `own_row` of the actions; None: not asked for.
    `collectives` is what find_collectives_of_rank returns. `likely_pattern` matches annotations of a trace without
    actions, whose number may be that of the micro-batch.
    """

    path: Path
    facts: RankFacts
    actions: pl.DataFrame
    transfers: pl.DataFrame
    steps: pl.DataFrame
    inferred_from: str | None
    diagnostics: list[Diagnostic]
    kernels: pl.DataFrame | None = None
    collectives: pl.DataFrame = pl.DataFrame(schema=COLLECTIVES_SCHEMA)
    likely_pattern: str | None = None

    @property
    def span_count(self) -> int:
        """The number of rows that become spans of the run."""
        return self.actions.height + self.transfers.height + self.collectives.height


def read_rank(
    path: Path, pattern: str | None = None, *, kernels: bool = False, ranks: int | None = None
) -> RankTrace:
    """Return the trace in `path`; the names of its actions may match `pattern`.

    `ranks` is their number, for traces that state neither world size nor process groups.
    Its kernels are kept with `kernels`, and where annotations name parts of actions alone: nothing else can be measured
    then. Raises InputError for a file without a list of events.
    """
    read = read_native(path) if _is_native(path) else read_tables(path)
    _require_short_lists(path, read)
    facts = rank_facts(path, read.facts)
    facts = facts._replace(device=facts.device or read.device)
    marks = named_marks(read.tables["annotations"], pattern)
    inferred_from = None
    if marks.filter(pl.col("kind").is_in(ACTION_KINDS)).is_empty():
        graph = find_graph_actions(read.tables, facts.rank, pattern)
        if graph is not None:
            return _of_graphs(path, read, facts, graph, kernels=kernels)
        parts = find_parts(read.tables["annotations"])
        if parts.height and read.tables["kernels"].height:
            return _of_parts(path, read, facts, parts)
        inferred, inferred_from, unmatched = _inferred_from(read, facts, ranks)
        if inferred_from == FILES_ORDER and inferred.actions.height:
            facts = facts._replace(groups=(tuple(range(ranks or 0)),))
        found = _inferred(read, marks, inferred, unmatched)
    else:
        found = _annotated(read, marks)
    found = (found[0].with_row_index("own_row"), *found[1:])
    steps = profiler_steps(read.tables["annotations"])
    actions, transfers, notes = (
        found if read.tables["kernels"].is_empty() else _on_device(read, found, marks, facts)
    )
    # On a device the transfer is a kernel with its own times, so the host's call does not matter.
    if read.tables["kernels"].is_empty():
        transfers = _from_their_call(transfers, read.tables["operators"])
    collectives = _collectives(read, found[0])
    actions = without_replaced(actions, collectives)
    actions, transfers, evaluated = _in_steps(read, found[0], actions, transfers)
    if evaluated:
        notes = [*notes, EVALUATIONS._replace(number=evaluated)]
    if actions.is_empty():
        steps = steps.clear()
    diagnostics = [*read.diagnostics, *_diagnostics(path, facts, notes)]
    owned = owned_kernels(read, found[0]) if kernels else None
    is_without = not actions["kind"].is_in(ACTION_KINDS).any()
    likely = common_pattern(read.tables["annotations"]["name"].unique()) if is_without else None
    return RankTrace(
        path, facts, actions, transfers, steps, inferred_from, diagnostics, owned, collectives, likely
    )


def _require_short_lists(path: Path, read: TraceTables) -> None:
    """Raise InputError if a name lists more actions, as in ``PP:(1F6;6B2)OVERLAP_F_B``, than the limit allows."""
    for table, column in (("annotations", "name"), ("named_kernels", "annotation")):
        names = read.tables[table][column]
        longest = names.filter(names.str.starts_with("PP:(")).str.count_matches(";", literal=True).max()
        require("overlapped", 1 + int(longest or 0), path)


def _is_native(path: Path) -> bool:
    """Return whether a trace is Perfetto's format instead of JSON."""
    with open_stream(path) as stream:
        return is_perfetto_trace(stream.read(HEAD_BYTES))


def _diagnostics(path: Path, facts: RankFacts, notes: Sequence[Finding]) -> list[Diagnostic]:
    return [
        Diagnostic(note.severity, note.message, str(path), facts.rank, count=note.number, code=note.code)
        for note in notes
    ]


def _of_parts(path: Path, read: TraceTables, facts: RankFacts, parts: pl.DataFrame) -> RankTrace:
    """Return a trace that names parts of overlapped pairs: spans without a step, and always its kernels."""
    owned = owned_kernels(read, parts)
    moved, without_kernels = parts_on_device(parts, owned)
    notes = [ONLY_PARTS._replace(number=parts["pair"].n_unique())]
    if without_kernels:
        notes.append(WITHOUT_KERNELS._replace(number=without_kernels))
    return RankTrace(
        path,
        facts,
        _columns(moved.with_row_index("own_row"), ACTION_SCHEMA),
        pl.DataFrame(schema=TRANSFER_SCHEMA),
        pl.DataFrame(schema=STEPS_SCHEMA),
        None,
        [*read.diagnostics, *_diagnostics(path, facts, notes)],
        owned,
    )


def _of_graphs(
    path: Path, read: TraceTables, facts: RankFacts, graph: GraphActions, *, kernels: bool
) -> RankTrace:
    """Return a trace whose kernels in CUDA graphs name their actions."""
    actions = graph.actions.with_row_index("own_row")
    notes = [IN_GRAPHS._replace(number=actions.height)]
    if graph.pairs:
        notes.append(UNSPLIT_PAIRS._replace(number=graph.pairs))
    named = read.tables["named_kernels"]
    owned = with_owners(owned_kernels(read, actions.clear()), named, actions) if kernels else None
    return RankTrace(
        path,
        facts,
        _columns(actions, ACTION_SCHEMA),
        _columns(graph.transfers, TRANSFER_SCHEMA),
        profiler_steps(read.tables["annotations"]),
        None,
        [*read.diagnostics, *_diagnostics(path, facts, notes)],
        owned,
    )


def _in_steps(
    read: TraceTables, host_actions: pl.DataFrame, actions: pl.DataFrame, transfers: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return actions and transfers with their steps, and the number of evaluations between them.

    `host_actions` has the same actions at host times: step marks are host times too.
    """
    marked, stated, openings = _step_marks(read, host_actions)
    actions, transfers = with_steps(actions, stated, openings), with_steps(transfers, stated, openings)
    operators = read.tables["operators"]
    backward_ns = operators.filter(pl.col("what") == BACKWARD)["start_ns"].sort().to_numpy()
    # With the profiler's marks, an evaluation between two steps is already outside of any step.
    evaluated = find_evaluations(actions, backward_ns) if marked.is_empty() else []
    actions, transfers = _columns(actions, ACTION_SCHEMA), _columns(transfers, TRANSFER_SCHEMA)
    transfers = in_steps_of_actions(transfers, actions)
    return without_evaluations(actions, evaluated), without_evaluations(transfers, evaluated), len(evaluated)


def _step_marks(
    read: TraceTables, host_actions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """Return the steps that the profiler marked, those or else the named ones, and where steps open without either."""
    marked = profiler_steps(read.tables["annotations"])
    return marked, named_steps(host_actions) if marked.is_empty() else marked, step_openings(host_actions)


def _collectives(read: TraceTables, host_actions: pl.DataFrame) -> pl.DataFrame:
    """Return the numbered collectives; each belongs to the step in which it was launched."""
    if host_actions.is_empty():
        return pl.DataFrame(schema=COLLECTIVES_SCHEMA)
    _, stated, openings = _step_marks(read, host_actions)
    in_steps = with_steps(host_actions, stated, openings)
    return find_collectives_of_rank(read, in_steps, stated, openings)


Found = tuple[pl.DataFrame, pl.DataFrame, list[Finding]]
"""Actions, transfers and findings."""


def _annotated(read: TraceTables, marks: pl.DataFrame) -> Found:
    found = annotated_spans(read.tables, marks)
    notes = [UNSPLIT_PAIRS._replace(number=found.unsplit)] if found.unsplit else []
    return found.actions, _with_waits(found.transfers, found.actions), notes


def _inferred_from(read: TraceTables, facts: RankFacts, ranks: int | None) -> tuple[Inferred, str, Finding]:
    """Return the inferred actions, their evidence, and the finding for whatever did not match."""
    found = infer_spans(read.tables)
    if found.actions.height:
        return found, OPERATORS, UNMATCHED_BACKWARDS
    evidence, unmatched = TRANSFER_ORDER, UNMATCHED_TRANSFERS
    if not facts.groups and facts.world_size is None and ranks:
        facts = facts._replace(world_size=ranks)
        evidence, unmatched = FILES_ORDER, UNMATCHED_ON_FILES
    if facts.rank is None or not (facts.groups or facts.world_size):
        unmatched = UNPLACED_TRANSFERS
    return infer_from_transfers(read.tables, facts), evidence, unmatched


def _inferred(read: TraceTables, marks: pl.DataFrame, found: Inferred, unmatched: Finding) -> Found:
    """Return the inferred actions and transfers, with micro-batches numbered by the order of forwards in each step."""
    others = annotated_spans(read.tables, marks).actions
    notes = [unmatched._replace(number=found.unmatched)] if found.unmatched else []
    if found.left_out:
        notes.append(TRANSFERS_WITHOUT_ACTION._replace(number=found.left_out))
    if with_loss := int(found.actions["holds_loss"].sum()):
        notes.append(FORWARDS_WITH_LOSS._replace(number=with_loss))
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
    # A transfer belongs to its action's step, even if it is issued after that step's end.
    transfers = found.transfers.join(numbers, on="order", how="left", maintain_order="left")
    return actions, _with_waits(transfers, actions), notes


def _from_their_call(transfers: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers, with sends beginning at the start of the operator that issued them.

    The process group's annotation of a send begins only after the hand-over, when the message may already have
    arrived: its receive would then appear to end before the send began.
    """
    calls = operators.filter(pl.col("what") == SEND).select(call_ns="start_ns", call_end_ns="end_ns")
    called = transfers.sort("start_ns").join_asof(
        calls.sort("call_ns"), left_on="start_ns", right_on="call_ns", check_sortedness=False
    )
    is_in_call = pl.col("kind").is_in(SENDS) & (pl.col("start_ns") <= pl.col("call_end_ns"))
    start_ns = pl.when(is_in_call).then("call_ns").otherwise("start_ns")
    return called.with_columns(start_ns=start_ns).drop("call_ns", "call_end_ns")


def _with_waits(transfers: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers with the time in which the host was blocked on them, which ends with the receive.

    Traces do not record when a wait began: it is taken as the later of the receive's issue and the end of the previous
    action.
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
        notes = [*notes, WITHOUT_KERNELS._replace(number=moved.without_kernels)]
    return moved.actions, moved.transfers if moved.transfers.height else transfers, notes


def _columns(frame: pl.DataFrame, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return `frame` with exactly the columns of a schema; missing ones are null."""
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )
