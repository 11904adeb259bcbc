"""A generated pipeline run: 1F1B on several ranks with transfers, waits and steps.

Every number follows from the arguments, so that tests and benchmarks can ask for a known count of slices and
messages. The schedule is a plain list simulation and has nothing to do with stagescope.schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stagescope.model import COUNTERS, RANKS, SPANS, STEPS, Timeline, empty_timeline
from stagescope.model.validate import conform

EPOCH_NS = 1_763_600_000_123_456_789
FORWARD_NS, BACKWARD_NS, ISSUE_NS, TRANSFER_NS = 1_000_003, 2_000_007, 20_001, 150_011


@dataclass(frozen=True)
class Shape:
    """Size and start of a run."""

    ranks: int = 4
    microbatches: int = 8
    steps: int = 2
    origin_ns: int = EPOCH_NS


def action_order(rank: int, shape: Shape) -> list[tuple[str, int]]:
    """Return the 1F1B order of one rank as (kind, micro-batch)."""
    warmup = min(shape.ranks - 1 - rank, shape.microbatches)
    order = [("forward", m) for m in range(warmup)]
    for m in range(shape.microbatches - warmup):
        order += [("forward", warmup + m), ("backward", m)]
    return order + [("backward", m) for m in range(shape.microbatches - warmup, shape.microbatches)]


def message_count(shape: Shape) -> int:
    """Return how many messages the run sends."""
    return 2 * (shape.ranks - 1) * shape.microbatches * shape.steps


def pipeline_timeline(shape: Shape) -> Timeline:
    """Return a 1F1B run: actions, sends and receives with their waits, one optimizer action per step, and steps.

    Receives are posted when the rank has finished the action before, sends take `ISSUE_NS`, and data arrive
    `TRANSFER_NS` after the send was issued.
    """
    rows: list[dict[str, object]] = []
    steps: list[dict[str, int]] = []
    free_ns = [shape.origin_ns] * shape.ranks
    for step in range(shape.steps):
        began_ns = list(free_ns)
        _run_step(rows, free_ns, step, shape)
        steps += [
            {"step": step, "rank": rank, "start_ns": began_ns[rank], "end_ns": free_ns[rank]}
            for rank in range(shape.ranks)
        ]
    ranks = pl.DataFrame(
        {"rank": range(shape.ranks), "machine": [f"node-{rank // 2}" for rank in range(shape.ranks)]}
    )
    spans = pl.DataFrame(rows, infer_schema_length=None)
    empty = empty_timeline()
    return Timeline(
        conform(spans, SPANS), conform(ranks, RANKS), conform(pl.DataFrame(steps), STEPS),
        empty.clocks, empty.diagnostics,
    )  # fmt: skip


def _run_step(rows: list[dict[str, object]], free_ns: list[int], step: int, shape: Shape) -> None:
    """Run every rank's actions in order as soon as their data are there."""
    todo = {rank: action_order(rank, shape) for rank in range(shape.ranks)}
    sent_ns: dict[tuple[str, int, int], int] = {}
    while any(todo.values()):
        for rank, actions in todo.items():
            while actions:
                kind, microbatch = actions[0]
                away = -1 if kind == "forward" else 1
                source = rank + away
                has_source = 0 <= source < shape.ranks
                if has_source and (kind, source, microbatch) not in sent_ns:
                    break
                actions.pop(0)
                common = {"rank": rank, "step": step, "stage": rank, "chunk": 0, "microbatch": microbatch}
                start_ns = free_ns[rank]
                if has_source:
                    ready_ns = max(start_ns, sent_ns[kind, source, microbatch] + TRANSFER_NS)
                    rows.append(
                        {**common, "lane": "comm", "kind": f"recv_{kind}", "peer": source, "bytes": 8_388_608,
                         "start_ns": start_ns, "end_ns": ready_ns,
                         "wait_start_ns": start_ns, "wait_end_ns": ready_ns}
                    )  # fmt: skip
                    start_ns = ready_ns
                end_ns = start_ns + (FORWARD_NS if kind == "forward" else BACKWARD_NS)
                rows.append(
                    {**common, "lane": "compute", "kind": kind, "start_ns": start_ns, "end_ns": end_ns}
                )
                free_ns[rank] = end_ns
                target = rank - away
                if 0 <= target < shape.ranks:
                    sent_ns[kind, rank, microbatch] = end_ns
                    free_ns[rank] = end_ns + ISSUE_NS
                    rows.append(
                        {**common, "lane": "comm", "kind": f"send_{kind}", "peer": target, "bytes": 8_388_608,
                         "start_ns": end_ns, "end_ns": free_ns[rank]}
                    )  # fmt: skip
    for rank in range(shape.ranks):
        end_ns = free_ns[rank] + 500_000
        rows.append(
            {"rank": rank, "lane": "compute", "kind": "optimizer", "step": step,
             "start_ns": free_ns[rank], "end_ns": end_ns}
        )  # fmt: skip
        free_ns[rank] = end_ns


AWKWARD_NAMES = (
    'quote "hi"', "back\\slash", "line\nbreak\ttab", "\u2603 \u4f60\u597d \U0001f600", "</script><b>", "\x01",
    "", "7", " ",
)  # fmt: skip


def awkward_timeline(origin_ns: int = EPOCH_NS) -> Timeline:
    """Return a run with edge cases for viewers, in addition to a small pipeline run on ranks 0 to 3.

    Rank 4 overlaps F and B in pairs; rank 5 has slices back to back, one nanosecond of overlap by rounding,
    slices without length at either end of others, a span that ends before it starts, and concurrent
    receives; rank 6 has names that need quoting; rank 7 has no span at all, only a counter. Ranks 4 and 5 have counters
    as well.
    """
    run = pipeline_timeline(Shape(origin_ns=origin_ns))
    rows = _pair_rows() + _edge_rows() + _named_rows()
    for row in rows:
        for name in ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"):
            if name in row:
                row[name] += origin_ns
    spans = pl.concat([run.spans, conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)])
    names = {4: 'quo"ted', 5: None, 6: "</script>", 7: "silent"}
    more = pl.DataFrame({"rank": names.keys(), "machine": names.values()}, strict=False)
    ranks = pl.concat([run.ranks, conform(more, RANKS)])
    counters = conform(pl.DataFrame(_counter_rows(origin_ns)), COUNTERS)
    return Timeline(
        conform(spans, SPANS),
        conform(ranks, RANKS),
        run.steps,
        run.clocks,
        run.diagnostics,
        counters=counters,
    )


def _counter_rows(origin_ns: int) -> list[dict[str, Any]]:
    memory = [
        {
            "rank": rank,
            "name": "allocated memory",
            "time_ns": origin_ns + 1_000 * rank,
            "value": value,
            "unit": "B",
        }
        for rank, value in ((4, 2.0**53 - 1), (5, 0.0), (7, 2.0**40))
    ]
    clock = {"rank": 4, "name": 'clock "MHz"', "time_ns": origin_ns + 7, "value": 1_980.5, "unit": None}
    return [*memory, clock]


def _pair_rows() -> list[dict[str, Any]]:
    return [
        {"rank": 4, "lane": "compute", "kind": kind, "step": 0, "stage": stage, "chunk": chunk,
         "microbatch": pair, "pair": pair, "start_ns": 3_000 * pair + 500 * chunk, "end_ns": 3_000 * pair + 2_600}
        for pair in range(5)
        for chunk, (kind, stage) in enumerate([("forward", 0), ("backward", 1)])
    ]  # fmt: skip


def _edge_rows() -> list[dict[str, Any]]:
    compute = {"rank": 5, "lane": "compute", "step": 0, "stage": 5}
    bounds = [(0, 100), (100, 200), (200, 200), (200, 200), (200, 50_000), (49_999, 90_000), (90_000, 90_000),
              (95_000, 94_000), (95_000, 95_001), (95_001, 95_002)]  # fmt: skip
    actions = [
        {**compute, "kind": "backward_input" if number % 2 else "backward_weight", "microbatch": number,
         "start_ns": start_ns, "end_ns": end_ns}
        for number, (start_ns, end_ns) in enumerate(bounds)
    ]  # fmt: skip
    receives = [
        {"rank": 5, "lane": "comm", "kind": "recv_forward", "step": 0, "stage": 5, "microbatch": number, "peer": 4,
         "bytes": 2**53 + 1, "start_ns": 10_000 * number, "end_ns": 70_000 + number,
         "wait_start_ns": 60_000, "wait_end_ns": 70_000 + number}
        for number in range(3)
    ]  # fmt: skip
    return actions + receives


def _named_rows() -> list[dict[str, Any]]:
    return [
        {"rank": 6, "lane": "host", "kind": "other", "name": name,
         "start_ns": 1_000 * number, "end_ns": 1_000 * number + 900}
        for number, name in enumerate(AWKWARD_NAMES)
    ]  # fmt: skip


def slowed_step(timeline: Timeline, step: int) -> Timeline:
    """Return a run in which everything in one step takes twice as long, and later steps begin later.

    Durations differ by up to a percent, as real ones do: of equal steps, any other one is an outlier.
    """
    spans, of_step = timeline.spans, pl.col("step")
    slow = spans.filter(of_step == step)
    begin_ns = slow["start_ns"].min()
    extra_ns = slow.select(pl.max("end_ns") - pl.min("start_ns")).item()
    times = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    moved = [
        pl.when(of_step == step)
        .then((pl.col(name) - begin_ns) * 2 + begin_ns)
        .when(of_step > step)
        .then(pl.col(name) + extra_ns)
        .otherwise(name)
        .alias(name)
        for name in times
    ]
    shorter = (pl.col("end_ns") - pl.col("start_ns")) * (pl.int_range(pl.len()) * 7919 % 101) // 10_000
    return timeline.with_spans(spans.with_columns(*moved).with_columns(end_ns=pl.col("end_ns") - shorter))
