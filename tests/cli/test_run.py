"""stagescope run does not change the behavior of its command, and prints a summary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from children import recording_command
from stagescope import api

RECORDING = """
import gc, sys, stagescope.record as record
gc.disable()  # an automatic collection would be a span
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


def test_records_every_process_and_keeps_output_and_exit_code(tmp_path):
    code = RECORDING + "sys.exit(3)"
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (3, "out\n")
    size_kb = sum(file.stat().st_size for file in (tmp_path / "rec").iterdir()) // 1000
    assert done.stderr.splitlines() == [
        "err",
        "stagescope: the command failed with exit code 3",
        f"stagescope: recorded 1 process in {tmp_path / 'rec'} ({size_kb} kB)",
        "  rank 0: 4 actions",
        f"  show it with: stagescope show {tmp_path / 'rec'}",
    ]
    assert api.read(tmp_path / "rec").spans.filter(kind="forward")["step"].to_list() == [0, 1, 2, 3]


def test_steps_selects_the_recorded_steps(tmp_path):
    done = stagescope("run", "--steps", "1:3", "-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
    assert done.returncode == 0
    assert api.read(tmp_path / "rec").spans["step"].to_list() == [1, 2]


def test_names_the_directory_by_date_by_default(tmp_path):
    stagescope("run", "--", sys.executable, "-c", RECORDING, cwd=tmp_path)
    [directory] = tmp_path.iterdir()
    assert directory.name.startswith("stagescope-20")


MANY_SPANS = """
import stagescope.record as record
from stagescope.record import session
for number in range(40_000):
    with record.span("forward", microbatch=0, stage=0):
        pass
    if number % 1000 == 0:
        session.recorder.flush()
"""


def test_the_language_of_the_call_reaches_the_processes(tmp_path):
    script = "import os; print(os.environ.get('STAGESCOPE_LANG'))"
    for options, expected in ((("--lang", "zh"), "zh\n"), ((), "en\n")):
        out = tmp_path / expected.strip()
        done = stagescope("run", *options, "-o", out, "--", sys.executable, "-c", script)
        assert done.stdout == expected


def test_max_bytes_limits_a_recording_and_counts_discarded_spans(tmp_path):
    code = [sys.executable, "-c", MANY_SPANS]
    done = stagescope("run", "--max-bytes", "1MiB", "-o", tmp_path / "rec", "--", *code)
    assert done.stderr.startswith("stagescope: recorded 1 process in ")
    assert sum(file.stat().st_size for file in (tmp_path / "rec").iterdir()) <= 2**20
    timeline = api.read(tmp_path / "rec")
    discarded = timeline.diagnostics.filter(pl.col("code") == "spans.discarded")["count"].item()
    assert timeline.spans.height + discarded == 40_000


def test_rejects_a_limit_that_is_too_small_before_running_anything(tmp_path):
    done = stagescope("run", "--max-bytes", "5k", "--", "touch", tmp_path / "ran", cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_machines_of_one_run_have_separate_directories(tmp_path):
    environment = {**os.environ, "GROUP_WORLD_SIZE": "2"}
    code = [sys.executable, "-c", RECORDING]
    done = stagescope("run", "-o", tmp_path / "rec", "--", *code, env=environment)
    assert "stagescope: recorded 1 process in " in done.stderr
    assert [path.relative_to(tmp_path / "rec").parts for path in (tmp_path / "rec").rglob("*.sscope")] == [
        (os.uname().nodename, "rank-00000.sscope")
    ]
    assert api.read(tmp_path / "rec").spans.height == 4
    stagescope("run", "--force", "-o", tmp_path / "rec", "--", *code, env=environment)
    assert api.read(tmp_path / "rec").spans.height == 4


def test_passes_the_options_of_the_command_on_unchanged(tmp_path):
    code = "import sys; print(sys.argv[1:])"
    done = stagescope(
        "run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code, "--steps", "x", "-o", "--force"
    )
    assert done.stdout == "['--steps', 'x', '-o', '--force']\n"


def test_warns_if_nothing_was_recorded_and_removes_the_directory(tmp_path):
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("stagescope: nothing was recorded")
    assert not (tmp_path / "rec").exists()


def test_an_end_without_notice_is_named_as_a_reason_for_missing_spans(tmp_path):
    action = "with record.forward(microbatch=0, stage=0): pass"
    code = f"import os, stagescope.record as record\n{action}\nos._exit(0)"
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code)
    reason = "or it was killed or called os._exit within half a second after its first action"
    assert (reason in done.stderr) != ("1 action" in done.stderr)  # a busy machine may take half a second


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--steps", "6:3", "--", "true"), 2, "stagescope: steps '6:3': the range from 6"),
        (("--steps", "six", "--", "true"), 2, "stagescope: steps 'six': expected A:B"),
        (("--", "no-such-program"), 127, "stagescope: cannot start 'no-such-program': no such program"),
        (("--", "/etc/passwd"), 126, "stagescope: cannot start '/etc/passwd': Permission denied"),
        ((), 2, "Usage: stagescope run"),
    ],
)
def test_a_wrong_call_gets_one_sentence(tmp_path, arguments, code, message):
    done = stagescope("run", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_force_replaces_only_the_recordings_of_an_existing_directory(tmp_path):
    call = ("-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
    assert stagescope("run", *call).returncode == 0
    (tmp_path / "rec" / "notes.txt").write_text("mine")
    before = (tmp_path / "rec" / "rank-00000.sscope").read_bytes()
    assert stagescope("run", *call).returncode == 0
    assert (tmp_path / "rec" / "rank-00000.sscope").read_bytes() == before
    assert stagescope("run", "--force", *call).returncode == 0
    assert len(list((tmp_path / "rec").glob("*.sscope"))) == 1
    assert (tmp_path / "rec" / "notes.txt").read_text() == "mine"


def test_nodes_of_one_run_can_record_into_one_directory(tmp_path):
    for rank in ("0", "1"):
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        call = ("run", "--join", "-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
        assert "recorded 1 process" in stagescope(*call, env=environment).stderr
    timeline = api.read(tmp_path / "rec")
    assert timeline.ranks["rank"].to_list() == [0, 1]
    assert timeline.diagnostics.is_empty()


def test_terminates_by_the_same_signal_as_its_command(tmp_path):
    code = "import os; os.kill(os.getpid(), 9)"
    done = stagescope("run", "-o", tmp_path / "rec", "--", sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_forwards_signals_to_the_command(tmp_path, number):
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(40))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [*recording_command(tmp_path / "rec"), sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 40


def test_detail_is_passed_on_and_checked(tmp_path):
    code = "import os; print(repr(os.environ['STAGESCOPE_DETAIL']))"
    command = ("--", sys.executable, "-c", code)
    assert (
        "'collectives'" in stagescope("run", "--detail", "collectives", "-o", tmp_path / "a", *command).stdout
    )
    both = stagescope("run", "--detail", "collectives", "--detail", "memory", "-o", tmp_path / "d", *command)
    assert "'collectives,memory'" in both.stdout
    inherited = {**os.environ, "STAGESCOPE_DETAIL": "collectives"}
    assert "''" in stagescope("run", "-o", tmp_path / "b", *command, env=inherited).stdout
    assert "'collectives'" in stagescope("run", "--detail", "all", "-o", tmp_path / "c", *command).stderr


def test_the_printed_environment_records_a_command(tmp_path):
    printed = stagescope(
        "run", "--print-environment", "--steps", "1:3", "-o", tmp_path / "rec", cwd=tmp_path
    ).stdout
    assert not (tmp_path / "rec").exists()
    script = tmp_path / "train.py"
    script.write_text(RECORDING, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "own")}
    shell = f"{printed}\n{sys.executable} {script} && echo $PYTHONPATH"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1].endswith(f"record/hook:{tmp_path / 'own'}")
    assert api.read(tmp_path / "rec").spans["step"].to_list() == [1, 2]


def test_also_reaches_the_processes_and_rejects_unknown_profilers(tmp_path):
    code = "import os; print(os.environ['STAGESCOPE_ALSO'])"
    command = ["--", sys.executable, "-c", code]
    done = stagescope("run", "--also", "NVTX,kineto", "-o", tmp_path / "rec", *command)
    assert (done.returncode, done.stdout) == (0, "nvtx,kineto\n")
    inherited = {**os.environ, "STAGESCOPE_ALSO": "mstx"}
    assert stagescope("run", "-o", tmp_path / "rec", *command, env=inherited).stdout == "\n"
    wrong = stagescope("run", "--also", "itt", "-o", tmp_path / "rec", *command)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--also 'itt': expected a comma-separated list of kineto, mstx, nvtx" in wrong.stderr
    assert not (tmp_path / "rec").exists()


def test_a_missing_profiler_is_a_warning_and_recording_continues(tmp_path):
    done = stagescope("run", "--also", "nvtx", "-o", tmp_path / "rec", "--", sys.executable, "-c", RECORDING)
    assert done.returncode == 0
    assert "stagescope: nvtx ranges are no longer written: the training has not imported" in done.stderr
    assert api.read(tmp_path / "rec").spans.filter(kind="forward")["step"].to_list() == [0, 1, 2, 3]
