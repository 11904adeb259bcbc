from __future__ import annotations

import pytest

from stagescope import api as workflow
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import Place
from stagescope.record.frameworks.transfers import (
    RECV_FORWARD,
    SEND_BACKWARD,
    Message,
    Transfers,
    all_of,
    bytes_in,
    first_of,
)


class Tensor:
    def numel(self):
        return 3

    def element_size(self):
        return 2


def rows(recorder, tmp_path, *columns):
    recorder.stop("test")
    return workflow.read(tmp_path).spans.select(*columns).rows()


def test_send_has_the_place_of_the_producing_pass(recorder, tmp_path):
    transfers, gradient = Transfers(recorder), Tensor()
    transfers.made((None, gradient), Place(2, 5, 1))
    for tensor in (gradient, Tensor()):
        transfers.sent(tensor, Message(SEND_BACKWARD, 1, bytes_in(tensor), 10, 20))
    found = rows(recorder, tmp_path, "kind", "stage", "microbatch", "chunk", "peer", "bytes")
    assert found == [("send_backward", 2, 5, 1, 1, 6), ("send_backward", None, None, None, 1, 6)]


@pytest.mark.parametrize("blocks", [True, False])
def test_receive_has_the_place_of_the_consuming_pass(recorder, tmp_path, blocks):
    transfers, tensor = Transfers(recorder), Tensor()
    transfers.blocks = blocks
    start_ns = now_ns()  # the wait is at the present time
    transfers.received({"hidden": tensor}, Message(RECV_FORWARD, 0, NONE, start_ns, start_ns + 10))
    transfers.arrived((tensor,), Place(1, 4))
    transfers.arrived((tensor,), Place(1, 5))
    transfers.close()
    ((stage, microbatch, waited),) = rows(recorder, tmp_path, "stage", "microbatch", "wait_start_ns")
    assert (stage, microbatch, waited is not None) == (1, 4, blocks)


def test_unused_receive_is_recorded_without_a_place(recorder, tmp_path):
    transfers = Transfers(recorder)
    transfers.received(Tensor(), Message(RECV_FORWARD, 0, 6, 10, 20))
    transfers.received(None, Message(RECV_FORWARD, 3, NONE, 30, 40))
    transfers.close()
    transfers.close()
    assert sorted(rows(recorder, tmp_path, "peer", "microbatch")) == [(0, None), (3, None)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, ()), (1, (1,)), ((1, 2), (1, 2)), ([], ()), ({"a": 1, "b": 2}, (1, 2)), ((None, 3), (None, 3))],
)
def test_tensors_are_found_in_containers(given, expected):
    assert all_of(given) == expected
    assert first_of(given) == next((one for one in expected if one is not None), None)


def test_size_is_known_if_all_items_are_tensors():
    assert bytes_in({"a": Tensor(), "b": Tensor()}) == 12
    assert bytes_in((Tensor(), "mask")) == NONE
