"""stagescope paddle: the output of Paddle's own script, without its faults.

The faults are those of PaddlePaddle 3.3.1, auto_parallel/static/profiler_helper_static.py, each seen by running it.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from paddle_logs import PaddleRun, glog_prefix, job_line, simulated_jobs, write_worker_logs
from stagescope.cli import main
from stagescope.cli.paddle import RAW_FILES

RUN = PaddleRun(devices=2, microbatches=4, steps=3, first_step=10)
CHROME, PERFETTO = "pipeline_profile.json", "pipeline_profile_perfetto.json"
HOUR_US = 3_600_000_000


@pytest.fixture
def logs(tmp_path):
    """Return a directory with the logs of two devices, three steps from 10 on."""
    write_worker_logs(tmp_path / "logs", RUN)
    return tmp_path / "logs"


def events(directory, name=PERFETTO):
    return json.loads((directory / name).read_text(encoding="utf-8"))["traceEvents"]


def slices(directory, name=PERFETTO):
    return [event for event in events(directory, name) if event["ph"] == "X"]


def steps(directory):
    """Return the length of every step in microseconds, by its name."""
    return {event["name"]: event["dur"] for event in slices(directory) if event["cat"] == "step"}


def jobs(directory, thread=None):
    numbers = {number for number, name in threads(directory).items() if thread in (None, name)}
    return [event for event in slices(directory) if event["cat"] != "step" and event["tid"] in numbers]


def threads(directory, name=PERFETTO):
    return {e["tid"]: e["args"]["name"] for e in events(directory, name) if e["name"] == "thread_name"}


def call(directory, *words):
    return main(["paddle", "--log_dir", str(directory), *words])


_EVERY, MAKESPAN_US = simulated_jobs(RUN)
WHOLE_US = max(job.end_us for jobs in _EVERY for job in jobs)
"""Length of a step of RUN, and so of every complete step in these tests."""


def test_writes_both_files_next_to_the_logs_and_reports_them(logs, capsys):
    assert call(logs) == 0
    reported = capsys.readouterr().out.splitlines()
    size = (logs / CHROME).stat().st_size
    assert reported[0] == f"wrote {logs / CHROME}: {len(slices(logs, CHROME))} slices, {size} bytes"
    assert reported[1].startswith(f"wrote {logs / PERFETTO}: ")
    assert reported[2].startswith("steps 10-12, 2 ranks, bubble ")
    assert steps(logs) == {f"step{number}": WHOLE_US for number in (10, 11, 12)}


@pytest.mark.parametrize(
    "words",
    [
        ["--devices", "0,1", "--log_dir", "{logs}"],
        ["--log-dir", "{logs}", "--devices=0-1"],
        ["--log_dir={logs}"],
    ],
)
def test_the_arguments_are_those_of_paddles_script_in_either_spelling(logs, words):
    assert main(["paddle", *(word.format(logs=logs) for word in words)]) == 0
    assert len(jobs(logs)) == 3 * 2 * 9


def test_existing_files_are_overwritten_and_not_read_as_logs(logs):
    assert call(logs) == 0
    first = (logs / CHROME).read_bytes()
    assert call(logs) == 0
    assert (logs / CHROME).read_bytes() == first


def test_another_directory_is_made_and_written_to(logs, tmp_path):
    out = tmp_path / "new" / "profile"
    assert call(logs, "-o", str(out)) == 0
    assert {path.name for path in out.iterdir()} == {CHROME, PERFETTO}
    assert not (logs / CHROME).exists()


def test_a_directory_that_cannot_be_made_is_an_error(logs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call(logs, "-o", str(tmp_path / "file" / "below")) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_directory_that_does_not_exist_is_an_error(tmp_path, capsys):
    assert call(tmp_path / "nowhere") == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_logs_without_a_job_explain_how_to_enable_profiling(tmp_path, capsys):
    (tmp_path / "workerlog.0").write_text("loss: 1.0\n")
    assert call(tmp_path) == 1
    assert "job_schedule_profiler" in capsys.readouterr().err
    assert not (tmp_path / CHROME).exists()


def test_f1_devices_that_do_not_begin_at_0_keep_their_numbers(tmp_path):
    write_worker_logs(tmp_path, PaddleRun(devices=4))
    assert call(tmp_path, "--devices", "2,3") == 0
    assert threads(tmp_path) == {2333: "STEP", 2334: "GPU:2", 2335: "GPU:3"}
    assert {event["tid"] for event in slices(tmp_path)} == {2333, 2334, 2335}


def test_f2_f22_machines_are_in_natural_order(tmp_path):
    run = PaddleRun(devices=11, microbatches=11, steps=2)
    for machine in (3, 9, 2, 6, 7, 4, 5, 1, 0, 10, 8):
        write_worker_logs(tmp_path / f"machine{machine}", run, ranks=[machine])
    assert call(tmp_path, "--multi_machine") == 0
    assert list(threads(tmp_path).values()) == ["STEP", *(f"GPU:0(machine:{n})" for n in range(11))]
    begins = [min(job["ts"] for job in jobs(tmp_path, f"GPU:0(machine:{n})")) for n in range(11)]
    assert begins == sorted(begins)


def test_f3_a_single_machine_has_one_name_in_both_files(tmp_path):
    write_worker_logs(tmp_path / "machine0", RUN)
    assert call(tmp_path, "--multi-machine") == 0
    assert list(threads(tmp_path).values()) == ["STEP", "GPU:0(machine:0)", "GPU:1(machine:0)"]
    assert list(threads(tmp_path, CHROME).values()) == ["Step", "GPU0(machine:0)", "GPU1(machine:0)"]


def test_f4_a_log_truncated_inside_a_time_loses_that_job_only(logs, capsys):
    log = logs / "workerlog.1"
    text = log.read_bytes()
    log.write_bytes(text[: text.rindex(b"job_end_time = ") + len(b"job_end_time = 1697793")])
    assert call(logs) == 1
    assert len(jobs(logs)) == 3 * 2 * 9 - 1
    assert steps(logs)["step12"] <= WHOLE_US
    assert min(event["dur"] for event in slices(logs)) >= 0
    assert "error" in capsys.readouterr().out


def test_f5_invalid_utf8_loses_no_job(logs):
    log = logs / "workerlog.0"
    log.write_bytes(b"\xff\xfe\x80 not text\n" + log.read_bytes())
    assert call(logs) == 0
    assert len(jobs(logs)) == 3 * 2 * 9


def test_f6_a_missing_log_is_an_error_and_the_others_are_written(tmp_path, capsys):
    write_worker_logs(tmp_path, PaddleRun(devices=3))
    (tmp_path / "workerlog.1").unlink()
    assert call(tmp_path, "--devices", "0,1,2") == 1
    assert "workerlog.1" in capsys.readouterr().out
    assert list(threads(tmp_path).values())[-1] == "GPU:2"


def test_f7_a_rank_that_was_never_profiled_does_not_move_step_0_to_1970(logs):
    (logs / "workerlog.2").write_text("loss: 1.0\n")
    assert call(logs) == 1
    assert steps(logs) == {f"step{number}": WHOLE_US for number in (10, 11, 12)}


def test_f8_launches_appended_to_a_log_keep_their_own_step_numbers(logs):
    write_worker_logs(logs, replace(RUN, first_step=50, start_us=RUN.start_us + HOUR_US))
    assert call(logs) == 0
    assert steps(logs) == {f"step{number}": WHOLE_US for number in (10, 11, 12, 50, 51, 52)}


def test_f9_crossing_jobs_are_complete_and_on_separate_threads(tmp_path):
    start_us = RUN.start_us
    lines = [
        job_line("forward", 0, 0, start_us, start_us + 10),
        job_line("backward", 0, 0, start_us + 5, start_us + 15),
    ]
    (tmp_path / "workerlog.0").write_text("".join(f"{glog_prefix(start_us)}{line}\n" for line in lines))
    assert call(tmp_path) == 0
    assert [event["dur"] for event in jobs(tmp_path)] == [10, 10]
    assert threads(tmp_path) == {2333: "STEP", 2334: "GPU:0", 2335: "GPU:0 2"}


def test_f10_a_log_that_begins_a_step_later_is_matched_by_time(tmp_path):
    write_worker_logs(tmp_path, RUN, ranks=[0])
    second_us = RUN.start_us + MAKESPAN_US + RUN.gap_us
    late = replace(RUN, steps=2, first_step=11, start_us=second_us)
    write_worker_logs(tmp_path / "late", late, ranks=[1])
    (tmp_path / "late" / "workerlog.0").rename(tmp_path / "workerlog.1")
    assert call(tmp_path) == 0
    assert list(steps(tmp_path)) == ["step10", "step11", "step12"]
    assert steps(tmp_path)["step11"] == steps(tmp_path)["step12"] == WHOLE_US


def test_f11_machines_may_have_different_numbers_of_devices(tmp_path):
    run = PaddleRun(devices=3)
    write_worker_logs(tmp_path / "machine0", run, ranks=[0, 1])
    write_worker_logs(tmp_path / "machine1", run, ranks=[2])
    assert call(tmp_path, "--multi_machine") == 0
    assert list(threads(tmp_path).values())[1:] == [
        "GPU:0(machine:0)",
        "GPU:1(machine:0)",
        "GPU:0(machine:1)",
    ]


def test_f13_jobs_with_zero_times_do_not_move_a_step(tmp_path):
    write_worker_logs(tmp_path, PaddleRun(schedule="interleaved", chunks=2, transfers=True))
    assert call(tmp_path) == 0
    assert min(event["ts"] for event in slices(tmp_path)) >= RUN.start_us
    assert len(steps(tmp_path)) == 3


def test_f14_a_type_with_parentheses_is_drawn(tmp_path):
    write_worker_logs(tmp_path, RUN)
    for device in (0, 1):
        log = tmp_path / f"workerlog.{device}"
        log.write_text(log.read_text().replace("type = backward,", "type = backward(chunk0),"))
    assert call(tmp_path) == 0
    assert {event["name"] for event in jobs(tmp_path) if "backward" in event["cat"]} == {
        f"backward(chunk0)_{n}" for n in range(4)
    }


def test_f18_compressed_logs_are_read(logs):
    for device in (0, 1):
        log = logs / f"workerlog.{device}"
        log.with_suffix(f".{device}.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    assert call(logs) == 0
    assert len(jobs(logs)) == 3 * 2 * 9


def test_f21_a_job_has_micro_batch_step_stage_and_chunk(logs):
    assert call(logs) == 0
    first = jobs(logs, "GPU:1")[0]
    assert first["args"] == {"micro_batch_id": 0, "step": 10, "stage": 1, "chunk": 0}


def test_f22_slices_are_sorted_and_the_process_has_a_name(logs):
    assert call(logs) == 0
    times = [event["ts"] for event in slices(logs)]
    assert times == sorted(times)
    assert [e["args"]["name"] for e in events(logs) if e["name"] == "process_name"] == ["Paddle pipeline"]


def test_f23_a_directory_without_machines_is_an_error_and_no_empty_trace(tmp_path, capsys):
    assert call(tmp_path, "--multi_machine") == 1
    assert capsys.readouterr().err
    assert not (tmp_path / CHROME).exists()


def test_files_have_raw_timestamps_and_results_use_aligned_clocks(tmp_path, capsys):
    run, skew_us = PaddleRun(devices=2, microbatches=4, steps=4), 30_000
    write_worker_logs(tmp_path / "one clock", run)
    assert call(tmp_path / "one clock") == 0
    figures = capsys.readouterr().out.splitlines()[2]
    two = tmp_path / "two clocks"
    write_worker_logs(two / "machine0", run, ranks=[0])
    write_worker_logs(two / "machine1", run, ranks=[1], skew_us=skew_us)
    assert call(two, "--multi_machine") == 0
    lines = capsys.readouterr().out.splitlines()
    begins = [min(job["ts"] for job in jobs(two, f"GPU:0(machine:{n})")) for n in range(2)]
    assert begins[1] - begins[0] > skew_us
    assert figures in lines
    assert any(line.startswith("Clocks of 2 machines aligned") for line in lines)
    assert RAW_FILES in lines


def test_one_machine_has_no_line_about_clocks(logs, capsys):
    assert call(logs) == 0
    assert "clock" not in capsys.readouterr().out


def test_the_summary_counts_the_ranks_that_were_read(logs, capsys):
    (logs / "workerlog.2").write_text("no job here\n")
    assert call(logs, "--devices", "0-3") == 1
    out = capsys.readouterr().out
    assert "steps 10-12, 2 ranks, bubble " in out
    assert "no such file or directory" in out


def test_only_the_wanted_steps_are_written(logs, capsys):
    assert call(logs, "--steps", "11:12") == 0
    assert "\nstep 11, 2 ranks, " in capsys.readouterr().out
    assert steps(logs) == {"step11": WHOLE_US}


def test_the_written_profiles_are_not_read_with_the_logs(logs, capsys):
    assert call(logs) == 0
    capsys.readouterr()
    assert main(["show", str(logs)]) == 0
    assert "error" not in capsys.readouterr().out
    assert main(["show", str(logs / CHROME)]) == 1
    assert "was exported by stagescope for other viewers" in capsys.readouterr().err
