"""What one rank's trace does not tell of its steps, from those of the other ranks.

Where nothing marks steps, one ends when every forward has had its backward. On the last stage of 1F1B that is so after
every micro-batch. The other ranks tell how many micro-batches a step has.

Of a rank in the middle, transfers alone do not tell several steps from one with as many micro-batches: receives and
sends take turns in either. The first rank's do: if they are no whole step, what the others seem to tell is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.kineto.rank_trace import BY_TRANSFERS, UNMATCHED_TRANSFERS
from stagescope.timeline.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.ingest.kineto.rank_trace import RankTrace


def without_contradicted(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces, without the jobs that transfers alone tell if those of another rank deny the steps."""
    by_transfers = [trace for trace in traces if trace.inferred_from == BY_TRANSFERS]
    told = {trace.path for trace in by_transfers if not _forwards(trace).is_empty()}
    denied = any(
        said.message == UNMATCHED_TRANSFERS
        for trace in by_transfers
        if trace.path not in told
        for said in trace.diagnostics
    )
    return [_without_jobs(trace) if denied and trace.path in told else trace for trace in traces]


def _without_jobs(trace: RankTrace) -> RankTrace:
    denied = Diagnostic(
        "warning", UNMATCHED_TRANSFERS, str(trace.path), trace.facts.rank, count=trace.transfers.height
    )
    return trace._replace(
        jobs=trace.jobs.clear(),
        transfers=trace.transfers.clear(),
        steps=trace.steps.clear(),
        diagnostics=[*trace.diagnostics, denied],
    )


def share_steps(ranks: Mapping[int, RankTrace], diagnostics: list[Diagnostic]) -> dict[int, RankTrace]:
    """Return the traces, those that show each micro-batch as a step of its own with the steps of the others.

    Where the others do not tell, a warning is added to `diagnostics` for a rank that sends or receives.
    """
    sizes = {rank: _microbatches(trace) for rank, trace in ranks.items()}
    told = {size for size in sizes.values() if size is not None and size > 1}
    shared = dict(ranks)
    for rank, trace in ranks.items():
        if sizes[rank] != 1 or trace.transfers.is_empty():
            continue
        size = next(iter(told)) if len(told) == 1 else 0
        if size and _forwards(trace).height % size == 0:
            shared[rank] = _in_steps_of(trace, size)
        else:
            text = (
                "nothing tells where steps begin: every micro-batch is shown as one"
                " (give torch.profiler a schedule= and call its step() after every step)"
            )
            diagnostics.append(Diagnostic("warning", text, str(trace.path), rank))
    return shared


def _forwards(trace: RankTrace) -> pl.DataFrame:
    return trace.jobs.filter(pl.col("kind") == "forward")


def _microbatches(trace: RankTrace) -> int | None:
    """Return how many forwards a step of a trace usually has; None where steps are marked, or jobs have names."""
    is_marked = trace.steps.height or (trace.jobs["kind"] == "optimizer").any()
    forwards = _forwards(trace)
    if is_marked or trace.inferred_from is None or forwards.is_empty():
        return None
    return int(forwards.group_by("step").len()["len"].mode().max())  # type: ignore[arg-type] # there is one


def _in_steps_of(trace: RankTrace, size: int) -> RankTrace:
    """Return a trace with one micro-batch in each step as one with `size` in each."""
    microbatch = pl.when(pl.col("microbatch").is_not_null()).then(pl.col("step") % size)
    columns = {"step": pl.col("step") // size, "microbatch": microbatch}
    return trace._replace(
        jobs=trace.jobs.with_columns(**columns), transfers=trace.transfers.with_columns(**columns)
    )
