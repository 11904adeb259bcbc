"""Chrome JSON, the trace format of chrome://tracing, ui.perfetto.dev and most other trace viewers.

Source: the Trace Event Format document of the Chromium project, JSON object form. A process is a rank, a thread is a
track. Timestamps are microseconds with exact nanoseconds, relative to the first event of the trace. Viewers read them
as doubles, which cannot resolve nanoseconds since the epoch, and drop slices that seem to overlap. `otherData` holds
the epoch of time 0. Where machines have different clocks, the label of a rank's process states how well its clock is
aligned, and `otherData` lists the clocks. Not used: async events, stack frames, samples.

Perfetto ignores the order of processes and the colors of this format: it sorts processes by their number of slices
and colors by name. A .pftrace shows the ranks in order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from stagescope import __version__
from stagescope.exporters.inflight import COUNTER_NAME
from stagescope.exporters.names import look_of
from stagescope.exporters.tracks import ARGS, lay_out
from stagescope.exporters.writer import Writer, Written
from stagescope.model.clock_groups import clock_summary

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from stagescope.exporters.tracks import Layout, Track
    from stagescope.model import Timeline

_UNNAMED_SERIES = "value"
_LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact as doubles, and written without a decimal point."""


def write(timeline: Timeline, path: Path) -> Written:
    """Write the timeline as one Chrome JSON object, one event per line, and return what was written."""
    layout = lay_out(timeline)
    lines = event_lines(layout)
    ending = f'],\n"displayTimeUnit":"ns",\n"otherData":{_json(_other_data(timeline, layout))}}}\n'
    with path.open("wb") as file:
        file.write(b'{"traceEvents":[\n')
        _write_lines(lines, file)
        file.write(ending.encode())
        size_bytes = file.tell()
    return Written(
        path, size_bytes, layout.slices.height, layout.flows.height, layout.track_names, layout.diagnostics
    )  # fmt: skip


def event_lines(layout: Layout) -> pl.Series:
    """Return all events of a layout, one JSON object each; `first_free_id` is the first process id after them."""
    makers = (_metadata_lines, _slice_lines, _flow_lines, _counter_lines)
    return pl.concat([lines_of(layout) for lines_of in makers])


def first_free_id(layout: Layout) -> int:
    """Return a number above all process and thread ids of a layout."""
    return _run_pid(layout) + len(layout.tracks) + 2


WRITER = Writer("chrome", ".json", "Chrome JSON for chrome://tracing, Perfetto and most trace viewers", write)


def _write_lines(lines: pl.Series, file: IO[bytes]) -> None:
    """Write the events, with a comma after each but the last."""
    for part, ending in ((lines[:-1], ",\n"), (lines[-1:], "\n")):
        part.to_frame("line").write_csv(
            file, include_header=False, quote_style="never", line_terminator=ending
        )  # fmt: skip


def _json(value: object) -> str:
    # Only what must be escaped is escaped: Perfetto 52 shows escapes other than \" literally.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _quoted(texts: pl.Expr) -> pl.Expr:
    """Return texts as JSON strings; each distinct text is encoded only once."""
    return texts.map_batches(_quote_distinct, return_dtype=pl.String)


def _quote_distinct(texts: pl.Series) -> pl.Series:
    distinct = texts.drop_nulls().unique()
    if distinct.is_empty():
        return texts
    quoted = pl.Series([_json(text) for text in distinct], dtype=pl.String)
    replaced: pl.Series = texts.replace_strict(distinct, quoted, default=None)
    return replaced


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Return nanoseconds as microseconds with three decimals, without rounding through a float."""
    whole, rest = nanoseconds // 1000, nanoseconds % 1000
    return whole.cast(pl.String) + "." + rest.cast(pl.String).str.zfill(3)


def _run_pid(layout: Layout) -> int:
    """Return the process id of the tracks of the whole run; every other process id is a rank."""
    return max((group.rank for group in layout.groups), default=-1) + 1


def _places(layout: Layout) -> list[tuple[int, int]]:
    """Return process and thread id of every track.

    Thread ids are unique and differ from all process ids: viewers take an equal one for the main thread.
    """
    run_pid = _run_pid(layout)
    pids = (run_pid if track.rank is None else track.rank for track in layout.tracks)
    return [(pid, run_pid + 1 + index) for index, pid in enumerate(pids)]


def _where(layout: Layout) -> pl.Expr:
    """Return ``"pid":3,"tid":17`` for every row, by its track."""
    texts = [f'"pid":{pid},"tid":{tid}' for pid, tid in _places(layout)]
    return pl.col("track").replace_strict(range(len(texts)), texts, default=None, return_dtype=pl.String)


def _slice_lines(layout: Layout) -> pl.Series:
    """Return one complete event (X) per slice."""
    kind = pl.col("kind").cast(pl.String).fill_null("step")
    args = [
        '"kind":"' + kind + '"',
        ',"label":"' + pl.col("label") + '"',
        *(f',"{name}":' + _arg(name, layout).cast(pl.String) for name in ARGS),
        ',"name":' + _quoted(pl.col("name")),
    ]
    line = pl.concat_str(
        pl.lit('{"ph":"X",'), _where(layout),
        pl.lit(',"ts":'), _microseconds(pl.col("start_ns") - layout.start_ns),
        pl.lit(',"dur":'), _microseconds(pl.col("end_ns") - pl.col("start_ns")),
        pl.lit(',"name":'), _quoted(pl.col("title")),
        pl.lit(',"cat":"'), kind,
        pl.lit('","cname":"'), look_of(cname=True),
        pl.lit('","args":{'), *args, pl.lit("}}"),
        ignore_nulls=True,
    )  # fmt: skip
    return layout.slices.select(line=line).to_series()


def _arg(name: str, layout: Layout) -> pl.Expr:
    """Return an argument; times are relative to the start of the trace, like `ts`."""
    return pl.col(name) - layout.start_ns if name == "issue_ns" else pl.col(name)


def _flow_lines(layout: Layout) -> pl.Series:
    """Return two events per message: start (s) in the send's slice, finish (f) in the receive's."""
    ends = layout.slices.select("track", "start_ns")
    flows = layout.flows.with_row_index("flow", offset=1)
    lines = []
    for side, phase in (("send", '{"ph":"s",'), ("recv", '{"ph":"f","bp":"e",')):
        end = pl.concat([flows.select("flow"), ends[flows[side]]], how="horizontal")
        line = pl.concat_str(
            pl.lit(phase), _where(layout),
            pl.lit(',"ts":'), _microseconds(pl.col("start_ns") - layout.start_ns),
            pl.lit(',"id":'), pl.col("flow"), pl.lit(',"name":"message","cat":"message"}'),
        )  # fmt: skip
        lines.append(end.select(line=line).to_series())
    return pl.concat(lines)


def _counter_lines(layout: Layout) -> pl.Series:
    """Return one counter event (C) per value of a counter."""
    texts = [_counter_text(track) if track.is_counter else "" for track in layout.tracks]
    text = pl.col("track").replace_strict(range(len(texts)), texts, default=None, return_dtype=pl.String)
    is_whole = (pl.col("value") == pl.col("value").floor()) & (pl.col("value").abs() < _LARGEST_WHOLE)
    whole = pl.when(is_whole).then(pl.col("value")).cast(pl.Int64).cast(pl.String)
    line = pl.concat_str(
        pl.lit('{"ph":"C","pid":'), pl.col("rank"),
        pl.lit(',"ts":'), _microseconds(pl.col("time_ns") - layout.start_ns),
        text, pl.coalesce(whole, pl.col("value").cast(pl.String)), pl.lit("}}"),
    )  # fmt: skip
    return layout.counters.select(line=line).to_series()


def _counter_text(track: Track) -> str:
    """Return the middle of the events of a counter.

    Consumers show a counter as its name and the name of its series, one after the other.
    """
    name, series = track.name, track.unit if track.unit != track.name else ""
    series = series or _UNNAMED_SERIES
    if name == COUNTER_NAME:
        name, series = name.split(" ", 1)
    return f',"name":{_json(name)},"args":{{{_json(series)}:'


def _metadata_lines(layout: Layout) -> pl.Series:
    """Return the names and the order of processes and threads."""
    events = _named("process", {"pid": _run_pid(layout)}, "run", 0)
    for order, group in enumerate(layout.groups, start=1):
        events += _named("process", {"pid": group.rank}, group.name, order)
        if group.clock:
            events.append(
                {"ph": "M", "pid": group.rank, "name": "process_labels", "args": {"labels": group.clock}}
            )
    for order, (track, (pid, tid)) in enumerate(zip(layout.tracks, _places(layout), strict=True)):
        if not track.is_counter:
            events += _named("thread", {"pid": pid, "tid": tid}, track.name, order)
    return pl.Series("line", [_json(event) for event in events], dtype=pl.String)


def _named(what: str, place: dict[str, int], name: str, order: int) -> list[dict[str, object]]:
    return [
        {"ph": "M", **place, "name": f"{what}_name", "args": {"name": name}},
        {"ph": "M", **place, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _other_data(timeline: Timeline, layout: Layout) -> dict[str, object]:
    """Return run-level data; 64-bit numbers as text, because JSON readers use doubles."""
    clocks = clock_summary(timeline)
    return {
        "stagescope_version": __version__,
        "epoch_ns_at_ts_0": str(layout.start_ns),
        "is_partial": timeline.is_partial,
        "diagnostics": [
            *timeline.diagnostics.select("severity", "message", "rank", "count").to_dicts(),
            *({"severity": d.severity, "message": d.message, "rank": d.rank, "count": d.count}
              for d in layout.diagnostics),
        ],
        **({"clocks": _clock_rows(clocks)} if clocks.height > 1 else {}),
    }  # fmt: skip


def _clock_rows(clocks: pl.DataFrame) -> list[dict[str, object]]:
    """Return the clocks, their nanoseconds as text."""
    return clocks.with_columns(
        pl.col("offset_ns", "error_lo_ns", "error_hi_ns", "estimated_error_ns").cast(pl.String)
    ).to_dicts()
