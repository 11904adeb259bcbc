"""`stagescope watch` when a training ends and may be started again, with planted and real trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stagescope
from children import clean_environment, recording_command
from pipeline_recordings import planted_training
from recordings import encode, recording_frames
from stagescope import api
from stagescope.api.awaited_restart import AwaitedRestart
from stagescope.cli import main
from stagescope.cli.watch import EXIT_ALARM
from stagescope.cli.watch_output import RESTARTED, JsonLines, Log, View
from stagescope.ingest.recording.living import BOOT_FILE
from stagescope.record import format as fmt

TRAINING = Path(__file__).parents[1] / "restarting_training.py"
SECOND_NS = 10**9
BOOT = BOOT_FILE.read_text().strip()
NAMESPACE = os.readlink("/proc/self/ns/pid")


def write(directory, steps, ranks, *, ago_s, attempt=0, exception=None, **header):
    """Write recordings of processes that began some seconds ago, by now; with an exception, they have ended."""
    directory.mkdir(exist_ok=True)
    began_ns = time.monotonic_ns() - int(ago_s * SECOND_NS)
    moved = time.time_ns() - time.monotonic_ns()
    for rank, own in enumerate(planted_training(steps, 2, (), 1)):
        if rank not in ranks:
            continue
        facts = {"rank": rank, "world_size": 4, "pid": os.getpid(), "parent_pid": os.getpid(), **header}
        facts |= {"boot": BOOT, "pid_namespace": NAMESPACE, "process_start_ns": began_ns}
        facts |= {"recording": f"{rank}-{attempt}"}
        records = [shifted(record, began_ns) for step in own for record in step]
        frames = recording_frames(records, end=False, **facts)
        frames[2] = (fmt.CLOCK, anchor(began_ns, moved))
        if exception is not None:
            end = {"spans": len(records), "dropped_spans": 0, "reason": "exception", "exception": exception}
            frames.append((fmt.END, json.dumps(end).encode()))
        (directory / f"rank-{rank:05}-{attempt}.sscope").write_bytes(encode(frames))


def anchor(monotonic_ns, moved_ns):
    return fmt.ANCHOR.pack(monotonic_ns, monotonic_ns + moved_ns, 100)


def shifted(record, by_ns):
    start_ns, end_ns, *rest = fmt.SPAN.unpack(record)
    return fmt.SPAN.pack(start_ns + by_ns, end_ns + by_ns, *rest)


def crash(directory, **header):
    write(directory, 20, range(4), ago_s=30, exception="RuntimeError", **header)


def test_a_crash_is_an_alarm_at_once_and_a_new_attempt_is_followed(tmp_path, capsys):
    crash(tmp_path, restarts_left=1)
    watcher = api.Watcher(tmp_path)
    log, lines = Log(watcher), JsonLines()
    crashed = watcher.update()
    log.show(crashed)
    lines.show(crashed)
    assert (crashed.stopped, crashed.is_over) == (True, True)
    assert 0 < crashed.restart_wait_s <= 60
    out = capsys.readouterr().out
    assert "The training is over: ranks 0-3 ended by an exception." in out
    assert "s for the launcher to start the training again" in out
    assert '"event": "waiting_for_restart"' in out
    waiting = watcher.update()
    log.show(waiting)
    lines.show(waiting)
    assert (waiting.stopped, waiting.is_over, capsys.readouterr().out) == (False, True, "")
    write(tmp_path, 3, [1], ago_s=2, attempt=1)
    started = watcher.update()
    log.show(started)
    assert (started.is_restarted, started.continues, started.is_over, started.steps) == (
        True,
        False,
        False,
        (),
    )
    assert capsys.readouterr().out.splitlines() == [
        RESTARTED,
        "The training is starting, waiting for 3 of 4 ranks (0, 2-3).",
    ]
    view = []
    View(watcher, view.append).show(started)
    assert "The training is starting, waiting for 3 of 4 ranks (0, 2-3)." in view[0]
    write(tmp_path, 3, [0, 2, 3], ago_s=2, attempt=1)
    going = watcher.update()
    assert (going.is_restarted, going.continues, going.stopped, going.is_over) == (False, True, False, False)
    assert [values.step for values in going.steps] == [0, 1]
    assert going.restart_wait_s == 0


@pytest.mark.parametrize(
    ("header", "options"),
    [({"restarts_left": 0}, []), ({"parent_pid": 2**30}, []), ({}, ["--restart-grace", "0"])],
)
def test_the_watch_ends_where_no_new_attempt_is_expected(header, options, tmp_path, capsys):
    crash(tmp_path, **header)
    assert main(["watch", str(tmp_path), *options]) == EXIT_ALARM
    assert "start the training again" not in capsys.readouterr().out


def test_a_training_that_crashed_long_ago_is_not_waited_for(tmp_path):
    write(tmp_path, 20, range(4), ago_s=300, exception="RuntimeError")
    assert main(["watch", str(tmp_path)]) == EXIT_ALARM


def test_the_watch_ends_after_the_grace_time(tmp_path, capsys):
    crash(tmp_path)
    report = api.find_hang(tmp_path)
    awaited = AwaitedRestart(1000)
    assert 960 < awaited.wait_s(report) <= 1000
    assert main(["watch", str(tmp_path), "--restart-grace", "31", "--interval", "0.1"]) == EXIT_ALARM
    assert "start the training again" in capsys.readouterr().out


def test_steps_are_measured_once_all_ranks_have_begun(tmp_path, capsys):
    write(tmp_path, 5, [0, 3], ago_s=2)
    watcher = api.Watcher(tmp_path)
    first = watcher.update()
    assert (first.processes.awaited, first.steps, first.skipped, first.diagnostics) == ((1, 2), (), 0, ())
    Log(watcher).show(first)
    assert capsys.readouterr().out == "The training is starting, waiting for 2 of 4 ranks (1-2).\n"
    assert main(["hang", str(tmp_path)]) == 0
    assert "waiting for 2 of 4 ranks" in capsys.readouterr().out
    write(tmp_path, 5, [1, 2], ago_s=2)
    second = watcher.update()
    assert ([values.step for values in second.steps], second.skipped) == ([0, 1, 2, 3], 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["exit", "leave", "kill"])
def test_a_real_training_that_torchrun_starts_again(how, tmp_path):
    pytest.importorskip("torch")
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    changes = {"PYTHONPATH": str(Path(stagescope.__file__).parents[1])}
    # Without a store for each attempt, gloo often cannot connect in the second one (docs/launchers.md).
    environment = clean_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", **changes)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command = [*recording_command(recordings), *torchrun, "--max-restarts", "1", str(TRAINING), how, "15"]
    watch = [sys.executable, "-m", "stagescope", "watch", str(recordings), "--json", "--seconds", "150"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **silent) as training:
        done = subprocess.run(
            watch, capture_output=True, text=True, timeout=200, check=False, env=environment
        )
        assert training.wait(60) == 0
    assert done.returncode == EXIT_ALARM, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    names = [event["event"] for event in found]
    stopped = next(event for event in found if event["event"] == "stopped")
    expected = "was killed or crashed" if how == "kill" else "ended with exit status 3"
    assert f"rank 1 {expected}" in stopped["sentences"][0]
    if how != "kill":
        assert "Rank 1 ended first, with exit status 3." in stopped["sentences"]
    order = [names.index(name) for name in ("stopped", "waiting_for_restart", "restarted", "continues")]
    assert order == sorted(order)
    steps = [event["step"] for event in found[order[2] :] if event["event"] == "step"]
    assert steps[-1] == 29
