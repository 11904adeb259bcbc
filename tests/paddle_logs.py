"""Generated Paddle worker logs and their planted truth.

A run is a schedule of stagescope.schedules, simulated once and repeated step by step. Times are whole
microseconds, written as Paddle prints them: milliseconds since the epoch as a double with six decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope import schedules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_US = 1_697_793_307_213_987
"""A Friday in October 2023 (UTC)."""

COSTS_US = schedules.Costs(
    forward=10_003, backward_input=11_007, backward_weight=9_001, hop=151, optimizer=4_999
)
"""Costs of the simulation, read as microseconds."""

TYPES = {"F": "forward", "B": "backward", "I": "backward_b", "W": "backward_w"}
KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
TRANSFER_US = 100

NOISE = (
    "[2023-11-20 09:18:02,345] [    INFO] - loss: 10.98765432, learning_rate: 1e-05, global_step: 12, ips: 3.14",
    "W1120 09:31:11.343695 16968 eager_utils.cc:3584] Detected that the tensor is not contiguous",
    "I1120 09:31:11.537532 16968 pir_interpreter.cc:1529] New Executor is Running ...",
    "/usr/lib/python3.10/site.py:1: UserWarning: 警告: 数据加载器没有工作线程",
    "LAUNCH INFO 2023-11-20 09:31:01,881 ----------- Configuration  ----------------------",
    "step 12:  43%|████▎     | 43/100 [00:12<00:16,  3.41it/s]",
)


@dataclass(frozen=True)
class PaddleRun:
    """A run, and how its log lines are written.

    `job_number` is the meaning of N in `Job (N)`: the index in the job list, a counter per type, or the micro-batch
    (the three generations of the line). `transfers` adds the recv_forward and send_backward jobs of the PIR passes; at
    the outer ends of the pipeline they do nothing and have times 0. `noise_lines` are added to each job.
    """

    schedule: str = "1f1b"
    devices: int = 4
    microbatches: int = 8
    steps: int = 3
    chunks: int | None = None
    first_step: int = 0
    start_us: int = START_US
    gap_us: int = 5_000
    job_number: str = "microbatch"
    transfers: bool = False
    banner: bool = True
    glog: bool = True
    noise_lines: float = 0.0


class Job(NamedTuple):
    """One job of one step: type as Paddle spells it, truth about it, times from the start of the step."""

    type: str
    kind: str
    stage: int | None
    chunk: int | None
    microbatch: int
    start_us: int
    end_us: int


def write_worker_logs(
    directory: Path, run: PaddleRun, *, ranks: Sequence[int] | None = None, skew_us: int = 0
) -> pl.DataFrame:
    """Write workerlog.0, workerlog.1, ... of some ranks (default: all), appended to existing files; return the truth.

    The files are numbered from 0 whatever the ranks are: a machine's directory. `skew_us` is what the machine's
    clock is ahead. Columns of the truth: rank, step, kind, type, stage, chunk, microbatch, start_us, end_us, as
    the machine's clock shows them, without the jobs that stamped 0.
    """
    directory.mkdir(parents=True, exist_ok=True)
    chosen = range(run.devices) if ranks is None else ranks
    jobs, makespan_us = simulated_jobs(run)
    truth: list[dict[str, Any]] = []
    for device, rank in enumerate(chosen):
        with (directory / f"workerlog.{device}").open("a", encoding="utf-8") as file:
            for step in range(run.steps):
                began_us = run.start_us + skew_us + step * (makespan_us + run.gap_us)
                end_us = began_us + makespan_us
                file.write("".join(f"{line}\n" for line in step_lines(run, jobs[rank], began_us, end_us)))
                truth += _rows(jobs[rank], began_us, rank=rank, step=run.first_step + step)
    return pl.DataFrame(truth, infer_schema_length=None).sort("rank", "start_us")


def simulated_jobs(run: PaddleRun) -> tuple[list[list[Job]], int]:
    """Return every rank's jobs of one step, in the order of its job list, and how long the step is."""
    order = schedules.order(run.schedule, ranks=run.devices, microbatches=run.microbatches, chunks=run.chunks)
    simulation = schedules.simulate(order, COSTS_US)
    ranks: list[list[Job]] = [[] for _ in order]
    stages = {rank: sorted({job.stage for job in _jobs(row)}) for rank, row in order.items()}
    for action, rank, start_us, end_us in simulation.actions:
        for job in action.parts:
            chunk = stages[rank].index(job.stage)
            suffix = str(chunk) if len(stages[rank]) > 1 else ""
            one = Job(
                TYPES[job.kind] + suffix, KINDS[job.kind], job.stage, chunk, job.microbatch, start_us, end_us
            )
            ranks[rank] += _with_transfers(one, suffix, run)
    for rank, (start_us, end_us) in simulation.optimizer_steps.items():
        ranks[rank].append(Job("optimizer", "optimizer", None, None, 0, start_us, end_us))
    return ranks, simulation.makespan_ns


def _jobs(actions: Sequence[schedules.Action]) -> Iterator[schedules.Action]:
    for action in actions:
        yield from action.parts


def _with_transfers(job: Job, suffix: str, run: PaddleRun) -> Iterator[Job]:
    """Yield a job with the transfer job that Paddle's PIR passes add to it."""
    receives = run.transfers and job.kind == "forward"
    sends = run.transfers and job.kind in ("backward", "backward_input")
    nothing_us = -1
    if receives:
        times = (job.start_us - TRANSFER_US, job.start_us) if job.stage else (nothing_us, nothing_us)
        yield Job(f"recv_forward{suffix}", "recv_forward", job.stage, job.chunk, job.microbatch, *times)
    yield job
    if sends:
        times = (job.end_us, job.end_us + TRANSFER_US) if job.stage else (nothing_us, nothing_us)
        yield Job(f"send_backward{suffix}", "send_backward", job.stage, job.chunk, job.microbatch, *times)


def step_lines(run: PaddleRun, jobs: Sequence[Job], began_us: int, end_us: int) -> Iterator[str]:
    """Yield the lines that one step leaves in a log: the banner, noise, then all its jobs at once."""
    if run.banner:
        yield banner_line(run)
    noise, due = cycle(NOISE), 0.0
    counters: dict[str, int] = {}
    for index, job in enumerate(jobs):
        due += run.noise_lines
        while due >= 1:
            due -= 1
            yield next(noise)
        counter = counters[job.type] = counters.get(job.type, -1) + 1
        number = {"index": index, "counter": counter, "microbatch": job.microbatch}[run.job_number]
        times = (0, 0) if job.start_us < 0 else (began_us + job.start_us, began_us + job.end_us)
        line = job_line(job.type, number, job.microbatch, *times)
        yield f"{glog_prefix(end_us)}{line}" if run.glog else line


def banner_line(run: PaddleRun) -> str:
    """Return the line that the profiler's switch prints once per step."""
    last = run.first_step + run.steps
    return f"Schedule Profiler start at step {run.first_step} and end at step {last}"


def job_line(job_type: str, number: int, microbatch: int, start_us: int, end_us: int) -> str:
    """Return the text of one job, without glog's prefix."""
    return (
        f"Profiler Info: Job ({number}), type = {job_type}, micro_batch_id = {microbatch}, "
        f"job_start_time = {milliseconds(start_us)}, job_end_time = {milliseconds(end_us)}"
    )


def milliseconds(time_us: int) -> str:
    """Return a time as C++ prints `tv_sec * 1000 + tv_usec / 1000.0`: with the double's rounding noise."""
    seconds, microseconds = divmod(time_us, 1_000_000)
    return f"{seconds * 1000 + microseconds / 1000.0:.6f}"


def glog_prefix(time_us: int, thread: int = 22317) -> str:
    """Return the prefix of a log line; glog writes local time without a year, here UTC."""
    moment = datetime.fromtimestamp(time_us // 1_000_000, tz=timezone.utc)
    return f"I{moment:%m%d %H:%M:%S}.{time_us % 1_000_000:06d} {thread:5d} standalone_executor.cc:217] "


def _rows(jobs: Sequence[Job], began_us: int, **facts: int) -> Iterator[dict[str, Any]]:
    for job in jobs:
        if job.start_us >= 0:
            row = job._asdict()
            yield {**facts, **row, "start_us": began_us + job.start_us, "end_us": began_us + job.end_us}
