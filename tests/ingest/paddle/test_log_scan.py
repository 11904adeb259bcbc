"""One pass over a log, block by block."""

import pytest

from paddle_logs import START_US, PaddleRun, glog_prefix, job_line, write_worker_logs
from stagescope.ingest.paddle import log_scan
from stagescope.ingest.paddle.log_scan import LONGEST_BYTES, SCHEMAS, has_profiler_line, scan_log
from stagescope.ingest.streams import open_stream

START_NS = START_US * 1000


def scan(path):
    with open_stream(path) as stream:
        return scan_log(stream)


@pytest.fixture
def written(tmp_path):
    def written(*lines: str | bytes):
        path = tmp_path / "log"
        path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
        return path

    return written


JOB = job_line("forward", 7, 3, START_US, START_US + 10)


def test_a_job_line_yields_offset_type_micro_batch_and_whole_microseconds(written):
    path = written("loss: 1", glog_prefix(START_US) + JOB)
    assert scan(path)["jobs"].rows() == [(8 + len(glog_prefix(0)), "forward", 3, START_NS, START_NS + 10_000)]


@pytest.mark.parametrize("microseconds", [*range(0, 1_000_000, 99_991), 999_999])
def test_rounding_noise_of_doubles_is_removed(written, microseconds):
    time_us = 1_697_793_307_000_000 + microseconds
    path = written(job_line("forward", 0, 0, time_us, time_us))
    assert scan(path)["jobs"]["start_ns"].to_list() == [time_us * 1000]


def test_the_sample_of_paddles_own_document_is_read(written):
    path = written(
        "I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job (3), type = forward, "
        "micro_batch_id = 2, job_start_time = 1697793307213.760986, job_end_time = 1697793307254.006104"
    )
    contents = scan(path)
    assert contents["jobs"].rows()[0][1:] == ("forward", 2, 1697793307213761000, 1697793307254006000)
    assert contents["written"]["written"].to_list() == ["1020 09:15:07.265326"]


@pytest.mark.parametrize("block", [2000, 4096, 5001, 16_384])
def test_block_boundaries_change_nothing(tmp_path, monkeypatch, block):
    write_worker_logs(tmp_path, PaddleRun(devices=1, microbatches=8, steps=20, noise_lines=0.4))
    path = tmp_path / "workerlog.0"
    whole = scan(path)
    monkeypatch.setattr(log_scan, "BLOCK_BYTES", block)
    monkeypatch.setattr(log_scan, "CONVERTED_AT_ONCE", 50)
    in_blocks = scan(path)
    for name in SCHEMAS.keys() - {"written"}:  # a sample per block
        assert in_blocks[name].equals(whole[name])
    assert whole["jobs"].height == 20 * 17
    assert in_blocks.unparsed == whole.unparsed == {}


def test_no_expression_is_longer_than_the_overlap_of_blocks():
    widest = (
        f"Profiler Info: Job (-{'9' * 10}), type = {'t' * 64}, micro_batch_id = -{'9' * 9}, "
        f"job_start_time = {'1' * 13}.{'0' * 6}, job_end_time = {'1' * 13}.{'0' * 6}"
    )
    assert log_scan.PROFILER.pattern.fullmatch(widest.encode())
    assert len(widest) < LONGEST_BYTES
    push = f"NVTX range push: {'n' * 256}, time: {'1' * 13}.{'0' * 6}"
    assert log_scan.NVTX.pattern.fullmatch(push.encode())
    assert len(push) < LONGEST_BYTES


@pytest.mark.parametrize(
    "line",
    [
        JOB[:-1], JOB + "0", JOB.replace("micro_batch_id = 3", "micro_batch_id = x"),
        JOB.replace("1697793307213", "169779330721"), JOB.replace("type = forward", f"type = {'f' * 65}"), JOB[:18],
    ],
)  # fmt: skip
def test_incomplete_job_lines_are_counted(written, line):
    contents = scan(written("loss", line, JOB, line))
    assert contents["jobs"].height == 1
    assert contents.unparsed == {"jobs": (2, 5)}


def test_other_incomplete_lines_are_counted_separately(written):
    contents = scan(written("Schedule Profiler start at step x", "NVTX range pop, time: 1", "Run job (x"))
    assert contents.unparsed == {"banners": (1, 9), "nvtx": (1, 34), "launches": (1, 58)}


def test_an_nvtx_name_can_be_any_single_line(written):
    time = "1697793307213.760986"
    contents = scan(written(
        f"NVTX range push: a, time: b, time: {time}", b"NVTX range push: \xff\xfe, time: " + time.encode(),
        f"NVTX range push: cut offNVTX range pop, time: {time}",
    ))  # fmt: skip
    assert contents["nvtx"]["name"].to_list() == ["a, time: b", "\ufffd\ufffd", None]
    assert contents.unparsed["nvtx"].lines == 1


def test_launches_are_not_searched_once_a_job_has_times(written, monkeypatch):
    monkeypatch.setattr(log_scan, "BLOCK_BYTES", 4096)
    launch = "Run job (0), type = forward, micro_batch_id =0"
    contents = scan(written(JOB, "x" * 9000, launch))
    assert contents["launches"].is_empty()
    assert scan(written("x" * 9000, launch))["launches"].select("type", "microbatch", "written").rows() == [
        ("forward", 0, None)
    ]


def test_searching_for_a_line_stops_at_the_first(written):
    with open_stream(written("x" * 3_000_000, JOB)) as stream:
        assert has_profiler_line(stream)
    with open_stream(written("Profiler", "Schedule Profiler start at step 1 and end at step 2")) as stream:
        assert not has_profiler_line(stream)
