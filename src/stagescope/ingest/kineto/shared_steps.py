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
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.ingest.kineto.rank_trace import RankTrace


def without_contradicted(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces, without the actions that transfers alone tell if those of another rank deny the steps."""
    by_transfers = [trace for trace in traces if trace.inferred_from == BY_TRANSFERS]
    told = {trace.path for trace in by_transfers if not _forwards(trace).is_empty()}
    denied = any(
        said.message == UNMATCHED_TRANSFERS
        for trace in by_transfers
        if trace.path not in told
        for said in trace.diagnostics
    )
    return [_without_actions(trace) if denied and trace.path in told else trace for trace in traces]


def _without_actions(trace: RankTrace) -> RankTrace:
    denied = Diagnostic(
        "warning", UNMATCHED_TRANSFERS, str(trace.path), trace.facts.rank, count=trace.transfers.height
    )
    return trace._replace(
        actions=trace.actions.clear(),
        transfers=trace.transfers.clear(),
        steps=trace.steps.clear(),
        diagnostics=[*trace.diagnostics, denied],
    )


def share_steps(ranks: Mapping[int, RankTrace], diagnostics: list[Diagnostic]) -> dict[int, RankTrace]:
    """Return the traces, those that show no steps of their own with the steps of the others.

    Where the others do not tell, a warning is added to `diagnostics` for a rank that shows each micro-batch as a step.
    """
    told = {_size(trace) for trace in ranks.values() if _is_inferred(trace) and not _takes_turns(trace)}
    shared = dict(ranks)
    for rank, trace in ranks.items():
        if not _is_inferred(trace) or not _takes_turns(trace) or trace.transfers.is_empty():
            continue
        size = next(iter(told)) if len(told) == 1 else 0
        if size and _size(trace) != size and _forwards(trace).height % size == 0:
            shared[rank] = _in_steps_of(trace, size)
        elif not size and _size(trace) == 1:
            text = (
                "nothing tells where steps begin: every micro-batch is shown as one"
                " (give torch.profiler a schedule= and call its step() after every step)"
            )
            diagnostics.append(Diagnostic("warning", text, str(trace.path), rank))
    return shared


def _forwards(trace: RankTrace) -> pl.DataFrame:
    return trace.actions.filter(pl.col("kind") == "forward")


def _is_inferred(trace: RankTrace) -> bool:
    """Tell whether the actions of a trace have no names, and no marks divide its steps."""
    return trace.inferred_from is not None and trace.steps.is_empty() and not _forwards(trace).is_empty()


def _takes_turns(trace: RankTrace) -> bool:
    """Tell whether every backward comes right behind its forward, as on a last stage."""
    actions = trace.actions.filter(pl.col("kind").is_in(["forward", "backward"])).sort("start_ns")
    order = actions.select("step", "microbatch").rows()
    return order[::2][: len(order) // 2] == order[1::2]


def _size(trace: RankTrace) -> int:
    """Return how many forwards a step of a trace usually has."""
    return int(_forwards(trace).group_by("step").len()["len"].mode().max())  # type: ignore[arg-type] # there is one


def _in_steps_of(trace: RankTrace, size: int) -> RankTrace:
    """Return a trace with `size` micro-batches in each step, in the order in which their forwards ran."""
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
