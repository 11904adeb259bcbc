"""The check on a GPU: its parts on a simulated device, its reading of both recordings of an action, its table."""

from __future__ import annotations

import json
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
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def accuracy():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from gpu import accuracy as module  # noqa: PLC0415 - a folder of scripts
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


def run_check(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def event(category, ts, dur, name="", **args):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args}


def test_action_spans_its_first_to_last_kernel(accuracy):
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
            event("kernel", 20, 10, correlation=3),
        ],
    }
    assert accuracy.cupti_actions(trace) == {
        3: ((1_100_000, 1_200_500), 2, True),
        4: ((1_020_000, 1_030_000), 1, False),  # its kernel runs before its launch
    }


def test_recorded_actions_are_converted_to_the_wall_clock(accuracy, tmp_path):
    frames = recording_frames([span_record("forward", 100, 200, microbatch=7), span_record("loss", 1, 2)])
    anchors = fmt.DEVICE_ANCHOR.pack(0, 0, 8_000, 0) + fmt.DEVICE_ANCHOR.pack(900, 900, 8_000, 4_500)
    frames.insert(3, (fmt.DEVICE_CLOCK, anchors))
    (tmp_path / "a.sscope").write_bytes(encode(frames))
    recorded = accuracy.read_recording(tmp_path)
    assert recorded.actions == {7: (1_000_100, 1_000_200)}
    assert [recorded.stated_us(1_000_000 + ns) for ns in (100, 900, 901)] == [4.5, 4.5, 0]


def test_device_recording_recovers_the_planted_truth(accuracy, tmp_path, monkeypatch):
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
        session.recorder.timer.end(token, accuracy.FORWARD, 0, action)
        interval = accuracy.Interval(begin_ns + offset_ns, device.last_ns + offset_ns)
        truth[action] = accuracy.Truth(interval, 1 + action % 3, is_causal=True)
    time.sleep(0.01)
    record.stop()
    recorded = accuracy.read_recording(tmp_path)
    measures = {one.name: one for one in accuracy.compare(recorded, truth)}
    assert measures["actions of CUPTI that were recorded"].value == 100
    limit_us = (max(error_ns for *_, error_ns in recorded.anchors) + anchor.width_ns) / 1e3 + 20
    for action, true in truth.items():  # both have read the wall clock
        for found, exact in zip(recorded.actions[action], true.interval, strict=True):
            assert abs(found - exact) / 1e3 < limit_us


def test_errors_beyond_the_stated_one_are_counted(accuracy):
    anchors = [(0, 0, 8_000, 0), (10**9, 10**9, 8_000, 4_000)]
    actions = {n: accuracy.Interval(1_000 * n, 1_000 * n + 500) for n in range(4)}
    truth = {
        n: accuracy.Truth(accuracy.Interval(start - off, end), n % 3 + (n < 3), n != 1)
        for (n, (start, end)), off in zip(actions.items(), (0, 6_900, 7_100, 0), strict=True)
    }
    truth[9] = truth[0]
    measures = {
        one.name: one.value for one in accuracy.compare(accuracy.Recorded(actions, anchors, 0), truth)
    }
    assert measures["outside stated error + 3 us"] == pytest.approx(100 / 8)
    assert measures["actions of CUPTI that were recorded"] == 80
    assert measures["actions with another number of kernels"] == 1
    assert measures["actions with a kernel before its launch"] == 1


def test_parts_run_on_the_simulated_device(tmp_path):
    document = tmp_path / "accuracy.md"
    document.write_text("as it was", encoding="utf-8")
    done = run_check(
        "--dry-run", "--parts", "CD", "--json", str(tmp_path / "a.json"), "--document", str(document)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "The device is simulated: the values mean nothing." in done.stdout
    written = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [part["part"] for part in written["parts"]] == ["C", "D"]
    captures = [measure["value"] for measure in written["parts"][1]["measures"]]
    assert captures == [0, 1]
    assert document.read_text(encoding="utf-8") == "as it was"


@pytest.mark.exhaustive
def test_all_parts_run_on_the_simulated_device(tmp_path):
    done = run_check("--dry-run", "--json", str(tmp_path / "a.json"))
    parts = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["parts"]
    assert "".join(part["part"] for part in parts) == "ABCDEFGHIJ"
    assert [part["part"] for part in parts if part["result"] == "failed"] == []
    assert done.returncode == 0


def test_table_replaces_the_one_of_an_earlier_run():
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from gpu_check import BEGIN, END, with_table
from gpu.measures import Measure
facts = dict(date="2026-01-02", device="Model", driver="1", torch="2")
part = dict(part="A", name="n", result="refuted", meaning="m", measures=[Measure("delay", 30.0, "us", high=20).row()])
gone = dict(part="C", name="events of graphs", result="skipped", meaning="no events", measures=[])
print(with_table(f"before\\n{BEGIN}\\nold\\n{END}\\nafter", facts, [part, gone]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT.parent)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1], lines[2]) == ("before", "after", "2026-01-02, Model, driver 1, torch 2")
    assert lines[6:8] == [
        "| A | delay | 30 | us | at most 20 | NOT AS EXPECTED |",
        "| C | events of graphs |  |  |  | skipped: no events |",
    ]


@pytest.mark.slow
def test_missing_gpu_is_reported_and_is_no_failure(tmp_path):
    done = run_check("--json", str(tmp_path / "a.json"), CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "torch finds no GPU: nothing was measured.\n"
