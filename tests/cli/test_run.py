"""`stagescope run` is as good as absent, and says what came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from stagescope import workflow

RECORDING = """
import sys, stagescope.record as record
for step in range(4):
    with record.profile_range(step, 0, 4) as wanted:
        with record.span("forward", microbatch=0, stage=0):
            pass
print("out"); print("err", file=sys.stderr)
"""


def stagescope(*arguments, cwd=None, **options):
    command = [sys.executable, "-m", "stagescope", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, **options
    )


def test_records_every_process_and_leaves_output_and_exit_code_alone(tmp_path):
    code = RECORDING + "sys.exit(3)"
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.splitlines() == [
        "err",
        "stagescope: the command failed with exit code 3",
        f"stagescope: recorded 1 process in {tmp_path / 'rec'} (1 kB)",
        f"  look at it with: stagescope show {tmp_path / 'rec'}",
    ]
    assert workflow.read(tmp_path / "rec").spans["step"].to_list() == [0, 1, 2, 3]


def test_steps_limits_what_is_recorded(tmp_path):
    done = stagescope("run", "--steps", "1:3", "-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
    assert done.returncode == 0
    assert workflow.read(tmp_path / "rec").spans["step"].to_list() == [1, 2]


def test_the_directory_is_named_by_date_unless_given(tmp_path):
    stagescope("run", "--", sys.executable, "-c", RECORDING, cwd=tmp_path)
    [directory] = tmp_path.iterdir()
    assert directory.name.startswith("stagescope-20")


def test_the_commands_own_options_are_not_ours(tmp_path):
    code = "import sys; print(sys.argv[1:])"
    done = stagescope(
        "run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code, "--steps", "x", "-o", "--force"
    )
    assert done.stdout == "['--steps', 'x', '-o', '--force']\n"


def test_a_command_that_records_nothing_is_told_and_leaves_no_directory(tmp_path):
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("stagescope: nothing was recorded")
    assert not (tmp_path / "rec").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--steps", "6:3", "--", "true"), 2, "stagescope: steps '6:3': no step lies between 6"),
        (("--steps", "six", "--", "true"), 2, "stagescope: steps 'six': expected A:B"),
        (("--", "no-such-program"), 127, "stagescope: cannot start 'no-such-program': no such program"),
        (("--", "/etc/passwd"), 126, "stagescope: cannot start '/etc/passwd': Permission denied"),
        (("-o", "/proc/version", "--", "true"), 1, "stagescope: cannot write /proc/version: File exists"),
        ((), 2, "Usage: stagescope run"),
    ],
)
def test_wrong_calls_get_one_sentence(tmp_path, arguments, code, message):
    done = stagescope("run", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_needs_force_which_replaces_recordings_only(tmp_path):
    call = ("-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
    assert stagescope("run", *call).returncode == 0
    (tmp_path / "rec" / "notes.txt").write_text("mine")
    refused = stagescope("run", *call)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"stagescope: {tmp_path / 'rec'} already exists\n  use --force")
    assert stagescope("run", "--force", *call).returncode == 0
    assert len(list((tmp_path / "rec").glob("*.sscope"))) == 1
    assert (tmp_path / "rec" / "notes.txt").read_text() == "mine"


def test_nodes_of_one_run_can_join_a_directory(tmp_path):
    for rank in ("0", "1"):
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        call = ("run", "--join", "-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
        assert "recorded 1 process" in stagescope(*call, env=environment).stderr
    timeline = workflow.read(tmp_path / "rec")
    assert timeline.ranks["rank"].to_list() == [0, 1]
    assert timeline.diagnostics.is_empty()


def test_a_command_that_dies_by_a_signal_takes_stagescope_along_the_same_way(tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(tmp_path, number):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(40))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    command = [sys.executable, "-m", "stagescope", "run", "-o", str(tmp_path / "rec"), "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 40
