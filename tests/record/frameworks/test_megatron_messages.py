"""A message from its issue over the wait to its action, with replacements for tensors and handles."""

from __future__ import annotations

import weakref

import pytest

import framework_trainings as trainings
from megatron_head.p2p_communication import Group, Tensor, Work
from stagescope.record.clock import now_ns
from stagescope.record.frameworks import megatron_messages
from stagescope.record.frameworks.megatron_messages import Messages, tensors_in
from stagescope.record.frameworks.runs import Place, Runs
from stagescope.record.hooks import Guard, observed
from stagescope.record.patching import Patches
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
def guard(recorder):
    guard = Guard(recorder, "Megatron-core")
    yield guard
    assert guard.errors == 0


@pytest.fixture
def messages(recorder, guard):
    patches, messages = Patches(), Messages(recorder, Runs(recorder, "Megatron-core"))
    messages.open()
    patches.observe(Work, "wait", messages.works.wait, guard)
    yield messages
    patches.undo()


@pytest.fixture
def recorded(recorder, messages, tmp_path):
    def read(*fields):
        messages.close()
        recorder.stop("test")
        return trainings.spans_in(tmp_path, *(fields or FIELDS))

    return read


@pytest.fixture
def issue(messages, guard):
    """Issue operations that return `handles`, through the function `name`."""

    def issue(handles, *, name="_batched_p2p_ops", peers=PEERS, **tensors):
        def original(**_):
            return handles

        original.__name__ = name
        assert observed(original, messages.issue, guard)(**NO_TENSORS | tensors, **peers) is handles

    return issue


def test_send_has_the_place_of_its_tensor(messages, issue, recorded):
    tensor = Tensor()
    messages.made(tensor, Place(5, 2, 1))
    handle = Work("send")
    issue([handle], tensor_send_next=tensor)
    handle.wait()
    assert recorded(*FIELDS, "chunk") == [("send_forward", 5, 2, 6, 8, 1)]


def test_receive_is_recorded_when_its_action_is_known(messages, issue, recorded):
    tensor = Tensor()
    handle = Work("receive")
    issue({"recv_prev": handle}, tensor_recv_prev=tensor)
    handle.wait()
    messages.used_by([tensor], Place(3, 7, 0))
    messages.used_by([tensor], Place(3, 8, 0))
    assert recorded() == [("recv_forward", 3, 7, 4, 8)]


def test_action_may_take_a_tensor_before_the_wait(messages, issue, recorded):
    tensor = Tensor()
    handle = Work("receive")
    issue({"recv_next": handle}, tensor_recv_next=tensor)
    messages.used_by(tensor, Place(3, 7, 0))
    before_ns = now_ns()
    handle.wait()
    ((kind, microbatch, wait_start_ns, end_ns, wait_end_ns),) = recorded(
        "microbatch", "wait_start_ns", "end_ns", "wait_end_ns"
    )
    assert (kind, microbatch) == ("recv_backward", 7)
    assert before_ns <= wait_start_ns <= end_ns == wait_end_ns


def test_handle_of_a_batch_ends_all_its_messages(messages, issue, recorded):
    sent, received = Tensor(), Tensor()
    messages.made(sent, Place(1, 3, 0))
    handle = Work("both")
    issue([handle], tensor_send_prev=sent, tensor_recv_prev=received)
    assert handle.wait() is True
    messages.used_by(received, Place(1, 4, 0))
    assert sorted(recorded()) == [("recv_forward", 1, 4, 4, 8), ("send_backward", 1, 3, 4, 8)]


def test_unused_messages_are_recorded_with_unknown_fields(messages, issue, recorded):
    messages.default_place = Place(1, -1, 0)
    received, unused = Tensor(), Tensor()
    handles = {"recv_prev": Work("a"), "recv_next": Work("b"), "send_next": Work("c")}
    issue(
        handles,
        tensor_recv_prev=received, tensor_recv_next=unused, tensor_send_next=Tensor(),
    )  # fmt: skip
    messages.used_by(received, Place(1, 2, 0))
    handles["recv_next"].wait()
    rows = recorded("stage", "microbatch", "wait_end_ns")
    assert sorted(row[:3] for row in rows) == [
        ("recv_backward", 1, -1), ("recv_forward", 1, 2), ("send_forward", 1, -1),
    ]  # fmt: skip
    assert {row[0]: row[3] != -1 for row in rows} == {
        "recv_backward": True, "recv_forward": False, "send_forward": False,
    }  # fmt: skip


def test_every_message_is_recorded_once_with_unknown_as_minus_one(issue, recorded):
    issue(
        {"recv_prev": Work("a"), "send_next": Work("b")},
        tensor_recv_prev=Tensor(),
        tensor_send_next=Tensor(),
    )
    assert sorted(recorded(*FIELDS, "wait_end_ns")) == [
        ("recv_forward", -1, -1, 4, 8, -1),
        ("send_forward", -1, -1, 6, 8, -1),
    ]


def test_second_wait_records_nothing(issue, recorded):
    handle = Work("send")
    issue([handle], tensor_send_next=Tensor())
    handle.wait()
    handle.wait()
    assert len(recorded()) == 1


def test_failing_wait_propagates_and_the_message_is_recorded_without_it(messages, issue, recorded, guard):
    class Broken(Work):
        def wait(self):
            raise RuntimeError("connection closed by peer")

    patches, handle = Patches(), Broken("receive")
    patches.observe(Broken, "wait", messages.works.wait, guard)
    issue({"recv_prev": handle}, tensor_recv_prev=Tensor())
    with pytest.raises(RuntimeError, match="connection closed"):
        handle.wait()
    assert recorded(*FIELDS, "wait_end_ns") == [("recv_forward", -1, -1, 4, 8, -1)]


def test_tensors_without_attributes_and_unknown_handles_are_passed_through(issue, recorded, capsys):
    class Slotted:
        __slots__ = ()
        numel = Tensor.numel
        element_size = Tensor.element_size

    issue(object(), tensor_recv_prev=Slotted())
    issue([], tensor_send_next=None)
    issue(None)
    assert recorded() == [("recv_forward", -1, -1, 4, 8)]
    assert capsys.readouterr().err == ""


def test_messages_do_not_keep_tensors_alive(issue, recorded):
    tensor = Tensor()
    issue({"recv_prev": Work("a")}, tensor_recv_prev=tensor)
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None
    assert len(recorded()) == 1


def test_message_after_the_end_of_a_run_is_recorded_once(messages, issue, recorded):
    handle = Work("send")
    issue([handle], tensor_send_next=Tensor())
    messages.close()
    handle.wait()
    assert len(recorded()) == 1


def test_tensors_and_handles_are_left_as_they_are(messages, issue):
    handle, tensor = Work("send"), Tensor()
    issue([handle], tensor_recv_prev=tensor)
    messages.made(tensor, Place(1, 2, 0))
    assert vars(tensor) == {}
    assert vars(handle) == {"name": "send"}


def test_messages_are_ignored_while_recording_is_off(messages, issue, recorder):
    recorder.enabled = False
    issue([Work("send")], tensor_recv_prev=Tensor())
    messages.close()
    assert recorder.path is None


def test_messages_outside_megatrons_schedules_are_ignored(messages, issue, recorder):
    messages.close()
    issue([Work("send")], tensor_send_next=Tensor())
    messages.close()
    assert recorder.path is None


def test_messages_that_another_framework_records_are_ignored(issue, recorder, recorded):
    alone = Runs(recorder, "MindSpeed").observe_alone()
    next(alone)
    issue([Work("send")], tensor_send_next=Tensor())
    alone.close()
    issue([Work("send")], tensor_send_prev=Tensor())
    assert recorded() == [("send_backward", -1, -1, 4, 8)]


PARITY = {
    0: ("send_next", "recv_prev", "send_prev", "recv_next"),
    1: ("recv_prev", "send_next", "recv_next", "send_prev"),
}


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_list_of_handles_is_in_the_order_of_the_parity_of_the_rank(issue, recorded, monkeypatch, rank):
    """As in _p2p_ops of megatron-core 0.5.0 to 0.9.0."""
    monkeypatch.setattr(megatron_messages, "ask", {"get_pipeline_model_parallel_rank": rank}.get)
    directions = PARITY[rank % 2]
    handles = {name: Work(name) for name in directions}
    issue(list(handles.values()), name="_p2p_ops", **{f"tensor_{name}": Tensor() for name in directions})
    between = []
    for name in directions:
        handles[name].wait()
        between.append((name, now_ns()))
    ends = {row[0]: row[1] for row in recorded("wait_end_ns")}
    kinds = {"send_prev": "send_backward", "recv_prev": "recv_forward", "send_next": "send_forward",
             "recv_next": "recv_backward"}  # fmt: skip
    earlier_ns = 0
    for name, later_ns in between:
        assert earlier_ns < ends[kinds[name]] <= later_ns
        earlier_ns = later_ns


def test_list_of_handles_of_an_unknown_rank_has_no_waits(issue, recorded):
    handles = [Work("one"), Work("two")]
    issue(handles, name="_p2p_ops", tensor_recv_prev=Tensor(), tensor_send_next=Tensor())
    for handle in handles:
        handle.wait()
    assert [row[1] for row in recorded("wait_end_ns")] == [-1, -1]


def test_neighbors_that_are_not_passed_are_asked_of_megatron(issue, recorded, monkeypatch):
    """As before megatron-core 0.9.0."""
    neighbors = {"get_pipeline_model_parallel_prev_rank": 3, "get_pipeline_model_parallel_next_rank": 9}
    monkeypatch.setattr(megatron_messages, "ask", neighbors.get)
    issue([Work("both")], peers={"group": None}, tensor_recv_prev=Tensor(), tensor_send_next=Tensor())
    assert sorted(recorded("peer")) == [("recv_forward", 3), ("send_forward", 9)]


def test_actions_are_found_by_any_of_their_tensors(messages):
    one, two = Tensor(), Tensor()
    messages.made([one], Place(1, 2, 3))
    assert messages.place_of([two, one]) == (1, 2, 3)
    assert messages.place_of(two) is None


def test_tensors_are_found_in_all_containers_of_megatron():
    one, two = Tensor(), Tensor()
    assert list(tensors_in(None)) == []
    assert list(tensors_in([one, None, [two]])) == [one, two]
    assert list(tensors_in({"vision": one, "language": [two]})) == [one, two]
