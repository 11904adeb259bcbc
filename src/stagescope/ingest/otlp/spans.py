"""Read the spans of files: one row per span, with what its name and attributes mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.ingest.otlp.messages import DECODER, Request, Resource, Span, values_of, whole
from stagescope.ingest.otlp.names import Meaning, meaning, step_number
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.repair import REFUSALS, reason_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.ingest.annotations.name_pattern import NamePattern

ROWS_SCHEMA: dict[str, Any] = {
    "process": pl.Int64, "name": pl.String, "span": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
    "is_read": pl.Boolean, "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "chunk": pl.Int32,
    "own_step": pl.Int32, "marked_step": pl.Int32, "links": pl.List(pl.String),
}  # fmt: skip
UNREAD = Meaning("other")


@dataclass
class Spans:
    """The spans of files: the attributes of each process, rows (ROWS_SCHEMA), and what was wrong."""

    paths: list[Path]
    resources: list[dict[str, str | int | float | bool]] = field(default_factory=list)
    sources: list[Path] = field(default_factory=list)
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROWS_SCHEMA))
    diagnostics: list[Diagnostic] = field(default_factory=list)


def read_file(path: Path, pattern: NamePattern | None = None) -> Spans:
    """Return the spans of a file; raises InputError for a file without a complete request."""
    found = Spans([path])
    known: dict[str, int] = {}
    rows: list[tuple[Any, ...]] = []
    impossible = 0
    parts = (part for request in _requests(path, found.diagnostics) for part in request.resource_spans)
    for part in parts:
        resource = values_of((part.resource or Resource()).attributes)
        process = known.setdefault(repr(sorted(resource.items())), len(known))
        if process == len(found.resources):
            found.resources.append(resource)
            found.sources.append(path)
        own = [_row(process, span, pattern) for scope in part.scope_spans for span in scope.spans]
        possible = [row for row in own if row is not None]
        impossible += len(own) - len(possible)
        rows += possible
    found.rows = pl.DataFrame(rows, ROWS_SCHEMA, orient="row")
    if impossible:
        text = "spans have no possible start and end, and were dropped"
        found.diagnostics.append(
            Diagnostic("error", text, str(path), count=impossible, code="events.out_of_range")
        )
    _use_once(found)
    return found


def _row(process: int, span: Span, pattern: NamePattern | None) -> tuple[Any, ...] | None:
    """Return a span as a row of ROWS_SCHEMA; None if it has no possible start and end."""
    start, end = whole(span.start_time_unix_nano), whole(span.end_time_unix_nano)
    if start is None or end is None or not 0 < start <= end < MAX_NS:
        return None
    values = values_of(span.attributes)
    what = meaning(span.name, values, pattern)
    links = [link.span_id for link in span.links]
    fields = (process, span.name, span.span_id, start, end, what is not None)
    return (*fields, *(what or UNREAD), step_number(span.name, values), links)


def joined(files: list[Spans]) -> Spans:
    """Return the spans of several files as one; a process whose spans are in several files is one process."""
    every = Spans([path for file in files for path in file.paths])
    known: dict[str, int] = {}
    tables = []
    for file in files:
        numbers = []
        for resource, source in zip(file.resources, file.sources, strict=True):
            number = known.setdefault(repr(sorted(resource.items())), len(known))
            numbers.append(number)
            if number == len(every.resources):
                every.resources.append(resource)
                every.sources.append(source)
        places = list(range(len(numbers)))
        tables.append(
            file.rows.with_columns(pl.col("process").replace_strict(places, numbers, return_dtype=pl.Int64))
        )
        every.diagnostics += file.diagnostics
    every.rows = pl.concat([every.rows, *tables])
    if len(files) > 1:
        _use_once(every)
    return every


def _use_once(spans: Spans) -> None:
    """Keep each span once: an exporter that gets no answer sends the same spans again."""
    named = spans.rows.filter(pl.col("span") != "")
    once = named.unique(["process", "span"], keep="first", maintain_order=True)
    if repeated := named.height - once.height:
        text = "spans were sent more than once, and were used once"
        source = str(spans.paths[0]) if len(spans.paths) == 1 else None
        spans.diagnostics.append(Diagnostic("info", text, source, count=repeated, code="events.repeated"))
    spans.rows = pl.concat([once, spans.rows.filter(pl.col("span") == "")])


def _requests(path: Path, diagnostics: list[Diagnostic]) -> Iterator[Request]:
    """Yield the requests of a file: its lines, or the whole file if it is one document of several lines."""
    with open_stream(path) as stream:
        data = stream.read()
        damage = stream.damage
    lines = data.splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    refused: list[tuple[int, str]] = []
    count = 0
    for number, line in numbered:
        try:
            request = DECODER.decode(line)
        except REFUSALS as refusal:
            is_first = number == numbered[0][0]
            if is_first and (whole_file := _document(data)) is not None:
                yield whole_file
                return
            refused.append((number, reason_of(refusal)[0]))
            continue
        count += 1
        yield request
    if not count:
        reason = f"line {refused[0][0]}: {refused[0][1]}" if refused else "it is empty"
        raise InputError.damaged(path, f"no complete request of OTLP in it: {reason}")
    if damage:
        diagnostics.append(Diagnostic("error", damage, str(path), code="file.damaged"))
    if refused and refused[-1][0] == numbered[-1][0] and not data.endswith(b"\n"):
        text = "the file is truncated; the requests before the cut were read"
        place = f"line {refused.pop()[0]}"
        diagnostics.append(Diagnostic("error", text, str(path), location=place, code="input.truncated"))
    if refused:
        first, reason = refused[0]
        text = f"lines are no requests of OTLP, and were dropped: {reason}"
        row = Diagnostic("error", text, str(path), None, f"line {first}", len(refused), code="events.dropped")
        diagnostics.append(row)


def _document(data: bytes) -> Request | None:
    try:
        return DECODER.decode(data)
    except REFUSALS:
        return None
