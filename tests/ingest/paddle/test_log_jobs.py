"""Jobs of one log: for any damage, each job line is either a job or counted."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_logs import PaddleRun, write_worker_logs
from stagescope.ingest.paddle.log_jobs import jobs_of
from stagescope.ingest.paddle.log_scan import scan_log
from stagescope.ingest.paddle.worker_logs import WorkerLog
from stagescope.ingest.streams import open_stream

RUN = PaddleRun(devices=1, microbatches=4, steps=2, transfers=True, noise_lines=0.3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    directory = tmp_path_factory.mktemp("logs")
    write_worker_logs(directory, RUN)
    return (directory / "workerlog.0").read_bytes()


def read(path: Path):
    with open_stream(path) as stream:
        return jobs_of(scan_log(stream), WorkerLog(path, None, 0, 0))


# The first bytes stay, since two of them can make the file a damaged gzip.
CUTS = st.lists(st.tuples(st.integers(10, 7000), st.integers(0, 400), st.binary(max_size=8)), max_size=5)


@given(cuts=CUTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_each_job_line_is_a_job_or_is_counted(whole, tmp_path, cuts):
    data = whole
    for start, length, other in cuts:
        data = data[:start] + other + data[start + length :]
    path = tmp_path / "workerlog.0"
    path.write_bytes(data)
    found = read(path)
    counted = sum(note.count for note in found.notes if note.code.startswith(("jobs.", "transfers.")))
    assert found.jobs.height + counted == data.count(b"Profiler Info: Job")


def test_jobs_keep_the_order_of_the_file(whole, tmp_path):
    path = tmp_path / "workerlog.0"
    path.write_bytes(whole)
    assert read(path).jobs["byte"].is_sorted()
