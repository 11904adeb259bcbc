"""A captured graph records its actions itself; actions lost between two replays are counted."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

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
                if getattr(device, "fails_at_capture_end", False):
                    raise RuntimeError("capture was invalidated")

            def replay(self):
                device.replay(self.events)

        self.module = ModuleType("torch.cuda.graphs")
        self.module.CUDAGraph = CUDAGraph
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


def test_every_replay_records_its_actions_in_its_own_step(clock):
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


def test_unfinished_replay_is_counted_before_the_next(clock):
    setting = Setting(clock)
    graph = setting.capture(2)
    setting.device.work(10 * S)
    graph.replay()
    graph.replay()
    clock.sleep(20 * S)
    setting.timer.finish()
    assert len(setting.graph_spans()) == 2
    assert setting.notebook.dropped == 2


def test_graph_without_replay_records_nothing(clock):
    setting = Setting(clock)
    setting.capture(2)
    clock.sleep(S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 0


def test_graph_actions_are_counted_without_external_events(clock):
    setting = Setting(clock, has_graph_events=False)
    graph = setting.capture(2)
    graph.replay()
    clock.sleep(S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 2


def test_failed_capture_changes_nothing(clock):
    setting = Setting(clock)
    with pytest.raises(RuntimeError, match="no capture"):
        setting.module.CUDAGraph().capture_begin(pool="broken")
    setting.timer.end(setting.timer.begin(), 1)
    clock.sleep(2 * S)
    setting.timer.finish()
    assert len(setting.graph_spans()) == 1


def test_invalid_capture_ends_the_capture(clock):
    setting = Setting(clock)
    graph = setting.module.CUDAGraph()
    graph.capture_begin()
    setting.device.fails_at_capture_end = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert setting.timer.graphs.is_capturing is False


def test_failed_replay_is_not_expected_to_have_new_times(clock):
    setting = Setting(clock)
    graph = setting.capture(1)
    graph.events = None
    with pytest.raises(TypeError):
        graph.replay()
    clock.sleep(2 * S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 0


@pytest.mark.parametrize(
    "signature",
    [
        "self, pool=None, capture_error_mode='global'",
        "self, pool=None, capture_error_mode='global', check_input_liveness=False",
    ],
    ids=["torch 2.5", "torch 2.13"],
)
def test_arguments_of_a_capture_arrive_as_they_were_passed(clock, signature):
    setting = Setting(clock)
    scope = {}
    exec(f"def capture_begin({signature}):\n    return dict(locals())", scope)  # noqa: S102
    setting.patches.undo()
    setting.module.CUDAGraph.capture_begin = scope["capture_begin"]
    cuda_graphs.instrument(setting.module, setting.notebook, setting.patches)
    graph = setting.module.CUDAGraph()
    assert graph.capture_begin("pool", capture_error_mode="relaxed")["pool"] == "pool"
    assert setting.timer.graphs.is_capturing is True


def test_device_is_not_queried_during_a_capture_in_another_thread(clock):
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


def test_host_timer_ignores_graphs(clock):
    setting = Setting(clock)
    setting.notebook.timer.device = None
    graph = setting.module.CUDAGraph()
    graph.capture_begin()
    graph.capture_end()
    graph.replay()
    assert setting.timer.graphs.is_capturing is False


def test_wrapped_graph_methods_are_restored(clock):
    setting = Setting(clock)
    wrapped = setting.module.CUDAGraph.replay
    setting.patches.undo()
    assert setting.module.CUDAGraph.replay is not wrapped


@pytest.mark.slow
def test_real_torch_graphs_are_wrapped_only_while_recording(tmp_path):
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
