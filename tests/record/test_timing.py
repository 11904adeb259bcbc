"""Actions are timed on the host until a device is found, and on the device from then on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from children import child, contents_in, end_of, only_contents, run_child
from fake_device import FakeDevice
from recorder_threads import remaining_threads
from stagescope import api as workflow
from stagescope import record
from stagescope.record import devices
from stagescope.record.clock import now_ns
from stagescope.vocabulary.kinds import BY_NAME
from stagescope.vocabulary.steps import parse_step_range
from trainings import TESTS

FORWARD = BY_NAME["forward"].code


@pytest.fixture
def device(monkeypatch):
    """A device that the training has already initialized."""
    device = FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0, offset_ns=10**12, drift_ppm=100.0)
    monkeypatch.setattr(devices, "find_device", lambda reported: None if reported == "cpu" else device)
    return device


def action(recorder, microbatch, **fields):
    token = recorder.timer.begin()
    recorder.timer.end(token, FORWARD, 0, microbatch, **fields)


def test_every_field_of_an_action_is_recorded(recorder, tmp_path):
    recorder.begin_step(7)
    before_ns = now_ns()
    token = recorder.timer.begin()
    recorder.timer.end(token, FORWARD, 1, 2, chunk=3, name=recorder.name_id("a"), pair=4)
    recorder.stop("test")
    (row,) = workflow.read(tmp_path).spans.rows(named=True)
    wanted = {"kind": "forward", "lane": "compute", "step": 7, "stage": 1, "microbatch": 2, "chunk": 3}
    assert {name: row[name] for name in wanted} == wanted
    assert (row["pair"], row["name"]) == (4, "a")
    assert before_ns <= only_contents(tmp_path).spans["start_ns"][0] <= now_ns()


def test_host_timer_reads_the_clock_directly(recorder):
    recorder.timer.begin()
    assert recorder.timer.begin is now_ns


def test_signal_handler_that_records_during_the_search_for_a_device_is_timed_on_the_host(
    recorder, tmp_path, monkeypatch, capsys
):
    searches = []

    def find(reported):
        searches.append(reported)
        action(recorder, 9)  # as a handler that interrupts the import of a module of a device
        recorder.timer.look_for_device()

    monkeypatch.setattr(devices, "find_device", find)
    action(recorder, 0)
    assert len(searches) == 1
    recorder.timer.look_for_device()
    assert len(searches) == 2
    recorder.stop("test")
    assert sorted(only_contents(tmp_path).spans["microbatch"].tolist()) == [0, 9, 9]
    assert capsys.readouterr().err == ""


def test_host_moments_are_resolved_immediately(recorder):
    resolved = []
    recorder.timer.resolve(lambda *times_ns: resolved.append(times_ns), 1, 2)
    assert resolved == [(1, 2)]


def test_initialized_device_times_the_first_action(recorder, device, tmp_path):
    before_ns = now_ns()
    action(recorder, 0)
    after_ns = now_ns()
    time.sleep(0.01)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert (contents.header["device"], contents.header["device_model"]) == ("fake:0", "Fake 1")
    error_ns = int(contents.device_anchors["error_ns"].max())
    assert before_ns - error_ns <= contents.spans["start_ns"][0] <= contents.spans["end_ns"][0]
    assert contents.spans["end_ns"][0] <= after_ns + error_ns
    assert device.records == 2


def test_first_action_may_begin_and_end_in_one_expression(recorder, device, tmp_path):
    recorder.timer.end(recorder.timer.begin(), FORWARD, 0, 3)
    time.sleep(0.01)
    recorder.stop("test")
    assert device.records == 2
    assert only_contents(tmp_path).spans["microbatch"].tolist() == [3]


def test_action_without_begin_is_counted(recorder, tmp_path):
    recorder.timer.end(None, FORWARD)
    recorder.stop("test")
    assert only_contents(tmp_path).dropped_spans == 1


def test_later_device_is_used_from_the_next_step(recorder, monkeypatch, tmp_path):
    action(recorder, 0)
    device = FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0)
    monkeypatch.setattr(devices, "find_device", lambda reported: device)
    action(recorder, 1)
    recorder.begin_step()
    action(recorder, 2)
    time.sleep(0.01)
    recorder.stop("test")
    assert device.records == 2
    assert only_contents(tmp_path).spans["microbatch"].tolist() == [0, 1, 2]


def test_reported_device_takes_precedence_over_an_initialized_one(recorder, device, tmp_path):
    action(recorder, 0)
    recorder.timer.set_tensor_device("cpu")
    action(recorder, 1)
    recorder.begin_step()
    action(recorder, 2)
    recorder.stop("test")
    assert device.records == 2
    contents = only_contents(tmp_path)
    assert sorted(contents.spans["microbatch"]) == [0, 1, 2]
    assert contents.dropped_spans == 0


def test_failing_device_search_is_reported_once(recorder, monkeypatch, capsys, tmp_path):
    def broken(reported):  # noqa: ARG001 - the signature of find_device
        raise AttributeError("torch has no cuda")

    monkeypatch.setattr(devices, "find_device", broken)
    action(recorder, 0)
    for _ in range(3):
        recorder.begin_step()
        action(recorder, 1)
    recorder.stop("test")
    assert capsys.readouterr().err.count("cannot time actions on the device") == 1
    assert len(only_contents(tmp_path).spans) == 4


def test_manual_spans_use_the_device_from_the_second_one(device, tmp_path):
    record.start(tmp_path)
    for microbatch in range(3):
        with record.span("forward", microbatch=microbatch):
            device.work(1_000)
    time.sleep(0.01)
    record.stop()
    contents = only_contents(tmp_path)
    assert sorted(contents.spans["microbatch"]) == [0, 1, 2]
    assert device.records == 2 * 2


@pytest.mark.usefixtures("device")
def test_actions_are_harvested_at_the_end_of_a_step_and_keep_their_step(recorder, tmp_path):
    for _ in range(3):
        start_ns = recorder.begin_step()
        action(recorder, 0)
        recorder.end_step(start_ns)
    time.sleep(0.01)
    recorder.stop("test")
    spans = only_contents(tmp_path).spans
    assert sorted(spans["step"][spans["kind"] == FORWARD]) == [0, 1, 2]


def test_last_recorded_steps_are_read_in_the_steps_after_them(recorder, device, tmp_path):
    recorder.steps = parse_step_range("0:2")
    for step in range(2):
        start_ns = recorder.begin_step(step)
        action(recorder, 0)
        device.hung = True
        recorder.end_step(start_ns)
    device.hung = False
    timer, give_up_s = recorder.timer.device, time.monotonic() + 20
    while timer.is_waiting and time.monotonic() < give_up_s:  # for the next anchor, about a second
        recorder.begin_step(step := step + 1)
        time.sleep(0.02)
    recorder.flush()
    spans = only_contents(tmp_path).spans
    assert sorted(spans["step"][spans["kind"] == FORWARD]) == [0, 1]


def test_process_with_several_devices_is_timed_on_the_host(recorder, device, capsys):
    recorder.timer.set_tensor_device("cuda:0", "cuda:1", "cuda:0")
    action(recorder, 0)
    assert device.records == 0
    assert (
        "computes on cuda:0 and cuda:1; its actions show their launch on the host" in capsys.readouterr().err
    )


def test_timing_on_the_host_can_be_chosen(recorder, device, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_TIMING", "host")
    action(recorder, 0)
    assert device.records == 0


@pytest.mark.parametrize("connections", ["1", "8", ""])
def test_serialized_queues_are_reported(recorder, device, monkeypatch, capsys, connections):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    device.name = "cuda:0"
    action(recorder, 0)
    action(recorder, 1)
    assert capsys.readouterr().err.count("record with --timing host") == (connections == "1")


def test_stop_counts_unfinished_actions(recorder, device, tmp_path, monkeypatch):
    monkeypatch.setattr("stagescope.record.devices.device_timer.FINISH_TIMEOUT_S", 0.02)
    action(recorder, 0)
    device.hung = True
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert len(contents.spans) == 0
    assert contents.dropped_spans == contents.end["dropped_spans"] == 1


@pytest.mark.usefixtures("device")
def test_timer_of_a_stopped_recorder_has_no_effect(recorder):
    action(recorder, 0)
    recorder.stop("test")
    action(recorder, 1)
    recorder.timer.harvest()
    recorder.stop("again")
    assert remaining_threads() == []


ON_A_DEVICE = """
import os, sys, threading, time
from fake_device import FakeDevice
from stagescope.record import devices
from stagescope.record.recorder import Recorder
device = FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0)
devices.find_device = lambda reported: device
recorder = Recorder(sys.argv[1])
def action(microbatch):
    token = recorder.timer.begin()
    recorder.timer.end(token, 1, 0, microbatch)
action(0)
time.sleep(0.01)
"""


def run_on_a_device(tmp_path, code):
    return run_child(ON_A_DEVICE + code, tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)})


def test_forked_child_has_no_events_of_its_parent(tmp_path):
    done = run_on_a_device(
        tmp_path,
        """
if os.fork() == 0:
    assert recorder.timer.device is None
    devices.find_device = lambda reported: None
    action(1)
    recorder.stop("child")
    os._exit(0)
os.wait()
recorder.stop("parent")
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        contents.end["reason"]: contents.spans["microbatch"].tolist() for contents in contents_in(tmp_path)
    }
    assert found == {"parent": [0], "child": [1]}


def test_forked_child_destroys_no_event_of_its_parent(tmp_path):
    """Destroying a CUDA event in a forked child hangs or ends it; DataLoader workers are such children."""
    done = run_on_a_device(
        tmp_path,
        """
import gc, fake_device
fake_device.FakeEvent.__del__ = lambda event: os.write(1, b"destroyed ")
action(1)
if os.fork() == 0:
    devices.find_device = lambda reported: None
    action(2)
    gc.collect()
    recorder.stop("child")
    sys.exit(0)
os.wait()
os.write(1, b"the parent goes on ")
recorder.stop("parent")
del device, recorder, fake_device.FakeEvent.__del__
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the parent goes on")


def test_exit_harvests_finished_actions(tmp_path):
    assert run_on_a_device(tmp_path, "sys.exit(3)").returncode == 3
    contents = only_contents(tmp_path)
    assert contents.spans["microbatch"].tolist() == [0]
    assert contents.end["reason"] == "exit"


IN_A_LOCK = "lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.mark.parametrize("stuck", ["while True: time.sleep(0.001)", IN_A_LOCK], ids=["running", "in a lock"])
def test_sigterm_harvests_finished_actions(tmp_path, stuck):
    code = f"{ON_A_DEVICE}\nprint('ready', flush=True)\n{stuck}"
    with child(code, tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)}) as process:
        assert end_of(process) == -signal.SIGTERM
    contents = only_contents(tmp_path)
    assert contents.spans["microbatch"].tolist() == [0]
    assert contents.end["reason"] == "sigterm"


def test_sigterm_harvests_while_the_main_thread_is_stuck_in_c(tmp_path):
    stuck = """
import ctypes
semaphore = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.sem_init(semaphore, 0, 0)
print("ready", flush=True)
while True:
    libc.sem_wait(semaphore)
"""
    with child(ON_A_DEVICE + stuck, tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)}) as process:
        assert end_of(process) == -signal.SIGTERM
    assert only_contents(tmp_path).spans["microbatch"].tolist() == [0]
