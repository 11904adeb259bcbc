"""The directory of a run: who may record into it, and what one command leaves for the next."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from children import LIMIT_S, clean_environment, recording_command
from stagescope import api
from stagescope.record.run_directory import MARKER, Launch, enter
from stagescope.vocabulary.errors import OutputError


def occupy(directory, *, force=False, join=False):
    """Enter a directory as a command without a launcher and leave it again."""
    enter(directory, Launch([], force=force, join=join)).leave(directory)


TRAINING = """
import sys, time
import stagescope.record as record
for step in range(3):
    for microbatch in range(2):
        with record.span("forward", microbatch=microbatch, stage=0):
            time.sleep(0.01)
print("trained")
sys.exit(4)
"""


HOLD = "import os, time\nwhile not os.path.exists(os.environ['HOLD']): time.sleep(0.01)\n"
"""Runs until the file that the variable names exists."""


def until(is_so):
    """Wait for a fact."""
    limit_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def start(directory, *options, code=TRAINING, **environment):
    return subprocess.Popen(
        [*recording_command(directory, *options), sys.executable, "-c", code],
        env=clean_environment(**environment), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(process):
    """Return the exit code, the output and the lines on standard error of a command."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err.splitlines()


def ranks_in(directory, attempt=None):
    return api.read(directory, attempt=attempt).ranks["rank"].to_list()


def age(directory, seconds):
    """Make a directory as old as if its first command had started `seconds` earlier."""
    first, *others = (directory / MARKER).read_text(encoding="utf-8").splitlines()
    facts = json.loads(first)
    facts["created"] -= seconds
    (directory / MARKER).write_text("\n".join([json.dumps(facts), *others]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("delay_s", [0, 0.7])
def test_every_rank_under_a_command_of_its_own_is_recorded(tmp_path, delay_s):
    running = []
    for rank in range(3):
        running.append(start(tmp_path / "rec", RANK=str(rank), WORLD_SIZE="3"))
        time.sleep(delay_s)
    for process in running:
        code, out, err = end(process)
        assert (code, out) == (4, "trained\n")
        assert any(line.startswith("stagescope: recorded 1 process in") for line in err), err
    timeline = api.read(tmp_path / "rec")
    assert timeline.ranks["rank"].to_list() == [0, 1, 2]
    assert timeline.diagnostics.rows() == []


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"},
        {"TORCHELASTIC_RUN_ID": "x", "RANK": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "train-master-0", "RANK": "0"},
    ],
)
def test_a_launcher_that_starts_a_rank_again_makes_an_attempt(tmp_path, variables):
    assert end(start(tmp_path / "rec", **variables))[0] == 4
    age(tmp_path / "rec", 1e6)
    code, _, err = end(start(tmp_path / "rec", **variables))
    assert code == 4
    assert any("recorded 1 process" in line for line in err), err
    assert ranks_in(tmp_path / "rec") == ranks_in(tmp_path / "rec", attempt=0) == [0]


def test_a_command_without_a_launcher_joins_while_the_first_one_runs(tmp_path):
    first = start(tmp_path / "rec", code=HOLD + TRAINING, HOLD=str(tmp_path / "go"))
    until((tmp_path / "rec" / MARKER).exists)
    assert end(start(tmp_path / "rec", RANK="1"))[0] == 4
    (tmp_path / "go").touch()
    end(first)
    assert ranks_in(tmp_path / "rec") == [0, 1]


@pytest.mark.parametrize(
    ("first", "second", "age_s"),
    [
        ({}, {}, 0),
        ({"RANK": "0"}, {"RANK": "0"}, 0),
        ({"RANK": "0"}, {"RANK": "1"}, 121),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, {"SLURM_JOB_ID": "8", "SLURM_PROCID": "1"}, 0),
    ],
)
def test_a_command_of_another_run_is_not_recorded_but_runs(tmp_path, first, second, age_s):
    end(start(tmp_path / "rec", **first))
    age(tmp_path / "rec", age_s)
    code, out, err = end(start(tmp_path / "rec", **second))
    assert (code, out, len(err)) == (4, "trained\n", 1)
    assert err[0].startswith(f"stagescope: not recorded: {tmp_path / 'rec'} already has files of another run")
    assert len(list((tmp_path / "rec").glob("*.sscope"))) == 1


def test_a_directory_that_cannot_be_written_does_not_keep_the_command_from_running():
    code, out, err = end(start("/proc/version"))
    assert (code, out) == (4, "trained\n")
    assert err == ["stagescope: not recorded: cannot write /proc/version: File exists"]


def test_force_of_one_rank_keeps_the_recordings_of_the_others(tmp_path):
    end(start(tmp_path / "rec", RANK="9"))
    marker = tmp_path / "rec" / MARKER
    before = marker.read_bytes()
    running = [start(tmp_path / "rec", "--force", SLURM_JOB_ID="7", SLURM_PROCID="0")]
    until(lambda: marker.exists() and marker.read_bytes() not in (b"", before))
    running.append(start(tmp_path / "rec", "--force", SLURM_JOB_ID="7", SLURM_PROCID="1"))
    assert [end(process)[0] for process in running] == [4, 4]
    assert ranks_in(tmp_path / "rec") == [0, 1]
    end(start(tmp_path / "rec", "--force", SLURM_JOB_ID="7", SLURM_PROCID="1"))
    assert ranks_in(tmp_path / "rec") == [1]


def test_a_command_that_records_nothing_leaves_the_directory_to_the_others(tmp_path):
    first = start(tmp_path / "rec", code=HOLD, HOLD=str(tmp_path / "go"))
    until((tmp_path / "rec" / MARKER).exists)
    end(start(tmp_path / "rec", RANK="1"))
    (tmp_path / "go").touch()
    _, _, err = end(first)
    assert err[0].startswith("stagescope: nothing was recorded")
    assert ranks_in(tmp_path / "rec") == [1]


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_missing_directory_is_created(tmp_path):
    occupy(tmp_path / "a" / "b")
    assert names_in(tmp_path / "a") == []


def test_empty_directory_is_accepted(tmp_path):
    (tmp_path / "empty").mkdir()
    occupy(tmp_path / "empty")
    assert names_in(tmp_path) == []


@pytest.fixture
def used(tmp_path):
    for name in ("rank00000-1.sscope", "notes.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    return tmp_path


def test_non_empty_directory_is_refused_and_unchanged(used):
    with pytest.raises(OutputError, match="already has files of another run"):
        occupy(used)
    assert names_in(used) == ["notes.txt", "rank00000-1.sscope"]


def test_force_removes_only_recordings(used):
    occupy(used, force=True)
    assert names_in(used) == ["notes.txt"]


def test_join_keeps_existing_files(used):
    occupy(used, join=True)
    assert names_in(used) == [MARKER, "notes.txt", "rank00000-1.sscope"]


@pytest.mark.parametrize("options", [{}, {"force": True}, {"join": True}])
def test_file_is_refused_as_directory(tmp_path, options):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(OutputError, match=f"cannot write {path}: (File exists|Not a directory)"):
            occupy(path, **options)


def test_unwritable_directory_is_refused():
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a directory that refuses files even to root")
    with pytest.raises(OutputError, match="cannot write /proc/self"):
        occupy(Path("/proc/self"), join=True)


def test_undeletable_recording_is_an_error(used):
    (used / "odd.sscope").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        occupy(used, force=True)
