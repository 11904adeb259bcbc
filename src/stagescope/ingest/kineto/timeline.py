"""The traces of all ranks, put together as one Timeline."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.kineto.pipeline_groups import pipeline_groups, with_places
from stagescope.ingest.kineto.shared_steps import share_steps, without_contradicted
from stagescope.ingest.source_clocks import source_clocks
from stagescope.model import DIAGNOSTICS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS, COMM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.kineto.pipeline_groups import Groups
    from stagescope.ingest.kineto.rank_trace import RankTrace

CLOCK_METHOD = "wall clock of the host, as torch.profiler converted it"


def timeline_of_traces(traces: Sequence[RankTrace]) -> Timeline:
    """Return one Timeline of all traces, which are of one run.

    Raises InputError when no trace has a action, when two processes claim the same rank, and when the ranks of one
    machine were recorded at different times, or say that their runs had different sizes.
    """
    traces = without_contradicted(traces)
    with_actions = [trace for trace in traces if not _pipeline_actions(trace).is_empty()]
    diagnostics = [row for trace in traces for row in trace.diagnostics]
    if not with_actions:
        raise _nothing_found(traces, diagnostics)
    for trace in traces:
        if _pipeline_actions(trace).is_empty():
            text = "no pipeline action in the trace: nothing is annotated, and no operators tell"
            diagnostics.append(Diagnostic("error", text, str(trace.path), trace.facts.rank))
    ranks = share_steps(_by_rank(with_actions, diagnostics), diagnostics)
    _check_one_run(ranks)
    groups = pipeline_groups(ranks)
    placed = {rank: with_places(rank, trace, groups, ranks) for rank, trace in ranks.items()}
    for rank, trace in placed.items():
        diagnostics += _said(rank, trace)
    return Timeline(
        spans=conform(pl.concat(_spans(rank, trace) for rank, trace in placed.items()), SPANS),
        ranks=_rank_rows(placed, groups),
        steps=conform(pl.concat(_steps(rank, trace) for rank, trace in placed.items()), STEPS),
        clocks=_clocks(placed),
        diagnostics=conform(diagnostics_table(diagnostics), DIAGNOSTICS),
    )


def _nothing_found(traces: Sequence[RankTrace], diagnostics: Sequence[Diagnostic]) -> InputError:
    """Return the error for traces without a action: that what could be read of one has none, else what to record."""
    wrong = [row for row in diagnostics if row.severity == "error"]
    if wrong:
        path = wrong[0].source or str(traces[0].path)
        said = "; ".join(row.message for row in wrong if row.source == wrong[0].source)
        return InputError.damaged(path, f"no pipeline action in what can be read of it: {said}")
    against: Counter[str] = Counter()
    for row in diagnostics:
        if row.severity == "warning":
            against[row.message] += row.count or 1
    reasons = [f"{count} {message}" for message, count in against.items()]
    return InputError.no_pipeline_in_traces([trace.path for trace in traces], reasons)


def _pipeline_actions(trace: RankTrace) -> pl.DataFrame:
    return trace.actions.filter(pl.col("kind").is_in(ACTION_KINDS))


def _by_rank(traces: Sequence[RankTrace], diagnostics: list[Diagnostic]) -> dict[int, RankTrace]:
    """Return the traces by rank, the windows of one rank together; say where the ranks are a guess."""
    if any(trace.facts.rank is None for trace in traces):
        if len(traces) > 1:
            text = (
                "some traces tell no rank: all are numbered in the order of their files"
                " (start torch.profiler after init_process_group, or name the files rank0.json, rank1.json …)"
            )
            diagnostics.append(Diagnostic("warning", text, count=len(traces)))
        return dict(enumerate(traces))
    ranks: dict[int, RankTrace] = {}
    for trace in traces:
        rank = trace.facts.rank
        if rank is None:
            continue
        ranks[rank] = _joined(ranks[rank], trace, rank) if rank in ranks else trace
    return dict(sorted(ranks.items()))


def _joined(one: RankTrace, other: RankTrace, rank: int) -> RankTrace:
    """Return two windows of one rank as one trace; raises InputError for two that cannot be of one process."""
    windows = sorted((one, other), key=_begins_ns)
    (_, until_ns), (since_ns, _) = _window(windows[0]), _window(windows[1])
    shared = set(one.actions["step"].drop_nulls()) & set(other.actions["step"].drop_nulls())
    if one.facts.host != other.facts.host or since_ns < until_ns or shared:
        raise InputError.duplicate_rank(rank, [str(one.path), str(other.path)])
    tables = {
        name: pl.concat([getattr(window, name) for window in windows])
        for name in ("actions", "transfers", "steps")
    }
    return windows[0]._replace(**tables)


def _window(trace: RankTrace) -> tuple[int, int]:
    return int(trace.actions["start_ns"].min()), int(trace.actions["end_ns"].max())  # type: ignore[arg-type] # numbers


def _begins_ns(trace: RankTrace) -> int:
    return _window(trace)[0]


def _check_one_run(ranks: dict[int, RankTrace]) -> None:
    """Raise InputError where two traces cannot be of one run."""
    first = next(iter(ranks.values()))
    for trace in ranks.values():
        if trace.facts.world_size != first.facts.world_size:
            sizes = f"{trace.facts.world_size} ranks, not {first.facts.world_size} as in {first.path}"
            raise InputError.other_run(trace.path, f"its run had {sizes}")
        apart_ns = MOST_APART_NS["one host" if trace.facts.host == first.facts.host else "two hosts"]
        (since_ns, until_ns), (first_ns, last_ns) = _window(trace), _window(first)
        is_dated = trace.facts.has_epoch and first.facts.has_epoch
        if is_dated and (since_ns > last_ns + apart_ns or until_ns < first_ns - apart_ns):
            raise InputError.other_run(trace.path, f"it was recorded at another time than {first.path}")


MOST_APART_NS = {"one host": 10**9, "two hosts": 600 * 10**9}
"""By how much the traces of one run may miss each other; a run takes longer to begin, clocks of hosts differ less."""


MOST_OF_A_ACTION = 0.5
"""Above this part of its length, the edges of the usual action are no longer a detail: the picture may be another."""


def _said(rank: int, trace: RankTrace) -> list[Diagnostic]:
    """Return what a reader of the picture has to know about one rank."""
    found = []
    actions = _pipeline_actions(trace)
    if trace.inferred_from:
        errors_us = (actions["edge_error_ns"] / 1000).round()
        typical_us, worst_us = (int(errors_us.quantile(q) or 0) for q in (0.5, 1.0))
        text = (
            f"the schedule annotates no action: forwards and backwards are inferred from {trace.inferred_from},"
            f" their edges within {typical_us} us (median), {worst_us} us at worst"
        )
        usual_us = (actions["end_ns"] - actions["start_ns"]).median() / 1000
        severity = "info" if typical_us <= MOST_OF_A_ACTION * usual_us else "warning"
        found.append(Diagnostic(severity, text, str(trace.path), rank, count=actions.height))
    if not trace.facts.has_epoch:
        text = "the trace does not say when its time began: its clock is its own"
        found.append(Diagnostic("warning", text, str(trace.path), rank))
    return found


def _spans(rank: int, trace: RankTrace) -> pl.DataFrame:
    """Return the actions and transfers of one rank as spans."""
    stages = sorted(set(trace.actions["stage"].drop_nulls()))
    both = pl.concat(
        [trace.actions.drop("edge_error_ns"), trace.transfers.with_columns(lane=pl.lit(COMM))],
        how="diagonal_relaxed",
    )
    chunk = pl.col("stage").replace_strict(
        stages, list(range(len(stages))), default=None, return_dtype=pl.Int32
    )
    return both.with_columns(rank=pl.lit(rank, pl.Int32), chunk=chunk)


def _steps(rank: int, trace: RankTrace) -> pl.DataFrame:
    """Return the profiler's steps; where it marked none, from the first action of each step to the last."""
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
    """Return the clock domain of a rank: its host, or a clock of its own where the trace has no epoch."""
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
