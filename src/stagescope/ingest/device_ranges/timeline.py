"""Combine the traces of a run into one Timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.ingest.device_ranges.errors import no_ranges, no_ranges_in_damaged
from stagescope.ingest.device_ranges.process_trace import ProcessTrace, Unmarked
from stagescope.ingest.missing_tables import Tables, missing_tables
from stagescope.ingest.source_clocks import source_clocks
from stagescope.model import DIAGNOSTICS, KERNELS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform, conform_parts
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MOST_FAULTS = 2


def timeline_of_traces(
    found_traces: Sequence[list[ProcessTrace] | Unmarked], compared_tables: Sequence[str] = ()
) -> Timeline:
    """Return one Timeline of all processes that ran actions.

    `compared_tables` are the tables that all files of a run have or lack. Raises InputError if no file has a range
    that is an action, or if two files claim the same rank.
    """
    unmarked = [found for found in found_traces if isinstance(found, Unmarked)]
    traces = [trace for found in found_traces if not isinstance(found, Unmarked) for trace in found]
    if not traces:
        first = unmarked[0]
        if first.faults:
            raise no_ranges_in_damaged(first.path, first.faults[:MOST_FAULTS])
        raise no_ranges(first)
    diagnostics = [row for trace in traces for row in trace.diagnostics]
    for found in unmarked:
        words = found.wording
        text = f"none of the {words.ranges} in the {words.file} is named like an action of a pipeline"
        text = "; ".join([text, *found.faults])
        diagnostics.append(Diagnostic("error", text, str(found.path), code="actions.none"))
    ranks = _by_rank(traces, diagnostics)
    tables = {trace.path: Tables(str(trace.path), trace.tables, rank) for rank, trace in ranks.items()}
    diagnostics += missing_tables(list(tables.values()), compared_tables)
    for rank, trace in ranks.items():
        diagnostics += _rank_diagnostics(rank, trace)
    return Timeline(
        spans=conform_parts((_spans(rank, trace) for rank, trace in ranks.items()), SPANS),
        ranks=conform(
            pl.DataFrame([_rank_row(*item) for item in ranks.items()], infer_schema_length=None), RANKS
        ),
        steps=conform(pl.concat(_steps(rank, trace) for rank, trace in ranks.items()), STEPS),
        clocks=_clocks(ranks),
        diagnostics=conform(diagnostics_table(diagnostics), DIAGNOSTICS),
        kernels=conform(pl.concat([KERNELS.empty(), *_kernels(ranks)], how="diagonal_relaxed"), KERNELS),
    )


def _kernels(ranks: Mapping[int, ProcessTrace]) -> Iterator[pl.DataFrame]:
    """Yield the kernels of each rank whose kernels were kept."""
    for rank, trace in ranks.items():
        if trace.kernels is not None:
            times = (pl.col(name) + (trace.facts.epoch_ns or 0) for name in ("start_ns", "end_ns"))
            yield trace.kernels.with_columns(*times, rank=pl.lit(rank, pl.Int32))


def _by_rank(traces: Sequence[ProcessTrace], diagnostics: list[Diagnostic]) -> dict[int, ProcessTrace]:
    """Return the processes by rank: from the numbers in the file names, else in the order of files and devices."""
    in_names = [_rank_in_name(trace.path) for trace in traces]
    if None not in in_names and len({trace.path for trace in traces}) == len(traces):
        ranks: dict[int, ProcessTrace] = {}
        for rank, trace in zip(in_names, traces, strict=True):
            if rank is not None and rank in ranks:
                raise InputError.duplicate_rank(rank, [str(ranks[rank].path), str(trace.path)])
            if rank is not None:
                ranks[rank] = trace
        return dict(sorted(ranks.items()))
    if len(traces) > 1:
        words = traces[0].wording
        text = (
            f"no {words.file} states its rank: processes are numbered in the order of the files, and of the devices"
            f" in each (name the files {words.example} …)"
        )
        diagnostics.append(Diagnostic("warning", text, count=len(traces), code="ranks.assumed"))
    place = {path: number for number, path in enumerate(dict.fromkeys(trace.path for trace in traces))}
    none = 1 << 30
    ordered = sorted(
        traces,
        key=lambda trace: (place[trace.path], none if trace.device is None else trace.device, trace.process),
    )
    return dict(enumerate(ordered))


def _rank_in_name(path: Path) -> int | None:
    found = RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _rank_diagnostics(rank: int, trace: ProcessTrace) -> list[Diagnostic]:
    found = []
    if not trace.is_numbered:
        text = (
            "the names of ranges state no micro-batch: actions of one kind are numbered in the order in which they ran,"
            " which is wrong for several chunks per rank (describe the names of actions with --pattern)"
        )
        found.append(Diagnostic("warning", text, str(trace.path), rank, code="microbatches.assumed"))
    if trace.facts.epoch_ns is None and trace.facts.clock is None:
        text = f"the {trace.wording.file} does not state when its session began: it is treated as a separate clock"
        found.append(Diagnostic("warning", text, str(trace.path), rank, code="clock.no_epoch"))
    return found


def _spans(rank: int, trace: ProcessTrace) -> pl.DataFrame:
    # Without an epoch the times stay relative to the session, and a warning reports the separate clock.
    epoch_ns = trace.facts.epoch_ns or 0
    spans = trace.spans.drop("name", "device", "process", strict=False).rename({"title": "name"})
    stages = sorted(set(spans["stage"].drop_nulls()))
    place = pl.col("stage").replace_strict(
        stages, list(range(len(stages))), default=None, return_dtype=pl.Int32
    )
    return spans.with_columns(
        rank=pl.lit(rank, pl.Int32),
        chunk=pl.coalesce("chunk", place),
        start_ns=pl.col("start_ns") + epoch_ns,
        end_ns=pl.col("end_ns") + epoch_ns,
    )


def _steps(rank: int, trace: ProcessTrace) -> pl.DataFrame:
    """Return the steps that ranges mark; without marks, each step extends from its first action to its last."""
    steps = trace.steps
    if steps.is_empty():
        actions = trace.spans.filter(pl.col("kind").is_in(ACTION_KINDS)).drop_nulls("step")
        steps = actions.group_by("step").agg(pl.min("start_ns"), pl.max("end_ns")).sort("step")
    times = (pl.col(name) + (trace.facts.epoch_ns or 0) for name in ("start_ns", "end_ns"))
    return steps.select("step", pl.lit(rank, pl.Int32).alias("rank"), *times)


def _clock(trace: ProcessTrace) -> str:
    if trace.facts.clock is not None:
        return trace.facts.clock
    return f"{trace.facts.host or 'unknown host'}/session of {trace.path.name}"


def _rank_row(rank: int, trace: ProcessTrace) -> dict[str, object]:
    name = None if trace.device is None else trace.facts.devices.get(trace.device)
    return {
        "rank": rank,
        "machine": trace.facts.host,
        "device": name or (None if trace.device is None else f"cuda:{trace.device}"),
        "host": trace.facts.host,
        "clock": _clock(trace),
        "source": str(trace.path),
    }


def _clocks(ranks: dict[int, ProcessTrace]) -> pl.DataFrame:
    method = next(iter(ranks.values())).wording.clock_method
    return source_clocks({_clock(trace): trace.facts.host for trace in ranks.values()}, method)
