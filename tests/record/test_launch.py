"""Running a command: how the parent handles output, exit codes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from children import LIMIT_S, child, clean_environment, run_child
from recordings import span_record, write_recording
from stagescope.record.launch import (
    HOOK_DIRECTORY,
    Ended,
    count_processes,
    recording_environment,
    refusals_in,
    run_command,
)
from stagescope.record.run_directory import recordings_in
from stagescope.record.session import MAX_BYTES_VARIABLE
from stagescope.vocabulary.errors import CommandError

PARENT = """
import os, signal, sys
from pathlib import Path
from stagescope.record import launch
directory = Path(sys.argv[1])
environment = launch.recording_environment(directory, steps=None, run="r", inherited=os.environ)
ended = launch.run_command(sys.argv[2:], environment)
sys.stderr.write(f"{ended.exit_code} {ended.signal_number}\\n")
"""
SAME_END = PARENT + "launch.end_by_same_signal(ended)\nsys.exit(ended.exit_code)\n"


def shell(text):
    return ["sh", "-c", text]


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_exit_code_is_unchanged(code):
    assert run_command(shell(f"exit {code}"), clean_environment()) == Ended(code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_end_by_signal_is_reported_like_a_shell(number):
    assert run_command(shell(f"kill -{int(number)} $$"), clean_environment()) == Ended(128 + number, number)


def test_end_is_noticed_although_another_thread_takes_the_signal(monkeypatch):
    poll, polled = subprocess.Popen.poll, []

    def late_poll(process):
        if not polled:
            polled.append(os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT))
            return None
        return poll(process)

    monkeypatch.setattr(subprocess.Popen, "poll", late_poll)
    done = threading.Event()
    other = threading.Thread(target=done.wait)  # does not block SIGCHLD, so the kernel chooses it
    other.start()
    try:
        assert run_command(shell("exit 3"), clean_environment()) == Ended(3, None)
    finally:
        done.set()
        other.join()
    assert polled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_caller_sees_the_signal_that_ended_the_command(tmp_path, number):
    done = run_child(SAME_END, tmp_path, *shell(f"kill -{int(number)} $$"), cwd=tmp_path)
    assert done.returncode == -number
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("core")] == []


def test_caller_sees_the_exit_code_of_the_command(tmp_path):
    assert run_child(SAME_END, tmp_path, *shell("exit 9")).returncode == 9


def test_output_is_passed_through_unchanged(tmp_path):
    every = bytes(range(256)) * 500
    command = shell("cat; echo done >&2")
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path), *command],
        input=every, capture_output=True, env=clean_environment(), timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.stdout == every
    assert done.stderr == b"done\n0 None\n"


def test_output_can_be_redirected_to_a_file(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        run_command(shell("echo out; echo err >&2"), clean_environment(), log)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "out\nerr\n"


COUNTS_SIGNALS = """
import signal, sys, time
seen = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
print(*seen, flush=True)
sys.exit(11)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT]
)
def test_signal_to_the_parent_reaches_the_command_once(tmp_path, number):
    with child(PARENT, tmp_path, sys.executable, "-c", COUNTS_SIGNALS) as process:
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
        assert process.stdout.read().split() == [str(int(number))]
        assert process.stderr.read() == "11 None\n"


def test_parent_ends_by_the_same_signal_as_the_command(tmp_path):
    with child(SAME_END, tmp_path, *shell("echo ready; exec sleep 60")) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == -signal.SIGTERM
        assert process.stderr.read() == "143 15\n"


def test_signals_are_forwarded_in_order(tmp_path):
    code = COUNTS_SIGNALS.replace("while not seen:", "while len(set(seen)) < 3:")
    with child(PARENT, tmp_path, sys.executable, "-c", code) as process:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
        assert sorted(process.stdout.read().split()) == sorted(map(str, map(int, (10, 12, 15))))


def test_terminal_signals_are_not_forwarded(tmp_path):
    leader, follower = os.openpty()
    code = "import fcntl, termios, os, sys; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" + PARENT
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), sys.executable, "-c", COUNTS_SIGNALS],
        stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            os.write(leader, b"\x03")
            output, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            os.close(leader)
            os.close(follower)
    assert output.split() == [str(int(signal.SIGINT))]
    assert errors == "11 None\n"


def test_stopped_and_continued_command_is_awaited():
    assert run_command(
        shell("(sleep 0.2; kill -CONT $$) & kill -STOP $$; exit 4"), clean_environment()
    ) == Ended(4, None)


def test_exit_code_is_seen_although_sigchld_is_ignored(tmp_path):
    code = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + PARENT
    asks = "import signal; print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN); raise SystemExit(6)"
    done = run_child(code, tmp_path, sys.executable, "-c", asks, timeout=20)
    assert (done.stdout, done.stderr) == ("True\n", "6 None\n")


def test_command_inherits_our_initial_signal_state(tmp_path):
    code = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n" + PARENT
    asks = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"
    assert run_child(code, tmp_path, sys.executable, "-c", asks).stdout == f"[{int(signal.SIGUSR2)}]\n"


def test_own_signal_state_is_restored_after_the_command():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    run_command(["true"], clean_environment())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    with pytest.raises(CommandError):
        run_command(["no-such-program"], clean_environment())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_signal_at_the_very_end_is_discarded(tmp_path):
    command = shell("kill -TERM $PPID; kill -USR1 $PPID; exit 0")
    done = run_child(PARENT, tmp_path, *command)
    assert done.returncode == 0
    assert done.stderr in ("0 None\n", "143 15\n", "138 10\n")


def test_missing_program_is_an_error():
    with pytest.raises(CommandError, match="cannot start 'no-such-program': no such program") as caught:
        run_command(["no-such-program", "x"], clean_environment())
    assert caught.value.exit_code == 127


def test_path_below_a_file_is_a_missing_program(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CommandError, match="no such program"):
        run_command([str(tmp_path / "file" / "program")], clean_environment())


@pytest.mark.parametrize("content", ["", "#!/bin/sh\n"])
def test_non_executable_file_cannot_be_started(tmp_path, content):
    script = tmp_path / "train.sh"
    script.write_text(content, encoding="utf-8")
    with pytest.raises(CommandError, match="Permission denied") as caught:
        run_command([str(script)], clean_environment())
    assert caught.value.exit_code == 126


def test_program_of_unknown_format_cannot_be_started(tmp_path):
    script = tmp_path / "program"
    script.write_bytes(b"\x00\x01\x02")
    script.chmod(0o755)
    with pytest.raises(CommandError, match="Exec format error"):
        run_command([str(script)], clean_environment())


def environment_of(**inherited):
    return recording_environment(
        Path("runs"), steps=inherited.pop("steps", None), run="r", inherited=inherited
    )


def test_environment_contains_directory_and_run():
    made = environment_of(HOME="/home")
    assert made["STAGESCOPE_OUT"] == str(Path.cwd() / "runs")
    assert (made["STAGESCOPE_RUN"], made["HOME"]) == ("r", "/home")


def test_hook_precedes_the_users_python_path():
    assert environment_of()["PYTHONPATH"] == str(HOOK_DIRECTORY)
    assert environment_of(PYTHONPATH="")["PYTHONPATH"] == str(HOOK_DIRECTORY)
    assert environment_of(PYTHONPATH="/a:/b")["PYTHONPATH"] == f"{HOOK_DIRECTORY}:/a:/b"


def test_steps_of_an_outer_call_are_not_inherited():
    assert environment_of(steps="2:5")["STAGESCOPE_STEPS"] == "2:5"
    assert "STAGESCOPE_STEPS" not in environment_of(STAGESCOPE_STEPS="7:9")


@pytest.mark.parametrize(("bound", "passed_on"), [(None, None), (0, "0"), (2**20, "1048576")])
def test_size_limit_of_an_outer_call_is_not_inherited(bound, passed_on):
    environment = recording_environment(
        Path("x"), steps=None, run="r", inherited={MAX_BYTES_VARIABLE: "77"}, max_bytes=bound
    )
    assert environment.get(MAX_BYTES_VARIABLE) == passed_on


def test_finds_recordings_of_all_machines_and_counts_processes(tmp_path):
    for name in (
        "rank-00000.sscope",
        "a/rank-00001.3.sscope",
        "a/rank-00001.4.sscope",
        "b/rank-00001.sscope",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "notes.txt").touch()
    found = recordings_in(tmp_path)
    assert len(found) == 4
    assert count_processes(found) == 3


def test_hook_directory_contains_the_hook():
    assert (HOOK_DIRECTORY / "sitecustomize.py").is_file()
    assert HOOK_DIRECTORY.is_absolute()


def test_no_child_process_remains(tmp_path):
    code = PARENT + "os.waitpid(-1, os.WNOHANG)\n"
    done = run_child(code, tmp_path, *shell("sleep 0.05"), cwd=tmp_path)
    assert "ChildProcessError" in done.stderr


def test_summary_names_each_framework_that_was_not_recorded_once(tmp_path):
    missing = ["`megatron.core.pipeline_parallel.schedules:forward_step` not found"]
    facts = {"Megatron-core": {"version": "0.20", "recorded": False, "missing": missing}}
    recorded = {"DeepSpeed": {"version": "0.19.8", "recorded": True, "missing": []}}
    for rank in range(2):
        write_recording(tmp_path / f"rank-{rank}.sscope", [], rank=rank, frameworks=facts | recorded)
    write_recording(tmp_path / "rank-2.sscope", [span_record()], rank=2)
    (tmp_path / "rank-3.sscope").write_bytes(b"damaged")
    assert refusals_in(recordings_in(tmp_path)) == [f"Megatron-core 0.20: {missing[0]}"]
