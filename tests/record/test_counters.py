"""Counters: on their way into a recording, and those that the writer thread samples."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from types import SimpleNamespace

import pytest

from recordings import encode, recording_frames, span_record
from stagescope import api
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import counters as counters_module
from stagescope.record import format as fmt
from stagescope.record.clock import now_ns
from stagescope.record.devices.marks import Mark
from stagescope.record.sampling import host, sampler
from stagescope.record.sampling.gpu import gpu_sources
from stagescope.record.sampling.memory import DeviceMemory
from stagescope.record.sampling.sampler import Sampler
from stagescope.vocabulary.counters import COUNTER_OF_NAME

GIB = 2**30


class MemoryDevice:
    """A device whose allocator counts, and fails on demand."""

    name = "cuda:0"
    fails = False

    def memory(self):
        if self.fails:
            raise RuntimeError("not this allocator")
        return 2 * GIB, 3 * GIB, 5 * GIB

    def uuid(self):
        return "GPU-1"


class UnsupportedError(Exception):
    """The error of a GPU that lacks a counter."""


def nvml(**changes):
    """Return a replacement of pynvml with one GPU that is known by its UUID only."""

    def unsupported(_handle):
        raise UnsupportedError

    def by_uuid(uuid):
        if uuid != "GPU-1":
            raise UnsupportedError
        return "handle"

    functions = {
        "nvmlInit": bool,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980 if (handle, kind) == ("handle", 1) else None,
        "nvmlDeviceGetPowerUsage": unsupported,
        "nvmlDeviceGetTemperature": lambda _handle, _kind: 71,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _handle: 0x40,
    }
    return SimpleNamespace(**{**functions, **changes})


def rows(recorder, directory):
    """Return what was recorded as (name, value, unit, device, step, stage, microbatch)."""
    recorder.stop("test")
    table = api.read(directory).counters.sort("time_ns")
    return table.drop("rank", "time_ns").rows()


def test_values_are_recorded_with_their_step_and_action(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(Sampler, "sample", lambda _self, **_keywords: None)
    recorder.counters.add("tokens", 7)  # outside of a step
    start_ns = recorder.begin_step()
    recorder.counters.add("tokens", 512, stage=0, microbatch=3)
    recorder.counters.add("my counter", -0.5)
    for value in (math.nan, math.inf, "text"):
        recorder.counters.add("tokens", value)
    recorder.end_step(start_ns)
    recorder.emit(1, start_ns, start_ns + 5, 0, 3)
    recorder.stop("test")
    timeline = api.read(tmp_path)
    assert timeline.counters.drop("rank", "time_ns").sort("name", "step").rows() == [
        ("my counter", -0.5, None, None, 0, None, None),
        ("tokens", 7, "tokens", None, None, None, None),
        ("tokens", 512, "tokens", None, 0, 0, 3),
    ]
    assert timeline.counters["time_ns"].min() > timeline.steps["start_ns"].min() - 10**9
    dropped = timeline.diagnostics.filter(timeline.diagnostics["code"] == "counters.dropped")
    assert dropped["count"].to_list() == [3]


def test_memory_for_waiting_values_is_bounded(recorder, monkeypatch):
    monkeypatch.setattr(counters_module, "MOST_WAITING", 2)
    for number in range(5):
        recorder.counters.add("tokens", number)
    assert recorder.counters.dropped == 3
    assert len(recorder.counters.take()) == 2 * fmt.COUNTER.size


def test_the_writer_is_woken_before_there_are_too_many_values_to_add_later(recorder, monkeypatch):
    woken = []
    recorder.emit(1, 1, 2)
    monkeypatch.setattr(recorder, "flush_soon", lambda: woken.append(len(recorder.counters._later)))
    for _ in range(counters_module.MOST_LATER):
        recorder.counters.put_later(lambda counters: counters.add("tokens", 1))
    assert woken == [counters_module.MOST_LATER // 2]
    monkeypatch.setattr(counters_module, "MOST_WAITING", 2)  # enough for each of them
    assert len(recorder.counters.take()) == counters_module.MOST_LATER * fmt.COUNTER.size
    assert recorder.counters.dropped == 0


def test_the_writer_is_woken_at_the_end_of_a_step_if_half_of_what_may_wait_is_there(recorder, monkeypatch):
    woken = []
    recorder.begin_step(0)
    assert recorder.flush()
    monkeypatch.setattr(recorder, "flush_soon", lambda: woken.append(True))
    monkeypatch.setattr(recorder._writer, "_store", lambda: None)  # it does not come by itself
    recorder.end_step(1)
    assert not woken
    for _ in range(recorder.most_waiting // 2):
        recorder.emit(1, 1, 2)
    recorder.end_step(1)
    assert woken == [True]
    monkeypatch.undo()


def test_counters_alone_create_no_recording(recorder, tmp_path):
    recorder.counters.add("tokens", 1)
    recorder.stop("test")
    assert list(tmp_path.iterdir()) == []


def test_slow_counters_are_sampled_at_most_once_a_second(recorder, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(sampler, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(host, "host_sources", lambda: [lambda: [("resident memory", 1.0)], broken])
    found = Sampler(recorder)
    for moment_s in (100.0, 100.9, 101.0):
        now_s[0] = moment_s
        found.sample()
    found.sample(is_last=True)
    values = [fmt.COUNTER.unpack(record)[1] for record in chunks(recorder.counters.take())]
    assert values == [1.0] * 3


def broken():
    raise OSError("not on this machine")


class StandInTimer:
    """A DeviceTimer whose device has reached every mark 7 ns after it was made."""

    has_capacity = True

    def __init__(self):
        self.device = MemoryDevice()
        self.ended = []
        self.made_ns = []

    def begin(self):
        self.made_ns.append(now_ns())
        return Mark(None, None, deque())

    def end(self, *fields):
        self.ended.append(fields)

    def resolve(self, function, mark):
        del mark
        function(self.made_ns[-1] + 7)


def test_memory_is_read_once_a_second_and_at_the_end(recorder):
    memory = DeviceMemory(recorder, StandInTimer())
    for _ in range(3):
        memory.sample()
    memory.sample(is_last=True)
    values = [fmt.COUNTER.unpack(record)[1] for record in chunks(recorder.counters.take())]
    assert values == [2 * GIB, 3 * GIB, 5 * GIB] * 2


def test_memory_of_each_action_has_the_time_at_which_the_device_ended_it(recorder):
    timer = StandInTimer()
    memory = DeviceMemory(recorder, timer)
    recorder.step = 4
    memory.end("token", 1, 2, 6, 0)
    recorder.step = 5
    timer.device.fails = True  # from now on, this counter is missing and the actions are not
    memory.end("token", 2, 2, 6, 0)
    timer.device.fails = False
    memory.end("token", 2, 2, 7, 0)
    found = [fmt.COUNTER.unpack(record) for record in chunks(recorder.counters.take())]
    assert [each[:5] for each in found] == [
        (timer.made_ns[0] + 7, value, 4, 2, 6) for value in (2 * GIB, 3 * GIB, 5 * GIB)
    ]
    assert timer.ended == [("token", 1, 2, 6, 0), ("token", 2, 2, 6, 0), ("token", 2, 2, 7, 0)]


def test_thread_of_the_gpu_ends_with_the_recording(recorder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    device = MemoryDevice()
    monkeypatch.setattr(recorder.timer, "device", SimpleNamespace(name="cuda:0", device=device))
    found = Sampler(recorder)
    found.sample()
    give_up_s = time.monotonic() + 20
    while "GPU clock" not in recorder.name_ids and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert "GPU clock" in recorder.name_ids
    found.sample(is_last=True)
    for thread in threading.enumerate():
        if thread.name == "stagescope-gpu":
            thread.join(20)
            assert not thread.is_alive()
    monkeypatch.setattr(recorder.timer, "device", None)


def chunks(records):
    return [records[at : at + fmt.COUNTER.size] for at in range(0, len(records), fmt.COUNTER.size)]


def test_gpu_is_found_by_its_uuid_and_lacks_what_it_does_not_support(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    found = {}
    for source in gpu_sources(MemoryDevice()):
        with suppress(UnsupportedError):
            found |= dict(source())
    assert found == {"GPU clock": 1980, "GPU temperature": 71, "GPU slowdown reasons": 0x40}
    renumbered = MemoryDevice()
    renumbered.uuid = lambda: "MIG-2"
    assert gpu_sources(renumbered) == []
    newer = nvml(
        nvmlDeviceGetCurrentClocksEventReasons=lambda _handle: 0x8, nvmlDeviceGetPowerUsage=lambda _: 700_500
    )
    monkeypatch.setitem(sys.modules, "pynvml", newer)
    assert {("GPU slowdown reasons", 0x8), ("GPU power", 700.5)} <= {
        pair for source in gpu_sources(MemoryDevice()) for pair in source()
    }


def test_no_gpu_counters_without_the_package_or_on_another_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # import raises ImportError
    assert gpu_sources(MemoryDevice()) == []
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert gpu_sources(SimpleNamespace(name="npu:0")) == []


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder in place of /proc, /sys/devices/system/cpu and the control groups; write(path, text) adds a file."""
    for name in ("PROC", "CPUS", "CGROUPS"):
        monkeypatch.setattr(host, name, str(tmp_path / name.lower()))
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(host.threading, "main_thread", lambda: SimpleNamespace(native_id=41))

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_counters_of_the_host_are_those_of_its_files(machine):
    fields = " ".join(["S", *(["0"] * 35), "2", "0"])
    machine("proc/self/task/41/stat", f"41 (python (3) x) {fields}\n")
    machine("cpus/cpu2/cpufreq/scaling_cur_freq", "2600500\n")
    machine("proc/self/status", "Name:\tpython\nVmHWM:\t   2000 kB\nVmRSS:\t   1500 kB\n")
    machine("proc/self/cgroup", "0::/slice/1\n")
    machine("cgroups/slice/1/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 250\n")
    for cpu, package, count in ((0, 0, 4), (1, 0, 4), (2, 1, 6), (3, 1, 6)):
        machine(f"cpus/cpu{cpu}/topology/physical_package_id", f"{package}\n")
        machine(f"cpus/cpu{cpu}/thermal_throttle/package_throttle_count", f"{count}\n")
    found = dict(pair for source in host.host_sources() for pair in source())
    assert found == {
        "peak resident memory": 2000 * 1024,
        "resident memory": 1500 * 1024,
        "CPU frequency": 2600.5,
        "CPU quota wait": 250_000,
        "CPU thermal throttles": 10,
    }


def test_quota_of_the_older_control_groups_is_in_nanoseconds(machine):
    machine("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/slice\n")
    machine("cgroups/cpu/slice/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 12345\n")
    source = host.host_sources()[2]
    assert source() == [("CPU quota wait", 12345)]


def test_a_real_process_records_its_resident_memory(recorder, tmp_path):
    start_ns = recorder.begin_step()
    ballast = bytearray(64 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    recorder.end_step(start_ns)
    recorder.stop("test")
    table = api.read(tmp_path).counters
    peak, resident = (
        table.filter(table["name"] == name)["value"].max()
        for name in ("peak resident memory", "resident memory")
    )
    assert 64 * 2**20 < resident <= peak < 2**36
    assert set(table["unit"].drop_nulls()) <= {counter.unit for counter in COUNTER_OF_NAME.values()}
    del ballast


def test_old_recordings_have_no_counters_and_segments_keep_theirs(tmp_path):
    old = tmp_path / "old" / "rank-00000.sscope"
    old.parent.mkdir()
    old.write_bytes(encode(recording_frames([span_record(step=0)])))
    assert api.read(old.parent).counters.is_empty()
    record = fmt.COUNTER.pack(5, 2.5, 0, fmt.NONE, fmt.NONE, 1)
    new = tmp_path / "new"
    new.mkdir()
    for number in range(2):
        header = {"segment": number, "records_before": number, "max_bytes": 2**20, "recording": "r"}
        frames = recording_frames([span_record(step=0)], end=number == 1, **header)
        frames.insert(3, (fmt.COUNTERS, record))
        name = "rank-00000.sscope" if not number else "rank-00000.1.sscope"
        (new / name).write_bytes(encode(frames))
    assert api.read(new).counters.select("name", "value", "step").rows() == [("first name", 2.5, 0)] * 2


def test_an_unknown_name_and_a_value_that_is_not_finite_are_harmless():
    frames = [
        (fmt.COUNTERS, fmt.COUNTER.pack(5, math.nan, 0, 0, 0, 9)),
        (fmt.DROPS, json.dumps({"dropped_spans": 0}).encode()),
    ]
    contents = read_contents(encode(recording_frames([span_record()]) + frames))
    assert len(contents.counters) == 1
    assert contents.dropped_counters == 0
    assert not contents.unknown_frames
