"""One Chrome JSON trace of all ranks with every event of their original traces, on the aligned clock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from stagescope.exporters.originals.events import first_event_ns
from stagescope.exporters.originals.merged import (
    Totals,
    each_original,
    merging_writer,
    prepare,
    process_name,
    track_name,
)
from stagescope.exporters.writer import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import polars as pl

    from stagescope.exporters.originals.events import OriginalEvents
    from stagescope.exporters.originals.files import Progress
    from stagescope.exporters.tracks import Layout
    from stagescope.exporters.writer import Writer
    from stagescope.model import Timeline


def writer(lines_of: Callable[[Layout], pl.Series], first_id: Callable[[Layout], int]) -> Writer:
    """Return the writer; `lines_of` and `first_id` are those of the Chrome export, which this folder cannot import."""

    def write(timeline: Timeline, path: Path, on_progress: Progress) -> Written:
        drawn = prepare(timeline)
        origin_ns = min([drawn.layout.start_ns, *map(first_event_ns, drawn.originals)])
        totals = Totals()
        with path.open("wb") as file:
            file.write(b'{"traceEvents":[\n')
            layout = replace(drawn.layout, origin_ns=origin_ns)
            own = lines_of(layout)
            own.to_frame("line").write_csv(
                file, include_header=False, quote_style="never", line_terminator=",\n"
            )
            each = each_original(drawn, totals, on_progress)
            _write_originals(file, each, layout.flows.height + 1, (origin_ns, first_id(layout)))
            ending = {"epoch_ns_at_ts_0": str(origin_ns), "ranks": [each.rank for each in drawn.originals]}
            # The last event has no comma after it.
            last = json.dumps({"ph": "M", "pid": 0, "name": "process_labels", "args": {"labels": ""}})
            file.write(f'{last}\n],\n"displayTimeUnit":"ns",\n"otherData":{json.dumps(ending)}}}\n'.encode())
            size_bytes = file.tell()
        return Written(
            path,
            size_bytes,
            layout.slices.height + totals.slices,
            layout.flows.height + totals.flows,
            (*layout.track_names, *totals.track_names),
            (*layout.diagnostics, *totals.diagnostics()),
        )

    return merging_writer(
        "merged-chrome", ".json", "one Chrome JSON trace with every event of all originals", write
    )


def _write_originals(
    file: IO[bytes], originals: Iterator[OriginalEvents], next_flow: int, since: tuple[int, int]
) -> None:
    origin_ns, next_id = since
    for events in originals:
        pids = dict.fromkeys(
            [*(track.pid for track in events.tracks), *(each.pid for each in events.counters)]
        )
        pid_of = {pid: next_id + place for place, pid in enumerate(pids)}
        # Thread ids differ from all process ids: viewers take an equal one for the main thread.
        first_tid = next_id + len(pid_of)
        ids = _Ids(pid_of, first_tid, next_flow, origin_ns)
        file.writelines(line.encode() + b",\n" for line in _lines(events, ids))
        next_id = first_tid + len(events.tracks)
        next_flow += 1 + max((end.flow for end in events.flows), default=-1)


class _Ids:
    """Numbers of processes, threads and arrows of one original in the merged file, and its time 0."""

    def __init__(self, pid_of: dict[int | str, int], first_tid: int, first_flow: int, origin_ns: int) -> None:
        self.pid_of, self.first_tid, self.first_flow, self.origin_ns = (
            pid_of,
            first_tid,
            first_flow,
            origin_ns,
        )

    def place(self, events: OriginalEvents, track: int) -> str:
        return f'"pid":{self.pid_of[events.tracks[track].pid]},"tid":{self.first_tid + track}'

    def time(self, at_ns: int) -> str:
        return microseconds(at_ns - self.origin_ns)


def microseconds(time_ns: int) -> str:
    """Return nanoseconds as microseconds with three decimals, without rounding through a float.

    >>> microseconds(1234567), microseconds(5)
    ('1234.567', '0.005')
    """
    return f"{time_ns // 1000}.{time_ns % 1000:03}"


def _lines(events: OriginalEvents, ids: _Ids) -> Iterator[str]:
    for pid, number in ids.pid_of.items():
        yield json.dumps(
            {"ph": "M", "pid": number, "name": "process_name", "args": {"name": process_name(events, pid)}}
        )
    for track in range(len(events.tracks)):
        name = json.dumps(track_name(events, track))
        yield f'{{"ph":"M",{ids.place(events, track)},"name":"thread_name","args":{{"name":{name}}}}}'
    names: dict[str, str] = {}
    for each in events.slices:
        name = names.get(each.name) or names.setdefault(each.name, json.dumps(each.name, ensure_ascii=False))
        args = each.args.decode()
        yield (
            f'{{"ph":"X",{ids.place(events, each.track)},"ts":{ids.time(each.start_ns)},'
            f'"dur":{microseconds(each.end_ns - each.start_ns)},"name":{name},'
            f'"cat":{json.dumps(each.category)},"args":{args}}}'
        )
    for end in events.flows:
        phase = '"ph":"s"' if end.is_start else '"ph":"f","bp":"e"'
        yield (
            f'{{{phase},{ids.place(events, end.track)},"ts":{ids.time(end.at_ns)},"id":{ids.first_flow + end.flow},'
            f'"name":{json.dumps(end.name)},"cat":{json.dumps(end.category)}}}'
        )
    for sample in events.counters:
        yield (
            f'{{"ph":"C","pid":{ids.pid_of[sample.pid]},"ts":{ids.time(sample.at_ns)},'
            f'"name":{json.dumps(sample.name)},"args":{sample.args.decode()}}}'
        )
