"""A captured graph records its actions itself; what is lost between two replays is counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from children import run_child
from fake_device import FakeDevice, Notebook, SimulatedTime, use
from stagescope.record.devices import cuda_graphs
from stagescope.record.devices.device_timer import DeviceTimer
from stagescope.record.patching import Patches

MS = 1_000_000
S = 1_000 * MS


@pytest.fixture
def clock(monkeypatch):
    clock = SimulatedTime()
    use(clock, monkeypatch)
    return clock


class Setting:
    """A fake torch.cuda.graphs whose graphs replay on a fake device, instrumented."""

    def __init__(self, clock, **planted):
        device = self.device = FakeDevice(clock, **planted)

        class CUDAGraph:
            def __init__(self):
                self.events = []

            def capture_begin(self, pool=None):
                if pool == "broken":
                    raise RuntimeError("no capture")
                device.capturing = True

            def capture_end(self):
                device.capturing = False

            def replay(self):
                device.replay(self.events)

        self.module = SimpleNamespace(CUDAGraph=CUDAGraph)
        self.notebook = Notebook()
        self.timer = DeviceTimer(self.notebook, device)
        self.notebook.timer = SimpleNamespace(device=self.timer)
        self.patches = Patches()
        cuda_graphs.instrument(self.module, self.notebook, self.patches)
        self.timer.end(self.timer.begin(), 9)

    def capture(self, actions):
        graph = self.module.CUDAGraph()
        graph.capture_begin()
        for microbatch in range(actions):
            token = self.timer.begin()
            self.timer.end(token, 1, 0, microbatch)
            if self.device.has_graph_events:
                graph.events += [mark.event for mark in self.timer.graphs._current.actions[-1][1:]]
        graph.capture_end()
        return graph

    def graph_spans(self):
        return [span for span in self.notebook.spans if span["kind"] == 1]


def test_every_replay_records_the_actions_of_the_graph_in_its_own_step(clock):
    setting = Setting(clock)
    graph = setting.capture(2)
    truths = []
    for step in range(3):
        setting.notebook.step = step
        graph.replay()
        truths += [event.done_ns for event in graph.events[::2]]
        clock.sleep(2 * S)
    setting.timer.finish()
    spans = setting.graph_spans()
    assert [(span["step"], span["microbatch"]) for span in spans] == [
        (s, m) for s in range(3) for m in range(2)
    ]
    assert all(abs(span["start_ns"] - truth) < 20_000 for span, truth in zip(spans, truths, strict=True))
    assert setting.notebook.dropped == 0
    assert setting.device.queries_while_capturing == 0


def test_a_replay_that_is_not_done_before_the_next_is_counted(clock):
    setting = Setting(clock)
    graph = setting.capture(2)
    setting.device.work(10 * S)
    graph.replay()
    graph.replay()
    clock.sleep(20 * S)
    setting.timer.finish()
    assert len(setting.graph_spans()) == 2
    assert setting.notebook.dropped == 2


def test_a_graph_that_is_never_replayed_records_nothing(clock):
    setting = Setting(clock)
    setting.capture(2)
    clock.sleep(S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 0


def test_without_external_events_the_actions_of_a_graph_are_counted(clock):
    setting = Setting(clock, has_graph_events=False)
    graph = setting.capture(2)
    graph.replay()
    clock.sleep(S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 2


def test_a_capture_that_cannot_begin_leaves_everything_as_it_was(clock):
    setting = Setting(clock)
    with pytest.raises(RuntimeError, match="no capture"):
        setting.module.CUDAGraph().capture_begin(pool="broken")
    setting.timer.end(setting.timer.begin(), 1)
    clock.sleep(2 * S)
    setting.timer.finish()
    assert len(setting.graph_spans()) == 1


def test_a_capture_in_another_thread_keeps_the_device_from_being_asked(clock):
    setting = Setting(clock)
    setting.timer.graphs.begin_capture(setting.module.CUDAGraph())
    before_ns = clock.ns
    clock.sleep(MS)
    setting.timer.harvest()
    assert clock.ns - before_ns == MS
    setting.timer.graphs.end_capture()
    clock.sleep(2 * S)
    setting.timer.harvest()
    assert len(setting.notebook.spans) == 1


def test_on_a_host_clock_graphs_are_left_alone(clock):
    setting = Setting(clock)
    setting.notebook.timer.device = None
    graph = setting.module.CUDAGraph()
    graph.capture_begin()
    graph.capture_end()
    graph.replay()
    assert setting.timer.graphs.is_capturing is False


def test_the_wrapping_can_be_undone(clock):
    setting = Setting(clock)
    wrapped = setting.module.CUDAGraph.replay
    setting.patches.undo()
    assert setting.module.CUDAGraph.replay is not wrapped


@pytest.mark.slow
def test_the_graphs_of_the_real_torch_are_wrapped_while_recording_and_not_after(tmp_path):
    code = """
import sys
from stagescope import record
record.start(sys.argv[1])
import torch
wrapped = [hasattr(vars(torch.cuda.CUDAGraph)[n], "__stagescope_original__") for n in sys.argv[2:]]
record.stop()
left = [hasattr(vars(torch.cuda.CUDAGraph)[n], "__stagescope_original__") for n in sys.argv[2:]]
assert (wrapped, left) == ([True] * 3, [False] * 3), (wrapped, left)
"""
    done = run_child(code, tmp_path, "capture_begin", "capture_end", "replay")
    assert (done.returncode, done.stderr) == (0, "")
