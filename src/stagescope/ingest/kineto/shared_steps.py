"""Complete the steps of one rank from those of the other ranks.

Without marks, a step ends when every forward has had its backward. On the last stage of 1F1B this holds after every
micro-batch, so its steps must be taken from the other ranks, which show how many micro-batches a step has.

On a rank in the middle of the pipeline, transfers alone cannot distinguish several steps from one long step: receives
and sends alternate in both. On the first rank they can. If its transfers do not form complete steps, those found on
the other ranks are wrong too. If the number of ranks is only that of the files, all must agree on the micro-batches:
without the file of the last rank, the one before it seems to be the last, with twice as many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.kineto.findings import UNMATCHED_ON_FILES, UNMATCHED_TRANSFERS
from stagescope.ingest.kineto.rank_trace import FILES_ORDER, TRANSFER_ORDER
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.ingest.kineto.rank_trace import RankTrace


def without_contradicted(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces; actions inferred from transfers alone are removed if another rank contradicts their steps."""
    by_transfers = [trace for trace in traces if trace.inferred_from in (TRANSFER_ORDER, FILES_ORDER)]
    with_actions = {trace.path for trace in by_transfers if not _forwards(trace).is_empty()}
    contradicted = any(
        diagnostic.code == UNMATCHED_TRANSFERS.code
        for trace in by_transfers
        if trace.path not in with_actions
        for diagnostic in trace.diagnostics
    )
    counted = [
        trace for trace in by_transfers if trace.inferred_from == FILES_ORDER and trace.path in with_actions
    ]
    sizes = {_forwards(trace).height if trace.steps.is_empty() else _size(trace) for trace in counted}
    contradicted |= len(sizes) > 1
    return [
        _without_actions(trace) if contradicted and trace.path in with_actions else trace for trace in traces
    ]


def _without_actions(trace: RankTrace) -> RankTrace:
    reason = UNMATCHED_ON_FILES if trace.inferred_from == FILES_ORDER else UNMATCHED_TRANSFERS
    contradicted = Diagnostic(
        reason.severity,
        reason.message,
        str(trace.path),
        trace.facts.rank,
        count=trace.transfers.height,
        code=reason.code,
    )
    return trace._replace(
        actions=trace.actions.clear(),
        transfers=trace.transfers.clear(),
        steps=trace.steps.clear(),
        diagnostics=[*trace.diagnostics, contradicted],
    )


def share_steps(ranks: Mapping[int, RankTrace], diagnostics: list[Diagnostic]) -> dict[int, RankTrace]:
    """Return the traces; those that show no steps of their own get the step size of the others.

    If the others are inconclusive, a rank that shows each micro-batch as a step adds a warning to `diagnostics`.
    """
    sizes = {_size(trace) for trace in ranks.values() if _is_inferred(trace) and not _alternates(trace)}
    shared = dict(ranks)
    for rank, trace in ranks.items():
        if not _is_inferred(trace) or not _alternates(trace) or trace.transfers.is_empty():
            continue
        size = next(iter(sizes)) if len(sizes) == 1 else 0
        # A remainder means that the trace does not consist of complete steps; then nothing is better than a guess.
        if size and _size(trace) != size and _forwards(trace).height % size == 0:
            shared[rank] = _in_steps_of(trace, size)
        elif not size and _size(trace) == 1:
            text = (
                "the trace does not show where steps begin: every micro-batch is shown as a step"
                " (give torch.profiler a schedule= and call its step() after every step)"
            )
            diagnostics.append(Diagnostic("warning", text, str(trace.path), rank, code="steps.unknown"))
    return shared


def _forwards(trace: RankTrace) -> pl.DataFrame:
    return trace.actions.filter(pl.col("kind") == "forward")


def _is_inferred(trace: RankTrace) -> bool:
    """Return whether the actions of a trace are inferred and no marks divide its steps."""
    return trace.inferred_from is not None and trace.steps.is_empty() and not _forwards(trace).is_empty()


def _alternates(trace: RankTrace) -> bool:
    """Return whether every backward directly follows its forward, as on a last stage."""
    actions = trace.actions.filter(pl.col("kind").is_in(["forward", "backward"])).sort("start_ns")
    order = actions.select("step", "microbatch").rows()
    return order[::2][: len(order) // 2] == order[1::2]


def _size(trace: RankTrace) -> int:
    """Return the most common number of forwards per step."""
    return int(_forwards(trace).group_by("step").len()["len"].mode().max())  # type: ignore[arg-type] # there is one


def _in_steps_of(trace: RankTrace, size: int) -> RankTrace:
    """Return a trace with `size` micro-batches in each step, in the order of their forwards."""
    place = ["step", "microbatch"]
    forwards = _forwards(trace).sort("start_ns").select(place).with_row_index("number")
    numbers = forwards.with_columns(pl.col("number").cast(pl.Int32))
    last = numbers.group_by("step").agg(last=pl.max("number"))

    def moved(rows: pl.DataFrame) -> pl.DataFrame:
        joined = rows.join(numbers, on=place, how="left", maintain_order="left")
        joined = joined.join(last, on="step", how="left", maintain_order="left")
        number = pl.col("number")
        return joined.with_columns(
            step=pl.coalesce("number", "last") // size,
            microbatch=pl.when(number.is_not_null()).then(number % size),
        ).select(rows.columns)

    return trace._replace(actions=moved(trace.actions), transfers=moved(trace.transfers))
