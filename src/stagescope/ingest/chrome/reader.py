"""Reader of Chrome-trace JSON from any tool, with action names described by ``--pattern``.

Source: the Trace Event Format document of the Chromium project. Complete events (X) and pairs of begin and end (B, E)
are read; counters, flows, async and other events are ignored. A rank is a process of the trace, unless slice names
state the rank; with one file per rank, the numbers in the file names are the ranks.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from stagescope.ingest.annotations.name_pattern import COMMON_PATTERNS, NUMBERS, NamePattern
from stagescope.ingest.annotations.rank_names import RANK_IN_NAME
from stagescope.ingest.annotations.steps import STEPS_SCHEMA, step_openings, with_steps
from stagescope.ingest.chrome.errors import no_action_names
from stagescope.ingest.microseconds import nanoseconds
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.source_clocks import source_clocks
from stagescope.ingest.trace_json.recognition import is_chrome_trace, is_torch_trace
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.ingest.usable_files import read_usable
from stagescope.model import RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

EPOCH_US = 1e15
"""A timestamp above this is in microseconds since the Unix epoch: as an uptime it would be 30 years."""

EVENTS_SCHEMA = {
    "ph": pl.String, "name": pl.String, "ts": pl.Float64, "dur": pl.Float64, "process": pl.String, "thread": pl.String,
}  # fmt: skip
SLICES_SCHEMA = {"name": pl.String, "process": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
MOST_SHOWN = 5


class Event(msgspec.Struct, gc=False):
    """The relevant fields of one trace event."""

    ph: str = ""
    name: str = ""
    ts: float = nan
    dur: float = nan
    pid: int | str = 0
    tid: int | str = 0


class Slices(NamedTuple):
    """The slices of one file (name, process, start_ns, end_ns), and whether they count from the Unix epoch."""

    path: Path
    slices: pl.DataFrame
    has_epoch: bool
    diagnostics: list[Diagnostic]


def recognize_trace(_: Path, head: bytes) -> bool:
    """Return whether a file is a Chrome trace without a more specific reader."""
    return is_chrome_trace(head) and not is_torch_trace(head)


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of the slices whose names match the pattern of the call, or a common one if none was given.

    Raises InputError with examples of the names if none matches.
    """
    files, refused = read_usable(_slices, paths, options.done)
    diagnostics = [*refused, *(row for file in files for row in file.diagnostics)]
    every = pl.concat(file.slices for file in files)
    names = every.group_by("name").len().sort("len", "name", descending=[True, False])["name"].to_list()
    pattern = _pattern(options.pattern, names)
    if pattern is None:
        raise no_action_names(paths[0], options.pattern, names[:MOST_SHOWN])
    if options.pattern is None:
        text = f"slices named like {pattern.text} are read as actions (describe other names with --pattern)"
        diagnostics.append(Diagnostic("info", text, code="actions.assumed_names"))
    spans = _with_steps(_spans(files, _named(names, pattern), diagnostics))
    return Timeline(
        spans=conform(spans, SPANS),
        ranks=_rank_rows(spans),
        steps=STEPS.empty(),
        clocks=_clocks(spans),
        diagnostics=diagnostics_table(diagnostics),
    )


def _slices(path: Path) -> Slices:
    """Return the slices of one file; raises InputError for a file without a list of events."""
    stream: EventStream[Event] = EventStream(path, msgspec.json.Decoder(list[Event]))
    parts = [_event_table(piece) for piece in stream.pieces()]
    events = pl.concat([pl.DataFrame(schema=EVENTS_SCHEMA), *parts])
    diagnostics = stream.diagnostics()
    every = events.filter(pl.col("ph") == "X")
    complete = every.unique(maintain_order=True).with_columns(end="ts")
    if repeated := every.height - complete.height:
        text = "events are in the trace more than once and were used once"
        diagnostics.append(Diagnostic("error", text, str(path), count=repeated, code="events.repeated"))
    paired = _paired(events.filter(pl.col("ph").is_in(["B", "E"]))).with_columns(dur=0.0)
    columns = ["name", "process", "ts", "end", "dur"]
    found = pl.concat([complete.select(columns), paired.select(columns)])
    # The bound keeps the conversion to Int64 nanoseconds from overflowing.
    latest = pl.col("end").abs() + pl.col("dur").abs()
    within = found.filter(pl.col("ts").abs() + latest < 4 * EPOCH_US)
    if stray := found.height - within.height:
        text = "events have no timestamp, or an impossible one, and were dropped"
        diagnostics.append(Diagnostic("error", text, str(path), count=stray, code="events.out_of_range"))
    offset_ns = base_time_ns(stream.facts) or 0
    start_ns, end_ns, dur_ns = (nanoseconds(pl.col(us)) for us in ("ts", "end", "dur"))
    times = {"start_ns": offset_ns + start_ns, "end_ns": offset_ns + end_ns + dur_ns}
    has_epoch = bool(offset_ns) or bool((within["ts"].min() or 0) > EPOCH_US)  # type: ignore[operator] # a number
    return Slices(path, within.select("name", "process", **times), has_epoch, diagnostics)


def _event_table(events: Iterable[Event]) -> pl.DataFrame:
    rows = [(e.ph, e.name, e.ts, e.dur, str(e.pid), str(e.tid)) for e in events if e.ph in ("X", "B", "E")]
    return pl.DataFrame(rows, EVENTS_SCHEMA, orient="row")


def _paired(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row per pair of begin and end events; on each thread, the last one begun is the first to end."""
    thread = ["process", "thread"]
    begins = pl.col("ph") == "B"
    change = pl.when(begins).then(1).otherwise(-1)
    # Pairs are adjacent among the events of one nesting depth; a begin without an end has another begin after it.
    ordered = events.with_row_index("row").sort("ts", "row")
    deep = ordered.with_columns(depth=change.cum_sum().over(thread) + pl.when(begins).then(0).otherwise(1))
    key = [*thread, "depth"]
    ends = pl.when(pl.col("ph").shift(-1).over(key) == "E").then(pl.col("ts").shift(-1).over(key))
    return deep.with_columns(end=ends).filter(begins & pl.col("end").is_not_null())


def _pattern(given: str | None, names: Sequence[str]) -> NamePattern | None:
    """Return the pattern of the call if it matches, else the first common one with forwards and backwards, or None."""
    if given is not None:
        pattern = NamePattern(given)
        return pattern if any(pattern.action(name) for name in names) else None
    for text in COMMON_PATTERNS:
        pattern = NamePattern(text)
        kinds = {action.kind for name in names if (action := pattern.action(name))}
        if "forward" in kinds and kinds & {"backward", "backward_input"}:
            return pattern
    return None


def _named(names: Sequence[str], pattern: NamePattern) -> pl.DataFrame:
    """Return the fields of the matching names: name, kind, lane and a column per number."""
    found = [(name, action) for name in names if (action := pattern.action(name)) is not None]
    rows = [
        {"name": name, "kind": action.kind, "lane": action.lane, **dict.fromkeys(NUMBERS), **action.numbers}
        for name, action in found
    ]
    schema = {"name": pl.String, "kind": pl.String, "lane": pl.String, **dict.fromkeys(NUMBERS, pl.Int32)}
    return pl.DataFrame(rows, schema)


def _spans(files: Sequence[Slices], named: pl.DataFrame, diagnostics: list[Diagnostic]) -> pl.DataFrame:
    """Return the slices that are actions as spans, with `clock` and `source`."""
    parts = []
    for number, file in enumerate(files):
        actions = file.slices.join(named, on="name", how="inner").drop("name")
        in_name = RANK_IN_NAME.search(file.path.name)
        rank = int(in_name[1]) if in_name and len(files) > 1 else None
        clock = "wall clock" if file.has_epoch else f"time of file {number}"
        parts.append(
            actions.with_columns(
                source=pl.lit(str(file.path)),
                clock=pl.lit(clock),
                file=pl.lit(number),
                of_file=pl.lit(rank, pl.Int32),
            )
        )
    spans = pl.concat(parts)
    processes = spans.select("file", "process").unique(maintain_order=True).height
    if spans["rank"].null_count() == 0:
        return spans
    if processes == len(files) and spans["of_file"].null_count() == 0:
        return spans.with_columns(rank=pl.coalesce("rank", "of_file"))
    if processes > 1:
        text = "no name states a rank: the processes are numbered in the order of their files and process ids"
        diagnostics.append(Diagnostic("warning", text, count=processes, code="ranks.assumed"))
    order = spans.select(
        "file", pl.col("process"), number=pl.col("process").cast(pl.Int64, strict=False)
    ).unique()
    numbered = (
        order.sort("file", "number", "process").with_row_index("place").select("file", "process", "place")
    )
    placed = spans.join(numbered, on=["file", "process"], how="left", maintain_order="left")
    return placed.with_columns(rank=pl.coalesce("rank", pl.col("place").cast(pl.Int32)))


def _with_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with steps: as stated in their names, else a new step whenever a rank repeats an action."""
    if spans["step"].null_count() < spans.height:
        return spans
    no_steps = pl.DataFrame(schema=STEPS_SCHEMA)
    ranks = spans.with_columns(mark_start_ns="start_ns").partition_by("rank", maintain_order=True)
    return pl.concat(with_steps(rank, no_steps, step_openings(rank)) for rank in ranks).drop("mark_start_ns")


def _rank_rows(spans: pl.DataFrame) -> pl.DataFrame:
    return conform(spans.group_by("rank").agg(pl.first("clock", "source")), RANKS)


def _clocks(spans: pl.DataFrame) -> pl.DataFrame:
    return source_clocks(dict.fromkeys(spans["clock"].unique().sort()), "as in the trace")


PATTERNS = ("*trace*.json*", "*chrome*.json*", "*timeline*.json*")

READER = Reader(
    name="chrome",
    patterns=PATTERNS,
    description="other Chrome traces, with slices named as `--pattern` describes",
    recognizes=recognize_trace,
    read=read_traces,
)
