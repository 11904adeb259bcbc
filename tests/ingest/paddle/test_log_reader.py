"""Paddle's worker logs: a planted truth is recovered, and faults of Paddle's own script do not occur."""

import gzip
import re
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from paddle_logs import (
    START_US,
    PaddleRun,
    banner_line,
    glog_prefix,
    job_line,
    milliseconds,
    simulated_jobs,
    write_worker_logs,
)  # fmt: skip
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.paddle.log_reader import READER
from stagescope.ingest.reader import HEAD_BYTES, ReadOptions
from stagescope.vocabulary.errors import InputError

TRUTH = ["rank", "step", "kind", "chunk", "microbatch", "start_ns", "end_ns"]
RUN = PaddleRun(devices=2, microbatches=4, steps=3)


def read(directory, **options):
    logs = find_worker_logs(directory, **options)
    return read_worker_logs(logs, ReadOptions())


def spans_of(timeline) -> pl.DataFrame:
    return (
        timeline.spans.select(TRUTH).with_columns(pl.col("kind").cast(pl.String)).sort(TRUTH, nulls_last=True)
    )


def as_spans(truth: pl.DataFrame) -> pl.DataFrame:
    microbatch = pl.when(pl.col("kind") != "optimizer").then("microbatch").cast(pl.Int32)
    columns = truth.with_columns(
        pl.col("rank", "step", "chunk").cast(pl.Int32),
        microbatch=microbatch,
        start_ns=pl.col("start_us") * 1000,
        end_ns=pl.col("end_us") * 1000,
    )
    return columns.select(TRUTH).sort(TRUTH, nulls_last=True)


def assert_recovers(timeline, truth: pl.DataFrame) -> None:
    assert_frame_equal(spans_of(timeline), as_spans(truth))


def diagnosed(timeline) -> list[tuple]:
    return timeline.diagnostics.select("severity", "message", "rank", "location", "count").rows()


def edit(path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def step_lengths(timeline) -> list[tuple[int, float]]:
    """Return step and milliseconds from the first start to the last end across all ranks."""
    by_step = timeline.steps.group_by("step").agg(ms=(pl.max("end_ns") - pl.min("start_ns")) / 1e6)
    return by_step.sort("step").rows()


SCHEDULES = {
    "FThenB": PaddleRun(schedule="gpipe"),
    "1F1B": PaddleRun(schedule="1f1b"),
    "1F1B of PIR": PaddleRun(schedule="1f1b", transfers=True),
    "Eager1F1B": PaddleRun(schedule="eager-1f1b"),
    "VPP": PaddleRun(schedule="interleaved", chunks=2),
    "VPP of PIR": PaddleRun(schedule="interleaved", chunks=2, transfers=True),
    "ZBH1": PaddleRun(schedule="zb-h1", transfers=True),
    "ZBVPP": PaddleRun(schedule="zb-v"),
}


@pytest.mark.parametrize("run", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_is_recovered_to_the_microsecond(tmp_path, run):
    truth = write_worker_logs(tmp_path, replace(run, first_step=7, noise_lines=0.7))
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert not timeline.is_partial


@pytest.mark.parametrize("number", ["index", "counter", "microbatch"])
@pytest.mark.parametrize("glog", [False, True])
def test_every_generation_of_job_lines_is_read(tmp_path, number, glog):
    truth = write_worker_logs(tmp_path, replace(RUN, job_number=number, glog=glog))
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert diagnosed(timeline) == []


def test_a_step_spans_all_jobs_of_its_rank(tmp_path):
    truth = write_worker_logs(tmp_path, replace(RUN, first_step=4))
    expected = truth.group_by("step", "rank").agg(pl.min("start_us"), pl.max("end_us")).sort("step", "rank")
    assert read(tmp_path).steps.rows() == [
        (step, rank, start * 1000, end * 1000) for step, rank, start, end in expected.rows()
    ]


def test_names_give_the_type_if_it_differs_from_the_kind(tmp_path):
    write_worker_logs(tmp_path, replace(SCHEDULES["ZBVPP"], steps=1))
    names = (
        read(tmp_path)
        .spans.select(pl.col("kind").cast(pl.String), "name")
        .unique()
        .sort("kind", "name")
        .rows()
    )
    assert names == [
        ("backward_input", "backward_b0"), ("backward_input", "backward_b1"), ("backward_weight", "backward_w0"),
        ("backward_weight", "backward_w1"), ("forward", "forward0"), ("forward", "forward1"), ("optimizer", None),
    ]  # fmt: skip


def test_ranks_have_their_devices_and_one_clock(tmp_path):
    write_worker_logs(tmp_path, RUN)
    timeline = read(tmp_path)
    assert timeline.ranks.select("rank", "machine", "device", "pp").rows() == [
        (0, None, "GPU:0", None), (1, None, "GPU:1", None),
    ]  # fmt: skip
    assert timeline.clocks.select("offset_ns", "error_lo_ns", "error_hi_ns").rows() == [(0, 0, 0)]
    assert timeline.spans["stage"].null_count() == timeline.spans.height


def test_compressed_logs_are_read_like_plain_ones(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    plain = tmp_path / "workerlog.1"
    (tmp_path / "workerlog.1.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert_recovers(read(tmp_path), truth)


def test_a_truncated_gzip_is_read_up_to_the_cut_with_an_error(tmp_path):
    write_worker_logs(tmp_path, RUN)
    plain = tmp_path / "workerlog.1"
    (tmp_path / "workerlog.1.gz").write_bytes(gzip.compress(plain.read_bytes())[:-200])
    plain.unlink()
    timeline = read(tmp_path)
    assert timeline.is_partial
    assert "file.damaged" in set(timeline.diagnostics["code"])


def test_selected_devices_keep_their_numbers(tmp_path):
    """The script names the threads of devices 2 and 3 GPU:0 and GPU:1 (fault 1)."""
    truth = write_worker_logs(tmp_path, replace(RUN, devices=4))
    timeline = read(tmp_path, devices=[2, 3])
    assert timeline.ranks.select("rank", "device").rows() == [(2, "GPU:2"), (3, "GPU:3")]
    assert_recovers(timeline, truth.filter(pl.col("rank") >= 2))


def machine_logs(tmp_path, machines, devices=1, **options):
    """Write one run on several machines; return the truth."""
    run = PaddleRun(devices=machines * devices, microbatches=machines * devices, steps=2)
    ranks = {f"machine{n}": range(n * devices, (n + 1) * devices) for n in range(machines)}
    truths = [
        write_worker_logs(tmp_path / name, run, ranks=own, skew_us=options.get("skew_us", 0) * (number % 2))
        for number, (name, own) in enumerate(ranks.items())
    ]
    return pl.concat(truths)


def test_eleven_machines_are_in_natural_order(tmp_path):
    """The script uses the order of the directory listing (fault 2)."""
    truth = machine_logs(tmp_path, machines=11)
    timeline = read(tmp_path, multi_machine=True)
    assert timeline.ranks["machine"].to_list() == [f"machine{number}" for number in range(11)]
    assert_recovers(timeline, truth)
    assert timeline.clocks.height == 11
    assert timeline.clocks["error_lo_ns"].null_count() == 11


def test_machines_may_have_any_names_and_different_numbers_of_devices(tmp_path):
    """The script requires equal devices and names that begin with machine (faults 11 and 22)."""
    run = PaddleRun(devices=3, microbatches=4, steps=2)
    truth = pl.concat(
        [
            write_worker_logs(tmp_path / "alpha", run, ranks=[0, 1]),
            write_worker_logs(tmp_path / "beta", run, ranks=[2]),
        ]
    )
    timeline = read(tmp_path, multi_machine=True)
    assert timeline.ranks.select("rank", "machine", "device").rows() == [
        (0, "alpha", "GPU:0"), (1, "alpha", "GPU:1"), (2, "beta", "GPU:0"),
    ]  # fmt: skip
    assert_recovers(timeline, truth)


def test_small_clock_offsets_do_not_affect_steps(tmp_path):
    """The script merges steps by their index and computes with skewed clocks (fault 12)."""
    truth = machine_logs(tmp_path, machines=2, devices=2, skew_us=-50_000)
    assert_recovers(read(tmp_path, multi_machine=True), truth)


def test_warns_of_clocks_that_are_hours_apart(tmp_path):
    machine_logs(tmp_path, machines=2, skew_us=3_600_000_000)
    timeline = read(tmp_path, multi_machine=True)
    assert "clock.steps_apart" in set(timeline.diagnostics["code"])


def test_a_truncated_line_is_counted_and_changes_nothing_else(tmp_path):
    """The script reads 1700471882 as milliseconds (fault 4)."""
    truth = write_worker_logs(tmp_path, RUN)
    kept = pl.concat([truth.filter(rank=0), truth.filter(rank=1).head(-1)])
    log = tmp_path / "workerlog.1"
    whole = log.read_bytes()
    last = whole.rindex(b"Profiler Info: Job")
    for end in range(last + len(b"Profiler Info: Job"), len(whole) - 1, 13):
        log.write_bytes(whole[:end])
        timeline = read(tmp_path)
        assert_recovers(timeline, kept)
        (error,) = diagnosed(timeline)
        assert error[0] == "error"
        assert error[2:] == (1, f"first at byte {last}", 1)


def test_a_truncated_line_before_others_loses_one_job(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    log = tmp_path / "workerlog.0"
    lines = log.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if b"type = backward, micro_batch_id = 2" in line)
    log.write_bytes(b"".join([*lines[:number], lines[number][:-12], *lines[number + 1 :]]))
    timeline = read(tmp_path)
    lost = truth.filter(rank=0, step=0, kind="backward", microbatch=2)
    assert_recovers(timeline, truth.join(lost, on=truth.columns, how="anti", nulls_equal=True))
    assert [row[4] for row in diagnosed(timeline)] == [1]


def test_two_writers_in_one_line_are_both_found(tmp_path):
    """The script loses the second job of such a line (fault 15)."""
    truth = write_worker_logs(tmp_path, RUN)
    edit(tmp_path / "workerlog.0", lambda data: data.replace(b"\n", b"", 9))
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)


def test_output_in_the_middle_of_a_line_costs_that_line_only(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    lines = (tmp_path / "workerlog.0").read_bytes().splitlines(keepends=True)
    first, second = lines[3].rstrip(b"\n"), lines[4]
    lines[3:5] = [first[:-30] + second.rstrip(b"\n") + first[-30:] + b"\n"]
    (tmp_path / "workerlog.0").write_bytes(b"".join(lines))
    timeline = read(tmp_path)
    assert timeline.spans.height == truth.height - 1
    assert [(row[0], row[4]) for row in diagnosed(timeline)] == [("error", 1)]


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff\xfe broken \xc3\n",
        b"\0" * 5000,
        b"\r 12%|#   |" * 20_000,
        b"x" * 3_000_000,
        "警告\n".encode("gbk"),
    ],
    ids=["invalid UTF-8", "NUL", "progress bar", "3 MB without newline", "GBK"],
)
def test_arbitrary_bytes_change_nothing(tmp_path, noise):
    """The script fails on bad UTF-8 (fault 5) and needs hours for a megabyte without a newline (facts, figures)."""
    truth = write_worker_logs(tmp_path, RUN)
    for log in tmp_path.iterdir():
        edit(
            log,
            lambda data: (
                noise + noise.join(data.partition(b"I1020")[::2]).replace(noise, noise + b"I1020") + noise
            ),
        )
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert diagnosed(timeline) == []


def test_a_missing_log_is_reported_and_the_rest_is_read(tmp_path):
    """The script stops and writes nothing (fault 6)."""
    truth = write_worker_logs(tmp_path, replace(RUN, devices=4))
    (tmp_path / "workerlog.2").unlink()
    timeline = read(tmp_path)
    assert_recovers(timeline, truth.filter(pl.col("rank") != 2))
    assert diagnosed(timeline) == [
        ("error", f"not read: no such file or directory: {tmp_path / 'workerlog.2'}", 2, None, 1)
    ]


def test_an_unprofiled_rank_is_reported_and_the_rest_is_read(tmp_path):
    """In the script, step 0 then begins in 1970 (fault 7)."""
    truth = write_worker_logs(tmp_path, RUN)
    (tmp_path / "workerlog.1").write_text("loss: 10.9\n")
    timeline = read(tmp_path)
    assert_recovers(timeline, truth.filter(rank=0))
    assert diagnosed(timeline) == [("error", "no job line: this rank was not profiled", 1, None, 1)]
    assert timeline.ranks["rank"].to_list() == [0, 1]


def test_logs_without_job_lines_explain_how_to_enable_profiling(tmp_path):
    (tmp_path / "workerlog.0").write_text("loss: 10.9\n")
    with pytest.raises(
        InputError, match=r"no job line in .*workerlog\.0: the run was not profiled"
    ) as refused:
        read(tmp_path)
    assert "job_schedule_profiler" in refused.value.hint
    assert "CUDA" in refused.value.hint


def test_a_directory_without_worker_logs_is_refused(tmp_path):
    """The script writes an empty trace and succeeds (fault 23)."""
    with pytest.raises(InputError, match=r"no workerlog\.N in "):
        read(tmp_path, multi_machine=True)
    with pytest.raises(InputError, match="no such file or directory"):
        read(tmp_path / "absent")


def appended(tmp_path, second: PaddleRun) -> tuple[pl.DataFrame, pl.DataFrame]:
    first = replace(RUN, first_step=10)
    return write_worker_logs(tmp_path, first), write_worker_logs(tmp_path, second)


def test_two_launches_have_the_steps_that_they_announce(tmp_path):
    """The script numbers all steps from the first banner on (fault 8)."""
    later = replace(RUN, first_step=50, steps=2, start_us=START_US + 3_600_000_000)
    truth = pl.concat(appended(tmp_path, later))
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert sorted(set(timeline.spans["step"])) == [10, 11, 12, 50, 51]
    assert [(row[0], row[4]) for row in diagnosed(timeline)] == [("info", 2)]


@pytest.mark.parametrize("pause_s", [3600, -3600])
def test_repeated_step_numbers_continue_with_a_warning(tmp_path, pause_s):
    later = replace(RUN, first_step=10, start_us=START_US + pause_s * 1_000_000)
    first, second = appended(tmp_path, later)
    timeline = read(tmp_path)
    early, late = (first, second) if pause_s > 0 else (second, first)
    assert_recovers(timeline, pl.concat([early, late.with_columns(pl.col("step") + 3)]))
    assert [row[0] for row in diagnosed(timeline)] == ["warning", "info"]


def test_a_killed_launch_shares_no_step_with_the_next(tmp_path):
    first = write_worker_logs(tmp_path, replace(RUN, first_step=10))
    for log in tmp_path.iterdir():
        edit(log, lambda data: b"".join(data.splitlines(keepends=True)[:-6]))
    later = replace(RUN, first_step=50, steps=2, start_us=START_US + 60_000_000)
    second = write_worker_logs(tmp_path, later)
    kept = first.sort("start_us").group_by("rank", maintain_order=True).head(21)
    assert_recovers(read(tmp_path), pl.concat([kept, second]))


def without_first_jobs(log, count: int) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    jobs = [number for number, line in enumerate(lines) if b"Profiler Info" in line]
    log.write_bytes(b"".join(lines[: jobs[0]] + lines[jobs[count] :]))


MISSING = [1, 5, 9, 17]


@pytest.mark.parametrize(
    "missing",
    [pytest.param(n, marks=() if n in MISSING else pytest.mark.exhaustive) for n in range(1, 18)],
)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_log_that_begins_later_is_matched_by_time(tmp_path, missing, rank):
    """The script matches steps by their index: 357 ms instead of 190, and a phantom step (faults 10 and 19)."""
    truth = write_worker_logs(tmp_path, replace(RUN, devices=4, first_step=3, gap_us=300))
    without_first_jobs(tmp_path / f"workerlog.{rank}", missing)
    own = truth.filter(rank=rank)
    lost = own.head(missing)
    assert_recovers(read(tmp_path), truth.join(lost, on=truth.columns, how="anti", nulls_equal=True))


def test_a_missing_opening_line_does_not_merge_two_steps(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    log = tmp_path / "workerlog.0"
    lines = log.read_bytes().splitlines(keepends=True)
    opening = [n for n, line in enumerate(lines) if b"type = forward, micro_batch_id = 0" in line][1]
    log.write_bytes(b"".join(lines[:opening] + lines[opening + 1 :]))
    lost = truth.filter(rank=0, step=1, kind="forward", microbatch=0)
    assert_recovers(read(tmp_path), truth.join(lost, on=truth.columns, how="anti", nulls_equal=True))


def test_transfers_belong_to_the_right_step(tmp_path):
    """Stale copies of the script count the next step's receive: 450 ms instead of 412 (facts, section 3)."""
    run = replace(SCHEDULES["1F1B of PIR"], gap_us=0)
    truth = write_worker_logs(tmp_path, run)
    assert_recovers(read(tmp_path), truth)


def test_virtual_stages_do_not_double_the_steps(tmp_path):
    """Stale copies of the script find 6 steps of 43 and 312 ms in turn (facts, section 3)."""
    run = replace(SCHEDULES["VPP"], steps=3)
    write_worker_logs(tmp_path, run)
    makespan_ms = simulated_jobs(run)[1] / 1e3
    assert step_lengths(read(tmp_path)) == [(step, makespan_ms) for step in range(3)]


def test_jobs_without_times_are_counted_and_omitted(tmp_path):
    """In the script they begin in 1970, and two steps become one (fault 13)."""
    truth = write_worker_logs(tmp_path, replace(RUN, transfers=True))
    edit(
        tmp_path / "workerlog.1",
        lambda data: re.sub(rb"(type = optimizer.*?_start_time = )[\d.]+", rb"\g<1>0.000000", data),
    )
    timeline = read(tmp_path)
    assert_recovers(timeline, truth.filter(~((pl.col("rank") == 1) & (pl.col("kind") == "optimizer"))))
    assert [(severity, rank, count) for severity, _, rank, _, count in diagnosed(timeline)] == [
        ("info", 0, 24), ("warning", 1, 3),
    ]  # fmt: skip


def test_jobs_that_end_before_they_start_are_counted_with_their_place(tmp_path):
    lines = [
        job_line("forward", 0, 0, START_US, START_US + 9),
        job_line("backward", 0, 0, START_US + 20, START_US + 10),
    ]
    (tmp_path / "workerlog.0").write_text("\n".join(lines))
    timeline = read(tmp_path)
    assert timeline.spans.height == 1
    assert diagnosed(timeline)[0] == (
        "error", "jobs end before they start; omitted", 0, f"first at byte {len(lines[0]) + 1}", 1,
    )  # fmt: skip


def test_times_without_a_fraction_are_invalid(tmp_path):
    """The dot in the expression of the script matches a digit (fault 16)."""
    write_worker_logs(tmp_path, RUN)
    edit(tmp_path / "workerlog.0", lambda data: re.sub(rb"\.\d{6}\n", b"\n", data))
    timeline = read(tmp_path)
    assert [(row[0], row[2], row[4]) for row in diagnosed(timeline)] == [("error", 0, 27), ("error", 0, 1)]


def one_log(tmp_path, *jobs: tuple[str, int, int, int]) -> None:
    """Write one log of jobs: type, micro-batch, start and end in microseconds after `START_US`."""
    lines = [job_line(kind, m, m, START_US + start, START_US + end) for kind, m, start, end in jobs]
    (tmp_path / "workerlog.0").write_text("\n".join(lines))


def test_pieces_of_jobs_are_kept_and_are_not_virtual_stages(tmp_path):
    """The script drops types with parentheses (fault 14)."""
    one_log(
        tmp_path,
        ("forward", 0, 0, 10), ("forward(chunk0)", 1, 10, 15), ("backward(chunk0)", 0, 15, 20),
        ("forward(chunk1)", 1, 20, 25), ("backward(chunk1)", 0, 25, 30), ("backward", 1, 30, 40),
        ("optimize", 0, 40, 50), ("forward", 0, 60, 70),
    )  # fmt: skip
    timeline = read(tmp_path)
    assert timeline.spans.select("step", "kind", "chunk", "microbatch", "name").rows() == [
        (0, "forward", 0, 0, None), (0, "forward", 0, 1, "forward(chunk0)"),
        (0, "backward", 0, 0, "backward(chunk0)"), (0, "forward", 0, 1, "forward(chunk1)"),
        (0, "backward", 0, 0, "backward(chunk1)"), (0, "backward", 0, 1, None),
        (0, "optimizer", None, None, "optimize"), (1, "forward", 0, 0, None),
    ]  # fmt: skip


def test_a_learning_rate_job_belongs_to_the_step_that_it_begins(tmp_path):
    jobs = [("lr", 0, 0, 1), ("forward", 0, 1, 5), ("backward", 0, 5, 9), ("optimizer", -1, 9, 10)]
    one_log(tmp_path, *jobs, *((kind, m, start + 10, end + 10) for kind, m, start, end in jobs))
    spans = read(tmp_path).spans
    assert spans.select("name", "step").filter(name="lr").rows() == [("lr", 0), ("lr", 1)]
    assert spans.filter(kind="optimizer").select("step", "microbatch").rows() == [(0, None), (1, None)]
    assert spans.filter(name="lr")["lane"].to_list() == ["host", "host"]


def test_an_unknown_type_is_other_with_its_name(tmp_path):
    one_log(tmp_path, ("forward", 0, 0, 5), ("nccl_probe", 0, 5, 6), ("backward", 0, 6, 9))
    assert read(tmp_path).spans.filter(kind="other").select("lane", "name", "step").rows() == [
        ("host", "nccl_probe", 0)
    ]


def test_a_single_job_per_step_is_a_step(tmp_path):
    one_log(tmp_path, *(("default", 0, 10 * n, 10 * n + 9) for n in range(3)))
    assert read(tmp_path).spans.select("step", "kind", "lane", "name").rows() == [
        (n, "other", "compute", "default") for n in range(3)
    ]


def test_repeated_lines_are_used_once(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    edit(tmp_path / "workerlog.0", lambda data: b"".join(line * 2 for line in data.splitlines(keepends=True)))
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert [(row[0], row[2], row[4]) for row in diagnosed(timeline)] == [("warning", 0, 27)]


def test_bursts_of_lines_may_be_in_any_order(tmp_path):
    truth = write_worker_logs(tmp_path, replace(RUN, banner=False))
    edit(
        tmp_path / "workerlog.0",
        lambda data: (
            b"".join(reversed(data.splitlines(keepends=True)[:9]))
            + b"".join(data.splitlines(keepends=True)[9:])
        ),
    )
    timeline = read(tmp_path)
    assert_recovers(timeline, truth)
    assert [row[1] for row in diagnosed(timeline)] == [
        "the first training step is not recorded: steps are numbered from 0"
    ]


def nvtx_lines(tmp_path, *, with_actions: bool) -> None:
    """Write two steps, 41 and 42, as ranges with nested jobs, in the format of October 2023."""
    lines = []
    for step in (41, 42):
        at = START_US + (step - 41) * 100_000
        words = [(0, f"push: {step}"), (10, "push: forward-0"), (11, "push: matmul, f32"), (19, "pop"), (20, "pop"),
                 (30, "push: backward-0"), (50, "pop"), (60, "pop")]  # fmt: skip
        lines += [
            f"{glog_prefix(at)}NVTX range {word}, time: {milliseconds(at + ms * 1000)}" for ms, word in words
        ]
        if with_actions:
            lines.append(job_line("forward", 0, 0, at + 15_000, at + 30_000))
            lines.append(job_line("backward", 1, 0, at + 32_000, at + 58_000))
    (tmp_path / "workerlog.0").write_text("\n".join(lines))


def test_steps_have_the_numbers_of_their_nvtx_ranges(tmp_path):
    nvtx_lines(tmp_path, with_actions=True)
    timeline = read(tmp_path)
    assert timeline.spans.select("step", "kind", "lane").rows() == [
        (step, kind, "compute") for step in (41, 42) for kind in ("forward", "backward")
    ]
    assert diagnosed(timeline) == []


def test_nvtx_ranges_become_jobs_on_the_host_with_a_warning(tmp_path):
    nvtx_lines(tmp_path, with_actions=False)
    timeline = read(tmp_path)
    spans = timeline.spans.with_columns(ms=(pl.col("end_ns") - pl.col("start_ns")) // 1_000_000)
    assert spans.select("step", "kind", "lane", "microbatch", "ms").rows() == [
        (41, "forward", "host", 0, 10), (41, "backward", "host", 0, 20),
        (42, "forward", "host", 0, 10), (42, "backward", "host", 0, 20),
    ]  # fmt: skip
    assert [(row[0], row[4]) for row in diagnosed(timeline)] == [("warning", 4)]


def test_launches_become_jobs_up_to_the_next_one_with_a_warning(tmp_path):
    jobs = [
        ("forward", 0, 0),
        ("forward", 1, 10),
        ("backward", 0, 20),
        ("backward", 1, 40),
        ("optimizer", 0, 70),
    ]
    lines = [
        f"{glog_prefix(START_US + step * 200_000 + ms * 1000)}Run job ({n}), type = {kind}, micro_batch_id ={m}"
        for step in range(2)
        for n, (kind, m, ms) in enumerate(jobs)
    ]
    (tmp_path / "workerlog.0").write_text("\n".join(lines))
    timeline = read(tmp_path)
    assert timeline.spans["lane"].unique().to_list() == ["host"]
    spans = timeline.spans.with_columns(ms=(pl.col("end_ns") - pl.col("start_ns")) // 1_000_000)
    assert spans.filter(step=1).select("kind", "microbatch", "ms").rows() == [
        ("forward", 0, 10), ("forward", 1, 10), ("backward", 0, 20), ("backward", 1, 30), ("optimizer", None, 0),
    ]  # fmt: skip
    assert diagnosed(timeline)[0][0] == "warning"
    assert diagnosed(timeline)[0][4] == 10


def test_launches_without_a_time_or_without_an_end_are_counted(tmp_path):
    launch = "Run job (0), type = forward, micro_batch_id =0"
    lines = [glog_prefix(START_US) + launch, launch, glog_prefix(START_US) + launch[:12]]
    (tmp_path / "workerlog.0").write_text("\n".join(lines))
    timeline = read(tmp_path)
    assert timeline.spans.height == 1
    assert [(row[0], row[4]) for row in diagnosed(timeline)][:3] == [
        ("warning", 1),
        ("error", 1),
        ("error", 1),
    ]


def test_a_line_that_was_written_before_its_job_ended_is_a_warning(tmp_path):
    line = job_line("forward", 0, 0, START_US, START_US + 100_000_000)
    (tmp_path / "workerlog.0").write_text(f"{banner_line(RUN)}\n{glog_prefix(START_US)}{line}\n")
    assert [(row[0], row[4]) for row in diagnosed(read(tmp_path))] == [("warning", 1)]


def test_directories_are_machines_and_ranks_are_numbered_across_them(tmp_path):
    truth = machine_logs(tmp_path, machines=2, devices=2)
    timeline = READER.read(sorted(tmp_path.rglob("workerlog.*"), reverse=True), ReadOptions())
    assert_recovers(timeline, truth)
    assert timeline.ranks["machine"].to_list() == ["machine0"] * 2 + ["machine1"] * 2


def test_a_missing_device_number_is_reported(tmp_path):
    write_worker_logs(tmp_path, replace(RUN, devices=4))
    chosen = [tmp_path / "workerlog.1", tmp_path / "workerlog.3"]
    assert diagnosed(READER.read(chosen, ReadOptions())) == []
    (tmp_path / "workerlog.2").unlink()
    assert [(row[0], row[2]) for row in diagnosed(READER.read(chosen, ReadOptions()))] == [("error", 2)]


def test_a_log_of_another_name_is_the_next_device_with_a_warning(tmp_path):
    truth = write_worker_logs(tmp_path, RUN)
    other = (tmp_path / "workerlog.1").rename(tmp_path / "train.log")
    timeline = READER.read([other, tmp_path / "workerlog.0"], ReadOptions())
    assert_recovers(timeline, truth)
    assert [row[0] for row in diagnosed(timeline)] == ["warning"]


def test_logs_are_recognized_by_name_or_by_any_line(tmp_path):
    write_worker_logs(tmp_path, RUN)
    named, quiet, far = tmp_path / "workerlog.0", tmp_path / "workerlog.7", tmp_path / "out.txt"
    quiet.write_text("loss\n")
    far.write_bytes(b"loss\n" * 500_000 + named.read_bytes())
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear ranks, the Profiler is on holiday.")
    heads = {path: path.read_bytes()[:HEAD_BYTES] for path in (named, quiet, far, letter)}
    assert [READER.recognizes(path, head) for path, head in heads.items()] == [True, True, True, False]


def test_two_logs_of_one_device_are_refused(tmp_path):
    write_worker_logs(tmp_path, RUN)
    (tmp_path / "workerlog.1.gz").write_bytes(gzip.compress((tmp_path / "workerlog.1").read_bytes()))
    with pytest.raises(InputError, match="two recordings of rank 1"):
        read(tmp_path)


def test_each_file_is_reported_when_it_has_been_read(tmp_path):
    write_worker_logs(tmp_path, RUN)
    seen = []
    READER.read(sorted(tmp_path.iterdir()), ReadOptions(on_read=seen.append))
    assert [path.name for path in seen] == ["workerlog.0", "workerlog.1"]
