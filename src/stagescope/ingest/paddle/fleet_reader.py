"""Reader of records of Paddle's dynamic-graph pipeline (``profile_record_tmp_file_for_rank_N``): one file per rank.

Source: PaddlePaddle 3.3.1, python/paddle/distributed/fleet/meta_parallel/pipeline_parallel.py, `_record_stamp` of
PipelineParallel and of its interleaved subclasses, enabled by ``pp_configs={"profiling": True}``. One line per
timestamp, similar to an event of the Trace Event Format but not conforming to it: `ts` is in whole MILLISECONDS since
the Unix epoch, where viewers expect microseconds. `tid` is the rank's pipeline coordinate plus one; the name is the
job, ``F3``, or ``B3_VP1`` with the model chunk.

Records contain no step, launch or machine: steps are found as in worker logs (ingest/paddle/steps.py). Optimizer and
transfers are not recorded, and the device is synchronized at every timestamp, which slows down the recorded run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.paddle.launches import split_launches
from stagescope.ingest.paddle.step_matching import match_steps
from stagescope.ingest.paddle.steps import with_slots, with_types
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.streams import open_stream
from stagescope.ingest.usable_files import read_usable
from stagescope.model import CLOCKS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.tables import KindType, LaneType
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.number_ranges import compact_ranges, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

RECORD = (
    r'^\{"name": "(?<job>[FB])(?<microbatch>\d{1,9})(?:_VP(?<chunk>\d{1,9}))?", '
    r'"cat": "(?:virtual )?pipeline timeline", '
    r'"ph": "(?<phase>[BE])", "pid": \d+, "tid": (?<tid>\d{1,9}), "ts": (?<ts>\d{1,13})'
    # Strictly to the end: zeros over the middle of several lines would leave one that begins and ends like a record.
    r'(?:, "\w+": (?:"[^"\x00-\x1f]*"|\d+))*\}$'
)
FIRST_RECORD = re.compile(rb'\s*\{"name": "[^"]*", "cat": "(virtual )?pipeline timeline"')
RANK_IN_NAME = re.compile(r"rank_(\d{1,9})(?!\d)")

MILLISECOND_NS = 1_000_000
MOST_MS = 4 * 10**12
"""More than a century since the epoch: a later timestamp is invalid."""

STEMS = {"F": "forward", "B": "backward"}
JOBS: dict[str, pl.DataType | type[pl.DataType]] = {
    "launch": pl.Int32, "slot": pl.Int32, "opens": pl.Boolean, "kind": KindType, "lane": LaneType,
    "microbatch": pl.Int32, "chunk": pl.Int32, "stage": pl.Int32, "pp": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64,
}  # fmt: skip
NO_BANNERS = pl.DataFrame(schema={"byte": pl.Int64, "first": pl.Int32, "stop": pl.Int32})


class RankFile(NamedTuple):
    """Content of one file: its rank, its complete jobs, and diagnostics."""

    rank: int
    path: Path
    jobs: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def recognize_records(_: Path, head: bytes) -> bool:
    """Return whether a file begins with a record of the dynamic-graph pipeline."""
    return FIRST_RECORD.match(head) is not None


def read_records(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given files, which belong to one run; the rank is taken from each file's name.

    Steps are counted from 0 across all launches that appended to the files. Invalid lines and unpaired timestamps are
    counted as errors. Files from several directories are taken as several machines. A file name without a rank is an
    error in diagnostics as long as another file is usable. Raises InputError for two files of one rank, and if no job
    is complete.
    """
    ordered = sorted(paths, key=lambda path: natural_key(str(path)))
    files, refused = read_usable(_read_file, ordered, options.done)
    files.sort(key=lambda file: file.rank)
    _check_ranks_once(files)
    jobs = pl.concat(file.jobs for file in files)
    if jobs.is_empty():
        raise InputError.damaged(paths[0], "no job has both a begin and an end")
    machines = _machines(files)
    steps, notes = match_steps(_slots(jobs, machines))
    spans = jobs.join(steps, on=["rank", "slot"], how="left", maintain_order="left")
    return Timeline(
        spans=conform(spans, SPANS),
        ranks=_ranks(files, machines),
        steps=conform(spans.group_by("step", "rank").agg(pl.min("start_ns"), pl.max("end_ns")), STEPS),
        clocks=_clocks(machines),
        diagnostics=diagnostics_table(
            [
                *refused,
                *(one for file in files for one in file.diagnostics),
                *_missing(files),
                *notes,
                *_resolution(machines),
            ]
        ),
    )


def _read_file(path: Path) -> RankFile:
    found = RANK_IN_NAME.search(path.name)
    if found is None:
        raise InputError.damaged(
            path, "the file name has no rank: expected profile_record_tmp_file_for_rank_N"
        )
    rank = int(found[1])
    with open_stream(path) as stream:
        text = stream.read().decode("utf-8", "replace")
    timestamps = _timestamps(text.split("\n"))
    paired = _pair(timestamps)
    same = [name for name in paired.columns if name != "byte"]
    jobs = _in_steps(paired.unique(same, maintain_order=True)).with_columns(rank=pl.lit(rank, pl.Int32))
    damage = (
        [Diagnostic("error", stream.damage, str(path), rank, code="file.damaged")] if stream.damage else []
    )
    return RankFile(rank, path, jobs, (*damage, *_damage(timestamps, paired.height, jobs, (str(path), rank))))


def _timestamps(lines: list[str]) -> pl.DataFrame:
    """Return one row per non-blank line: line, job, microbatch, chunk, phase, tid, ts.

    All columns but `line` are null where the line is not a complete record.
    """
    table = pl.DataFrame({"text": lines}, schema={"text": pl.String}).with_row_index("line", offset=1)
    fields = pl.col("text").str.strip_chars().str.extract_groups(RECORD)
    numbers = [pl.col(name).cast(pl.Int64, strict=False) for name in ("microbatch", "chunk", "tid", "ts")]
    records = table.filter(pl.col("text").str.strip_chars() != "").with_columns(fields.alias("fields")).select(
        "line", "fields"
    ).unnest("fields").with_columns(numbers)  # fmt: skip
    return records.with_columns(pl.when(pl.col("ts") < MOST_MS).then("ts").alias("ts"))


def _pair(timestamps: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs in the columns of worker logs: each begin with the next timestamp of the same job, its end.

    Columns: byte (the line), type, microbatch, tid, has_chunk, start_ns, end_ns.
    """
    following = pl.col("phase", "ts").shift(-1).over("job", "microbatch", "chunk").name.prefix("next_")
    paired = timestamps.drop_nulls("ts").with_columns(following)
    stem = pl.col("job").replace_strict(STEMS, return_dtype=pl.String)
    return paired.filter((pl.col("phase") == "B") & (pl.col("next_phase") == "E")).select(
        "tid",
        byte=pl.col("line").cast(pl.Int64),
        type=stem + pl.col("chunk").cast(pl.String).fill_null(""),
        microbatch=pl.col("microbatch").cast(pl.Int32),
        has_chunk=pl.col("chunk").is_not_null(),
        start_ns=pl.col("ts") * MILLISECOND_NS,
        end_ns=pl.col("next_ts") * MILLISECOND_NS,
    )


def _in_steps(paired: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs with kind, lane, chunk, stage, pp, launch and slot, the step within this file."""
    if paired.is_empty():
        return pl.DataFrame(schema=JOBS)
    jobs = with_slots(split_launches(with_types(paired), NO_BANNERS))
    pp = (pl.col("tid") - 1).cast(pl.Int32)
    # With one chunk per rank the pipeline coordinate is the stage; with more, the stage depends on the number of ranks.
    has_chunk = pl.col("has_chunk")
    placed = jobs.with_columns(
        chunk=pl.when(has_chunk).then("chunk"), stage=pl.when(~has_chunk).then(pp), pp=pp
    )
    return placed.select(pl.col(name).cast(dtype) for name, dtype in JOBS.items())


def _damage(
    timestamps: pl.DataFrame, paired: int, jobs: pl.DataFrame, place: tuple[str, int]
) -> Iterator[Diagnostic]:
    """Yield what is wrong with the lines of a file; `paired` is the number of jobs, `jobs` has each of them once."""
    source, rank = place
    broken = timestamps.filter(pl.col("ts").is_null())
    if broken.height:
        text = "lines are not records, or incomplete; omitted"
        where = f"first line {broken['line'][0]}"
        yield Diagnostic("error", text, source, rank, where, broken.height, code="lines.damaged")
    if repeated := paired - jobs.height:
        text = "jobs are repeated; used once"
        yield Diagnostic("error", text, source, rank, count=repeated, code="jobs.repeated")
    unpaired = timestamps.height - broken.height - 2 * paired
    if unpaired:
        text = "unpaired timestamps: a job has a begin without an end, or the reverse; omitted"
        yield Diagnostic("error", text, source, rank, count=unpaired, code="jobs.incomplete")
    if jobs.is_empty():
        yield Diagnostic("error", "no complete job: the rank is not shown", source, rank, code="jobs.none")
    if jobs["pp"].n_unique() > 1:
        stages = compact_ranges(jobs["pp"].unique())
        text = f"the records contain several stages, {stages}: the layout changed between launches"
        yield Diagnostic("warning", text, source, rank, code="layout.changed")


def _check_ranks_once(files: Sequence[RankFile]) -> None:
    seen: dict[int, Path] = {}
    for file in files:
        if file.rank in seen:
            raise InputError.duplicate_rank(file.rank, (str(seen[file.rank]), str(file.path)))
        seen[file.rank] = file.path


def _machines(files: Sequence[RankFile]) -> dict[int, str | None]:
    """Return every rank's machine: its file's directory if there are several, None if there is only one."""
    folders = dict.fromkeys(file.path.parent for file in files)
    if len(folders) == 1:
        return {file.rank: None for file in files}
    are_distinct = len({folder.name for folder in folders}) == len(folders)
    return {file.rank: file.path.parent.name if are_distinct else str(file.path.parent) for file in files}


def _clock(machine: str | None) -> str:
    return f"{machine or 'unknown machine'}/wall clock"


def _slots(jobs: pl.DataFrame, machines: Mapping[int, str | None]) -> pl.DataFrame:
    """Return one row per step of one file, in the shape of match_steps; no record contains the step's number."""
    clocks = {rank: _clock(machine) for rank, machine in machines.items()}
    nothing = pl.lit(None, pl.Int32)
    slots = jobs.group_by("rank", "slot", maintain_order=True).agg(
        pl.min("start_ns", "launch"), pl.max("end_ns"), is_tail=~pl.first("opens")
    )
    clock = pl.col("rank").replace_strict(clocks, return_dtype=pl.String)
    return slots.sort("rank", "slot").with_columns(
        clock=clock, banner_first=nothing, banner_stop=nothing, nvtx_step=nothing
    )


def _ranks(files: Sequence[RankFile], machines: Mapping[int, str | None]) -> pl.DataFrame:
    rows = [
        {
            "rank": file.rank,
            "machine": machines[file.rank],
            "pp": file.jobs["pp"][0] if file.jobs["pp"].n_unique() == 1 else None,
            "clock": _clock(machines[file.rank]),
            "source": str(file.path),
        }
        for file in files
    ]
    return conform(pl.DataFrame(rows, infer_schema_length=None), RANKS)


def _clocks(machines: Mapping[int, str | None]) -> pl.DataFrame:
    names = pl.Series("machine", list(dict.fromkeys(machines.values())), dtype=pl.String)
    method = pl.lit("wall clock in whole milliseconds, 1 ms resolution")
    clocks = pl.Series([_clock(name) for name in names])
    return conform(names.to_frame().with_columns(clock=clocks, offset_ns=pl.lit(0), method=method), CLOCKS)


def _missing(files: Sequence[RankFile]) -> Iterator[Diagnostic]:
    missing = set(range(files[-1].rank)) - {file.rank for file in files}
    if missing:
        text = f"no file of {ranks_text(missing)}: the highest rank with a file is {files[-1].rank}"
        yield Diagnostic("error", text, count=len(missing), code="rank.missing")


def _resolution(machines: Mapping[int, str | None]) -> Iterator[Diagnostic]:
    text = "timestamps are in whole milliseconds: durations are exact to 1 ms; transfers and optimizer are not recorded"
    yield Diagnostic("info", text, code="clock.resolution")
    if len(machines) > 1 and None in machines.values():
        text = "the machines are not recorded: all ranks are assumed to share one wall clock"
        yield Diagnostic("info", text, count=len(machines), code="clock.assumed_shared")


READER = Reader(
    name="paddle fleet",
    patterns=("profile_record_tmp_file_for_rank_*",),
    description="records of Paddle's dynamic-graph pipeline, one file per rank",
    recognizes=recognize_records,
    read=read_records,
)
