"""One small valid sample per format, written into an empty folder from the project's own test data."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING

import polars as pl

import recordings
from ascend_profiles import Cluster, write_cluster
from drawing import timeline_from_text
from nsight_reports import Planted, parquet_copy, write_report
from otlp_requests import megatron_rank, request, write_lines
from paddle_logs import PaddleRun, write_worker_logs
from places import DATA
from primus_dumps import write_dumps
from rocprof_traces import write_rocpd, write_rocprof_json
from stagescope.exporters.perfetto import pftrace
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.record import format as fmt
from synthetic import Shape, pipeline_timeline
from xplane_profiles import drawn_profile

if TYPE_CHECKING:
    from pathlib import Path

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
MS = 1_000_000


def recorded_run(folder: Path) -> None:
    """Write the recordings of four ranks that a training wrote with version 1 of the format."""
    _copy(DATA / "recordings" / "v1", folder)


def segmented_recording(folder: Path) -> None:
    """Write two ranks in the current version, the spans of each in two segments, all with counts in their END."""
    drawn = timeline_from_text(DRAWING, cell_ns=MS).spans
    for rank in range(2):
        own = drawn.filter(pl.col("rank") == rank)
        spans = [
            recordings.span_record(
                str(row["kind"]), row["start_ns"], row["end_ns"],
                **{name: row[name] for name in ("step", "stage", "chunk", "microbatch") if row[name] is not None},
            )
            for row in own.iter_rows(named=True)
        ]  # fmt: skip
        halves = spans[: len(spans) // 2], spans[len(spans) // 2 :]
        for number, half in enumerate(halves):
            facts = {"rank": rank, "world_size": 2, "parallel": {"pp": rank, "pp_size": 2}}
            facts |= {"segment": number, "records_before": number * len(halves[0]), "recording": f"r{rank}"}
            frames = recordings.recording_frames(
                half, end=bool(number), pid=50 + rank, version=fmt.FORMAT_VERSION, **facts
            )
            readings = b"".join(fmt.RAW_ANCHOR.pack(at, at + 5, 9) for at in range(0, 10 * MS, MS))
            values = b"".join(fmt.COUNTER.pack(at, at / MS, 0, 0, 0, 1) for at in range(0, 10 * MS, MS))
            device = b"".join(fmt.DEVICE_ANCHOR.pack(at, at, 9, 100) for at in range(0, 10 * MS, MS))
            more = [(fmt.RAW_CLOCK, readings), (fmt.COUNTERS, values), (fmt.DEVICE_CLOCK, device)]
            clock = b"".join(recordings.anchor_record(at, at + 10**18) for at in range(0, 10 * MS, MS))
            frames[2:3] = [(fmt.CLOCK, clock), *more]
            if number:
                total = {"spans": len(spans), "dropped_spans": 0, "reason": "exit"}
                frames[-1] = (fmt.END, json.dumps(total).encode())
            name = f"rank-{rank:05}.sscope" if not number else f"rank-{rank:05}.{number}.sscope"
            (folder / name).write_bytes(recordings.encode(frames))


def kineto_traces(folder: Path) -> None:
    """Write the traces of four ranks that torch's profiler wrote of a GPipe training, uncompressed."""
    for source in sorted((DATA / "kineto_transfers").glob("*.gz")):
        (folder / source.stem).write_bytes(gzip.decompress(source.read_bytes()))


def compressed_kineto_traces(folder: Path) -> None:
    """Write the same traces as they are kept, compressed by gzip."""
    for source in sorted((DATA / "kineto_transfers").glob("*.gz")):
        shutil.copyfile(source, folder / source.name)


def chrome_trace(folder: Path) -> None:
    """Write a Chrome trace with common names of actions."""
    events = [
        {"ph": "X", "name": f"{row['kind']}_{row['microbatch']}", "ts": row["start_ns"] / 1000,
         "dur": (row["end_ns"] - row["start_ns"]) / 1000, "pid": row["rank"], "tid": 3, "cat": "action"}
        for row in timeline_from_text(DRAWING, cell_ns=MS).spans.iter_rows(named=True)
    ]  # fmt: skip
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def mapped_trace(folder: Path) -> None:
    """Write an iteration of MegaScan: pairs of events that a shipped mapping finds by their arguments."""
    source = DATA / "mapped" / "megascan-pp-iter10.json.gz"
    events = json.loads(gzip.decompress(source.read_bytes()))
    (folder / "trace.json").write_text(json.dumps(events), encoding="utf-8")


def perfetto_export(folder: Path) -> None:
    """Write a run as a Perfetto trace."""
    pftrace.write(pipeline_timeline(Shape(2, 2, 1)), folder / "run.pftrace")


def spans_csv(folder: Path) -> None:
    """Write a span table as CSV."""
    pipeline_timeline(Shape(2, 3, 2)).spans.write_csv(folder / "spans.csv")


def spans_parquet(folder: Path) -> None:
    """Write a span table as Parquet."""
    pipeline_timeline(Shape(2, 3, 2)).spans.write_parquet(folder / "spans.parquet")


def stored_run(folder: Path) -> None:
    """Write a run as it is stored, in files for several ranges of steps."""
    manifest = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=True)
    write_stored_run(pipeline_timeline(Shape(2, 3, 4)), folder, manifest, WriteOptions(most_spans=60))


def nsight_reports(folder: Path) -> None:
    """Write one report of Nsight Systems per rank, with two kernels in each range."""
    for rank in (0, 1):
        write_report(folder / f"rank{rank}.sqlite", _planted_ranges(rank), texts=rank == 0)


def nsight_parquet_reports(folder: Path) -> None:
    """Write the same reports as directories of Parquet files."""
    nsight_reports(folder)
    for path in sorted(folder.glob("*.sqlite")):
        parquet_copy(path, path.with_suffix(".parquetdir"))
        path.unlink()


def rocpd_databases(folder: Path) -> None:
    """Write one rocpd database of rocprofv3 per rank, with the same ranges and kernels."""
    for rank in (0, 1):
        write_rocpd(folder / f"rank{rank}_results.db", _planted_ranges(rank))


def rocprof_results(folder: Path) -> None:
    """Write one JSON file of rocprofv3 per rank, with the same ranges and kernels."""
    for rank in (0, 1):
        write_rocprof_json(folder / f"rank{rank}_results.json", _planted_ranges(rank))


def ascend_profiles(folder: Path) -> None:
    """Write the databases of torch_npu's profiler for three ranks."""
    write_cluster(folder, Cluster(microbatches=3, steps=2, pp=3))


def monitored_ascend_profiles(folder: Path) -> None:
    """Write the databases of msMonitor for two ranks, with transfers as marks and without declared sizes."""
    truth = write_cluster(
        folder / "written", Cluster(microbatches=3, pp=2, transfers="marks", declared=False)
    )
    for rank, path in truth.databases.items():
        shutil.move(path, folder / f"msmonitor_4711_20251120090000000_{rank}.db")
    shutil.rmtree(folder / "written")


def paddle_worker_logs(folder: Path) -> None:
    """Write the worker logs of two ranks."""
    write_worker_logs(folder, PaddleRun(devices=2, microbatches=3, steps=2, noise_lines=0.1))


def paddle_fleet_records(folder: Path) -> None:
    """Write the records of two ranks that Paddle's dynamic-graph pipeline wrote."""
    _copy(DATA / "paddle_fleet", folder)


def paddle_profiles(folder: Path) -> None:
    """Write the traces of two ranks that paddle.profiler wrote, uncompressed."""
    for source in sorted((DATA / "paddle_profiler").iterdir()):
        (folder / source.name.removesuffix(".gz")).write_bytes(gzip.decompress(source.read_bytes()))


def primus_dumps(folder: Path) -> None:
    """Write the dumps of two ranks of Primus, with numbered micro-batches."""
    drawn = timeline_from_text(DRAWING, cell_ns=MS)
    write_dumps(folder / "pp_data", drawn, numbered=True, iterations=2)


def otlp_lines(folder: Path) -> None:
    """Write a file of OTLP requests with the spans of two ranks, as Megatron-LM names them."""
    drawn = timeline_from_text(DRAWING, cell_ns=1000).spans
    requests = [request(megatron_rank(drawn, rank), rank=rank) for rank in (0, 1)]
    write_lines(folder / "run.otlp.jsonl", *requests)


def xla_profile(folder: Path) -> None:
    """Write a profile of XLA with two devices and two steps."""
    drawn = timeline_from_text(DRAWING, cell_ns=1000).spans
    (folder / "host.xplane.pb").write_bytes(drawn_profile(drawn, repeat=2))


def _planted_ranges(rank: int) -> Planted:
    """Return a rank of the drawing as ranges with two kernels each."""
    planted = Planted()
    for row in timeline_from_text(DRAWING).spans.filter(pl.col("rank") == rank).iter_rows(named=True):
        start, end = row["start_ns"], row["end_ns"]
        letter = "F" if row["kind"] == "forward" else "B"
        planted.range(f"{letter}{row['stage']}.{row['microbatch']} step 0", start, end)
        middle = (start + end) // 2
        planted.kernel(start + 1, start + 300, middle)
        planted.kernel(end - 1, middle, end - 5)
    return planted


def _copy(source: Path, folder: Path) -> None:
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, folder / file.name)
