"""Combine the traces of all ranks into one Timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.kineto.collectives import window_diagnostics
from stagescope.ingest.kineto.errors import no_pipeline, no_pipeline_in_damaged
from stagescope.ingest.kineto.kernels import rank_kernels
from stagescope.ingest.kineto.pipeline_groups import pipeline_groups, with_places
from stagescope.ingest.kineto.rank_trace import FILES_ORDER, OPERATORS, TRANSFER_ORDER
from stagescope.ingest.kineto.shared_steps import share_steps, without_contradicted
from stagescope.ingest.source_clocks import source_clocks
from stagescope.model import DIAGNOSTICS, KERNELS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform, conform_parts
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS, COMM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.kineto.pipeline_groups import Groups
    from stagescope.ingest.kineto.rank_trace import RankTrace

CLOCK_METHOD = "wall clock of the host, as torch.profiler converted it"
EVIDENCE = {
    OPERATORS: "operators, flows and transfers",
    TRANSFER_ORDER: "the order of transfers, which is that of 1F1B",
    FILES_ORDER: "the order of transfers, which is that of 1F1B on as many ranks as there are traces",
}


def timeline_of_traces(traces: Sequence[RankTrace]) -> Timeline:
    """Return one Timeline of all traces of a run.

    Raises InputError if no trace has an action, if two processes claim the same rank, or if the traces were recorded
    at different times or by runs of different sizes.
    """
    traces = without_contradicted(traces)
    with_actions = [trace for trace in traces if not _pipeline_actions(trace).is_empty()]
    diagnostics = [row for trace in traces for row in trace.diagnostics]
    if not with_actions:
        raise _nothing_found(traces, diagnostics)
    for trace in traces:
        if _pipeline_actions(trace).is_empty():
            text = "no pipeline action in the trace: it has no annotations, and none could be inferred from operators"
            diagnostics.append(
                Diagnostic("error", text, str(trace.path), trace.facts.rank, code="actions.none")
            )
    ranks = share_steps(_by_rank(with_actions, diagnostics), diagnostics)
    _check_one_run(ranks)
    groups = pipeline_groups(ranks)
    placed = {rank: with_places(rank, trace, groups, ranks) for rank, trace in ranks.items()}
    for rank, trace in placed.items():
        diagnostics += _rank_diagnostics(rank, trace)
    diagnostics += window_diagnostics(placed)
    return Timeline(
        spans=conform_parts((_spans(rank, trace) for rank, trace in placed.items()), SPANS),
        ranks=_rank_rows(placed, groups),
        steps=conform(pl.concat(_steps(rank, trace) for rank, trace in placed.items()), STEPS),
        clocks=_clocks(placed),
        diagnostics=conform(diagnostics_table(diagnostics), DIAGNOSTICS),
        kernels=_kernels(placed),
    )


def _kernels(traces: dict[int, RankTrace]) -> pl.DataFrame:
    """Return the kernels of all ranks whose kernels were kept."""
    kept = [
        rank_kernels(trace.kernels, trace.actions).with_columns(rank=pl.lit(rank, pl.Int32))
        for rank, trace in traces.items()
        if trace.kernels is not None
    ]
    return conform(pl.concat(kept), KERNELS) if kept else KERNELS.empty()


def _nothing_found(traces: Sequence[RankTrace], diagnostics: Sequence[Diagnostic]) -> InputError:
    """Return the error for traces without an action: the damage of the first damaged trace, else what to record."""
    errors = [row for row in diagnostics if row.severity == "error"]
    if errors:
        path = errors[0].source or str(traces[0].path)
        return no_pipeline_in_damaged(path, [row.message for row in errors if row.source == errors[0].source])
    warnings: dict[str, list[Diagnostic]] = {}
    for row in diagnostics:
        if row.severity == "warning":
            warnings.setdefault(row.code, []).append(row)
    reasons = [f"{sum(row.count for row in rows)} {rows[0].message}" for rows in warnings.values()]
    likely = next((trace.likely_pattern for trace in traces if trace.likely_pattern), None)
    return no_pipeline([trace.path for trace in traces], reasons, likely)


def _pipeline_actions(trace: RankTrace) -> pl.DataFrame:
    return trace.actions.filter(pl.col("kind").is_in(ACTION_KINDS))


def _by_rank(traces: Sequence[RankTrace], diagnostics: list[Diagnostic]) -> dict[int, RankTrace]:
    """Return the traces by rank, with the profiled windows of one rank joined; warn if the ranks are assumed."""
    if any(trace.facts.rank is None for trace in traces):
        if len(traces) > 1:
            text = (
                "some traces do not state their rank: all are numbered in the order of their files"
                " (start torch.profiler after init_process_group, or name the files rank0.json, rank1.json …)"
            )
            diagnostics.append(Diagnostic("warning", text, count=len(traces), code="ranks.assumed"))
        return dict(enumerate(traces))
    ranks: dict[int, RankTrace] = {}
    for each in traces:
        rank, trace = each.facts.rank, each
        if rank is None:
            continue
        if rank in ranks:
            diagnostics.append(_window_note(rank, sorted((ranks[rank], trace), key=_begins_ns)[1]))
            trace = _joined(ranks[rank], trace, rank)
        ranks[rank] = trace
    return dict(sorted(ranks.items()))


def _window_note(rank: int, trace: RankTrace) -> Diagnostic:
    text = "the trace is a later profiled window of a rank, and was joined with its first one"
    return Diagnostic("info", text, str(trace.path), rank, code="ranks.windows")


def _joined(one: RankTrace, other: RankTrace, rank: int) -> RankTrace:
    """Return two profiled windows of one rank as one trace; raises InputError if one process cannot have both."""
    windows = sorted((one, other), key=_begins_ns)
    (_, until_ns), (since_ns, _) = _window(windows[0]), _window(windows[1])
    shared = set(one.actions["step"].drop_nulls()) & set(other.actions["step"].drop_nulls())
    # torch.profiler with a schedule writes one trace per active window; windows of one process do not overlap.
    if one.facts.host != other.facts.host or since_ns < until_ns or shared:
        raise InputError.duplicate_rank(rank, [str(one.path), str(other.path)])
    first, second = windows
    windows = [first, _renumbered(second, int(first.actions["own_row"].max() or 0) + 1)]  # type: ignore[arg-type] # a number
    names = (
        "actions",
        "transfers",
        "steps",
        "collectives",
        *(["kernels"] if first.kernels is not None else []),
    )
    tables = {name: pl.concat([getattr(window, name) for window in windows]) for name in names}
    return first._replace(**tables)


def _renumbered(trace: RankTrace, since: int) -> RankTrace:
    """Return the trace with numbers of actions that begin with `since`."""
    moved = trace._replace(actions=trace.actions.with_columns(pl.col("own_row") + since))
    if trace.kernels is None:
        return moved
    return moved._replace(kernels=trace.kernels.with_columns(pl.col("action") + since))


def _window(trace: RankTrace) -> tuple[int, int]:
    return int(trace.actions["start_ns"].min()), int(trace.actions["end_ns"].max())  # type: ignore[arg-type] # numbers


def _begins_ns(trace: RankTrace) -> int:
    return _window(trace)[0]


def _check_one_run(ranks: dict[int, RankTrace]) -> None:
    """Raise InputError if two traces cannot belong to one run."""
    first = next(iter(ranks.values()))
    sized = next((trace for trace in ranks.values() if trace.facts.world_size is not None), first)
    for trace in ranks.values():
        if trace.facts.world_size not in (None, sized.facts.world_size):
            sizes = f"{trace.facts.world_size} ranks, not {sized.facts.world_size} as in {sized.path}"
            raise InputError.other_run(trace.path, f"its run had {sizes}")
        tolerance_ns = MOST_APART_NS["one host" if trace.facts.host == first.facts.host else "two hosts"]
        (since_ns, until_ns), (first_ns, last_ns) = _window(trace), _window(first)
        is_dated = trace.facts.has_epoch and first.facts.has_epoch
        if is_dated and (since_ns > last_ns + tolerance_ns or until_ns < first_ns - tolerance_ns):
            raise InputError.other_run(trace.path, f"it was recorded at another time than {first.path}")


MOST_APART_NS = {"one host": 10**9, "two hosts": 600 * 10**9}
"""Largest time between the traces of one run. Starting another run takes longer; clocks of hosts differ by less."""


MOST_EDGE_FRACTION = 0.5
"""If the median edge error exceeds this fraction of the median action, the inference is reported as a warning."""


def _rank_diagnostics(rank: int, trace: RankTrace) -> list[Diagnostic]:
    """Return the limitations of one rank's trace."""
    found = []
    actions = _pipeline_actions(trace)
    if trace.inferred_from:
        errors_us = (actions["edge_error_ns"] / 1000).round()
        typical_us, worst_us = (int(errors_us.quantile(q) or 0) for q in (0.5, 1.0))
        text = (
            f"the schedule annotates no actions: forwards and backwards are inferred from"
            f" {EVIDENCE[trace.inferred_from]}; error of their edges: median {typical_us} us, maximum {worst_us} us"
        )
        usual_us = (actions["end_ns"] - actions["start_ns"]).median() / 1000
        severity = "info" if typical_us <= MOST_EDGE_FRACTION * usual_us else "warning"
        found.append(
            Diagnostic(severity, text, str(trace.path), rank, count=actions.height, code="actions.inferred")
        )
    if not trace.facts.has_epoch:
        text = "the trace does not state when its clock began: it is treated as a separate clock"
        found.append(Diagnostic("warning", text, str(trace.path), rank, code="clock.no_epoch"))
    return found


def _spans(rank: int, trace: RankTrace) -> pl.DataFrame:
    """Return the actions, transfers and collectives of one rank as spans."""
    # Traces name stages, not chunks: a rank's chunks are its stages in model order.
    stages = sorted(set(trace.actions["stage"].drop_nulls()))
    both = pl.concat(
        [
            trace.actions.drop("edge_error_ns"),
            *(each.with_columns(lane=pl.lit(COMM)) for each in (trace.transfers, trace.collectives)),
        ],
        how="diagonal_relaxed",
    )
    chunk = pl.col("stage").replace_strict(
        stages, list(range(len(stages))), default=None, return_dtype=pl.Int32
    )
    return both.with_columns(rank=pl.lit(rank, pl.Int32), chunk=chunk)


def _steps(rank: int, trace: RankTrace) -> pl.DataFrame:
    """Return the profiler's steps; without marks, each step extends from its first action to its last."""
    steps = trace.steps
    if steps.is_empty():
        steps = (
            _pipeline_actions(trace)
            .drop_nulls("step")
            .group_by("step")
            .agg(pl.min("start_ns"), pl.max("end_ns"))
            .sort("step")
        )
    return steps.with_columns(rank=pl.lit(rank, pl.Int32)).select("step", "rank", "start_ns", "end_ns")


def _clock(rank: int, trace: RankTrace) -> str:
    """Return the clock domain of a rank: its host's clock, or a separate one if the trace has no epoch."""
    if not trace.facts.has_epoch:
        return f"rank {rank}/time since an unknown moment"
    return f"{trace.facts.host or 'unknown host'}/wall clock"


def _rank_rows(traces: dict[int, RankTrace], groups: Groups) -> pl.DataFrame:
    rows = [
        {
            "rank": rank,
            "machine": trace.facts.host,
            "device": trace.facts.device or "cpu",
            "pp": groups[rank].index(rank) if rank in groups else None,
            "host": trace.facts.host,
            "clock": _clock(rank, trace),
            "world_size": trace.facts.world_size,
            "source": str(trace.path),
        }
        for rank, trace in traces.items()
    ]
    return conform(pl.DataFrame(rows, infer_schema_length=None), RANKS)


def _clocks(traces: dict[int, RankTrace]) -> pl.DataFrame:
    return source_clocks(
        {_clock(rank, trace): trace.facts.host for rank, trace in traces.items()}, CLOCK_METHOD
    )
