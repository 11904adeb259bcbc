"""What runs on a device has the times of the device, although the host only launches it."""

from __future__ import annotations

import time

import pytest

from fake_device import FakeDevice
from observing import during
from stagescope import api as workflow
from stagescope.record import devices
from stagescope.record.frameworks import collectives as module
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.groups import Group
from stagescope.record.frameworks.megatron_overlap import TAIL, Half, Part, Place
from stagescope.record.frameworks.runs import BACKWARD

MS = 1_000_000


class Owner:
    """Replaces a process group, and the handle of a collective."""

    def wait(self):
        return None


@pytest.fixture
def device(monkeypatch, recorder):
    device = FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0, offset_ns=10**12)
    monkeypatch.setattr(devices, "find_device", lambda reported: device)
    monkeypatch.setattr(module, "group_of", lambda owner: Group("ranks", 2))
    recorder.begin_step(0)
    recorder.timer.end(recorder.timer.begin(), 9)
    return device


def row(recorder, tmp_path, **wanted):
    time.sleep(0.1)  # until the work of the device is done
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans
    return spans.filter(**wanted).row(0, named=True)


@pytest.mark.parametrize("reduces", [False, True])
def test_collective_lasts_as_long_as_the_device_takes(recorder, device, tmp_path, reduces):
    collectives = collectives_of(recorder)
    collectives.reductions = int(reduces)
    during(collectives.observe("all_reduce", Owner(), ()), lambda: device.work(30 * MS) and None)
    found = row(recorder, tmp_path, kind="grad_reduce" if reduces else "collective")
    assert found["end_ns"] - found["start_ns"] > 29 * MS


def test_wait_for_a_handle_lasts_as_long_as_the_stream_waits(recorder, device, tmp_path):
    collectives, work = collectives_of(recorder), Owner()
    with collectives.reducing():
        during(collectives.observe("all_reduce", Owner(), ()), lambda: work)
    device.work(30 * MS)  # the stream waits for the stream of the collective
    (number,) = collectives._under_way
    start = recorder.timer.begin()
    device.work(20 * MS)
    collectives._waited(number, start, recorder.timer.begin())
    found = row(recorder, tmp_path, kind="grad_reduce")
    assert found["wait_end_ns"] - found["wait_start_ns"] > 19 * MS
    assert found["end_ns"] == found["wait_end_ns"]


def test_rest_of_a_merged_call_lasts_as_long_as_the_device_takes(recorder, device, tmp_path):
    half = Half(recorder, Part(BACKWARD, Place(1, 2, 0), waits=False, sends=True), 1)
    device.work(20 * MS)
    half.before_send()
    device.work(30 * MS)
    half.end_call()
    found = row(recorder, tmp_path, name=TAIL)
    assert found["end_ns"] - found["start_ns"] > 29 * MS
    assert (found["stage"], found["microbatch"]) == (1, 2)
