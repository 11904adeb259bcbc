"""Writers of the two files of Paddle's pipeline profiler, with its names and threads, from any Timeline.

Source: PaddlePaddle 3.3.1, python/paddle/distributed/auto_parallel/static/profiler_helper_static.py, which reads worker
logs. Both files contain the same slices; in the first a thread is identified by its name (``"GPU0"``), in the second by
a number from 2333 on, with its name in metadata. A slice has the name (``forward_3``), category, color, thread and
times of the original. Differences:

* a job is one complete event (X), and the events are sorted by time;
* jobs that cross on one device go to another thread, because crossing slices do not nest;
* transfers, which the original omits, are on a thread next to the device's;
* threads have the device's own number, whichever devices and machines are selected;
* `args` contain micro-batch, step, stage and chunk; every kind of job has a color.

Times are whole microseconds, as in the logs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.exporters.writer import Writer, Written
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.model import Timeline

STEP_THREAD = 2333
"""Number of the thread of steps; the devices follow in order."""

COLORS = {
    "forward": "thread_state_running",
    "backward": "rail_idle",
    "backward_input": "rail_idle",
    "backward_weight": "rail_load",
    "optimizer": "rail_response",
    "grad_reduce": "thread_state_iowait",
    **dict.fromkeys(TRANSFERS, "thread_state_iowait"),
}
DEFAULT_COLOR = "thread_state_unknown"
"""catapult's reserved names; those of the original for forward, backward, optimizer and steps, its only colored slices.
"""

TYPE = pl.coalesce("name", pl.col("kind").cast(pl.String))
"""Type of a job in Paddle's spelling: a span's name where it differs from the kind."""

ARGS = {"micro_batch_id": "microbatch", "step": "step", "stage": "stage", "chunk": "chunk"}
CHUNK_ROWS = 50_000
"""Events converted to text at a time: about 10 MB."""

TRANSFER_LANE = 1 << 16
"""The transfers of a rank follow all lanes of its jobs."""


class Device(NamedTuple):
    """One rank as the original names it: its position among all, its number on its machine, the machine's number."""

    place: int
    number: int
    machine: int | None

    def text(self, separator: str) -> str:
        """Return ``GPU0`` or ``GPU:0``, with the machine's number if machines are known."""
        name = f"GPU{separator}{self.number}"
        return name if self.machine is None else f"{name}(machine:{self.machine})"


class Thread(NamedTuple):
    """One thread of slices: its id in the first file, its number and its name in the second."""

    key: str
    number: int
    name: str


class Category(NamedTuple):
    """One type of job, or the steps: category, name of the slices before their number, and color."""

    name: str
    stem: str
    color: str


STEP = Category("step", "step", DEFAULT_COLOR)


@dataclass(frozen=True)
class Profile:
    """Content of the two files: the slices in time order, and their threads and categories.

    Columns of `slices`: thread and category (indices of `threads` and `categories`), number (the last part of the
    name), start_us, end_us, microbatch, step, stage, chunk. Texts are created on writing: for a million jobs they would
    need more memory than everything else.
    """

    slices: pl.DataFrame
    threads: tuple[Thread, ...]
    categories: tuple[Category, ...]


def write_chrome(timeline: Timeline, path: Path) -> Written:
    """Return what was written: ``pipeline_profile.json``, whose thread ids are texts."""
    profile = lay_out(timeline)
    return _write(profile, [(json.dumps(thread.key), thread.key) for thread in profile.threads], path)


def write_perfetto(timeline: Timeline, path: Path) -> Written:
    """Return what was written: ``pipeline_profile_perfetto.json``, whose threads are numbers with names."""
    profile = lay_out(timeline)
    return _write(profile, [(str(thread.number), thread.name) for thread in profile.threads], path)


WRITERS: dict[str, Writer] = {
    "pipeline_profile.json": Writer("paddle", ".json", "Paddle's profile for chrome://tracing", write_chrome),
    "pipeline_profile_perfetto.json": Writer(
        "paddle-perfetto", ".json", "Paddle's profile for ui.perfetto.dev", write_perfetto
    ),
}
"""Writer of each file that Paddle's tool writes."""


def _write(profile: Profile, threads: list[tuple[str, str]], path: Path) -> Written:
    """Return what was written to `path`; `threads` are the id, as JSON, and the name of every thread."""
    ids = pl.Series([thread_id for thread_id, _ in threads], dtype=pl.String)
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [\n')
        file.write(",\n".join(_metadata(threads)).encode())
        for rows in profile.slices.iter_slices(CHUNK_ROWS):
            file.write(b",\n")
            file.write(_lines(rows, ids, profile.categories).str.join(",\n").item().encode())
        file.write(b"\n]}\n")
    return Written(
        path, path.stat().st_size, profile.slices.height, 0, tuple(name for _, name in threads), ()
    )


def lay_out(timeline: Timeline) -> Profile:
    """Return the content of both files for a timeline; a device without a job has an empty thread."""
    categories = _categories(timeline.spans)
    jobs = _job_slices(timeline.spans, categories)
    place = ["rank", "lane"]
    first_lanes = timeline.ranks.select("rank", lane=pl.lit(0, pl.Int32))
    keys = (
        pl.concat([jobs.select(place), first_lanes]).unique().sort(place).with_row_index("thread", offset=1)
    )
    steps = _step_slices(timeline.spans)
    placed = jobs.join(keys, on=place, how="left", maintain_order="left").select(steps.columns)
    slices = pl.concat([steps, placed]).sort("start_us", "thread", maintain_order=True)
    return Profile(
        slices, tuple(_threads(keys.select(place), _devices(timeline))), (STEP, *categories.values())
    )


def _categories(spans: pl.DataFrame) -> dict[str, Category]:
    """Return the categories of all jobs, by type."""
    types = spans.select(pl.col("kind").cast(pl.String), type=TYPE).unique().sort("type", "kind")
    return {
        text: Category(text, f"{text}_", COLORS.get(kind, DEFAULT_COLOR)) for kind, text in types.iter_rows()
    }


def _devices(timeline: Timeline) -> dict[int, Device]:
    """Return every rank's device: with the number recorded for the rank, otherwise counted per machine."""
    ranks = timeline.ranks.select("rank", "machine", "device").sort("rank")
    machines = list(dict.fromkeys(ranks["machine"]))
    numbers = _machine_numbers(machines)
    devices: dict[int, Device] = {}
    counts: Counter[str | None] = Counter()
    for rank, machine, device in ranks.iter_rows():
        recorded = re.search(r"\d+$", device or "")
        number = int(recorded[0]) if recorded else counts[machine]
        devices[rank] = Device(len(devices), number, numbers[machine])
        counts[machine] += 1
    return devices


def _machine_numbers(machines: list[str | None]) -> dict[str | None, int | None]:
    """Return the numbers of the machines: that in ``machine3`` if all have such names, otherwise their position."""
    matches = [re.fullmatch(r"machine[_-]?(\d+)", machine or "") for machine in machines]
    own = [int(found[1]) for found in matches if found]
    numbers = own if len(set(own)) == len(machines) else range(len(machines))
    return {machine: None if machine is None else n for machine, n in zip(machines, numbers, strict=True)}


def _job_slices(spans: pl.DataFrame, categories: dict[str, Category]) -> pl.DataFrame:
    """Return one slice per span: rank, lane (the thread within its device), and the columns of Profile.slices."""
    numbers = {text: index for index, text in enumerate(categories, start=1)}
    slices = spans.select(
        "rank", "microbatch", "step", "stage", "chunk",
        category=TYPE.replace_strict(numbers, default=None).cast(pl.UInt32),  # without any type the result is text
        number=pl.col("microbatch").fill_null(0),
        start_us=pl.col("start_ns") // 1000,
        end_us=pl.max_horizontal("start_ns", "end_ns") // 1000,
        lane=pl.when(pl.col("kind").is_in(TRANSFERS)).then(TRANSFER_LANE).otherwise(0).cast(pl.Int32),
    )  # fmt: skip
    return slices.with_columns(lane=pl.col("lane") + _lanes(slices))


def _lanes(slices: pl.DataFrame) -> pl.Series:
    """Return 0 for slices that are sequential or nested, and more for those that cross others of their thread."""
    thread = ["rank", "lane"]
    ordered = slices.select(*thread, "start_us", "end_us").with_row_index("row")
    ordered = ordered.sort(*thread, "start_us", -pl.col("end_us"), "row")
    ends_before = pl.col("end_us").cum_max().shift(1).over(thread)
    crowded = ordered.filter((pl.col("start_us") < ends_before).any().over(thread).fill_null(value=False))
    lanes = np.zeros(slices.height, np.int32)
    rows = crowded.select(*thread, "start_us", "end_us").iter_rows()
    lanes[crowded["row"].to_numpy()] = [
        lane for _, of_thread in groupby(rows, key=lambda row: row[:2]) for lane in _nesting_lanes(of_thread)
    ]
    return pl.Series(lanes)


def _nesting_lanes(rows: Iterator[tuple[int, ...]]) -> Iterator[int]:
    """Yield for each slice, by start, the first lane on which it is nested in the open slices or follows them."""
    open_ends: list[list[int]] = []
    for _, _, start_us, end_us in rows:
        for ends in open_ends:
            while ends and ends[-1] <= start_us:
                ends.pop()
        lane = next((n for n, ends in enumerate(open_ends) if not ends or end_us <= ends[-1]), len(open_ends))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end_us)
        yield lane


def _step_slices(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one slice per step, from its first job to its last, but never before the end of the previous step."""
    jobs = spans.filter(pl.col("step").is_not_null() & ~pl.col("kind").is_in(TRANSFERS))
    steps = jobs.group_by("step").agg(start_us=pl.min("start_ns") // 1000, end_us=pl.max("end_ns") // 1000)
    before_us = pl.col("end_us").cum_max().shift(1).fill_null(0)
    nothing = pl.lit(None, pl.Int32)
    return steps.sort("step").select(
        thread=pl.lit(0, pl.UInt32),
        category=pl.lit(0, pl.UInt32),
        number="step",
        start_us=pl.max_horizontal("start_us", before_us),
        end_us=pl.max_horizontal("end_us", before_us),
        microbatch=nothing,
        step="step",
        stage=nothing,
        chunk=nothing,
    )


def _threads(keys: pl.DataFrame, devices: dict[int, Device]) -> Iterator[Thread]:
    """Yield the threads in the order of their index; the first lane of each device has the original's number."""
    yield Thread("Step", STEP_THREAD, "STEP")
    more = STEP_THREAD + 1 + len(devices)
    for rank, lane in keys.iter_rows():
        device = devices[rank]
        suffix = _suffix(lane)
        number = STEP_THREAD + 1 + device.place if lane == 0 else more
        more += lane != 0
        yield Thread(device.text("") + suffix, number, device.text(":") + suffix)


def _suffix(lane: int) -> str:
    is_transfer = lane >= TRANSFER_LANE
    number = lane - TRANSFER_LANE if is_transfer else lane
    return (" transfers" if is_transfer else "") + (f" {number + 1}" if number else "")


def _metadata(threads: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the process and the threads as events, and the order of the threads from the top."""
    yield '{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "Paddle pipeline"}}'
    for order, (thread_id, name) in enumerate(threads):
        place = f'"ph": "M", "cat": "__metadata", "pid": 0, "tid": {thread_id}, "ts": 0'
        yield f'{{"name": "thread_name", {place}, "args": {{"name": {json.dumps(name)}}}}}'
        yield f'{{"name": "thread_sort_index", {place}, "args": {{"sort_index": {order}}}}}'


def _lines(slices: pl.DataFrame, ids: pl.Series, categories: tuple[Category, ...]) -> pl.Series:
    """Return one complete event per slice, without creating Python objects per slice."""
    args = [f'"{name}": ' + pl.col(column).cast(pl.String) for name, column in ARGS.items()]
    begins = [f'{{"name": "{_escaped(one.stem)}' for one in categories]
    kinds = [
        f'", "cat": "{_escaped(one.name)}", "cname": "{one.color}", "ph": "X", "ts": ' for one in categories
    ]
    texts = {
        "begin": pl.Series(begins).gather(slices["category"]),
        "kind": pl.Series(kinds).gather(slices["category"]),
        "thread_id": ids.gather(slices["thread"]),
    }
    line = pl.concat_str(
        "begin", "number", "kind", "start_us", pl.lit(', "dur": '), pl.col("end_us") - pl.col("start_us"),
        pl.lit(', "pid": 0, "tid": '), "thread_id",
        pl.lit(', "args": {'), pl.concat_str(args, separator=", ", ignore_nulls=True), pl.lit("}}"),
    )  # fmt: skip
    return slices.with_columns(**texts).select(line=line).to_series()


def _escaped(text: str) -> str:
    """Return a text as in a JSON string, without the quotation marks: unknown job types can contain any characters."""
    return json.dumps(text)[1:-1]
