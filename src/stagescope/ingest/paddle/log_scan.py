"""Find every line of Paddle's profilers in a worker log in one pass, whatever surrounds the lines.

A log is bytes, not lines: other writers leave progress bars without a newline, program dumps of megabytes, bytes that
are not text, and their own output in the middle of a line. So each kind of line is found by its fixed words, and the
text there is parsed by a bounded expression or counted as unparsed.

Sources: paddle/fluid/framework/new_executor/standalone_executor.cc (jobs; `Run job` at VLOG(6)),
python/paddle/profiler/utils.py (the banner) of PaddlePaddle 3.3.1; paddle/fluid/platform/profiler/cuda_profiler.cc of
October 2023 (NVTX). Job times are milliseconds since the epoch, a double printed with six decimals of which three are
significant (gettimeofday); `Job (N)` has had three meanings and is not used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from polars.exceptions import ComputeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.ingest.streams import ByteStream

BLOCK_BYTES = 1 << 20
"""Small enough for a processor's cache, because a block is searched several times."""

LONGEST_BYTES = 1024
"""More than any of the expressions below can match."""

PREFIX_BYTES = 160
"""How far before a line's words the prefix of glog is searched."""

TIME = rb"(?:0\.000000|[1-8]\d{12}\.\d{6})(?!\d)"
"""13 digits of milliseconds cover 2001 to 2255; with fewer, the line was truncated or overwritten."""

PREFIX = re.compile(rb"[IWEF](\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d{1,10}) [^\s\]]{1,80}\] \Z")
"""I1020 09:15:07.265326 22317 standalone_executor.cc:217]: month, day and time without year or time zone; thread."""

SAMPLED_PREFIXES = 8
"""For how many jobs per block the time of writing is kept."""


CONVERTED_AT_ONCE = 50_000
"""Matches that are converted to columns together: a column operation costs as much as some thousand values."""


class Window(NamedTuple):
    """A section of a log: lines that begin in data[begin:limit] are complete; `base` is the offset of data[0]."""

    data: bytes
    base: int
    begin: int
    limit: int


class Unparsed(NamedTuple):
    """How many times the words of a line occurred without the rest of it, and the offset of the first."""

    lines: int
    first_byte: int


class Mark(NamedTuple):
    """One kind of line: the words that identify it, the expression that begins with them, and the conversion.

    Everything but the words is optional in the expression: where only they match, the line could not be parsed. `take`
    receives byte and text of every match, with the `written` and `thread` of the prefix of every match, or of some for
    `sampled` marks.
    """

    words: bytes
    pattern: re.Pattern[bytes]
    take: Callable[[LogContents, pl.DataFrame], None]
    sampled: bool = False


class Found(NamedTuple):
    """Matches that are not converted to columns yet: place and text of each, place and prefix of some.

    Flat lists, because the garbage collector visits every tuple, which cost a quarter of the time.
    """

    places: list[int]
    texts: list[bytes]
    prefixes: list[tuple[int, bytes, bytes]]

    def to_frame(self) -> pl.DataFrame:
        """Return byte, text, written and thread, and clear the lists."""
        places, texts = self.places, self.texts
        try:
            text = pl.Series(texts, dtype=pl.Binary).cast(pl.String)
        except ComputeError:  # the name of an NVTX range may hold any bytes
            text = pl.Series([each.decode("utf-8", "replace") for each in texts])
        lines = pl.DataFrame({"byte": pl.Series(places, dtype=pl.Int64), "text": text})
        schema = {"byte": pl.Int64, "written": pl.Binary, "thread": pl.Binary}
        prefixes = pl.DataFrame(self.prefixes, schema, orient="row").cast({pl.Binary: pl.String})
        for column in self:
            column.clear()
        return lines.join(prefixes, on="byte", how="left", maintain_order="left")


@dataclass
class LogContents:
    """Content of one log: a frame per kind of line, in file order, and the lines that could not be parsed.

    jobs      byte, type, microbatch, start_ns, end_ns (whole microseconds; 0 where no time was taken)
    banners   byte, first, stop: the steps to be profiled
    nvtx      byte, thread, name (null: a pop), time_ns
    launches  byte, type, microbatch, written (as in `PREFIX`; null without one)
    written   byte and time of writing of some of the jobs
    """

    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    unparsed: dict[str, Unparsed] = field(default_factory=dict)
    damage: str | None = None

    def __getitem__(self, name: str) -> pl.DataFrame:
        """Return all lines of one kind."""
        return pl.concat([pl.DataFrame(schema=SCHEMAS[name]), *self.frames.get(name, [])])

    def add(self, name: str, lines: pl.DataFrame) -> None:
        """Add lines of one kind, with the columns of its schema as text or numbers."""
        if not lines.is_empty():
            columns = [pl.col(key).cast(dtype) for key, dtype in SCHEMAS[name].items()]
            self.frames.setdefault(name, []).append(lines.select(columns))

    def count_unparsed(self, name: str, lines: pl.DataFrame) -> None:
        """Count lines that could not be parsed."""
        if not lines.is_empty():
            before = self.unparsed.get(name, Unparsed(0, lines["byte"][0]))
            self.unparsed[name] = before._replace(lines=before.lines + lines.height)


Number, Small, Text = pl.Int64, pl.Int32, pl.String
SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {
    "jobs": {"byte": Number, "type": Text, "microbatch": Small, "start_ns": Number, "end_ns": Number},
    "banners": {"byte": Number, "first": Small, "stop": Small},
    "nvtx": {"byte": Number, "thread": Number, "name": Text, "time_ns": Number},
    "launches": {"byte": Number, "type": Text, "microbatch": Small, "written": Text},
    "written": {"byte": Number, "written": Text},
}


def scan_log(stream: ByteStream) -> LogContents:
    """Return the content of a log; memory is bounded, apart from the result.

    Launches by the host are searched only until the first job with device times is found.
    """
    contents = LogContents()
    pending = {mark.words: Found([], [], []) for mark in MARKS}
    marks: tuple[Mark, ...] = MARKS
    for window in _windows(stream):
        for mark in marks:
            found = pending[mark.words]
            _search(window, mark, found)
            if len(found.places) > CONVERTED_AT_ONCE:
                mark.take(contents, found.to_frame())
        if any(text.startswith(JOB_BEGINS) for text in pending[PROFILER.words].texts[-1:]):
            marks = (PROFILER, NVTX)
    for mark in MARKS:
        if pending[mark.words].places:
            mark.take(contents, pending[mark.words].to_frame())
    contents.damage = stream.damage
    return contents


def _search(window: Window, mark: Mark, found: Found) -> None:
    """Add the matches in a window to those found so far."""
    data, base, begin, limit = window
    matches = list(mark.pattern.finditer(data, begin))
    while matches and matches[-1].start() >= limit:  # complete in the next window
        matches.pop()
    found.places.extend([match.start() + base for match in matches])
    found.texts.extend([match.group() for match in matches])
    for match in matches[:: max(1, len(matches) // SAMPLED_PREFIXES) if mark.sampled else 1]:
        at = match.start()
        if prefix := PREFIX.search(data, max(0, at - PREFIX_BYTES), at):
            found.prefixes.append((at + base, prefix[1], prefix[2]))


def has_profiler_line(stream: ByteStream) -> bool:
    """Return whether a stream contains any line of Paddle's profilers; reads up to the first."""
    return any(
        window.data.find(mark.words, window.begin) >= 0 for window in _windows(stream) for mark in MARKS
    )


def _windows(stream: ByteStream) -> Iterator[Window]:
    """Yield the stream block by block, each with enough of the previous block to contain lines across the boundary."""
    data, base, begin = stream.read(BLOCK_BYTES), 0, 0
    while more := stream.read(BLOCK_BYTES):
        limit = len(data) - LONGEST_BYTES
        yield Window(data, base, begin, limit)
        # The next window needs the bytes before its first match to find the prefix of glog.
        kept = max(0, limit - PREFIX_BYTES)
        data, base, begin = data[kept:] + more, base + kept, limit - kept
    yield Window(data, base, begin, len(data))


def _take_profiler(contents: LogContents, lines: pl.DataFrame) -> None:
    """Add job lines and banners; splitting text by column costs a third of groups in the expression."""
    is_action = lines["text"].str.starts_with(JOB_BEGINS.decode())
    jobs, others = lines.filter(is_action), lines.filter(~is_action)
    parts = jobs["text"].str.split_exact(", ", 4).struct.unnest()
    job_type, microbatch, *times = (
        parts[f"field_{number}"].str.slice(len(key))
        for number, key in enumerate(
            ("type = ", "micro_batch_id = ", "job_start_time = ", "job_end_time = "), 1
        )
    )
    start_ns, end_ns = map(_nanoseconds, times)
    contents.add(
        "jobs", jobs.with_columns(type=job_type, microbatch=microbatch, start_ns=start_ns, end_ns=end_ns)
    )
    contents.add("written", jobs.drop_nulls("written"))
    step = r"start at step (?P<first>\d+) and end at step (?P<stop>\d+)"
    banners = others.with_columns(pl.col("text").str.extract_groups(step)).unnest("text")
    contents.add("banners", banners.drop_nulls("first"))
    bare = others.filter(banners["first"].is_null())
    is_cut_job = bare["text"].str.ends_with("Job")
    contents.count_unparsed("jobs", bare.filter(is_cut_job))
    contents.count_unparsed("banners", bare.filter(~is_cut_job))


def _take_nvtx(contents: LogContents, lines: pl.DataFrame) -> None:
    parts = r"NVTX range p(?:ush: (?P<name>.*)|op), time: (?P<time>[0-9.]+)$"
    found = lines.with_columns(pl.col("text").str.extract_groups(parts)).unnest("text")
    whole = found.drop_nulls("time")
    contents.count_unparsed("nvtx", found.filter(pl.col("time").is_null()))
    contents.add("nvtx", whole.with_columns(time_ns=_nanoseconds(whole["time"])))


def _take_launches(contents: LogContents, lines: pl.DataFrame) -> None:
    parts = r"type = (?P<type>.+), micro_batch_id = ?(?P<microbatch>-?\d+)$"
    found = lines.with_columns(pl.col("text").str.extract_groups(parts)).unnest("text")
    contents.count_unparsed("launches", found.filter(pl.col("type").is_null()))
    contents.add("launches", found.drop_nulls("type"))


def _nanoseconds(milliseconds: pl.Series) -> pl.Series:
    """Return times of six decimals as whole microseconds in nanoseconds, without passing through float64."""
    exact = milliseconds.str.replace(".", "", literal=True).cast(pl.Int64)
    rounded: pl.Series = (exact + 500) // 1000 * 1000
    return rounded


JOB_BEGINS = b"Profiler Info: Job ("
_TYPE = rb"[!-+\--~]{1,64}"  # printable, without the comma that ends it

PROFILER = Mark(
    b"Profiler Info: Job",
    re.compile(
        rb"Profiler (?:Info: Job(?: \(-?\d{1,10}\), type = " + _TYPE + rb", micro_batch_id = -?\d{1,9},"
        rb" job_start_time = " + TIME + rb", job_end_time = " + TIME + rb")?"
        rb"|start at step(?: \d{1,9} and end at step \d{1,9}(?!\d))?)"
    ),
    _take_profiler,
    sampled=True,
)
NVTX = Mark(
    b"NVTX range p",
    re.compile(rb"NVTX range p(?:(?:ush: (?:(?!NVTX range)[^\r\n]){1,256}?|op), time: " + TIME + rb")?"),
    _take_nvtx,
)
LAUNCH = Mark(
    b"Run job (",
    re.compile(rb"Run job \((?:-?\d{1,10}\), type = " + _TYPE + rb", micro_batch_id = ?-?\d{1,9}(?!\d))?"),
    _take_launches,
)
MARKS = (PROFILER, NVTX, LAUNCH)
"""Each costs one search for its first words through the log, at 3.5 GB/s (CPython 3.11 on a Xeon)."""
