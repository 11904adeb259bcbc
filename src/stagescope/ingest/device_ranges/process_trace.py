"""Turn one trace into the actions, transfers and steps of each of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.annotations.steps import STEPS_SCHEMA, named_steps, step_openings, with_steps
from stagescope.ingest.device_ranges.enclosing_ranges import NO_RANGE, EnclosingRanges
from stagescope.ingest.device_ranges.kernels import process_kernels
from stagescope.ingest.device_ranges.projection import on_main_stream, project
from stagescope.ingest.device_ranges.range_names import range_meaning, step_of
from stagescope.ingest.device_ranges.trace import process_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import ACTION_KINDS, COMM, HOST, KINDS, TRANSFERS

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest.device_ranges.projection import Projected
    from stagescope.ingest.device_ranges.trace import DeviceTrace, TraceFacts, Wording
    from stagescope.ingest.reader import ReadOptions

MEANING_SCHEMA = {
    "name": pl.String, "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "chunk": pl.Int32,
    "step": pl.Int32,
}  # fmt: skip
LANES = {kind.name: kind.lane for kind in KINDS}
MOST_NAMES = 5
BACKWARDS = ("backward", "backward_input", "backward_weight")


class ProcessTrace(NamedTuple):
    """One process of a trace: its spans, steps and device, and whether the names state micro-batches.

    `kernels` are what process_kernels returns; None if they were not asked for.
    """

    path: Path
    facts: TraceFacts
    process: int
    device: int | None
    spans: pl.DataFrame
    steps: pl.DataFrame
    is_numbered: bool
    diagnostics: list[Diagnostic]
    tables: frozenset[str]
    wording: Wording
    kernels: pl.DataFrame | None = None


def counted(found: list[ProcessTrace] | Unmarked, options: ReadOptions) -> list[ProcessTrace] | Unmarked:
    """Return the processes of a trace; `options` count their spans and kernels."""
    for trace in found if isinstance(found, list) else ():
        options.count(trace.spans.height, 0 if trace.kernels is None else trace.kernels.height)
    return found


class Unmarked(NamedTuple):
    """A trace without actions: the number of its ranges, some of their names, and the faults of its tables."""

    path: Path
    range_count: int
    names: list[str]
    faults: list[str]
    wording: Wording


def read_trace(
    trace: DeviceTrace, pattern: str | None = None, *, kernels: bool = False
) -> list[ProcessTrace] | Unmarked:
    """Return the processes of an open trace that ran actions; with `kernels`, each with its kernels."""
    # Faults are collected while reading, so they are turned into diagnostics only after the last query.
    path, wording = trace.path, trace.wording
    facts = trace.facts()
    stated, still_open = trace.ranges()
    every = stated.drop_nulls()
    ranges = every.unique(maintain_order=True)
    actions = _actions(ranges, NamePattern(pattern) if pattern else None)
    if actions.is_empty():
        names = ranges["name"].unique(maintain_order=True).head(MOST_NAMES).to_list()
        return Unmarked(path, ranges.height, names, trace.fault_sentences(), wording)
    transfers = actions.filter(pl.col("kind").is_in(TRANSFERS))["action"].to_numpy()
    projected = project(trace, EnclosingRanges(actions), transfers, keep=kernels)
    titles = trace.kernel_names() if kernels else {}
    damage = trace.diagnostics()
    if still_open:
        text = f"ranges were still open when the {wording.file} ended, and were dropped"
        damage.append(Diagnostic("warning", text, str(path), count=still_open, code="ranges.open"))
    if lost := stated.height - every.height:
        text = f"{wording.ranges} have no name, thread or time, and were dropped"
        damage.append(Diagnostic("error", text, str(path), count=lost, code="events.dropped"))
    if repeated := every.height - ranges.height:
        text = f"{wording.ranges} are in the {wording.file} more than once and were used once"
        damage.append(Diagnostic("error", text, str(path), count=repeated, code="events.repeated"))
    spans, notes = _spans_of(actions, projected, trace)
    steps = _steps(ranges)
    numbers = np.unique(process_of(actions["thread"].to_numpy())).tolist()
    found = [_process_trace(number, spans, steps) for number in numbers]
    own = projected.kernels
    return [
        ProcessTrace(
            path,
            facts,
            number,
            *one,
            [*damage, *notes] if number == numbers[0] else [],
            trace.tables,
            wording,
            None if own is None else process_kernels(own.filter(pl.col("process") == number), titles, one[1]),
        )
        for number, one in zip(numbers, found, strict=True)
    ]


def _actions(ranges: pl.DataFrame, pattern: NamePattern | None) -> pl.DataFrame:
    """Return the ranges that are actions, numbered, with the fields of their names."""
    rows = [
        (name, *meaning)
        for name in ranges["name"].unique(maintain_order=True)
        if (meaning := range_meaning(name, pattern)) is not None
    ]
    known = pl.DataFrame(rows, MEANING_SCHEMA, orient="row")
    actions = ranges.join(known, on="name", how="inner", maintain_order="left").with_row_index("action")
    # Short names such as B2 may be unrelated ranges of the user; a pipeline has forwards.
    found = actions.filter(
        (pl.col("kind") == "forward") | (pl.col("kind").is_in(ACTION_KINDS) & (pattern is not None))
    )
    marked = actions.with_columns(
        action=pl.col("action").cast(pl.Int64), is_backward=pl.col("kind").is_in(BACKWARDS)
    )
    return marked if found.height else marked.clear()


def _spans_of(
    actions: pl.DataFrame, projected: Projected, trace: DeviceTrace
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return actions and transfers, at device times where available, and diagnostics about them."""
    kinds = actions.select("action", is_reduce=pl.col("kind") == "grad_reduce")
    times, on_other_streams = on_main_stream(projected.work, kinds)
    process = pl.Series("process", process_of(actions["thread"].to_numpy()))
    marks = actions.with_columns(process, mark_start_ns="start_ns", mark_end_ns="end_ns")
    is_transfer = pl.col("kind").is_in(TRANSFERS)
    joined = marks.filter(~is_transfer).join(
        times, on="action", how="left", suffix="_device", maintain_order="left"
    )
    on_device = pl.col("start_ns_device").is_not_null()
    computed = joined.with_columns(
        start_ns=pl.coalesce("start_ns_device", "start_ns"),
        end_ns=pl.coalesce("end_ns_device", "end_ns"),
        lane=pl.when(on_device)
        .then(pl.col("kind").replace_strict(LANES, return_dtype=pl.String))
        .otherwise(pl.lit(HOST)),
        title=pl.lit(None, pl.String),
    )
    transfers = _transfers(marks, projected.transfers)
    on_host = joined["start_ns_device"].null_count()
    notes = _notes(projected, joined.height, on_host, on_other_streams, trace)
    return pl.concat([computed, transfers], how="diagonal_relaxed"), notes


def _transfers(marks: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers as spans, with the direction of the range that launched them, if it is a transfer range."""
    named = marks.filter(pl.col("kind").is_in(TRANSFERS)).select(
        "action", "kind", "stage", "microbatch", "chunk", "step", "mark_start_ns", "mark_end_ns"
    )
    joined = kernels.select("action", "process", "device", "start_ns", "end_ns").join(
        named, on="action", how="left"
    )
    return joined.with_columns(
        kind=pl.col("kind").fill_null("other"),
        lane=pl.lit(COMM),
        title=pl.when(pl.col("kind").is_null()).then(pl.lit("ncclSendRecv")),
        mark_start_ns=pl.coalesce("mark_start_ns", "start_ns"),
        mark_end_ns=pl.coalesce("mark_end_ns", "end_ns"),
    ).sort("start_ns")


def _notes(
    projected: Projected, actions: int, on_host: int, on_other_streams: int, trace: DeviceTrace
) -> list[Diagnostic]:
    found = []
    path, wording = trace.path, trace.wording
    if projected.kernel_count == 0:
        text = f"the {wording.file} has no kernels: actions are shown at host times ({wording.no_kernels})"
        found.append(Diagnostic("warning", text, str(path), count=actions, code="actions.on_host"))
    elif on_host:
        text = f"actions launched no kernel that is in the {wording.file}, and are shown at host times"
        found.append(Diagnostic("warning", text, str(path), count=on_host, code="actions.on_host"))
    if projected.unlaunched:
        text = "kernels have no recorded launch and belong to no action"
        count = projected.unlaunched
        found.append(Diagnostic("warning", text, str(path), count=count, code="kernels.unlaunched"))
    if on_other_streams:
        text = (
            "kernels of actions ran on other streams than the action's main stream: their time is not shown"
        )
        count = on_other_streams
        found.append(Diagnostic("info", text, str(path), count=count, code="kernels.other_stream"))
    outside = projected.transfers.filter(pl.col("action") == NO_RANGE).height
    if outside:
        text = "transfers were launched outside of any range: their direction and micro-batch are unknown"
        found.append(Diagnostic("info", text, str(path), count=outside, code="transfers.no_direction"))
    return found


def _steps(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the training steps that ranges mark, one row per process and number."""
    numbers = {name: number for name in ranges["name"].unique() if (number := step_of(name)) is not None}
    named = ranges.filter(pl.col("name").is_in(list(numbers)))
    process = pl.Series("process", process_of(named["thread"].to_numpy()), pl.Int64)
    return (
        named.with_columns(
            process, step=pl.col("name").replace_strict(numbers, default=None, return_dtype=pl.Int32)
        )
        .group_by("process", "step")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
        .sort("start_ns")
    )


def _process_trace(
    number: int, spans: pl.DataFrame, steps: pl.DataFrame
) -> tuple[int | None, pl.DataFrame, pl.DataFrame, bool]:
    """Return device, spans and steps of one process, and whether the names of its actions state micro-batches."""
    own = spans.filter(pl.col("process") == number).sort("mark_start_ns")
    marked = steps.filter(pl.col("process") == number).select(list(STEPS_SCHEMA))
    actions = own.filter(pl.col("kind").is_in(ACTION_KINDS))
    is_numbered = actions["microbatch"].null_count() == 0
    openings = (
        step_openings(own.filter(pl.col("kind") != "other")) if is_numbered or has_optimizer(own) else []
    )
    own = with_steps(own, named_steps(actions) if marked.is_empty() else marked, openings)
    if not is_numbered:
        # Without chunks, actions of one kind run in the order of their micro-batches.
        place = pl.int_range(pl.len()).over("kind", "stage", "chunk", "step").cast(pl.Int32)
        is_action = pl.col("kind").is_in(ACTION_KINDS)
        own = own.with_columns(microbatch=pl.coalesce("microbatch", pl.when(is_action).then(place)))
    device = own["device"].drop_nulls().mode()
    return (int(device.min()) if len(device) else None, own, marked, is_numbered)  # type: ignore[arg-type] # a number


def has_optimizer(spans: pl.DataFrame) -> bool:
    """Return whether the spans include an optimizer, which ends a step."""
    return "optimizer" in spans["kind"]
