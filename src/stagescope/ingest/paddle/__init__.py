"""Paddle's job lines: which jobs there are, where their logs lie, how they become spans."""

from stagescope.ingest.paddle.job_types import JobType, describe_job, span_name
from stagescope.ingest.paddle.log_timeline import read_worker_logs
from stagescope.ingest.paddle.worker_logs import WorkerLog, device_of, find_worker_logs, number_ranks

__all__ = [
    "JobType",
    "WorkerLog",
    "describe_job",
    "device_of",
    "find_worker_logs",
    "number_ranks",
    "read_worker_logs",
    "span_name",
]
