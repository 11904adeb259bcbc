"""Reader of OpenTelemetry traces: files of OTLP requests as JSON lines; see docs/otlp.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.annotations.steps import STEPS_SCHEMA, step_openings, with_steps
from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.otlp.errors import no_actions, no_steps
from stagescope.ingest.otlp.names import (
    DEVICE,
    EVALUATION,
    HOST,
    PIPELINE_RANK,
    RUN,
    SHOWN_NAMES,
    first_number,
    rank_of,
)
from stagescope.ingest.otlp.spans import Spans, joined, read_file
from stagescope.ingest.otlp.transfers import count_unmatched, with_linked_peers, with_microbatches
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.usable_files import read_usable
from stagescope.model import DIAGNOSTICS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS, KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEGINS = re.compile(rb'\s*\{\s*"resourceSpans"\s*:')
MOST_NAMES = 5
LANES = {kind.name: kind.lane for kind in KINDS}


class Process(NamedTuple):
    """The attributes of a process, the file that it is in, and its spans and steps."""

    resource: dict[str, str | int | float | bool]
    source: Path
    spans: pl.DataFrame
    steps: pl.DataFrame


def recognize_trace(_: Path, head: bytes) -> bool:
    """Return whether a file begins like a request of OTLP with traces."""
    return BEGINS.match(head) is not None


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the spans of all given files.

    A file that cannot be read becomes an error in diagnostics as long as another one is usable. Raises InputError if no
    span is an action, if actions have no steps, and if two processes are the same rank.
    """
    pattern = NamePattern(options.pattern) if options.pattern else None
    ordered = sorted(paths, key=lambda path: natural_key(str(path)))
    files, refused = read_usable(read_file, ordered, options.done, pattern)
    every = joined(files)
    rows = every.rows
    if rows.filter(pl.col("kind").is_in(ACTION_KINDS)).is_empty():
        names = rows["name"].unique(maintain_order=True).head(MOST_NAMES).to_list()
        raise no_actions(paths[0], rows.height, names)
    diagnostics = [*refused, *every.diagnostics]
    ranks = _by_rank(every, diagnostics)
    unread = rows.filter(~pl.col("is_read") & pl.col("marked_step").is_null())
    if unread.height:
        shown = ", ".join(unread["name"].unique().sort().head(MOST_NAMES))
        text = f"spans with other names are not read: {shown}"
        diagnostics.append(Diagnostic("info", text, count=unread.height, code="marks.unrecognized"))
    placed = {rank: _in_steps(rank, process, paths[0], diagnostics) for rank, process in ranks.items()}
    spans = with_linked_peers(pl.concat(list(placed.values())))
    if unmatched := count_unmatched(spans):
        text = "transfers have links, but none to a transfer at the other end: their peers are unknown"
        diagnostics.append(Diagnostic("warning", text, count=unmatched, code="transfers.unmatched"))
    text = (
        "the times of actions are those of the host: on a GPU, which runs what is launched later, they are right only "
        "as far as the training waits for the device in each action or transfer"
    )
    count = spans.filter(pl.col("kind").is_in(ACTION_KINDS)).height
    diagnostics.append(Diagnostic("warning", text, count=count, code="actions.on_host"))
    return Timeline(
        spans=conform(spans.select(set(spans.columns) & set(SPANS.schema)), SPANS),
        ranks=conform(_rank_rows(ranks), RANKS),
        steps=conform(pl.concat(_step_rows(rank, process.steps) for rank, process in ranks.items()), STEPS),
        clocks=source_clocks(
            {_clock(rank, one): _host(one) for rank, one in ranks.items()}, "wall clock of each host"
        ),
        diagnostics=conform(diagnostics_table(diagnostics), DIAGNOSTICS),
    )


def _by_rank(every: Spans, diagnostics: list[Diagnostic]) -> dict[int, Process]:
    """Return the processes with actions, by rank: as stated, else in their order."""
    with_actions = set(every.rows.filter(pl.col("kind").is_in(ACTION_KINDS))["process"])
    numbers = [number for number in range(len(every.resources)) if number in with_actions]
    stated = [rank_of(every.resources[number]) for number in numbers]
    if None in stated:
        text = "not every process states its rank: they are numbered in the order of their first spans"
        diagnostics.append(Diagnostic("warning", text, count=len(numbers), code="ranks.assumed"))
        stated = list(range(len(numbers)))
    ranks: dict[int, Process] = {}
    for rank, number in zip(stated, numbers, strict=True):
        resource, source = every.resources[number], every.sources[number]
        if rank in ranks:
            places = [
                f"{one.get(RUN, 'a process')} in {path}"
                for one, path in ((ranks[rank].resource, ranks[rank].source), (resource, source))
            ]
            raise InputError.duplicate_rank(rank, places)
        own = every.rows.filter(pl.col("process") == number).sort("start_ns", maintain_order=True)
        if rank is not None:
            ranks[rank] = Process(resource, source, own.filter(pl.col("is_read")), _steps(own))
    return dict(sorted(ranks.items()))


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that spans mark."""
    marked = rows.drop_nulls("marked_step").group_by(step="marked_step")
    return marked.agg(pl.min("start_ns"), pl.max("end_ns")).sort("start_ns").select(list(STEPS_SCHEMA))


def _in_steps(rank: int, process: Process, path: Path, diagnostics: list[Diagnostic]) -> pl.DataFrame:
    """Return the spans of a rank with lanes, steps and micro-batches; raises InputError if they cannot be known."""
    spans = process.spans.with_columns(
        rank=pl.lit(rank, pl.Int32), step="own_step", mark_start_ns="start_ns", mark_end_ns="end_ns"
    )
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    is_numbered = spans.filter(is_action)["microbatch"].null_count() == 0
    if process.steps.is_empty() and not is_numbered and spans.filter(is_action)["step"].null_count():
        raise no_steps(path, spans.filter(is_action).height)
    spans = _without_evaluations(spans, rank, process.source, diagnostics)
    openings = step_openings(spans.filter(is_action)) if process.steps.is_empty() else []
    found = with_microbatches(with_steps(spans, process.steps, openings))
    if not is_numbered:
        text = (
            "spans state no micro-batch: the forwards and the backwards of a step are numbered in the order in which "
            "they ran, which is wrong for several chunks per rank"
        )
        diagnostics.append(
            Diagnostic("warning", text, str(process.source), rank, code="microbatches.assumed")
        )
    return found.with_columns(
        lane=pl.col("kind").replace_strict(LANES, return_dtype=pl.String),
        name=pl.when(pl.col("kind") == "other").then(pl.col("name").replace(SHOWN_NAMES)),
    )


def _without_evaluations(
    spans: pl.DataFrame, rank: int, source: Path, diagnostics: list[Diagnostic]
) -> pl.DataFrame:
    """Return the spans without the actions and transfers of evaluations, which belong to no training step."""
    evaluations = spans.filter(pl.col("name") == EVALUATION)
    inside = pl.lit(value=False)
    for start, end in evaluations.select("start_ns", "end_ns").iter_rows():
        inside |= (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end) & (pl.col("name") != EVALUATION)
    kept = spans.filter(~inside)
    if dropped := spans.height - kept.height:
        text = "spans of micro-batches and transfers belong to evaluations, and are not read"
        row = Diagnostic("info", text, str(source), rank, count=dropped, code="actions.evaluation")
        diagnostics.append(row)
    return kept


def _rank_rows(ranks: dict[int, Process]) -> pl.DataFrame:
    rows = [
        {
            "rank": rank,
            "machine": _host(process),
            "host": _host(process),
            "device": str(process.resource[DEVICE]) if DEVICE in process.resource else None,
            "pp": first_number(process.resource, PIPELINE_RANK),
            "clock": _clock(rank, process),
            "source": str(process.source),
        }
        for rank, process in ranks.items()
    ]
    known = all(row["pp"] is not None for row in rows)
    found = pl.DataFrame(rows, infer_schema_length=None)
    return found if known else found.drop("pp")


def _step_rows(rank: int, steps: pl.DataFrame) -> pl.DataFrame:
    return steps.select("step", pl.lit(rank, pl.Int32).alias("rank"), "start_ns", "end_ns")


def _host(process: Process) -> str | None:
    return str(process.resource[HOST]) if HOST in process.resource else None


def _clock(rank: int, process: Process) -> str:
    host = _host(process)
    return f"{host}/wall clock" if host else f"wall clock of rank {rank}"


READER = Reader(
    name="otlp",
    patterns=("*otlp*.json*", "*traces*.json*", "*spans*.json*"),
    description="OpenTelemetry traces (OTLP): JSON lines of a file exporter or of `stagescope receive`",
    recognizes=recognize_trace,
    read=read_traces,
)
