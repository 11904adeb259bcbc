"""A message from its issue over the wait to its action, with replacements for tensors and handles."""

from __future__ import annotations

import weakref

import pytest

import framework_trainings as trainings
from megatron_head.p2p_communication import Group, Tensor, Work
from stagescope.record.clock import now_ns
from stagescope.record.frameworks.megatron_messages import Messages, tag, tagged, tensors_in
from stagescope.record.recorder import Recorder

FIELDS = ("stage", "microbatch", "peer", "bytes")
NO_TENSORS = {f"tensor_{way}": None for way in ("send_prev", "recv_prev", "send_next", "recv_next")}
PEERS = {"group": Group(1, 3), "prev_pipeline_rank": 4, "next_pipeline_rank": 6}


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path))
    recorder.begin_step()
    yield recorder
    recorder.stop("test")


@pytest.fixture
def messages(recorder):
    messages = Messages(recorder)
    messages.is_on = True
    return messages


@pytest.fixture
def recorded(recorder, messages, tmp_path):
    def read(*fields):
        messages.close()
        recorder.stop("test")
        return trainings.spans_in(tmp_path, *(fields or FIELDS))

    return read


def issue(messages, handles, **tensors):
    return messages.watch_issue(lambda **_: handles)(**NO_TENSORS | tensors, **PEERS)


def test_send_has_the_place_of_its_tensor(messages, recorded):
    tensor = Tensor()
    tag(tensor, (5, 2, 1))
    (handle,) = issue(messages, [Work("send")], tensor_send_next=tensor)
    handle.wait()
    assert recorded(*FIELDS, "chunk") == [("send_forward", 5, 2, 6, 8, 1)]


def test_receive_is_recorded_when_its_action_is_known(messages, recorded):
    tensor = Tensor()
    handles = issue(messages, {"recv_prev": Work("receive")}, tensor_recv_prev=tensor)
    handles["recv_prev"].wait()
    messages.used_by([tensor], (3, 7, 0))
    messages.used_by([tensor], (3, 8, 0))
    assert recorded() == [("recv_forward", 3, 7, 4, 8)]


def test_action_may_take_a_tensor_before_the_wait(messages, recorded):
    tensor = Tensor()
    handles = issue(messages, {"recv_next": Work("receive")}, tensor_recv_next=tensor)
    messages.used_by(tensor, (3, 7, 0))
    before_ns = now_ns()
    handles["recv_next"].wait()
    ((kind, microbatch, wait_start_ns, end_ns, wait_end_ns),) = recorded(
        "microbatch", "wait_start_ns", "end_ns", "wait_end_ns"
    )
    assert (kind, microbatch) == ("recv_backward", 7)
    assert before_ns <= wait_start_ns <= end_ns == wait_end_ns


def test_handle_of_a_batch_ends_all_its_messages(messages, recorded):
    sent, received = Tensor(), Tensor()
    tag(sent, (1, 3, 0))
    (handle,) = issue(messages, [Work("both")], tensor_send_prev=sent, tensor_recv_prev=received)
    assert handle.wait() is True
    messages.used_by(received, (1, 4, 0))
    assert sorted(recorded()) == [("recv_forward", 1, 4, 4, 8), ("send_backward", 1, 3, 4, 8)]


def test_unused_messages_are_recorded_with_unknown_fields(messages, recorded):
    messages.default_place = (1, -1, 0)
    received, unused = Tensor(), Tensor()
    handles = issue(
        messages,
        {"recv_prev": Work("a"), "recv_next": Work("b"), "send_next": Work("c")},
        tensor_recv_prev=received, tensor_recv_next=unused, tensor_send_next=Tensor(),
    )  # fmt: skip
    messages.used_by(received, (1, 2, 0))
    handles["recv_next"].wait()
    rows = recorded("stage", "microbatch", "wait_end_ns")
    assert sorted(row[:3] for row in rows) == [
        ("recv_backward", 1, -1), ("recv_forward", 1, 2), ("send_forward", 1, -1),
    ]  # fmt: skip
    assert {row[0]: row[3] != -1 for row in rows} == {
        "recv_backward": True, "recv_forward": False, "send_forward": False,
    }  # fmt: skip


def test_wrapped_handle_keeps_its_other_methods(messages):
    (handle,) = issue(messages, [Work("send")], tensor_send_next=Tensor())
    assert handle.is_completed() == "asked"


def test_every_message_is_recorded_once_with_unknown_as_minus_one(messages, recorded):
    issue(
        messages,
        {"recv_prev": Work("a"), "send_next": Work("b")},
        tensor_recv_prev=Tensor(),
        tensor_send_next=Tensor(),
    )
    assert sorted(recorded(*FIELDS, "wait_end_ns")) == [
        ("recv_forward", -1, -1, 4, 8, -1),
        ("send_forward", -1, -1, 6, 8, -1),
    ]


def test_second_wait_records_nothing(messages, recorded):
    (handle,) = issue(messages, [Work("send")], tensor_send_next=Tensor())
    handle.wait()
    handle.wait()
    assert len(recorded()) == 1


def test_failing_wait_propagates_and_the_message_is_recorded_without_it(messages, recorded):
    class Broken(Work):
        def wait(self):
            raise RuntimeError("connection closed by peer")

    tensor = Tensor()
    handles = issue(messages, {"recv_prev": Broken("receive")}, tensor_recv_prev=tensor)
    with pytest.raises(RuntimeError, match="connection closed"):
        handles["recv_prev"].wait()
    assert recorded(*FIELDS, "wait_end_ns") == [("recv_forward", -1, -1, 4, 8, -1)]


def test_untaggable_tensors_and_unknown_handles_are_passed_through(messages, recorded, capsys):
    class Slotted(Tensor):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise AttributeError(name)

    handles = object()
    assert issue(messages, handles, tensor_recv_prev=Slotted()) is handles
    assert issue(messages, [], tensor_send_next=None) == []
    assert issue(messages, None) is None
    assert recorded() == [("recv_forward", -1, -1, 4, 8)]
    warnings = capsys.readouterr().err.splitlines()
    assert [
        line.partition(": AttributeError")[1] or line.partition(": TypeError")[1] for line in warnings
    ] == [
        ": AttributeError",
        ": TypeError",
    ]


def test_messages_do_not_keep_tensors_alive(messages, recorded):
    tensor = Tensor()
    issue(messages, {"recv_prev": Work("a")}, tensor_recv_prev=tensor)
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None
    assert len(recorded()) == 1


def test_messages_are_ignored_while_recording_is_off(messages, recorder):
    recorder.enabled = False
    handles, tensor = [Work("send")], Tensor()
    assert issue(messages, handles, tensor_recv_prev=tensor) is handles
    assert vars(tensor) == {}


def test_messages_outside_megatrons_schedules_are_ignored(messages):
    messages.close()
    handles = [Work("send")]
    assert issue(messages, handles, tensor_send_next=Tensor()) is handles


def test_tensors_are_found_in_all_containers_of_megatron():
    one, two = Tensor(), Tensor()
    assert list(tensors_in(None)) == []
    assert list(tensors_in([one, None, [two]])) == [one, two]
    assert list(tensors_in({"vision": one, "language": [two]})) == [one, two]
    tag([one], (1, 2, 3))
    assert tagged([two, one]) == (1, 2, 3)
    assert tagged(two) is None
