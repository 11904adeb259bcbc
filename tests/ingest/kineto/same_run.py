"""Compare the actions in torch.profiler's traces with those that stagescope recorded in the same run."""

from __future__ import annotations

import polars as pl

COMPARED = ("forward", "backward", "backward_input", "backward_weight")
KEY = ["rank", "kind", "stage", "microbatch", "occurrence"]


def compared(recorded, traces):
    """Return one row per action of a recording: start_off_ns, end_off_ns, error_ns (stated); null if one is missing.

    `recorded` is a table of spans, `traces` the results of read_rank by rank.
    """
    traced = pl.concat(
        trace.actions.with_columns(rank=pl.lit(rank, pl.Int32)) for rank, trace in traces.items()
    ).with_columns(stage=pl.coalesce("stage", "rank"))
    both = keyed(recorded).join(keyed(traced), on=KEY, how="full", suffix="_traced", coalesce=True)
    return both.with_columns(
        start_off_ns=(pl.col("start_ns_traced") - pl.col("start_ns")).abs(),
        end_off_ns=(pl.col("end_ns_traced") - pl.col("end_ns")).abs(),
        error_ns="edge_error_ns",
    )


def keyed(spans):
    actions = spans.with_columns(pl.col("kind").cast(pl.String)).filter(pl.col("kind").is_in(COMPARED))
    occurrence = pl.int_range(pl.len()).over("rank", "kind", "stage", "microbatch")
    casts = [pl.col(name).cast(pl.Int32) for name in ("rank", "stage", "microbatch")]
    return actions.with_columns(casts).sort("start_ns").with_columns(occurrence=occurrence)
