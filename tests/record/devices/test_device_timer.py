"""Actions on a device with a planted clock: each recorded interval matches the truth within the stated error."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_device import FakeDevice, Notebook, SimulatedTime, use
from stagescope.record.devices.device_timer import MAX_FAILURES, PAUSE_NS, DeviceTimer
from stagescope.record.devices.marks import UNMARKED

MS = 1_000_000
S = 1_000 * MS


@pytest.fixture
def clock(monkeypatch):
    clock = SimulatedTime()
    use(clock, monkeypatch)
    return clock


def make_timer(clock, **planted):
    notebook, device = Notebook(), FakeDevice(clock, **planted)
    return DeviceTimer(notebook, device), notebook, device


def run_action(timer, device, duration_ns, microbatch=0):
    """Time an action; return the true times of its two events."""
    token = timer.begin()
    begin_ns = device.last_ns
    device.work(duration_ns)
    timer.end(token, 1, 0, microbatch)
    return begin_ns, device.last_ns


planted_faults = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "offset_ns": st.integers(-(10**17), 10**17),
        "drift_ppm": st.floats(-300, 300),
        "tick_ns": st.sampled_from([1, 32, 500, 1000]),
        "latency_ns": st.integers(0, 30_000),
        "late_ns": st.integers(0, 100_000),
    }
)
steps_of_actions = st.lists(
    st.tuples(st.integers(0, 20 * S), st.lists(st.integers(0, 3 * S), min_size=1, max_size=6)), max_size=8
)


@given(planted_faults, steps_of_actions)
def test_recovers_planted_intervals_within_the_stated_error(planted, steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = SimulatedTime(planted["seed"])
        use(clock, monkeypatch)
        timer, notebook, device = make_timer(clock, **planted)
        truths = []
        for pause_ns, actions in steps:
            clock.sleep(pause_ns)
            for duration_ns in actions:
                truths.append(run_action(timer, device, duration_ns, len(truths)))
            timer.harvest()
        clock.sleep(200 * S)
        timer.finish()
    assert notebook.dropped == 0
    assert [span["microbatch"] for span in notebook.spans] == list(range(len(truths)))
    for span, truth in zip(notebook.spans, truths, strict=True):
        for found_ns, true_ns in zip((span["start_ns"], span["end_ns"]), truth, strict=True):
            assert abs(found_ns - true_ns) <= notebook.error_ns(found_ns)


def test_stated_error_is_a_few_microseconds_on_a_fast_device(clock):
    timer, notebook, device = make_timer(clock, drift_ppm=30.0, offset_ns=10**12)
    for _ in range(50):
        run_action(timer, device, 200 * MS)
        clock.sleep(210 * MS)
        timer.harvest()
    timer.finish()
    assert len(notebook.spans) == 50
    assert len(notebook.anchors) >= 9
    assert max(error_ns for *_, error_ns in notebook.anchors) < 10_000


def test_device_clock_is_chained_between_anchors_in_whole_nanoseconds(clock):
    timer, notebook, device = make_timer(clock, tick_ns=1, drift_ppm=50.0)
    for _ in range(600):
        run_action(timer, device, MS)
        clock.sleep(S)
        timer.harvest()
    first, last = notebook.anchors[0], notebook.anchors[-1]
    rate = (last[0] - first[0]) / (last[1] - first[1])
    assert (rate - 1) * 1e6 == pytest.approx(
        50.0, abs=0.1
    )  # a single float32 over ten minutes would be off by 62 us


def test_actions_never_wait_for_the_device(clock):
    timer, notebook, device = make_timer(clock)
    timer.begin()
    before_ns = clock.ns
    for microbatch in range(20):
        run_action(timer, device, 100 * MS, microbatch)
    timer.harvest()
    assert clock.ns - before_ns < 2 * MS
    assert notebook.spans == []
    clock.sleep(3 * S)
    timer.harvest()
    assert [span["microbatch"] for span in notebook.spans] == list(range(20))


def test_moment_after_the_last_anchor_waits_for_the_next(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    clock.sleep(10 * MS)
    timer.harvest()
    assert notebook.spans == []
    clock.sleep(S)
    timer.harvest()
    assert len(notebook.spans) == 1


def test_action_belongs_to_the_step_of_its_launch(clock):
    timer, notebook, device = make_timer(clock)
    for step in range(3):
        notebook.step = step
        run_action(timer, device, 5 * S)
    clock.sleep(20 * S)
    timer.harvest()
    timer.finish()
    assert [span["step"] for span in notebook.spans] == [0, 1, 2]


def test_event_is_reused_only_after_it_was_read(clock):
    timer, notebook, device = make_timer(clock)
    for microbatch in range(1_000):
        run_action(timer, device, 10_000, microbatch)
        clock.sleep(20_000)
        if microbatch % 10 == 9:
            timer.harvest()
    clock.sleep(S)
    timer.finish()
    assert len(notebook.spans) == 1_000
    assert device.events_made < 300


def test_failed_action_returns_its_event(clock):
    timer, _, device = make_timer(clock)
    for _ in range(100):
        timer.begin()
    assert device.events_made < 20


def test_actions_beyond_the_limit_are_counted(clock, monkeypatch):
    monkeypatch.setattr("stagescope.record.devices.device_timer.MAX_WAITING", 600)
    timer, notebook, device = make_timer(clock)
    for microbatch in range(607):
        run_action(timer, device, 10 * S, microbatch)
    assert notebook.dropped == 7
    device.hung = True
    timer.finish()
    assert notebook.dropped == 607
    assert notebook.spans == []


def test_finish_gives_up_on_a_hanging_device(clock):
    timer, notebook, device = make_timer(clock)
    done = run_action(timer, device, MS)
    clock.sleep(S)
    timer.harvest()
    run_action(timer, device, 1_000 * S)
    before_ns = clock.ns
    timer.finish()
    assert clock.ns - before_ns < 2 * S
    assert abs(notebook.spans[0]["start_ns"] - done[0]) < 20_000
    assert (len(notebook.spans), notebook.dropped) == (1, 1)


def test_finished_actions_are_recorded_although_another_stream_hangs(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, 1_000 * S, 0)
    device.free_ns = clock()
    run_action(timer, device, MS, 1)
    clock.sleep(10 * MS)
    timer.finish()
    assert [span["microbatch"] for span in notebook.spans] == [1]
    assert notebook.dropped == 1


def test_failing_driver_costs_only_spans_and_one_warning(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    device.error = RuntimeError("an illegal memory access was encountered")
    for _ in range(100):
        assert timer.begin() is UNMARKED
        timer.end(UNMARKED, 1)
    timer.harvest()
    timer.finish()
    assert notebook.dropped == 101
    assert set(notebook.warnings) == {
        "actions on fake:0 could not be timed; they are dropped and counted: an illegal memory access was encountered"
    }
    assert len(notebook.warnings) <= MAX_FAILURES + 3


def test_timing_is_tried_again_after_a_pause(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    device.error = RuntimeError("busy")
    for _ in range(100):
        timer.begin()
    asked = device.records
    device.error = None
    assert timer.begin() is UNMARKED
    assert device.records == asked
    clock.sleep(PAUSE_NS)
    truth = run_action(timer, device, MS, 5)
    clock.sleep(2 * S)
    timer.finish()
    assert notebook.spans[-1]["microbatch"] == 5
    assert abs(notebook.spans[-1]["start_ns"] - truth[0]) < 20_000


def test_actions_on_another_device_do_not_count_as_errors_of_the_driver(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    device.is_elsewhere = True
    for _ in range(100):
        run_action(timer, device, MS)
    device.is_elsewhere = False
    run_action(timer, device, MS, 7)
    clock.sleep(2 * S)
    timer.finish()
    assert [span["microbatch"] for span in notebook.spans] == [0, 7]
    assert notebook.dropped == 100


def run_ahead(timer, device, clock, *, actions, ahead_ns):
    """Launch actions of 1 ms as fast as the host can be `ahead_ns` of the device; return their true times."""
    truths = []
    for microbatch in range(actions):
        clock.sleep(max(0, device.free_ns - ahead_ns - clock.ns))
        truths.append(run_action(timer, device, MS, microbatch))
        if microbatch % 64 == 63:
            timer.harvest()
    return truths


@pytest.mark.parametrize("ahead_ns", [MS // 2, 30 * MS, 300 * MS])
def test_anchors_on_a_shared_queue_lose_no_action(clock, ahead_ns):
    timer, notebook, device = make_timer(clock, shared_queue=True, drift_ppm=30.0)
    timer.begin()  # the first anchor, on an idle device
    truths = run_ahead(timer, device, clock, actions=6_000, ahead_ns=ahead_ns)
    clock.sleep(2 * S)
    timer.finish()
    assert notebook.dropped == 0
    for span, (begin_ns, end_ns) in zip(notebook.spans, truths, strict=True):
        assert abs(span["start_ns"] - begin_ns) <= notebook.error_ns(span["start_ns"])
        assert abs(span["end_ns"] - end_ns) <= notebook.error_ns(span["end_ns"])
    assert max(width_ns for _, _, width_ns, _ in notebook.anchors) < 5 * MS


def test_first_anchor_on_a_busy_shared_queue_is_taken_late(clock):
    timer, notebook, device = make_timer(clock, shared_queue=True)
    device.work(100 * MS)
    truths = run_ahead(timer, device, clock, actions=1_000, ahead_ns=100 * MS)
    clock.sleep(2 * S)
    timer.finish()
    assert len(notebook.spans) + notebook.dropped == 1_000
    assert notebook.dropped <= 250  # those launched until the device has reached the first anchor
    for span in notebook.spans:
        assert abs(span["start_ns"] - truths[span["microbatch"]][0]) <= notebook.error_ns(span["start_ns"])


def test_host_does_not_wait_for_a_late_anchor(clock):
    timer, _, device = make_timer(clock, shared_queue=True)
    timer.begin()
    device.work(100 * S)
    clock.sleep(9 * S)
    before_ns = clock.ns
    for microbatch in range(100):
        run_action(timer, device, MS, microbatch)
    assert clock.ns - before_ns < 2 * MS


def test_device_is_not_queried_during_a_capture(clock):
    timer, notebook, device = make_timer(clock, has_graph_events=False)
    run_action(timer, device, MS)
    clock.sleep(2 * S)
    device.capturing = True
    timer.end(timer.begin(), 1)
    timer.harvest()
    assert device.queries_while_capturing == 0
    assert notebook.dropped == 1
    device.capturing = False
    timer.harvest()
    assert len(notebook.spans) == 1


def test_busy_device_yields_no_anchor_and_takes_no_time(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    device.latency_ns, device.random = 0, device.random
    device.late_ns = 10**9
    clock.sleep(2 * S)
    before_ns = clock.ns
    timer.harvest()
    assert clock.ns - before_ns < MS
    assert len(notebook.anchors) == 1


def test_wide_bracket_is_rejected_after_a_recent_anchor(clock):
    timer, notebook, device = make_timer(clock)
    run_action(timer, device, MS)
    clock.sleep(2 * S)
    device.random.randint = lambda low, high: high
    device.late_ns = 100_000
    timer.harvest()
    assert len(notebook.anchors) == 1
    clock.sleep(8 * S)
    timer.harvest()
    assert len(notebook.anchors) == 2
    assert notebook.anchors[1][2] >= 100_000


def test_action_after_a_pause_uses_a_new_anchor(clock):
    timer, notebook, device = make_timer(clock, tick_ns=1)
    run_action(timer, device, MS)
    clock.sleep(3_600 * S)
    truth = run_action(timer, device, MS)
    clock.sleep(2 * S)
    timer.harvest()
    assert len(notebook.anchors) == 3
    assert abs(notebook.spans[-1]["start_ns"] - truth[0]) < 20_000


def test_resolve_passes_host_times(clock):
    timer, _, device = make_timer(clock)
    resolved = []
    start, begin_ns = timer.begin(), device.last_ns
    device.work(MS)
    timer.resolve(lambda *times_ns: resolved.append(times_ns), start, timer.begin())
    truth = begin_ns, device.last_ns
    clock.sleep(2 * S)
    timer.harvest()
    assert [abs(found - true) < 20_000 for found, true in zip(resolved[0], truth, strict=True)] == [
        True,
        True,
    ]


def test_concurrent_threads_lose_no_action():
    notebook = Notebook()
    timer = DeviceTimer(notebook, FakeDevice(time.monotonic_ns, latency_ns=0, late_ns=0))
    lock = threading.Lock()
    notebook.drop = lambda count: None
    counts = []
    notebook.emit = lambda *_, microbatch, **__: counts.append(microbatch)

    def work(first):
        for microbatch in range(first, first + 500):
            token = timer.begin()
            with lock:
                timer.end(token, 1, 0, microbatch)
            if microbatch % 50 == 0:
                timer.harvest()

    threads = [threading.Thread(target=work, args=(1_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    timer.finish()
    assert sorted(counts) == sorted(1_000 * number + one for number in range(4) for one in range(500))
