"""Whether a process of this machine exists, and whether its launcher may start it again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from recordings import span_record, write_recording
from stagescope.ingest.recording.latest import read_process_states
from stagescope.ingest.recording.living import BOOT_FILE, can_restart, exists

BOOT = BOOT_FILE.read_text().strip()
NAMESPACE = os.readlink("/proc/self/ns/pid")


def header(pid, **facts):
    return {"boot": BOOT, "pid": pid, "pid_namespace": NAMESPACE, **facts}


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_that_its_parent_has_not_waited_for_does_not_exist_any_more():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert exists(header(process.pid)) is True
        process.kill()
        until_s = time.monotonic() + 60
        while state_of(process.pid) != "Z" and time.monotonic() < until_s:
            time.sleep(0.01)
        assert exists(header(process.pid)) is False
    assert exists(header(process.pid)) is False


def test_an_id_of_another_machine_or_namespace_is_about_another_process():
    assert exists(header(os.getpid(), boot="elsewhere")) is None
    assert exists(header(os.getpid(), pid_namespace="pid:[1]")) is None
    assert exists({"boot": BOOT, "pid": os.getpid()}) is True
    assert exists({"boot": BOOT}) is None


def test_a_launcher_that_does_not_exist_or_has_no_restart_left_starts_nothing():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert can_restart(header(1, parent_pid=os.getpid()))
    assert can_restart(header(1, parent_pid=os.getpid(), restarts_left=1))
    assert not can_restart(header(1, parent_pid=os.getpid(), restarts_left=0))
    assert not can_restart(header(1, parent_pid=process.pid))
    assert can_restart(header(1, parent_pid=process.pid, boot="elsewhere"))
    assert can_restart({})


def write(path, began_ns, **facts):
    """Write a recording of 10 ms on the clock of recordings.py."""
    spans = [span_record("forward", began_ns, began_ns + 10**7, step=0)]
    return write_recording(path, spans, process_start_ns=began_ns, world_size=2, **facts)


def test_ranks_of_an_earlier_attempt_are_left_out_once_a_new_one_has_begun(tmp_path):
    second_ns = 10**9
    write(tmp_path / "rank-00000.sscope", 10 * second_ns, rank=0, pid=1)
    write(tmp_path / "rank-00001.sscope", 10 * second_ns, rank=1, pid=2)
    assert [state.rank for state in read_process_states([tmp_path])] == [0, 1]
    write(tmp_path / "rank-00001-3.sscope", 12 * second_ns, rank=1, pid=3, end=False)
    assert [(state.rank, state.pid) for state in read_process_states([tmp_path])] == [(1, 3)]
    write(tmp_path / "rank-00000-4.sscope", 13 * second_ns, rank=0, pid=4, end=False)
    assert [state.pid for state in read_process_states([tmp_path])] == [4, 3]
