from __future__ import annotations

import gc
import itertools
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from children import clean_environment, only_contents, run_child
from stagescope import record
from stagescope.record import session, spans
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME, KIND_NAMES

FORWARD = BY_NAME["forward"].code


pytestmark = pytest.mark.usefixtures("recording_here")


def recorded(tmp_path):
    record.stop()
    return only_contents(tmp_path)


def column(contents, name):
    """Return a column without collections of garbage, which may happen in any test."""
    collections = [number for number, text in contents.names.items() if text.startswith("garbage")]
    return contents.spans[name][~np.isin(contents.spans["name"], collections)].tolist()


def names_of(contents):
    return [contents.names.get(number) for number in column(contents, "name")]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_every_kind_can_be_recorded(tmp_path, kind):
    with record.span(kind, microbatch=3, stage=1):
        pass
    contents = recorded(tmp_path)
    assert [column(contents, name) for name in ("kind", "microbatch", "stage", "name")] == [
        [BY_NAME[kind].code],
        [3],
        [1],
        [0],
    ]


def test_omitted_fields_are_none(tmp_path):
    with record.span("optimizer"):
        pass
    contents = recorded(tmp_path)
    assert {
        column(contents, name)[0] for name in ("microbatch", "stage", "chunk", "peer", "bytes", "step")
    } == {NONE}


def test_span_encloses_its_body(tmp_path):
    with record.span("forward"):
        inside_ns = session.recorder.begin_step(0)
    contents = recorded(tmp_path)
    assert column(contents, "start_ns")[0] <= inside_ns <= column(contents, "end_ns")[0]


def test_nested_spans_are_both_recorded(tmp_path):
    with record.span("other", name="outer"), record.span("forward", microbatch=0, stage=0):
        pass
    contents = recorded(tmp_path)
    starts, ends = column(contents, "start_ns"), column(contents, "end_ns")
    assert names_of(contents) == [None, "outer"]
    assert starts[1] <= starts[0] <= ends[0] <= ends[1]


@pytest.mark.parametrize("kind", ["data_loading", "", "FORWARD", 7, ["forward"], None])
def test_unknown_kind_is_other_with_a_name(tmp_path, kind):
    with record.span(kind, stage=2):
        pass
    contents = recorded(tmp_path)
    assert column(contents, "kind") == [BY_NAME["other"].code]
    assert column(contents, "stage") == [2]
    assert names_of(contents) == [str(kind) or None]


def test_details_fill_fields_or_extend_the_name(tmp_path):
    with record.span(
        "send_forward", microbatch=1, stage=0, chunk=2, peer=3, size_bytes=4096, name="x", tag="a", no=None
    ):
        pass
    contents = recorded(tmp_path)
    assert [column(contents, name) for name in ("chunk", "peer", "bytes")] == [[2], [3], [4096]]
    assert names_of(contents) == ["x tag=a"]


def test_integers_of_other_libraries_are_accepted(tmp_path):
    one, two, three = np.int64(1), np.int32(2), np.uint8(3)
    with (
        record.profile_range(one, 1, 2) as wanted,
        record.span("forward", microbatch=three, stage=one, peer=two),
    ):
        pass
    contents = recorded(tmp_path)
    assert wanted
    assert [column(contents, name) for name in ("microbatch", "stage", "peer", "step")] == [
        [3],
        [1],
        [2],
        [1],
    ]


class Unspeakable:
    def __str__(self):
        raise ValueError("no words")


def test_no_argument_of_a_span_raises(tmp_path):
    with record.span("forward", stage="two"):
        pass
    with record.span("forward", thing=Unspeakable(), chunk="one"):
        pass
    with record.span("forward", peer=2**70):
        pass
    contents = recorded(tmp_path)
    assert names_of(contents) == ["chunk=one thing=<Unspeakable>"] or names_of(contents) == [
        "thing=<Unspeakable> chunk=one"
    ]
    assert contents.dropped_spans == 2


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_plain_spans_keep_their_order_across_chunks(tmp_path, count):
    for number in range(count):
        with record.span("backward", microbatch=number, stage=number % 7):
            pass
    contents = recorded(tmp_path)
    assert column(contents, "microbatch") == list(range(count))
    assert column(contents, "stage") == [number % 7 for number in range(count)]
    assert contents.dropped_spans == 0


def test_plain_span_belongs_to_the_step_it_ends_in(tmp_path):
    for step in (3, 4, NONE, 2**40, 5):
        session.recorder.step = step
        for _ in range(2):
            with record.span("forward", microbatch=0, stage=0):
                pass
    contents = recorded(tmp_path)
    assert column(contents, "step") == [3, 3, 4, 4, NONE, NONE, 5, 5]
    assert contents.dropped_spans == 2


def test_fields_given_as_none_are_none(tmp_path):
    for _ in range(2):
        with record.span("forward", microbatch=None, stage=None):
            pass
    contents = recorded(tmp_path)
    assert (column(contents, "microbatch"), column(contents, "stage")) == ([NONE] * 2, [NONE] * 2)


def test_span_object_can_be_reused_and_is_timed_from_its_entry(tmp_path):
    mark = record.span("forward", microbatch=1)
    made_ns = time.monotonic_ns()
    for _ in range(3):
        with mark:
            pass
    starts = column(recorded(tmp_path), "start_ns")
    assert len(starts) == 3
    assert made_ns <= starts[0] < starts[1] < starts[2]


class DeviceTimer:
    """Replaces the timer of a recorder that has found a device."""

    device = "a device"

    def __init__(self):
        self.actions = []

    def begin(self):
        return "token"

    def end(self, *action):
        self.actions.append(action)

    def begin_step(self):
        spans.time_on_device()

    def finish(self):
        """Does nothing."""

    def sample_memory(self):
        """Does nothing."""


@pytest.fixture
def device_timer(monkeypatch):
    monkeypatch.setattr(spans, "PLAIN", spans.Span)
    session.recorder.timer = DeviceTimer()
    return session.recorder.timer


def test_actions_are_timed_on_the_device_and_other_spans_on_the_host(tmp_path, device_timer):
    for microbatch in range(3):  # the first one finds the device
        with record.span("forward", microbatch=microbatch, stage=1):
            pass
    with record.span("backward", microbatch=0, stage=1, chunk=2, name="big"):
        pass
    with record.span("send_forward", microbatch=0, peer=3), record.span("loading"):
        pass
    name = session.recorder.name_id("big")
    assert device_timer.actions == [
        ("token", FORWARD, 1, 1, NONE, 0),
        ("token", FORWARD, 1, 2, NONE, 0),
        ("token", BY_NAME["backward"].code, 1, 0, 2, name),
    ]
    kinds = [BY_NAME[kind].code for kind in ("forward", "other", "send_forward")]
    assert column(recorded(tmp_path), "kind") == kinds


def test_unselected_spans_are_not_timed_on_the_device(device_timer):
    spans.time_on_device()
    session.recorder.switch(on=False)
    with record.span("forward", microbatch=1, stage=1):
        pass
    assert device_timer.actions == []


@pytest.mark.parametrize("make", [spans.Span, spans.DetailedSpan])
def test_span_without_recording_has_no_effect(tmp_path, monkeypatch, make):
    monkeypatch.setattr(spans, "PLAIN", make)
    with record.span("forward"):
        record.stop()
    for details in ({}, {"name": "x"}):
        with record.span("forward", **details), pytest.raises(ZeroDivisionError), record.span("forward"):
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_concurrent_threads_record_their_own_spans(tmp_path):
    def work(stage):
        for number in range(3000):
            with record.span("forward", microbatch=number, stage=stage):
                pass

    threads = [threading.Thread(target=work, args=(stage,)) for stage in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = recorded(tmp_path).spans
    for stage in range(4):
        mine = spans["stage"] == stage
        assert spans["microbatch"][mine].tolist() == list(range(3000))
        assert len(set(spans["thread"][mine].tolist())) == 1


class StepTooLongError(Exception):
    """The exception that a training raises in a timer signal."""


@contextmanager
def timer_signals(handler):
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_span_marking_signal_handler_loses_no_span(tmp_path):
    numbers = {0: itertools.count(), 1: itertools.count()}

    def mark(stage):
        with record.span("forward", microbatch=next(numbers[stage]), stage=stage):
            pass

    limit_s = time.monotonic() + 0.5
    with timer_signals(lambda *_: mark(1)):
        while time.monotonic() < limit_s:
            for _ in range(100):
                mark(0)
            session.recorder.flush()
    contents = recorded(tmp_path)
    for stage, following in numbers.items():
        mine = contents.spans["microbatch"][contents.spans["stage"] == stage]
        assert sorted(mine) == list(range(next(following)))
        assert len(mine) > 0
    assert contents.dropped_spans == 0


@pytest.mark.parametrize("error", [StepTooLongError, TimeoutError])
@pytest.mark.parametrize("how", ["span", "emit"])
def test_exception_of_a_signal_handler_reaches_the_training(tmp_path, error, how):
    done = 0

    def mark():
        nonlocal done
        if how == "emit":
            session.recorder.emit(1, 1, 2, 3, done)
        else:
            with record.span("forward", microbatch=done, stage=3):
                pass
        done += 1

    def handler(*_):
        raise error

    def mark_until_it_comes(delay_s):
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        limit_s = time.monotonic() + 2
        while time.monotonic() < limit_s:
            mark()

    mark()
    before = signal.signal(signal.SIGALRM, handler)
    # Python prints and discards exceptions inside a gc callback, and hypothesis has installed one.
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        for round_ in range(300):
            with pytest.raises(error):
                mark_until_it_comes(0.0002 + round_ * 1e-6)
    finally:
        gc.callbacks.extend(callbacks)
        signal.signal(signal.SIGALRM, before)
    contents = recorded(tmp_path)
    assert done <= len(contents.spans) + contents.dropped_spans <= done + 300


def test_exception_propagates_and_the_span_is_recorded(tmp_path):
    with pytest.raises(ZeroDivisionError), record.span("forward", microbatch=1):
        1 / 0  # noqa: B018  # raises
    assert column(recorded(tmp_path), "microbatch") == [1]


def run_loop(range_of, steps, body_inside):
    """Run a training loop with profile_range in one of its two patterns; return the announced steps."""
    announced = []
    for step in steps:
        with record.profile_range(step, *range_of) as wanted:
            if wanted:
                announced.append(step)
            if body_inside:
                with record.span("forward", microbatch=step):
                    pass
        if not body_inside:
            with record.span("forward", microbatch=step):
                pass
    return announced


@settings(max_examples=40, deadline=None)
@given(st.integers(-2, 8), st.integers(-2, 8), st.booleans())
def test_range_includes_start_and_excludes_stop(tmp_path_factory, start, stop, body_inside):
    record.stop()
    directory = tmp_path_factory.mktemp("run")
    record.start(directory)
    announced = run_loop((start, stop), range(8), body_inside)
    record.stop()
    expected = [step for step in range(8) if step in range(start, stop)]
    assert announced == expected
    files = list(directory.iterdir())
    contents = only_contents(directory) if files else None
    assert (column(contents, "microbatch") if contents else []) == expected
    assert (column(contents, "step") if contents else []) == expected


def test_range_starts_the_recorder(tmp_path, monkeypatch):
    record.stop()
    monkeypatch.setenv(session.OUT_VARIABLE, str(tmp_path))
    run_loop((2, 4), range(2), body_inside=True)
    assert session.recorder is None
    run_loop((2, 4), range(2, 6), body_inside=True)
    assert column(recorded(tmp_path), "step") == [2, 3]


@pytest.mark.parametrize(("steps", "expected"), [("3:9", [3]), ("0:3", [2]), ("7:9", [])])
def test_command_line_steps_limit_a_range(tmp_path, steps, expected):
    record.stop()
    record.start(tmp_path, steps=steps)
    announced = run_loop((2, 4), range(6), body_inside=True)
    record.stop()
    assert announced == expected
    files = list(tmp_path.iterdir())
    assert (column(only_contents(tmp_path), "step") if files else []) == expected


def test_exception_in_a_range_propagates(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        record.profile_range(0, 0, 1),
        record.span("forward", microbatch=0),
    ):
        1 / 0  # noqa: B018  # raises
    assert column(recorded(tmp_path), "microbatch") == [0]


LOOP = """
import sys
from stagescope import record
def work(step):
    with record.span("forward", microbatch=step, stage=0):
        if step == {fails_at}:
            {failure}
for step in range(10):
    with record.profile_range(step, 2, 5, True):
        {inside}
    {after}
print("the loop has ended")
"""
PATTERNS = {"body inside": ("work(step)", "pass"), "guard only": ("pass", "work(step)")}


def run_script(tmp_path, pattern, failure="pass", fails_at=-1, **environment):
    inside, after = PATTERNS[pattern]
    script = LOOP.format(inside=inside, after=after, failure=failure, fails_at=fails_at)
    return run_child(script, env=clean_environment(STAGESCOPE_OUT=str(tmp_path), **environment))


@pytest.fixture
def no_recording():
    record.stop()


@pytest.mark.usefixtures("no_recording")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exit_after_exits_with_0_after_the_last_selected_step(tmp_path, pattern):
    done = run_script(tmp_path, pattern)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    contents = only_contents(tmp_path)
    assert column(contents, "microbatch") == column(contents, "step") == [2, 3, 4]
    assert contents.end["reason"] == "stop"


@pytest.mark.usefixtures("no_recording")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("fails_at", [0, 3, 4])
@pytest.mark.parametrize(
    ("failure", "code", "traceback"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("sys.exit(7)", 7, ""),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_exit_code_of_the_training_is_kept(tmp_path, pattern, fails_at, failure, code, traceback):  # noqa: PLR0917  # parametrized
    done = run_script(tmp_path, pattern, failure, fails_at)
    assert done.returncode == code
    assert done.stderr.strip().endswith(traceback)
    assert ("Traceback" in done.stderr) == bool(traceback)


@pytest.mark.usefixtures("no_recording")
def test_training_resumed_after_the_range_continues(tmp_path):
    script = LOOP.format(inside="work(step)", after="pass", failure="pass", fails_at=-1)
    done = run_child(
        script.replace("range(10)", "range(6, 10)"), env=clean_environment(STAGESCOPE_OUT=str(tmp_path))
    )
    assert (done.returncode, done.stdout) == (0, "the loop has ended\n")
    assert list(tmp_path.iterdir()) == []
