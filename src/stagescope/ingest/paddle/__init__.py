"""Readers of Paddle's logs and traces: worker logs, records of the dynamic-graph pipeline, and profiler traces.

"Job" is Paddle's own word for a piece of work that its executor runs; a job of a micro-batch becomes an action.
"""

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
