"""Readers of Paddle's logs and traces: worker logs, records of the dynamic-graph pipeline, and profiler traces.

"Job" is Paddle's own word for a piece of work that its executor runs; a job of a micro-batch becomes an action.
"""

from stagescope.ingest.paddle.log_timeline import read_worker_logs
from stagescope.ingest.paddle.worker_logs import find_worker_logs

__all__ = ["find_worker_logs", "read_worker_logs"]
