"""The extension in C: built from these sources, equal to the wrappers in Python, and harmless to what it wraps."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import random
import subprocess
import sys
import sysconfig
import threading
import time
import types
import weakref
from collections import deque
from pathlib import Path

import pytest

import simulated_gpu
from framework_trainings import only_contents
from stagescope.record import compiled, emitter, timing, wrappers
from stagescope.record.format import NONE, SPAN
from stagescope.record.frameworks import torch_messages
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.torch_messages import Messages
from stagescope.record.hooks import Guard, StageMethod, Timed, observed, prepared
from stagescope.record.process_state import process_state
from stagescope.record.records import plain_middle
from stagescope.record.waiting import Waiting
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME
from tools import build_hook

FORWARD, RECEIVE, SEND = (BY_NAME[name].code for name in ("forward", "recv_forward", "send_forward"))
KINDS = sorted(BY_CODE)


def test_the_extension_is_built_from_these_sources_wherever_it_can_be(tmp_path):
    failure = build_hook.build(tmp_path / "built.so")
    if failure is not None:
        assert not (tmp_path / "built.so").exists()
        pytest.skip(f"the extension cannot be built here: {failure}")
    built = Path(compiled.__file__).with_name("_plain" + sysconfig.get_config_var("EXT_SUFFIX"))
    assert built.is_file(), "run tools/build_hook.py, as make does"
    assert built.read_bytes() == (tmp_path / "built.so").read_bytes(), (
        "built from other sources: run it again"
    )


@pytest.fixture
def plain():
    found = compiled.extension()
    if found is None:
        pytest.skip("the extension has not been built here")
    return found


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("setting", ["0", "1"])
def test_a_variable_leaves_all_wrappers_to_python(setting):
    script = "from stagescope.record import compiled; print(compiled.extension() is None)"
    environment = {**os.environ, compiled.VARIABLE: setting}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(setting == "0")


@pytest.fixture
def loaded_again():
    """Look for the extension again in this test, and after it."""
    compiled.extension.cache_clear()
    yield
    compiled.extension.cache_clear()


@pytest.mark.usefixtures("loaded_again")
def test_an_extension_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(compiled, "INTERFACE", compiled.INTERFACE + 1)
    assert compiled.extension() is None
    assert compiled.ring() is None


@pytest.mark.usefixtures("loaded_again")
def test_an_extension_that_does_not_know_the_recorder_is_not_used(plain, monkeypatch):
    def use_slots(*_):
        raise TypeError("action is no slot")

    monkeypatch.setattr(plain, "use_slots", use_slots)
    compiled.extension.cache_clear()
    assert compiled.extension() is None


def spans(number, seed):
    """Yield spans of all forms, some of them with values that do not fit."""
    chosen = random.Random(seed)  # noqa: S311  # no secret
    for _ in range(number):
        start, wait = chosen.choice([0, 1, 2**62, 2**63 - 1]), chosen.choice([NONE, 5, 2**40])
        middle, thread = (
            plain_middle(chosen.choice([NONE, 7, 2**31 - 1])),
            chosen.choice([0, 1, 2**16 - 1, 2**16]),
        )
        stage = chosen.choice([0, 3, NONE, 2**31 - 1, 2**31, "two", None])
        microbatch = chosen.choice([0, 63, NONE, -(2**31), -(2**31) - 1, True, Index(4), 1.5])
        chunk, kind = chosen.choice([NONE, 0, 2**15 - 1, 2**15]), chosen.choice([*KINDS, 0, 255, 256, NONE])
        size, peer, name = (
            chosen.choice([NONE, 2**40, 2**63]),
            chosen.choice([NONE, 9]),
            chosen.choice([0, 2**32 - 1, 2**32]),
        )
        yield chosen.choice([
            (start, start, (middle, thread), (kind, stage, microbatch, chunk)),
            (start, start, wait, wait, 7, (middle, thread), (kind, stage, microbatch, peer, size)),
            (start, start, middle, stage, microbatch, thread, kind, chunk, name),
            (start, start, wait, wait, size, 7, stage, microbatch, peer, NONE, name, chunk, thread, kind),
        ])  # fmt: skip


class Index:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("seed", range(10))
def test_the_ring_packs_what_the_queue_packs_and_drops_what_it_drops(seed):
    ring, queue = compiled.ring(), deque()
    given = list(spans(2000, seed))
    for span in given:
        ring.append(span)
        queue.append(span)
    waiting = Waiting(queue)
    records, dropped = waiting.pack(waiting.take())
    assert 200 < len(ring) == len(given) - dropped
    assert ring.take() == records
    assert ring.dropped == dropped
    assert not len(ring)


@pytest.mark.usefixtures("plain")
def test_the_ring_keeps_the_order_when_it_starts_over():
    ring = compiled.ring()
    found, expected = [], []
    for number in range(5 * ring.most // 2):
        ring.append((number, number + 1, (plain_middle(3), 0), (FORWARD, 0, number % 9, 0)))
        expected.append(number)
        if len(ring) == ring.most or number % 1500 == 0:
            found += [start for start, *_ in SPAN.iter_unpack(ring.take())]
    found += [start for start, *_ in SPAN.iter_unpack(ring.take())]
    assert found == expected
    assert not ring.dropped


@pytest.mark.usefixtures("plain")
def test_a_ring_that_is_full_drops_what_is_appended():
    ring = compiled.ring()
    for number in range(ring.most + 3):
        ring.append((number, number, (plain_middle(3), 0), (FORWARD, 0, 0, 0)))
    assert (len(ring), ring.dropped) == (ring.most, 3)
    ring.clear()
    assert (len(ring), ring.dropped, ring.take()) == (0, 0, b"")


class Stage:
    stage_index = 0

    def forward(self, microbatch, data=None):
        """Compute."""
        del microbatch
        return self.inside() if data is None else data

    inside = staticmethod(lambda: None)


def wrapped_forward(recorder, chunks=None):
    method = StageMethod(FORWARD, 0, 1, {0: 0} if chunks is None else chunks)
    timed = Timed(ActionsInProgress(recorder), lambda args, _: (FORWARD, 0, args[1], 0), method=method)
    guard = Guard(recorder, "a framework")
    recorder.guards["a framework"] = guard
    return observed(Stage.forward, prepared(lambda _: timed), guard)


@pytest.fixture
def forward(plain, recorder, monkeypatch):
    """The method of a stage in C, after the first action of a step."""
    del plain
    wrapper = wrapped_forward(recorder)
    monkeypatch.setattr(Stage, "forward", wrapper)
    recorder.begin_step(0)
    Stage().forward(0)
    return wrapper


def test_the_wrapper_looks_like_what_it_wraps(forward):
    assert not inspect.isfunction(forward)
    assert forward.__name__ == "forward"
    assert forward.__qualname__ == "Stage.forward"
    assert forward.__doc__ == "Compute."
    assert list(inspect.signature(forward).parameters) == ["self", "microbatch", "data"]
    assert inspect.unwrap(forward) is forward.__wrapped__
    assert "Stage.forward" in repr(forward)
    assert weakref.ref(forward)() is forward


def test_a_copy_is_the_same_function_and_a_pickle_has_its_name(forward, monkeypatch):
    assert copy.copy(forward) is copy.deepcopy(forward) is forward
    monkeypatch.setattr(sys.modules[__name__], "Stage", Stage, raising=False)
    monkeypatch.setitem(sys.modules, "test_compiled", sys.modules[__name__])
    forward.__module__ = "test_compiled"
    assert pickle.loads(pickle.dumps(forward)) is forward  # noqa: S301  # just written


def test_the_wrapper_is_a_method_of_an_object_and_a_function_of_a_class(forward):
    stage = Stage()
    assert Stage.forward is forward
    assert stage.forward.__self__ is stage
    assert (
        stage.forward(1, "kept")
        == Stage.forward(stage, 1, "kept")
        == stage.forward(microbatch=1, data="kept")
    )
    with pytest.raises(TypeError):
        stage.forward()


@pytest.mark.usefixtures("forward")
def test_no_reference_is_kept_or_lost(recorder):
    stage, data = Stage(), object()
    before, action = sys.getrefcount(data), sys.getrefcount(stage)
    for number in range(3 * recorder.most_waiting):
        assert stage.forward(number, data) is data
    assert recorder.flush()
    assert (sys.getrefcount(data), sys.getrefcount(stage)) == (before, action)
    blocks = sys.getallocatedblocks()
    for number in range(3 * recorder.most_waiting):
        stage.forward(number, data)
        if not number % 1000:
            recorder.flush()
    gc.collect()
    assert sys.getallocatedblocks() < blocks + 500


@pytest.mark.usefixtures("plain")
def test_a_wrapper_that_is_unused_is_freed_with_all_it_knows(recorder):
    stage = Stage()
    wrapper = wrapped_forward(recorder)
    wrapper.cycle, wrapper.known = wrapper, stage
    known, own = weakref.ref(stage), weakref.ref(wrapper)
    del wrapper, stage
    recorder.guards.clear()
    gc.collect()
    assert known() is own() is None


@pytest.mark.usefixtures("forward")
def test_an_exception_of_a_signal_handler_in_the_recorder_belongs_to_the_training(recorder, monkeypatch):
    error = TimeoutError("of the training")

    class Interrupted(Stage):
        @property
        def stage_index(self):
            raise error

    monkeypatch.setattr("stagescope.record.signal_handlers._codes_of_signal_handlers", handlers := set)
    Interrupted().forward(1)  # no handler has raised it
    assert recorder.guards["a framework"].errors == 0
    handlers = {Interrupted.stage_index.fget.__code__}
    monkeypatch.setattr("stagescope.record.signal_handlers._codes_of_signal_handlers", lambda: handlers)
    with pytest.raises(TimeoutError) as raised:
        Interrupted().forward(2)
    assert raised.value is error


@pytest.mark.usefixtures("forward")
def test_a_call_of_another_thread_is_left_to_python(recorder):
    other = threading.Thread(target=Stage().forward, args=(1,))
    other.start()
    other.join()
    Stage().forward(2)
    recorder.stop("test")
    found = only_contents(Path(recorder.directory)).spans
    assert sorted(zip(found["microbatch"].tolist(), found["thread"].tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
        (2, 0),
    ]


@pytest.mark.usefixtures("plain")
def test_another_clock_than_that_of_the_extension_is_read_for_all_spans(recorder, monkeypatch):
    def shifted_ns():
        return time.monotonic_ns() + 10**12

    for module in (emitter, timing, wrappers):
        monkeypatch.setattr(module, "now_ns", shifted_ns)
    recorder.timer._use_host()
    monkeypatch.setattr(Stage, "forward", wrapped_forward(recorder))
    recorder.begin_step(0)
    before_ns = time.monotonic_ns()
    for number in range(3):
        Stage().forward(number)
    assert recorder.plain is None
    recorder.stop("test")
    found = only_contents(Path(recorder.directory)).spans
    assert len(found) == 3
    assert found["start_ns"].min() >= before_ns + 10**12
    assert (found["end_ns"] >= found["start_ns"]).all()


def test_another_clock_is_read_for_messages_too(messages, recorder, monkeypatch):
    for module in (emitter, timing, torch_messages, wrappers):
        monkeypatch.setattr(module, "now_ns", lambda: 10**15)
    recorder.timer._use_host()
    recorder.plain = None
    for handle in messages.issue(Sender().operations(5)):
        handle.wait()
    recorder.stop("test")
    found = only_contents(Path(recorder.directory)).spans
    is_receive = found["kind"] == RECEIVE
    assert is_receive.sum() == 2
    for name in ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"):
        assert (found[name][is_receive] == 10**15).all()


@pytest.mark.usefixtures("forward")
def test_a_forked_child_does_not_write_what_its_parent_has_left_to_the_writer(recorder):
    Stage().forward(1)
    child = os.fork()
    if not child:
        recorder.begin_empty()
        os._exit(len(recorder.waiting))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(recorder.waiting) > 0


class Operation:
    def __init__(self, peer, nbytes=8):
        self.peer, self.tensor = peer, types.SimpleNamespace(nbytes=nbytes)


class Handle:
    during = None

    def wait(self):
        if Handle.during is not None:
            Handle.during()
        return True


class Sender:
    stage_index = 2

    def operations(self, microbatch):
        del microbatch
        return [Operation(1), Operation(3)]


@pytest.fixture
def messages(plain, recorder, request, monkeypatch):
    """The functions that create, issue and wait for receives, in C; on a simulated GPU if that is the parameter."""
    del plain
    if getattr(request, "param", None) == "GPU":
        simulated_gpu.use(monkeypatch)
    request.getfixturevalue("forward")
    found, guard = Messages(recorder), Guard(recorder, "a framework")
    recorder.guards["messages"] = guard

    def issue(operations):
        return [Handle()] if found.is_coalesced else [Handle() for _ in operations]

    found.is_coalesced = False

    original, signature = Sender.operations, types.SimpleNamespace(places={"microbatch": 1})

    def create(kind):
        creation = found.creation(kind, signature, "microbatch")
        monkeypatch.setattr(Sender, "operations", observed(original, prepared(lambda _: creation), guard))

    found.create = create
    create(RECEIVE)
    parameter = types.SimpleNamespace(of=lambda args, _: args[0])
    found.works.classes.add(Handle)
    monkeypatch.setattr(Handle, "wait", observed(Handle.wait, found.works.wait, guard))
    found.issue = observed(issue, prepared(lambda _: found.issues(parameter)), guard)
    yield found
    assert guard.errors == 0


def recorded_messages(recorder, kind=RECEIVE):
    recorder.stop("test")
    found = only_contents(Path(recorder.directory)).spans
    columns = (
        found[name].tolist() for name in ("kind", "stage", "microbatch", "peer", "bytes", "wait_start_ns")
    )
    return [(*row[1:5], row[5] != NONE) for row in zip(*columns, strict=True) if row[0] == kind]


def test_messages_are_recorded_from_their_creation_to_the_wait_for_them(messages, recorder):
    for handle in messages.issue(Sender().operations(5)):
        assert handle.wait()
    assert messages.receives == 2
    assert messages.last_receive > 0
    assert not messages.pending
    assert not messages.under_way
    assert recorded_messages(recorder) == [(2, 5, 1, 8, True), (2, 5, 3, 8, True)]


on_both_clocks = pytest.mark.parametrize("messages", ["host", "GPU"], indirect=True)


@on_both_clocks
def test_one_wait_may_be_for_several_messages(messages, recorder):
    messages.is_coalesced = True
    for number in range(3):
        (handle,) = messages.issue(Sender().operations(number))
        assert len(messages.pending) == 2
        assert handle.wait()
    assert not messages.under_way
    assert messages.receives == 6
    recorder.stop("test")
    found = only_contents(Path(recorder.directory))
    assert found.dropped_spans == 0
    is_receive = found.spans["kind"] == RECEIVE
    times = {
        name: found.spans[name][is_receive].tolist() for name in ("end_ns", "wait_start_ns", "wait_end_ns")
    }
    assert times["end_ns"] == times["wait_end_ns"]
    assert [len(set(values)) for values in times.values()] == [3, 3, 3]
    assert min(times["wait_start_ns"]) > 0
    assert found.spans["microbatch"][is_receive].tolist() == [0, 0, 1, 1, 2, 2]


@on_both_clocks
def test_messages_of_one_handle_are_taken_over_together(messages, recorder):
    messages.is_coalesced = True
    (handle,) = messages.issue(Sender().operations(5))
    messages.used(FORWARD, 7, 7, None)  # takes over what is under way
    assert not messages.pending
    assert handle.wait()
    assert recorded_messages(recorder) == [(2, 5, 1, 8, True), (2, 5, 3, 8, True)]


@on_both_clocks
def test_a_failed_wait_leaves_all_messages_of_its_handle_under_way(messages, monkeypatch):
    messages.is_coalesced = True
    (handle,) = messages.issue(Sender().operations(5))
    recorder = messages.recorder
    wait = compiled.plain_wrapper(
        lambda _: 1 / 0, lambda _: 1 / 0, messages.works.wait(None), recorder.guards["messages"]
    )
    with pytest.raises(ZeroDivisionError):
        wait(handle)
    monkeypatch.undo()
    assert len(messages.under_way) == 2
    if recorder.device_records is not None:
        recorder.device_records.clear()
        assert recorder.device_records.free >= 127  # of 128: Python has had the event of its begin


@on_both_clocks
def test_an_end_that_is_left_to_python_keeps_the_begin_for_all_messages(messages, recorder, monkeypatch):
    messages.is_coalesced = True
    (handle,) = messages.issue(Sender().operations(5))
    monkeypatch.setattr(Handle, "during", lambda: setattr(recorder, "plain", None))
    assert handle.wait()
    monkeypatch.setattr(Handle, "during", None)
    (handle,) = messages.issue(Sender().operations(6))
    assert handle.wait()
    found = recorded_messages(recorder)
    assert found == [(2, number, peer, 8, True) for number in (5, 6) for peer in (1, 3)]


def test_messages_without_a_wait_are_taken_over(messages, recorder):
    first, _ = messages.issue(Sender().operations(5))
    kept = Sender().operations(6)
    assert len(messages.pending) == 4
    messages.close()
    assert not messages.pending
    assert first.wait()
    assert len(kept) == 2
    assert recorded_messages(recorder) == []
    assert only_contents(Path(recorder.directory)).dropped_spans == 2  # the receives that were issued


def test_an_action_that_uses_what_was_received_without_a_wait_is_left_to_python(
    messages, recorder, monkeypatch
):
    used = []
    monkeypatch.setattr(Stage, "stage_index", 2)
    timed = Timed(ActionsInProgress(recorder), lambda *_: None, method=StageMethod(FORWARD, 0, 1, {2: 0}))
    timed.actions.pending = messages.pending
    general = lambda self, microbatch: used.append(microbatch)  # noqa: E731
    wrapper = compiled.plain_wrapper(lambda *_: "plain", general, timed, Guard(recorder, "x"))
    handles = messages.issue(Sender().operations(5))
    assert wrapper(Stage(), 4) == "plain"
    assert wrapper(Stage(), 5) is None
    assert used == [5]
    assert len(messages.expected) == 2
    assert len(handles) == 2


def test_an_action_of_another_thread_takes_what_was_received_without_a_wait(messages, recorder, monkeypatch):
    expected = []
    monkeypatch.setattr(Stage, "stage_index", 2)
    timed = Timed(ActionsInProgress(recorder), lambda *_: None, method=StageMethod(FORWARD, 0, 1, {2: 0}))
    timed.actions.pending = messages.pending
    general = lambda *_: expected.append(len(messages.expected))  # noqa: E731
    wrapper = compiled.plain_wrapper(lambda *_: "plain", general, timed, Guard(recorder, "x"))
    handles = messages.issue(Sender().operations(5))
    for microbatch in (4, 5):
        other = threading.Thread(target=wrapper, args=(Stage(), microbatch))
        other.start()
        other.join()
    assert expected == [0, 2]
    assert len(handles) == 2


def test_an_object_at_the_address_of_another_one_is_not_taken_for_it(messages, recorder):
    """An operation and a handle that are unused leave their addresses to others."""
    addresses = {id(operation) for operation in Sender().operations(5)}
    others = [Operation(7) for _ in range(50)]
    if not addresses & set(map(id, others)):
        pytest.skip("the allocator of this Python has not used an address again")
    messages.issue(others)
    messages.issue(Sender().operations(6))
    strangers = [Handle() for _ in range(50)]
    for handle in strangers:
        handle.wait()
    assert messages.receives == 0
    assert recorded_messages(recorder) == []


def test_classes_of_handles_are_looked_up_again_once_others_are_observed(messages, recorder):
    works = messages.works
    handles = messages.issue(Sender().operations(5))
    assert works.pending.known_class is Handle
    works.transfers.known_class = Handle
    works.observe_classes(types.SimpleNamespace(observe=lambda *_: None), recorder.guards["messages"])
    assert works.pending.known_class is works.transfers.known_class is None
    assert messages.issue(Sender().operations(6)) != handles
    assert works.pending.known_class is None, "its waits were not observed"


def test_a_wait_that_fails_leaves_its_message_under_way(messages, recorder, monkeypatch):
    handle, _ = messages.issue(Sender().operations(5))
    wait = compiled.plain_wrapper(
        lambda _: 1 / 0, lambda _: 1 / 0, messages.works.wait(None), recorder.guards["messages"]
    )
    with pytest.raises(ZeroDivisionError):
        wait(handle)
    monkeypatch.undo()
    assert [batch[0] for batch in messages.under_way.values()] == [[(RECEIVE, 2, 5, 1, 8)]]
    assert messages.receives == 0


@pytest.mark.parametrize("kind", [RECEIVE, SEND])
@pytest.mark.parametrize("order", ["first to last", "last to first", "any"])
@pytest.mark.parametrize("microbatches", [50, 700])
def test_more_messages_than_there_are_places_are_left_to_python(
    messages, recorder, kind, order, microbatches
):
    messages.create(kind)
    sender, chosen = Sender(), random.Random(3)  # noqa: S311  # no secret
    handles = [
        handle for number in range(microbatches) for handle in messages.issue(sender.operations(number))
    ]
    many = [sender.operations(number) for number in range(microbatches, microbatches + 20)]
    for operations in many:
        handles += messages.issue(operations)
    if order != "first to last":
        handles.reverse()
    if order == "any":
        chosen.shuffle(handles)
    for number, handle in enumerate(handles):
        handle.wait()
        if number % 10 == 9:
            assert recorder.flush()
            (more,) = sender.operations(10**6 + number)[:1]
            for one in messages.issue([more]):  # between the gaps
                one.wait()
    found = [row[:4] for row in recorded_messages(recorder, kind) if row[1] < 10**6]
    assert sorted(found) == sorted(
        (2, number, peer, 8) for number in range(microbatches + 20) for peer in (1, 3)
    )


def test_a_wait_after_recording_was_switched_off_is_left_to_python(messages, recorder):
    first, second = messages.issue(Sender().operations(5))
    recorder.switch(on=False)
    assert first.wait()
    assert second.wait()
    assert recorded_messages(recorder) == [(2, 5, 1, 8, True), (2, 5, 3, 8, True)]


def test_a_wait_in_progress_states_its_message(messages, recorder):
    seen = []

    def look(_):
        other = threading.Thread(target=lambda: seen.append(process_state(recorder)))
        other.start()
        other.join()

    handle, _ = messages.issue(Sender().operations(5))
    wait = compiled.plain_wrapper(look, look, messages.works.wait(None), recorder.guards["messages"])
    wait(handle)
    [[call]] = [state["calls"] for state in seen]
    assert call["call"] == "wait"
    [message] = call["for"]
    assert call["since_ns"] >= message.pop("since_ns")
    assert message == {"call": "recv_forward", "stage": 2, "microbatch": 5, "peer": 1}
    assert torch_messages.RECV_FORWARD == RECEIVE
