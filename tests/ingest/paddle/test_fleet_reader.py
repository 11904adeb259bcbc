"""Records of Paddle's dynamic-graph pipeline: real ones kept in tests/data, and planted ones."""

import subprocess
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stagescope
from peers import INSTALL_SECONDS, paddle_python, peer_variables
from places import DATA, TESTS
from stagescope.cli import main
from stagescope.ingest.paddle.fleet_reader import READER
from stagescope.ingest.reader import ReadOptions
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

SAMPLES = sorted((DATA / "paddle_fleet").iterdir())
"""Two ranks, 4 micro-batches, 3 steps, written by Paddle 3.3.1 on a CPU."""

TRAINING_SECONDS = 240
START_MS = 1_795_167_484_354
STEP_MS = 1_000


def record(name, phase, time_ms, stage=0):
    category = "virtual pipeline timeline" if "_VP" in name else "pipeline timeline"
    return (
        f'{{"name": "{name}", "cat": "{category}", "ph": "{phase}", "pid": 0, "tid": {stage + 1}, '
        f'"ts": {time_ms}, "cname": "thread_state_running"}}\n'
    )


def job(name, start_ms, stage=0, length_ms=3):
    return record(name, "B", start_ms, stage) + record(name, "E", start_ms + length_ms, stage)


def one_step(began_ms, stage=0, names=("F0", "F1", "B0", "B1")):
    return "".join(job(name, began_ms + 10 * stage + 5 * place, stage) for place, name in enumerate(names))


@pytest.fixture
def write(tmp_path):
    def write(rank, text, folder="."):
        path = tmp_path / folder / f"profile_record_tmp_file_for_rank_{rank}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def read(*paths):
    return READER.read(paths, ReadOptions())


def diagnosed(timeline, severity):
    table = timeline.diagnostics.filter(pl.col("severity") == severity)
    return [Diagnostic(**row) for row in table.to_dicts()]


def steps_of(timeline):
    """Return the step of each rank's jobs, by time."""
    return {
        rank: jobs["step"].to_list()
        for (rank,), jobs in timeline.spans.partition_by("rank", as_dict=True).items()
    }


@pytest.mark.parametrize("old", ['"F1"', f'"ts": {START_MS + 5}', '"tid": 1'])
def test_a_line_with_an_impossible_number_is_damaged(write, old):
    bad = one_step(START_MS).replace(
        old, old[:-1].rstrip('"0123456789') + "99999999999999999999" + '"' * old.endswith('"'), 1
    )
    (lines, jobs) = diagnosed(read(write(0, bad)), "error")
    assert (lines.code, lines.count, jobs.code, jobs.count) == ("lines.damaged", 1, "jobs.incomplete", 1)


def test_a_repeated_part_of_a_file_is_used_once(write):
    intact, repeated = read(write(0, one_step(START_MS))), read(write(0, one_step(START_MS) * 2))
    assert intact.spans.equals(repeated.spans)
    (error,) = diagnosed(repeated, "error")
    assert (error.code, error.count) == ("jobs.repeated", 4)


def test_records_are_recognized_by_their_content():
    assert READER.recognizes(SAMPLES[0], SAMPLES[0].read_bytes()[:4096])
    assert READER.recognizes(Path("any"), job("F0_VP0", START_MS).encode())
    assert not READER.recognizes(SAMPLES[0], b'{"name": "F0", "cat": "other", "ph": "B"}')


def test_reads_every_job_of_real_records_once():
    timeline = read(*SAMPLES)
    jobs = timeline.spans.group_by("rank", "step", "kind").len().sort("rank", "step", "kind").rows()
    assert jobs == [
        (rank, step, kind, 4) for rank in (0, 1) for step in (0, 1, 2) for kind in ("forward", "backward")
    ]
    assert timeline.spans.select("rank", "stage").unique().sort("rank").rows() == [(0, 0), (1, 1)]
    assert not timeline.is_partial


def test_timestamps_are_milliseconds_and_reported_as_such(write):
    timeline = read(write(0, one_step(START_MS)))
    assert timeline.spans.select("kind", "microbatch", "start_ns", "end_ns").row(1) == (
        "forward", 1, (START_MS + 5) * 10**6, (START_MS + 8) * 10**6,
    )  # fmt: skip
    assert "1 ms resolution" in timeline.clocks["method"][0]
    assert "clock.resolution" in {one.code for one in diagnosed(timeline, "info")}


def test_a_step_begins_with_micro_batch_0(write):
    text = "".join(one_step(START_MS + step * STEP_MS) for step in range(3))
    assert steps_of(read(write(0, text))) == {0: [0] * 4 + [1] * 4 + [2] * 4}


def test_matches_steps_by_time_if_one_rank_lacks_the_first(write):
    first = write(0, "".join(one_step(START_MS + step * STEP_MS) for step in range(3)))
    second = write(1, "".join(one_step(START_MS + step * STEP_MS, 1) for step in (1, 2)))
    assert steps_of(read(first, second)) == {0: [0] * 4 + [1] * 4 + [2] * 4, 1: [1] * 4 + [2] * 4}


def test_interleaved_chunks_are_local_and_have_no_stage(write):
    names = ("F0_VP0", "F0_VP1", "B0_VP1", "B0_VP0")
    timeline = read(*(write(rank, one_step(START_MS, rank, names)) for rank in (0, 1)))
    assert timeline.spans.filter(rank=1).select("kind", "chunk", "microbatch", "stage").rows() == [
        ("forward", 0, 0, None),
        ("forward", 1, 0, None),
        ("backward", 1, 0, None),
        ("backward", 0, 0, None),
    ]
    assert timeline.ranks["pp"].to_list() == [0, 1]


def test_replicas_are_separate_ranks_with_one_stage(write):
    timeline = read(*(write(rank, one_step(START_MS, rank // 2)) for rank in range(4)))
    assert timeline.ranks.select("rank", "pp").rows() == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert timeline.spans.height == 16


def test_ranks_are_numbers_and_a_missing_one_is_an_error(write):
    timeline = read(*(write(rank, one_step(START_MS)) for rank in (10, 2, 0, 1, 3)))
    assert timeline.ranks["rank"].to_list() == [0, 1, 2, 3, 10]
    (error,) = diagnosed(timeline, "error")
    assert (error.message, error.count) == ("no file of ranks 4-9: the highest rank with a file is 10", 6)


def test_an_appended_launch_has_its_own_steps(write):
    hour_ms = 3_600_000
    text = "".join(one_step(START_MS + part + step * STEP_MS) for part in (0, hour_ms) for step in range(2))
    timeline = read(*(write(rank, text) for rank in (0, 1)))
    assert steps_of(timeline)[0] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert (
        timeline.steps.select(longest=(pl.col("end_ns") - pl.col("start_ns")).max()).item() < STEP_MS * 10**6
    )
    assert "launches.several" in {one.code for one in diagnosed(timeline, "info")}


def test_an_unfinished_job_is_counted_and_ends_its_launch(write):
    killed = one_step(START_MS) + job("F0", START_MS + STEP_MS) + record("F1", "B", START_MS + STEP_MS + 5)
    timeline = read(write(0, killed + one_step(START_MS + 3_600_000)))
    assert steps_of(timeline) == {0: [0] * 4 + [1] + [2] * 4}
    (error,) = diagnosed(timeline, "error")
    assert (error.count, error.rank) == (1, 0)
    assert error.code == "jobs.incomplete"


def test_a_truncated_line_costs_one_timestamp_and_is_counted(write):
    text = one_step(START_MS)
    last = text.rstrip("\n").rindex("\n") + 1
    for cut in range(last + 1, len(text) - 2, 7):
        timeline = read(write(0, text[:cut]))
        assert timeline.spans.height == 3
        assert [one.count for one in diagnosed(timeline, "error")] == [1, 1]
        assert diagnosed(timeline, "error")[0].location == "first line 8"


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=60).filter(lambda noise: b"\n" not in noise and noise.strip()))
def test_foreign_bytes_between_records_lose_no_job(tmp_path_factory, noise):
    path = tmp_path_factory.mktemp("noise") / "profile_record_tmp_file_for_rank_0"
    lines = one_step(START_MS).encode().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], noise + b"\n", *lines[3:]]))
    timeline = read(path)
    assert timeline.spans.height == 4
    assert not diagnosed(timeline, "error") or diagnosed(timeline, "error")[0].location == "first line 4"


def test_files_of_several_directories_are_several_machines(write):
    first = write(0, one_step(START_MS), "machine0")
    timeline = read(first, write(1, one_step(START_MS, 1), "machine1"))
    assert timeline.ranks["machine"].to_list() == ["machine0", "machine1"]
    assert timeline.clocks["clock"].n_unique() == 2
    assert timeline.clocks["error_hi_ns"].null_count() == 2


def test_two_files_of_one_rank_are_refused(write):
    paths = [write(0, one_step(START_MS), folder) for folder in ("a", "b")]
    with pytest.raises(InputError, match="two recordings of rank 0"):
        read(*paths)


def test_a_name_without_a_rank_is_refused(tmp_path):
    path = tmp_path / "records"
    path.write_text(one_step(START_MS))
    with pytest.raises(InputError, match="the file name has no rank"):
        read(path)


def test_a_file_without_a_complete_job_is_an_error(write):
    empty = write(1, record("F0", "B", START_MS))
    timeline = read(write(0, one_step(START_MS)), empty)
    assert {(one.source, one.count) for one in diagnosed(timeline, "error")} == {(str(empty), 1)}
    assert timeline.spans.height == 4


def test_files_without_a_complete_job_are_refused(write):
    with pytest.raises(InputError, match="no job has both a begin and an end"):
        read(write(0, record("F0", "B", START_MS)))


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS)
def test_reads_and_shows_a_real_fleet_pipeline(tmp_path, capsys):
    microbatches, steps = 6, 3
    launch = [
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        "2",
        "--backend",
        "gloo",
        "--log_dir",
        "logs",
    ]
    script = TESTS / "paddle_training" / "fleet_pipeline.py"
    done = subprocess.run(
        [paddle_python(), *launch, script, str(microbatches), str(steps)],
        cwd=tmp_path, env=peer_variables(OMP_NUM_THREADS="1"), capture_output=True, text=True, check=False,
        timeout=TRAINING_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    timeline = stagescope.read(*tmp_path.glob("profile_record_*"))
    jobs = timeline.spans.group_by("rank", "step", "kind").len().sort("rank", "step", "kind").rows()
    assert jobs == [
        (rank, step, kind, microbatches)
        for rank in (0, 1)
        for step in range(steps)
        for kind in ("forward", "backward")
    ]
    assert main(["show", *map(str, tmp_path.glob("profile_record_*")), "--ascii"]) == 0
    shown = capsys.readouterr().out
    assert "2 ranks, 6 micro-batches, step " in shown.splitlines()[0]
    assert "error:" not in shown


def test_zeros_over_several_lines_are_a_damaged_line(write):
    text = one_step(START_MS) + one_step(START_MS + STEP_MS)
    start, end = text.index("cname") + 12, text.rindex("cname")
    damaged = text[:start] + "\0" * (end - start) + text[end:]
    timeline = read(write(0, one_step(START_MS - STEP_MS) + damaged))
    assert "lines.damaged" in timeline.diagnostics["code"].to_list()
