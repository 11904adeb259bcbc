"""Receives for which Paddle's schedule waits after it has issued them (overlap_p2p_comm).

Paddle 3.3.1 itself cannot train in this way on CPU processes: gloo's transfers block, so its ring of ranks does too.
"""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import polars as pl
import pytest

from observing import during
from peers import paddle_python, peer_variables
from stagescope import api as workflow
from stagescope.record.calls import Signature
from stagescope.record.clock import now_ns
from stagescope.record.frameworks.paddle_fleet import FleetRuns
from stagescope.record.frameworks.paddle_transfers import ORDER_BY_PARITY
from stagescope.record.frameworks.runs import FORWARD, Place
from stagescope.record.hooks import Guard
from stagescope.vocabulary.kinds import BY_CODE

ORDER = """
import sys
from types import SimpleNamespace
import paddle
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication as p2p

issued = []
paddle.distributed.isend = lambda tensor, peer, group: issued.append((tensor, peer))
paddle.distributed.irecv = lambda tensor, peer, group: issued.append((tensor, peer))
for stage in (0, 1):
    p2p._hcg = hcg = SimpleNamespace(
        get_pipe_parallel_group=lambda: None, get_stage_id=lambda: stage,
        _get_p2p_next_rank=lambda: "next", _get_p2p_prev_rank=lambda: "prev",
    )
    del issued[:]
    p2p._p2p_ops("send_backward", "recv_forward", "send_forward", "recv_backward", hcg)
    print(*(name for name, _ in issued))
"""


class Tensor:
    size = 6

    def element_size(self):
        return 4


class Handle:
    def __init__(self):
        self.ended_ns = 0

    def wait(self):
        self.ended_ns = now_ns()


def helper(tensor_send_next, tensor_send_prev, recv_prev, recv_next, wait_on_reqs=True):  # noqa: FBT002  # Paddle's
    """Has the parameters of ``_p2p_helper`` that are read."""


@pytest.fixture
def runs(recorder, patches):
    """The runs of the third stage of a pipeline."""
    runs = FleetRuns(recorder, "test")
    pipeline = SimpleNamespace(
        stage_id=2,
        _hcg=SimpleNamespace(
            get_model_parallel_world_size=lambda: 1,
            _get_p2p_next_rank=lambda: 3,
            _get_p2p_prev_rank=lambda: 1,
        ),
    )
    runs.transfers.learn(pipeline, "gpu:0")
    runs.transfers._works.observe_classes(patches, Guard(recorder, "test"))
    return runs


def test_a_receive_ends_where_the_wait_for_its_own_handle_ends(runs, recorder, tmp_path):
    received, sent, handles = Tensor(), Tensor(), [Handle(), Handle()]
    step = runs.observe_step()
    next(step)
    call = Signature(helper).call((sent, None, True, False), {"wait_on_reqs": False})
    during(runs.transfers.move(call), lambda: (received, None, handles))
    for handle in handles:  # on an even stage, the send is issued first
        handle.wait()
    runs.transfers.arrived(received, Place(2, 5))
    during(runs.observe_action(FORWARD, Place(2, 5)), lambda: None)
    step.close()
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans
    receive = spans.filter(kind="recv_forward").row(0, named=True)
    send = spans.filter(kind="send_forward").row(0, named=True)
    assert (receive["peer"], receive["stage"], receive["microbatch"], receive["bytes"]) == (1, 2, 5, 24)
    assert receive["end_ns"] == receive["wait_end_ns"]
    waited = receive["wait_end_ns"] - receive["wait_start_ns"]
    assert waited >= 0
    assert receive["wait_start_ns"] >= send["end_ns"]
    assert (send["peer"], send["wait_end_ns"]) == (3, None)


def test_receives_of_which_the_handles_are_unknown_have_no_wait(runs, recorder, tmp_path):
    received, handle = Tensor(), Handle()
    step = runs.observe_step()
    next(step)
    call = Signature(helper).call((Tensor(), None, True, False), {"wait_on_reqs": False})
    during(runs.transfers.move(call), lambda: (received, None, [handle]))
    handle.wait()
    runs.transfers.arrived(received, Place(2, 5))
    during(runs.observe_action(FORWARD, Place(2, 5)), lambda: None)
    step.close()
    recorder.stop("test")
    receives = workflow.read(tmp_path).spans.filter(pl.col("kind") == "recv_forward")
    assert receives["wait_end_ns"].to_list() == [None]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_handles_are_in_the_order_in_which_paddle_issues_them():
    done = subprocess.run(
        [str(paddle_python()), "-c", ORDER], capture_output=True, text=True, check=True, env=peer_variables()
    )
    orders = [line.split() for line in done.stdout.splitlines()][-2:]
    assert orders == [[BY_CODE[kind].name for kind in order] for order in ORDER_BY_PARITY]
