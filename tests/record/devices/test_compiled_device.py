"""Wrappers in C time actions with events of a simulated driver, and leave what is unusual to Python."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from children import only_contents
from simulated_gpu import ILLEGAL_ADDRESS, use
from stagescope.record import compiled
from stagescope.record.devices import device_timer
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.hooks import Guard, StageMethod, Timed, observed, prepared
from stagescope.vocabulary.kinds import BY_NAME

FORWARD = BY_NAME["forward"].code
MS = 1_000_000
needs_extension = pytest.mark.skipif(
    compiled.extension() is None, reason="the extension has not been built here"
)


@pytest.fixture
def driver(monkeypatch):
    return use(monkeypatch)


class Pipeline:
    """A stage whose forwards queue work on the device.

    `truth` has four times by micro-batch: those at which the device is ready for the launch, at which the work begins
    and ends, and at which the device is ready for what follows the call.
    """

    stage_index = 0

    def __init__(self, recorder, driver):
        method = StageMethod(FORWARD, 0, 1, {0: 0})
        self.actions = ActionsInProgress(recorder)
        timed = Timed(self.actions, lambda args, _: (FORWARD, 0, args[1], 0), method=method)
        self.guard = recorder.guards["a framework"] = Guard(recorder, "a framework")
        self.wrapper = observed(Pipeline.compute, prepared(lambda _: timed), self.guard)
        self.recorder, self.driver = recorder, driver
        self.inside, self.truth = bool, {}

    def compute(self, microbatch, duration_ns):
        """One action."""
        self.truth[microbatch] = [self.ready_ns(), *self.driver.work(duration_ns)]
        self.inside()

    def forward(self, microbatch, duration_ns=MS):
        launched_ns = self.ready_ns()
        self.wrapper(self, microbatch, duration_ns)
        self.truth[microbatch][0] = launched_ns
        self.truth[microbatch].append(self.ready_ns())

    def ready_ns(self):
        return max(time.monotonic_ns(), self.driver.free_ns)

    def step(self, count, first=0, **given):
        start_ns = self.recorder.begin_step()
        for microbatch in range(first, first + count):
            self.forward(microbatch, **given)
        self.recorder.end_step(start_ns)

    def wait(self):
        """Wait for the device."""
        time.sleep(max(0, self.driver.free_ns - time.monotonic_ns()) / 1e9)


@pytest.fixture
def pipeline(recorder, driver):
    pipeline = Pipeline(recorder, driver)
    recorder.begin_step()
    pipeline.forward(0)  # which finds the device
    return pipeline


def take_anchors_every(interval_ns, recorder, monkeypatch):
    """Take an anchor so often, and use it also if other programs have made its bracket wide."""
    monkeypatch.setattr("stagescope.record.devices.anchors.ANCHOR_INTERVAL_NS", interval_ns)
    monkeypatch.setattr("stagescope.record.devices.anchors.WIDE_NS", 1_000 * MS)
    recorder.timer.device._anchors._due_ns = 0


def recorded(recorder):
    """Stop recording; return its contents."""
    recorder.stop("test")
    return only_contents(Path(recorder.directory))


def forwards(contents):
    """The micro-batch, the start and the end of each forward."""
    spans = contents.spans
    is_forward = spans["kind"] == FORWARD
    columns = (spans[name][is_forward].tolist() for name in ("microbatch", "start_ns", "end_ns"))
    return sorted(zip(*columns, strict=True))


def assert_equal_to_truth(contents, truth):
    """Every action was recorded, within the stated error.

    It begins between its launch and its work, and ends between its work and the end of the call, which matters where
    the host is slower than the device.
    """
    found = forwards(contents)
    error_ns = int(contents.device_anchors["error_ns"].max())
    assert [row[0] for row in found] == sorted(truth)
    for microbatch, start_ns, end_ns in found:
        launched_ns, begin_ns, finish_ns, returned_ns = truth[microbatch]
        assert launched_ns - error_ns <= start_ns <= begin_ns + error_ns
        assert finish_ns - error_ns <= end_ns <= returned_ns + error_ns


@pytest.mark.usefixtures("way")
def test_actions_are_recorded_where_the_device_ran_them(recorder, pipeline, driver):
    for step in range(5):
        pipeline.step(20, 1 + 20 * step)
    pipeline.wait()
    contents = recorded(recorder)
    assert contents.dropped_spans == 0
    assert_equal_to_truth(contents, pipeline.truth)
    assert driver.calls["cuEventRecord"] == 0 or compiled.extension() is not None


@needs_extension
def test_usual_actions_are_recorded_without_python(recorder, pipeline, driver, monkeypatch):
    monkeypatch.setattr(ActionsInProgress, "end", None)
    monkeypatch.setattr(device_timer.DeviceTimer, "begin", None)
    before = driver.calls["cuEventRecord"]
    for microbatch in range(1, 51):
        pipeline.forward(microbatch)
    assert driver.calls["cuEventRecord"] - before == 100
    assert len(recorder.device_records) == 50
    assert pipeline.guard.errors == 0


@needs_extension
def test_the_host_does_not_wait_for_the_device(recorder, pipeline):
    begun_ns = time.monotonic_ns()
    pipeline.step(50, 1, duration_ns=100 * MS)
    assert time.monotonic_ns() - begun_ns < 2_000 * MS
    assert forwards_written(recorder) == 0
    contents = recorded(recorder)
    assert contents.dropped_spans + len(forwards(contents)) == 51


def forwards_written(recorder):
    assert recorder.flush()
    return len(forwards(only_contents(Path(recorder.directory))))


@needs_extension
def test_moments_between_two_anchors_are_interpolated(recorder, pipeline, monkeypatch):
    take_anchors_every(5 * MS, recorder, monkeypatch)
    for step in range(30):
        pipeline.step(4, 1 + 4 * step)
        pipeline.wait()
        time.sleep(0.002)
    contents = recorded(recorder)
    assert len(contents.device_anchors) > 5
    assert_equal_to_truth(contents, pipeline.truth)


@needs_extension
def test_an_action_that_ends_in_python_keeps_its_begin(recorder, pipeline):
    def reduce():
        recorder.computed = recorder.timer.begin()

    pipeline.forward(1)
    pipeline.inside = reduce
    pipeline.forward(2)
    pipeline.inside = bool
    pipeline.forward(3)
    pipeline.wait()
    contents = recorded(recorder)
    assert contents.dropped_spans == 0
    assert_equal_to_truth(contents, pipeline.truth)


@needs_extension
def test_an_action_that_fails_leaves_no_mark(recorder, pipeline):
    def fail():
        raise ArithmeticError

    pipeline.forward(1)
    free = recorder.device_records.free
    pipeline.inside = fail
    for _ in range(3):
        with pytest.raises(ArithmeticError):
            pipeline.forward(2)
    assert recorder.device_records.free == free
    pipeline.inside = bool
    pipeline.forward(3)
    pipeline.wait()
    assert [row[0] for row in forwards(recorded(recorder))] == [0, 1, 3]


@needs_extension
def test_a_capture_is_left_to_python_and_never_disturbed(recorder, pipeline, driver):
    pipeline.forward(1)
    driver.is_capturing = True
    for microbatch in (2, 3):
        pipeline.forward(microbatch)
    recorder.timer.harvest()
    driver.is_capturing = False
    pipeline.inside = lambda: setattr(driver, "is_capturing", True)
    pipeline.forward(4)  # ends in a capture
    pipeline.inside = bool
    driver.is_capturing = False
    pipeline.forward(5)
    pipeline.wait()
    contents = recorded(recorder)
    assert [row[0] for row in forwards(contents)] == [0, 1, 5]
    assert contents.dropped_spans == 3


@needs_extension
def test_captures_of_graphs_are_announced(recorder, pipeline):
    device = recorder.timer.device
    pipeline.forward(1)
    device.begin_capture(Pipeline)
    assert device.records.ready_until_ns == 0
    device.graphs.end_capture()
    pipeline.forward(2)
    assert device.records.ready_until_ns > time.monotonic_ns()


@needs_extension
def test_an_error_of_the_driver_costs_spans_and_one_warning(recorder, pipeline, driver, capsys):
    pipeline.forward(1)
    driver.error = ILLEGAL_ADDRESS
    for microbatch in range(2, 30):
        pipeline.forward(microbatch)
    recorder.timer.harvest()
    driver.error = 0
    contents = recorded(recorder)
    assert len(forwards(contents)) + contents.dropped_spans == 30
    assert len(forwards(contents)) <= 2
    warning = "could not be timed; they are dropped and counted: CUDA error 700: planted"
    assert capsys.readouterr().err.count(warning) == 1


@needs_extension
def test_an_error_at_the_end_of_an_action_is_counted(recorder, pipeline, driver):
    pipeline.inside = lambda: setattr(driver, "error", ILLEGAL_ADDRESS)
    pipeline.forward(1)
    driver.error = 0
    pipeline.inside = bool
    pipeline.forward(2)
    pipeline.wait()
    contents = recorded(recorder)
    assert [row[0] for row in forwards(contents)] == [0, 2]
    assert contents.dropped_spans == 1


@needs_extension
def test_another_current_device_is_left_to_python(recorder, pipeline, driver):
    pipeline.forward(1)
    driver.current = 1
    for microbatch in (2, 3):
        pipeline.forward(microbatch)
    assert driver.current == 1
    driver.current = 0
    pipeline.forward(4)
    pipeline.wait()
    contents = recorded(recorder)
    assert contents.dropped_spans == 0
    assert_equal_to_truth(contents, pipeline.truth)


@needs_extension
def test_a_late_anchor_is_looked_at_in_c_and_has_a_bracket_from_the_last_look(
    recorder, pipeline, driver, monkeypatch
):
    take_anchors_every(2_000 * MS, recorder, monkeypatch)
    driver.late_ns = 300 * MS
    pipeline.step(5, 1)
    pipeline.wait()
    recorder.timer.harvest()
    microbatch, pauses_ns = 6, []
    while recorder.device_records.late is not None and microbatch < 2_000:
        begun_ns = time.monotonic_ns()
        pipeline.forward(microbatch, duration_ns=1_000)
        time.sleep(0.001)
        microbatch += 1
        pauses_ns.append(time.monotonic_ns() - begun_ns)
    assert len(pauses_ns) > 2
    assert recorder.device_records.looked_ns > 0
    driver.late_ns = 0
    pipeline.wait()
    contents = recorded(recorder)
    assert contents.dropped_spans == 0
    assert_equal_to_truth(contents, pipeline.truth)
    assert int(contents.device_anchors["width_ns"].max()) < 2 * max(pauses_ns) + MS


@needs_extension
def test_actions_beyond_the_limit_are_counted(recorder, pipeline, monkeypatch):
    monkeypatch.setattr(device_timer, "MAX_WAITING", 600)
    for microbatch in range(1, 700):
        pipeline.forward(microbatch, duration_ns=10**13)
    assert len(recorder.device_records) <= 600
    contents = recorded(recorder)
    assert contents.dropped_spans == 699
    assert len(forwards(contents)) == 1


@needs_extension
def test_marks_are_used_again(recorder, pipeline, driver, monkeypatch):
    take_anchors_every(0, recorder, monkeypatch)
    for step in range(100):
        pipeline.step(40, 1 + 40 * step, duration_ns=1_000)
        recorder.flush()
    pipeline.wait()
    created = driver.calls["cuEventCreate"]
    contents = recorded(recorder)
    assert contents.dropped_spans == 0
    assert len(forwards(contents)) == 4001
    assert created < 2_000


@needs_extension
def test_memory_at_each_action_is_left_to_python(recorder, pipeline):
    assert recorder.device_records is not None
    recorder.details_memory = True
    recorder.timer.follow_details()
    assert recorder.device_records is None
    pipeline.forward(1)
    assert recorder.plain is None
    recorder.details_memory = False
    recorder.timer.follow_details()
    pipeline.forward(2)
    assert recorder.plain is not None
    pipeline.wait()
    assert_equal_to_truth(recorded(recorder), pipeline.truth)


@needs_extension
def test_an_action_may_begin_on_the_device_and_end_without_it(recorder, pipeline, capsys):
    pipeline.inside = lambda: recorder.timer.set_tensor_device("cuda:0", "cuda:1")
    pipeline.forward(1)
    assert recorder.device_records is None
    pipeline.inside = bool
    pipeline.forward(2)
    contents = recorded(recorder)
    assert "this process computes on cuda:0 and cuda:1" in capsys.readouterr().err
    assert len(forwards(contents)) + contents.dropped_spans == 3


def child_that_calls(driver, function):
    """Fork a child that calls a function; return whether it ended well and never called the driver."""
    child = os.fork()
    if not child:
        code = 2
        try:
            driver.calls.update(dict.fromkeys(driver.calls, 0))
            function()
            code = int(any(driver.calls.values()))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_extension
def test_a_forked_child_never_calls_the_driver(recorder, pipeline, driver, monkeypatch):
    pipeline.step(5, 1)
    destroyed = list(driver.destroyed)

    def record_on_the_host():
        monkeypatch.setattr("stagescope.record.devices.find_device", lambda reported: None)
        recorder.restart_in_child()
        assert recorder.device_records is None
        pipeline.forward(8)
        gc.collect()

    assert child_that_calls(driver, record_on_the_host)
    assert driver.destroyed == destroyed


@needs_extension
def test_a_child_that_is_forked_in_an_action_does_not_use_its_mark(recorder, pipeline, driver, monkeypatch):
    """The child leaves the action, which it has not begun."""
    free, children, parent = recorder.device_records.free, [], os.getpid()

    def fork():
        children.append(os.fork())
        if not children[0]:
            driver.calls.update(dict.fromkeys(driver.calls, 0))
            monkeypatch.setattr("stagescope.record.devices.find_device", lambda reported: None)
            recorder.restart_in_child()

    pipeline.inside = fork
    pipeline.forward(1)
    if os.getpid() != parent:
        os._exit(int(any(driver.calls.values()) or pipeline.guard.errors > 0))
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert recorder.device_records.free == free - 2


@needs_extension
def test_events_are_destroyed_with_their_recorder(recorder, pipeline, driver):
    pipeline.step(20, 1)
    pipeline.wait()
    recorder.stop("test")
    created = driver.calls["cuEventCreate"]
    recorder.timer._use_host()
    pipeline.recorder = None
    gc.collect()
    assert len(driver.destroyed) >= created - 5


@needs_extension
def test_a_driver_that_refuses_its_events_leaves_all_to_torch(recorder, driver, monkeypatch):
    monkeypatch.setattr("stagescope.record.devices.cuda_driver.addresses", lambda: None)
    pipeline = Pipeline(recorder, driver)
    pipeline.step(3)
    assert recorder.device_records is None
    pipeline.wait()
    assert_equal_to_truth(recorded(recorder), pipeline.truth)
