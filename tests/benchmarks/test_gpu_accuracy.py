"""The parts of the benchmark that need no GPU: reading both recordings of an action, and the message without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_device import FakeDevice
from recordings import encode, recording_frames, span_record
from stagescope import record
from stagescope.record import devices, session
from stagescope.record import format as fmt
from stagescope.record.clock import read_anchor

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark():
    specification = importlib.util.spec_from_file_location(
        "gpu_accuracy", ROOT / "benchmarks" / "gpu_accuracy.py"
    )
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def event(category, ts, dur, name="", **args):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args}


def test_action_spans_its_first_to_last_kernel(benchmark):
    trace = {
        "baseTimeNanoseconds": 1_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            event("user_annotation", 10, 5, "action 3"),
            event("user_annotation", 20, 5, "action 4"),
            event("user_annotation", 30, 5, "action 5"),
            event("user_annotation", 30, 5, "Optimizer.step"),
            event("cuda_runtime", 11, 1, correlation=1),
            event("cuda_runtime", 14, 1, correlation=2),
            event("cuda_driver", 21, 1, correlation=3),
            event("cuda_runtime", 22, 1, correlation=99),
            event("kernel", 100, 50, correlation=1),
            event("kernel", 160, 40.5, correlation=2),
            event("kernel", 300, 10, correlation=3),
        ],
    }
    assert benchmark.cupti_actions(trace) == {3: (1_100_000, 1_200_500), 4: (1_300_000, 1_310_000)}


def test_recorded_actions_are_converted_to_the_wall_clock(benchmark, tmp_path):
    frames = recording_frames([span_record("forward", 100, 200, microbatch=7), span_record("loss", 1, 2)])
    anchors = fmt.DEVICE_ANCHOR.pack(0, 0, 8_000, 0) + fmt.DEVICE_ANCHOR.pack(9, 9, 8_000, 4_500)
    frames.insert(3, (fmt.DEVICE_CLOCK, anchors))
    (tmp_path / "a.sscope").write_bytes(encode(frames))
    actions, errors_ns = benchmark.recorded_actions(tmp_path / "a.sscope")
    assert actions == {7: (1_000_100, 1_000_200)}
    assert errors_ns == [4_500]


def test_device_recording_recovers_the_planted_truth(benchmark, tmp_path, monkeypatch):
    device = FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0, offset_ns=10**12, drift_ppm=50.0)
    monkeypatch.setattr(devices, "find_device", lambda reported: device)
    truth = {}
    record.start(tmp_path)
    anchor = read_anchor()
    offset_ns = anchor.realtime_ns - anchor.monotonic_ns
    for action in range(20):
        token = session.recorder.timer.begin()
        begin_ns = device.last_ns
        device.work(100_000)
        session.recorder.timer.end(token, benchmark.FORWARD, 0, action)
        truth[action] = benchmark.Interval(begin_ns + offset_ns, device.last_ns + offset_ns)
    time.sleep(0.01)
    record.stop()
    (path,) = tmp_path.rglob("*.sscope")
    actions, stated_ns = benchmark.recorded_actions(path)
    errors = benchmark.compare(actions, truth)
    assert len(errors["start"]) == 20
    limit_us = (max(stated_ns) + anchor.width_ns) / 1e3 + 20  # both have read the wall clock
    assert max(map(abs, errors["start"] + errors["end"])) < limit_us


def test_errors_are_printed_for_starts_ends_and_durations(benchmark, capsys):
    errors = {
        "actions": [3.0],
        "start": [1.0, -2.0, 9.0],
        "end": [1.0] * 3,
        "duration": [0.0] * 3,
        "stated": [4.0],
    }
    assert benchmark.print_errors("one process", errors) == (1.0, 9.0)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "one process: 3 of 3 actions compared"
    assert printed[3].split() == ["start", "2.00", "9.00", "2.67"]


@pytest.mark.slow
def test_missing_gpu_is_reported_and_is_no_failure():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_accuracy.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "torch finds no GPU: nothing was measured.\n"
