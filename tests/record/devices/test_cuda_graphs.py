"""A captured graph records its actions itself; actions lost between two replays are counted."""

from __future__ import annotations

import gc
import itertools
import threading
from types import ModuleType, SimpleNamespace

import pytest

from children import run_child
from fake_device import FakeDevice, Notebook, SimulatedTime, use
from stagescope.record.devices import cuda_graphs
from stagescope.record.devices.device_clock import Anchor
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
        graph.capture_end()
        graph.events, self.device.captured = self.device.captured, []
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


def test_every_replay_counts_its_actions_without_external_events(clock):
    setting = Setting(clock, has_graph_events=False)
    graph = setting.capture(2)
    assert setting.notebook.dropped == 0  # a capture runs nothing
    for _ in range(3):
        graph.replay()
    clock.sleep(S)
    setting.timer.finish()
    assert setting.graph_spans() == []
    assert setting.notebook.dropped == 6


def test_replay_that_the_device_has_not_reached_does_not_report_the_one_before(clock):
    setting = Setting(clock)
    graph = setting.capture(2)
    graph.replay()
    clock.sleep(2 * S)
    setting.timer.harvest()
    assert len(setting.graph_spans()) == 2
    setting.notebook.step = 1
    setting.device.work(5 * S)
    graph.replay()
    setting.timer.harvest()  # the events still report the first replay
    clock.sleep(10 * S)
    setting.timer.finish()
    truth = [event.done_ns for event in graph.events[::2]]
    later = [span["start_ns"] for span in setting.graph_spans() if span["step"] == 1]
    assert all(abs(found - true) < 20_000 for found, true in zip(later, truth, strict=True))
    assert setting.notebook.dropped == 0


def test_event_before_its_anchor_is_counted_and_not_recorded(clock):
    setting = Setting(clock)
    graph = setting.capture(1)
    graph.replay()
    graph.events[0].done_ns -= S
    graph.events[0].seen_ns -= S
    clock.sleep(2 * S)
    setting.timer.finish()
    assert (setting.graph_spans(), setting.notebook.dropped) == ([], 1)


def test_one_graph_replayed_for_each_microbatch_counts_the_microbatches(clock):
    setting = Setting(clock)
    graph = setting.capture(1)
    for step in range(2):
        setting.notebook.step = step
        for _ in range(4):
            graph.replay()
            clock.sleep(S)
    setting.timer.finish()
    assert [(span["step"], span["microbatch"]) for span in setting.graph_spans()] == [
        (step, microbatch) for step in range(2) for microbatch in range(4)
    ]


def test_host_ahead_of_the_replays_keeps_the_last_and_counts_the_others(clock):
    setting = Setting(clock)
    graph = setting.capture(1)
    setting.device.work(S)
    for _ in range(8):
        graph.replay()
    clock.sleep(3 * S)
    setting.timer.finish()
    assert [span["microbatch"] for span in setting.graph_spans()] == [7]
    assert setting.notebook.dropped == 7


@pytest.mark.parametrize("actions", [0, 1])
def test_replay_does_not_look_at_other_graphs(clock, actions):
    setting = Setting(clock)
    others = [setting.capture(1) for _ in range(200)]
    for other in others:
        other.replay()
    graph = setting.capture(actions)
    queries = setting.device.queries
    for _ in range(100):
        graph.replay()
    assert setting.device.queries - queries <= 100 * actions


def test_actions_of_deleted_graphs_do_not_count_for_the_limit(clock, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPH_ACTIONS", 10)
    setting = Setting(clock)
    for _ in range(5):
        graph = setting.capture(4)
        graph.replay()
        clock.sleep(2 * S)
        setting.timer.harvest()
    assert (len(setting.graph_spans()), setting.notebook.dropped) == (20, 0)


def test_every_replay_counts_the_actions_beyond_the_limit(clock, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPH_ACTIONS", 3)
    setting = Setting(clock)
    graph = setting.capture(5)
    for _ in range(2):
        graph.replay()
        clock.sleep(2 * S)
    setting.timer.finish()
    assert (len(setting.graph_spans()), setting.notebook.dropped) == (6, 4)


def living_anchors():
    return sum(type(one) is Anchor for one in gc.get_objects())


def test_graph_that_was_read_keeps_no_anchor(clock):
    gc.collect()
    before = living_anchors()
    setting = Setting(clock)
    graph = setting.capture(1)
    graph.replay()
    for _ in range(9):
        clock.sleep(10 * S)
        setting.timer.end(setting.timer.begin(), 9)
        setting.timer.harvest()
    gc.collect()
    assert len(setting.graph_spans()) == 1
    assert len(setting.notebook.anchors) > 9
    assert living_anchors() - before <= 3
    del graph


def test_driver_error_while_reading_a_graph_loses_no_action_uncounted(clock):
    setting = Setting(clock)
    graph = setting.capture(3)
    graph.replay()
    clock.sleep(2 * S)
    elapsed_ms, calls = setting.device.elapsed_ms, itertools.count()

    def fails_once(start, end):
        if end.external and next(calls) == 2:
            raise RuntimeError("driver")
        return elapsed_ms(start, end)

    setting.device.elapsed_ms = fails_once
    setting.timer.finish()
    assert (len(setting.graph_spans()), setting.notebook.dropped) == (2, 1)


def test_capture_waits_for_a_query_in_another_thread(clock):
    setting = Setting(clock)
    clock.sleep(2 * S)
    querying, proceed, order = threading.Event(), threading.Event(), []

    def is_done(_):
        querying.set()
        proceed.wait(10)
        order.append("queried")
        return False

    setting.device.is_done = is_done
    thread = threading.Thread(target=setting.timer.harvest)
    thread.start()
    querying.wait(10)
    threading.Timer(0.02, proceed.set).start()
    setting.timer.begin_capture(setting.module.CUDAGraph())
    order.append("capturing")
    thread.join(10)
    assert order == ["queried", "capturing"]


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


def test_end_of_the_process_does_not_query_the_device_during_a_capture(clock, monkeypatch):
    setting = Setting(clock)
    setting.device.work(10 * S)
    setting.timer.end(setting.timer.begin(), 1)
    polls = itertools.count()

    def sleep(seconds):
        clock.sleep(round(seconds * S))
        if next(polls) == 3:  # another thread begins a capture
            setting.timer.graphs.begin_capture(setting.module.CUDAGraph())
            setting.device.capturing = True

    monkeypatch.setattr("stagescope.record.devices.device_timer.time.sleep", sleep)
    setting.timer.finish()
    assert next(polls) > 4
    assert setting.device.queries_while_capturing == 0


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
