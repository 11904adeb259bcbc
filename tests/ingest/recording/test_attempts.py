"""Attempts of a run, recorded by real processes: restarted, started twice, forked, and copied."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from children import LIMIT_S, clean_environment, recording_command, run_child
from recordings import span_record, write_recording
from stagescope import api
from stagescope.cli import main
from stagescope.vocabulary.errors import InputError

TRAINING = """
import gc, os, sys
import stagescope.record as record

gc.disable()  # a collection of garbage is a span as well, at a moment that depends on the interpreter

def train(steps):
    for step in range(steps):
        with record.profile_range(step, 0, 100):
            with record.span("forward", microbatch=0, stage=0):
                pass
"""


def train(directory, steps, *, rank=0, world_size=1, code="", **environment):
    """Record one process in `directory`: `steps` steps, then `code`."""
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), **environment}
    body = f"{TRAINING}\nrecord.start({str(directory)!r})\ntrain({steps})\n{code}"
    done = run_child(body, env=clean_environment(**environment))
    assert done.returncode == 0, done.stderr
    return done


def steps_of(timeline):
    return timeline.spans.group_by("rank").agg(pl.n_unique("step")).sort("rank").rows()


def codes(timeline):
    return timeline.diagnostics["code"].to_list()


def test_a_process_that_starts_the_recorder_twice_makes_two_attempts(tmp_path):
    train(tmp_path, 2, code=f"record.stop(); record.start({str(tmp_path)!r}); train(3)")
    timeline = api.read(tmp_path)
    assert steps_of(timeline) == [(0, 3)]
    assert steps_of(api.read(tmp_path, attempt=0)) == [(0, 2)]
    (note,) = timeline.diagnostics.rows(named=True)
    assert (note["code"], note["severity"], note["count"]) == ("attempts.several", "info", 2)
    assert "attempt 1, the last complete one, is shown" in note["message"]
    assert "rank 0, 2 steps, ended by stop; 1:" in note["message"]


def test_shows_the_last_complete_attempt_of_restarted_ranks(tmp_path):
    for rank in (0, 1):
        train(tmp_path, 2, rank=rank, world_size=2)
    for rank in (1, 0):
        train(tmp_path, 4, rank=rank, world_size=2)
    train(tmp_path, 1, rank=1, world_size=2)
    timeline = api.read(tmp_path)
    assert steps_of(timeline) == [(0, 4), (1, 4)]
    (note,) = timeline.diagnostics.rows(named=True)
    assert (note["code"], note["severity"], note["count"]) == ("attempts.several", "warning", 3)
    last = api.read(tmp_path, attempt=2)
    assert last.ranks["rank"].to_list() == [1]
    assert "ranks.missing" in codes(last)


def test_separates_attempts_of_different_ranks_by_the_count_of_restarts(tmp_path):
    train(tmp_path, 2, rank=1, world_size=2, TORCHELASTIC_RESTART_COUNT="0")
    train(tmp_path, 2, rank=0, world_size=2, TORCHELASTIC_RESTART_COUNT="1")
    timeline = api.read(tmp_path)
    assert timeline.ranks["rank"].to_list() == [0]
    assert set(codes(timeline)) == {"attempts.several", "ranks.missing"}


def test_a_rank_without_a_recording_of_the_first_attempt_belongs_to_the_second(tmp_path):
    train(tmp_path, 2, rank=0, world_size=2)
    other = f"{TRAINING}\nrecord.start({str(tmp_path)!r})\ntrain(3)"
    start = (
        "import subprocess\n"
        f"subprocess.run([sys.executable, '-c', {other!r}], env={{**os.environ, 'RANK': '0'}}, check=True)\n"
        "train(4)"
    )
    train(tmp_path, 1, rank=1, world_size=2, code=start)
    assert steps_of(api.read(tmp_path)) == [(0, 3), (1, 4)]
    assert api.read(tmp_path, attempt=0).ranks["rank"].to_list() == [0]


def test_a_forked_child_does_not_break_the_recording_of_its_parent(tmp_path):
    fork = """
child = os.fork()
if child == 0:
    with record.profile_range(0, 0, 9), record.span("other", name="loads data"):
        pass
    record.stop()
    os._exit(0)
os.waitpid(child, 0)
train(3)
"""
    train(tmp_path, 2, code=fork)
    assert len(list(tmp_path.iterdir())) == 2
    timeline = api.read(tmp_path)
    assert timeline.spans["kind"].to_list() == ["forward"] * 5
    (note,) = timeline.diagnostics.rows(named=True)
    assert (note["code"], note["severity"], note["rank"]) == ("recording.beside", "warning", 0)
    assert "another process of this rank recorded 1 spans" in note["message"]


def test_a_started_child_does_not_break_the_recording_of_its_parent(tmp_path):
    start = f"""
import subprocess
code = {TRAINING!r} + "record.start({str(tmp_path)!r}); train(1)"
subprocess.run([sys.executable, "-c", code], check=True)
train(3)
"""
    train(tmp_path, 2, code=start)
    timeline = api.read(tmp_path)
    assert steps_of(timeline) == [(0, 3)]
    assert codes(timeline) == ["recording.beside"]


def test_a_copy_is_ignored_and_reported(tmp_path, capsys):
    train(tmp_path / "run", 2)
    (original,) = (tmp_path / "run").iterdir()
    shutil.copytree(tmp_path / "run", tmp_path / "run" / "backup")
    (tmp_path / "run" / f"{original.name}.gz").write_bytes(gzip.compress(original.read_bytes()))
    timeline = api.read(tmp_path / "run")
    assert steps_of(timeline) == [(0, 2)]
    assert timeline.diagnostics.select("severity", "code").rows() == [("info", "recording.copy")] * 2
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "a copy of" in capsys.readouterr().out


def test_a_copy_of_an_unfinished_recording_gives_way_to_the_whole_one(tmp_path):
    train(tmp_path, 2)
    (original,) = tmp_path.iterdir()
    whole = original.read_bytes()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / original.name).write_bytes(whole[: len(whole) - 50])
    timeline = api.read(tmp_path)
    assert timeline.ranks["source"].to_list() == [str(original)]
    assert timeline.diagnostics.select("severity", "code").rows() == [("warning", "recording.copy")]


def test_a_copy_of_a_recording_of_version_1_is_ignored(tmp_path):
    write_recording(tmp_path / "a.sscope", [span_record()])
    write_recording(tmp_path / "b.sscope", [span_record()])
    assert codes(api.read(tmp_path)) == ["recording.copy"]


def test_two_trainings_with_one_rank_at_the_same_time_are_refused(tmp_path):
    second = f"""
import subprocess
code = {TRAINING!r} + "record.start({str(tmp_path)!r}); train(1)"
middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
subprocess.run([sys.executable, "-c", middle, code], check=True)
train(1)
"""
    train(tmp_path, 1, code=second)
    with pytest.raises(InputError, match="two recordings of rank 0"):
        api.read(tmp_path)


def test_every_reading_command_takes_an_attempt(tmp_path, capsys):
    for steps in (2, 3):
        train(tmp_path / "run", steps)
    run = str(tmp_path / "run")
    assert main(["export", run, "--attempt", "0", "-o", str(tmp_path / "0.csv")]) == 0
    assert len((tmp_path / "0.csv").read_text().splitlines()) == 3
    assert main(["show", run, "--attempt", "0"]) == 0
    assert "2 attempts, of which attempt 0 is shown (--attempt N)" in capsys.readouterr().out.replace(
        "\n  ", " "
    )
    assert main(["report", run, "--attempt", "2"]) == 1
    assert "there is no attempt 2: the run has attempts 0-1" in capsys.readouterr().err


def test_other_formats_have_one_attempt(tmp_path):
    table = tmp_path / "spans.csv"
    table.write_text("rank,lane,kind,start_ns,end_ns\n0,compute,forward,0,5\n")
    assert api.read(table, attempt=0).spans.height == 1
    with pytest.raises(InputError, match="there is no attempt 1: the run has attempt 0"):
        api.read(table, attempt=1)


ELASTIC = """
import os, time
import stagescope.record as record
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(2 + attempt):
    with record.profile_range(step, 0, 9):
        with record.span("forward", microbatch=0, stage=int(os.environ["RANK"])):
            time.sleep(0.01)
if attempt == 0 and os.environ["RANK"] == "1":
    while not os.path.exists("rank 0 has trained"):  # torchrun may stop it before it has begun
        time.sleep(0.01)
    raise SystemExit(3)
if attempt == 0:
    open("rank 0 has trained", "w").close()
    time.sleep(60)
"""


def test_a_run_that_torchrun_restarted_is_shown(tmp_path):
    torchrun = Path(sys.executable).parent / "torchrun"
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(ELASTIC)
    command = [*recording_command(tmp_path / "rec"), sys.executable, str(torchrun)]
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", "--standalone"]
    done = subprocess.run(
        [*command, *options, str(tmp_path / "train.py")],
        env={**clean_environment(), "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True,
        timeout=2 * LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    timeline = api.read(tmp_path / "rec")
    assert steps_of(timeline) == [(0, 3), (1, 3)]
    assert steps_of(api.read(tmp_path / "rec", attempt=0)) == [(0, 2), (1, 2)]
    assert codes(timeline) == ["attempts.several"]
    assert os.listdir(tmp_path / "rec")
