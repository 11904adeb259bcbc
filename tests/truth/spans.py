"""Span tables of simulated runs, with the columns of docs/formats.md and the coordinates dp and pp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

import stagescope
from truth.plan import DOWN

if TYPE_CHECKING:
    from truth.engine import Run

ORIGIN_NS = 1_763_600_000_000_000_000
MESSAGE_BYTES = 8 << 20
NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
DIRECTIONS = {DOWN: "forward"}
SCHEMA = {
    "rank": pl.Int32, "lane": pl.String, "kind": pl.String, "step": pl.Int32, "stage": pl.Int32, "chunk": pl.Int32,
    "microbatch": pl.Int32, "pair": pl.Int32, "peer": pl.Int32, "bytes": pl.Int64, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64, "name": pl.String,
}  # fmt: skip


def spans_of(run: Run) -> pl.DataFrame:
    """Return the span table of a run; global rank = replica x ranks of a pipeline + pipeline rank."""
    frames = [_actions(run), _ends(run), *_inner_reductions(run)]
    if run.plan.records_transfers and run.program.messages:
        frames.append(_transfers(run))
    if run.plan.records_loading:
        frames.append(_loading(run))
    if run.plan.end.records_norm:
        frames.append(_norms(run))
    ranks = run.plan.shape.ranks
    table = pl.concat(frames).sort("rank", "start_ns", "end_ns", "lane")
    return table.with_columns(dp=pl.col("rank") // ranks, pp=pl.col("rank") % ranks)


def timeline_of(run: Run) -> stagescope.Timeline:
    """Return the Timeline of a run, whose ranks table has their coordinates."""
    return stagescope.Timeline.from_spans(spans_of(run))


def _table(run: Run, columns: dict[str, object], size: int) -> pl.DataFrame:
    """Return rows for step x `size` x replica; columns are arrays of that shape, sequences per row of it, or values.

    A sequence of `size` entries has one per entry, message or rank; `rank` is then that of the pipeline.
    """
    shape = run.plan.shape
    full = (shape.steps, size, shape.replicas)
    found: dict[str, pl.Series] = {}
    for name, dtype in SCHEMA.items():
        value = columns.get(name)
        if isinstance(value, np.ndarray):
            values = value.ravel()
        elif isinstance(value, (list, tuple)):
            values = [each for _ in range(shape.steps) for each in value for _ in range(shape.replicas)]
        else:
            values = [value] * int(np.prod(full))
        found[name] = pl.Series(name, values, dtype=dtype, strict=False)
    steps, replicas = (np.indices(full)[axis].ravel() for axis in (0, 2))
    return pl.DataFrame(found).with_columns(
        step=pl.Series(steps + run.plan.first_step, dtype=pl.Int32),
        rank=pl.col("rank") + pl.Series(replicas * shape.ranks, dtype=pl.Int32),
        **(
            {"peer": pl.col("peer") + pl.Series(replicas * shape.ranks, dtype=pl.Int32)}
            if "peer" in columns
            else {}
        ),
    )


def _actions(run: Run) -> pl.DataFrame:
    chunk_of = {stage: chunk for row in run.plan.shape.placement for chunk, stage in enumerate(row)}
    rows = [
        (number, entry.rank, *part, number if len(entry.parts) > 1 else None)
        for number, entry in enumerate(run.program.entries)
        for part in entry.parts
    ]
    numbers, ranks, kinds, stages, microbatches, pairs = (list(column) for column in zip(*rows, strict=True))
    columns = {
        "rank": ranks, "lane": "compute", "kind": [NAMES[kind] for kind in kinds], "stage": stages,
        "chunk": [chunk_of[stage] for stage in stages], "microbatch": microbatches, "pair": pairs,
        "start_ns": run.start[:, numbers] + ORIGIN_NS, "end_ns": run.end[:, numbers] + ORIGIN_NS,
    }  # fmt: skip
    return _table(run, columns, len(rows))


def _transfers(run: Run) -> pl.DataFrame:
    """Return a send and a receive per message.

    A receive is posted when its rank has nothing else to do, and blocks the rank until the message is there. A send is
    issued when its action has ended; it blocks only if sends are blocking.
    """
    messages = run.program.messages
    chunk_of = {stage: chunk for row in run.plan.shape.placement for chunk, stage in enumerate(row)}
    directions = [DIRECTIONS.get(message.direction, "backward") for message in messages]
    same = {
        "lane": "comm",
        "microbatch": [message.microbatch for message in messages],
        "bytes": MESSAGE_BYTES,
    }
    issued, posted = run.issued + ORIGIN_NS, run.posted + ORIGIN_NS
    noticed = np.maximum(run.arrived + ORIGIN_NS, posted)
    blocking = run.plan.network.blocking
    sends = {
        **same, "rank": [message.sender for message in messages], "peer": [message.receiver for message in messages],
        "kind": [f"send_{name}" for name in directions], "stage": [message.source for message in messages],
        "chunk": [chunk_of[message.source] for message in messages], "start_ns": issued,
        "end_ns": run.arrived + ORIGIN_NS,
        **({"wait_start_ns": issued, "wait_end_ns": run.sent + ORIGIN_NS} if blocking else {}),
    }  # fmt: skip
    receives = {
        **same, "rank": [message.receiver for message in messages], "peer": [message.sender for message in messages],
        "kind": [f"recv_{name}" for name in directions], "stage": [message.target for message in messages],
        "chunk": [chunk_of[message.target] for message in messages], "start_ns": posted, "end_ns": noticed,
        "wait_start_ns": posted, "wait_end_ns": noticed,
    }  # fmt: skip
    return pl.concat([_table(run, sends, len(messages)), _table(run, receives, len(messages))])


def _ends(run: Run) -> pl.DataFrame:
    """Return the reductions (where there are replicas) and optimizer steps."""
    plan, ranks = run.plan, list(range(run.plan.shape.ranks))
    optimizer = {
        "rank": ranks, "lane": "compute", "kind": "optimizer",
        "start_ns": run.normed + ORIGIN_NS, "end_ns": run.optimized + ORIGIN_NS,
    }  # fmt: skip
    entered = run.synced if plan.end.sync_first else run.entered
    reduction = {
        "rank": ranks, "lane": "comm", "kind": "grad_reduce",
        "start_ns": entered + ORIGIN_NS, "end_ns": run.reduced + ORIGIN_NS,
    }  # fmt: skip
    frames = [_table(run, optimizer, len(ranks))] if plan.end.optimizer_ns else []
    if (plan.shape.replicas > 1 and not plan.inner) or plan.end.reduce_ns:
        frames.append(_table(run, reduction, len(ranks)))
    if plan.records_pause:
        pause = {
            "rank": ranks, "lane": "host", "kind": "other", "name": plan.records_pause,
            "start_ns": run.optimized + ORIGIN_NS, "end_ns": run.over - plan.end.between_ns + ORIGIN_NS,
        }  # fmt: skip
        done = _table(run, pause, len(ranks))
        frames.append(done.filter(pl.col("end_ns") > pl.col("start_ns")))
    return _of_last_steps(run, pl.concat([*frames, _table(run, optimizer, len(ranks)).clear()]))


def _of_last_steps(run: Run, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of steps that end with an optimizer step."""
    number = pl.col("step") - run.plan.first_step + 1
    return spans.filter(number % run.plan.accumulated == 0)


def _norms(run: Run) -> pl.DataFrame:
    """Return the norm of the gradients as a collective of all ranks, and what late ranks do before it."""
    plan, ranks = run.plan, list(range(run.plan.shape.ranks))
    last = plan.shape.ranks * plan.shape.replicas - 1
    norm = {
        "rank": ranks, "lane": "comm", "kind": "collective", "name": f"all_reduce in default_pg 0-{last} (0)",
        "bytes": 4,
        "start_ns": run.came + ORIGIN_NS, "end_ns": run.normed + ORIGIN_NS,
        "wait_start_ns": run.came + ORIGIN_NS, "wait_end_ns": run.normed + ORIGIN_NS,
    }  # fmt: skip
    number = (pl.col("step") - plan.first_step + 1) // plan.accumulated - 1
    norms = _table(run, norm, len(ranks)).with_columns(pair=number.cast(pl.Int32))
    late = {
        "rank": ranks, "lane": "host", "kind": "other", "name": plan.records_late or None,
        "start_ns": run.reduced + ORIGIN_NS, "end_ns": run.came + ORIGIN_NS,
    }  # fmt: skip
    done = _table(run, late, len(ranks)).filter(pl.col("end_ns") > pl.col("start_ns"))
    return _of_last_steps(run, pl.concat([norms, done] if plan.records_late else [norms]))


def _inner_reductions(run: Run) -> list[pl.DataFrame]:
    """Return the reductions inside of steps, each named by its group, whose members are the replicas of a stage."""
    if run.plan.inner is None:
        return []
    rank_of = {stage: rank for rank, stages in enumerate(run.plan.shape.placement) for stage in stages}
    stages = list(range(run.plan.shape.stages))
    steps = np.arange(run.plan.shape.steps)[:, None, None] + np.zeros_like(run.computed)
    columns = {
        "rank": [rank_of[stage] for stage in stages], "lane": "comm", "kind": "grad_reduce", "stage": stages,
        "name": [f"all_reduce in replicas of stage {stage}" for stage in stages], "pair": steps,
        "start_ns": run.issued_inside + ORIGIN_NS, "end_ns": run.reduced_inside + ORIGIN_NS,
        "wait_start_ns": run.computed + ORIGIN_NS, "wait_end_ns": run.reduced_inside + ORIGIN_NS,
    }  # fmt: skip
    return [_table(run, columns, len(stages))]


def _loading(run: Run) -> pl.DataFrame:
    """Return the loading of data on the first rank, as host spans with a name."""
    plan, m = run.plan, list(range(run.plan.shape.microbatches))
    spent = plan.load_ns.transpose(0, 2, 1)
    columns = {
        "rank": [plan.loader] * len(m), "lane": "host", "kind": "other", "name": "data loading", "microbatch": m,
        "stage": 0,
        "start_ns": run.loaded - spent + ORIGIN_NS, "end_ns": run.loaded + ORIGIN_NS,
    }  # fmt: skip
    per_microbatch = _table(run, columns, len(m))
    begin = run.began[:, plan.loader : plan.loader + 1]
    whole = {
        "rank": [plan.loader], "lane": "host", "kind": "other", "name": "data loading",
        "start_ns": begin + ORIGIN_NS, "end_ns": begin + plan.step_load_ns[:, None] + ORIGIN_NS,
    }  # fmt: skip
    found = pl.concat([per_microbatch, _table(run, whole, 1)])
    return found.filter(pl.col("end_ns") > pl.col("start_ns"))
