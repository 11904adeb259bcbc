"""Older releases of Megatron-core, several modules in one model, and a release that does not fit, with replacements.

Each of these tests fails with stagescope 846bcfc, which read what only later releases pass.
"""

# ruff: noqa: ARG002  # the signatures are Megatron's

from __future__ import annotations

import sys
import types

import pytest

import framework_trainings as trainings
from megatron_head.p2p_communication import Tensor, Work
from megatron_releases import RELEASES, Models
from stagescope.record.frameworks import megatron
from stagescope.record.frameworks.works import works_of

NAME = "Megatron-core"
PREFIX = "megatron.core.pipeline_parallel"
releases = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)


class Chunk:
    def parameters(self):
        return iter([types.SimpleNamespace(device="cpu")])


@pytest.fixture
def trained(recorder, patches, monkeypatch, tmp_path):
    """Run one interleaved step of a release on rank 1 of 2, and return the recorded spans."""

    def train(release, *fields):
        models = Models(release, 1, 2)
        for name, module in models.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        megatron.instrument(models.schedules, recorder, patches)
        patches.observe(Work, "wait", works_of(recorder).wait, recorder.guards[NAME])
        run = models.schedules.forward_backward_pipelining_with_interleaving
        options = {"forward_step_func": None, "data_iterator": None, "seq_length": 1, "micro_batch_size": 1}
        assert run(model=[Chunk(), Chunk()], num_microbatches=2, **options) == ["loss"]
        assert recorder.guards[NAME].errors == 0
        recorder.stop("test")
        return trainings.spans_in(tmp_path, *fields)

    return train


@releases
def test_every_action_has_stage_microbatch_and_chunk(trained, release):
    rows = trained(release, "stage", "microbatch", "chunk")
    assert [row for row in rows if row[0] in {"forward", "backward"}] == [
        *(("forward", stage, microbatch, chunk) for chunk, stage in ((0, 1), (1, 3)) for microbatch in (0, 1)),
        *(("backward", stage, microbatch, chunk) for chunk, stage in ((1, 3), (0, 1)) for microbatch in (0, 1)),
    ]  # fmt: skip


@releases
def test_every_message_has_peer_microbatch_and_wait(trained, release):
    rows = trained(release, "stage", "microbatch", "peer", "wait_end_ns")
    peers = {"send_forward": 50, "recv_forward": 30, "send_backward": 30, "recv_backward": 50}
    messages = [row for row in rows if row[0] in peers]
    assert sorted(row[:4] for row in messages) == sorted(
        (kind, stage, number, peer) for kind, peer in peers.items() for stage in (1, 3) for number in (0, 1)
    )
    assert all(row[4] > 0 for row in messages)


class Plan:
    def __init__(self, send_to_ranks=(), recv_from_ranks=()):
        self.send_to_ranks, self.recv_from_ranks = list(send_to_ranks), list(recv_from_ranks)


class BridgeCommunicator:
    """The methods of megatron-core 0.15.0 to 0.19.2, for a rank of one of the two modules."""

    def __init__(self, plan):
        self.current_rank, self.comm_map = 3, {3: plan}

    def send_forward(self, tensor_to_send):
        return None

    def recv_forward(self):
        return Tensor()

    def send_backward(self, grad_tensor):
        return None

    def recv_backward(self):
        return Tensor()

    def send_forward_recv_backward(self, input_tensor, grad_shape=None):
        return Tensor()

    def send_backward_recv_forward(self, grad_tensor, forward_shape=None):
        return Tensor()


@pytest.fixture
def bridged(recorder, patches):
    """Observe the class above as Megatron's, in a run of one of its schedules."""
    module = types.ModuleType(f"{PREFIX}.bridge_communicator")
    module.BridgeCommunicator = type("BridgeCommunicator", (), dict(vars(BridgeCommunicator)))
    instrumentation = megatron.Instrumentation(recorder, patches)
    instrumentation.install(module)
    instrumentation.messages.open()
    recorder.begin_step()
    yield module.BridgeCommunicator, instrumentation.messages
    assert recorder.guards[NAME].errors == 0


def test_transfers_to_the_next_module_are_recorded_for_each_peer(bridged, recorder, tmp_path):
    communicator, messages = bridged
    link, made = communicator(Plan(send_to_ranks=(8, 9))), Tensor()
    messages.made(made, megatron.Place(2, 5, 0))
    link.send_forward(made)
    gradient = link.send_forward_recv_backward(made)
    messages.used_by(gradient, megatron.Place(2, 4, 0))
    recorder.stop("test")
    rows = trainings.spans_in(tmp_path, "stage", "microbatch", "peer", "bytes")
    assert sorted(rows) == sorted([
        *(("send_forward", 2, 5, peer, 4) for peer in (8, 9, 8, 9)),
        *(("recv_backward", 2, 4, peer, 4) for peer in (8, 9)),
    ])  # fmt: skip


def test_transfers_to_the_previous_module_are_recorded_with_their_waits(bridged, recorder, tmp_path):
    communicator, messages = bridged
    link = communicator(Plan(recv_from_ranks=(1,)))
    messages.used_by({"vision": link.recv_forward()}, megatron.Place(4, 0, 0))
    gradient = Tensor()
    messages.made({"vision": gradient}, megatron.Place(4, 0, 0))
    messages.used_by(link.send_backward_recv_forward(gradient), megatron.Place(4, 1, 0))
    recorder.stop("test")
    rows = trainings.spans_in(tmp_path, "stage", "microbatch", "peer", "wait_end_ns")
    assert sorted(row[:4] for row in rows) == [
        ("recv_forward", 4, 0, 1), ("recv_forward", 4, 1, 1), ("send_backward", 4, 0, 1),
    ]  # fmt: skip
    assert all(row[4] > 0 for row in rows)


def test_rank_without_a_peer_in_the_other_module_has_no_messages(bridged, recorder):
    communicator, messages = bridged
    communicator(Plan()).recv_forward()
    messages.close()
    assert recorder.path is None


def test_release_without_a_required_function_is_named_and_nothing_is_observed(
    recorder, patches, monkeypatch, capsys
):
    models = Models(RELEASES[0], 1, 2)
    for name, module in models.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    finalize = types.ModuleType("megatron.core.distributed.finalize_model_grads")
    finalize.finalize_model_grads = lambda model: ("reduced", model)
    megatron.instrument(finalize, recorder, patches)
    del models.schedules.forward_step
    megatron.instrument(models.schedules, recorder, patches)
    before = dict(vars(models.p2p_communication))
    recorder.begin_step()
    assert finalize.finalize_model_grads("model") == ("reduced", "model")
    assert dict(vars(models.p2p_communication)) == before
    assert not recorder.has_spans
    assert "`megatron.core.pipeline_parallel.schedules:forward_step` not found" in capsys.readouterr().err
    assert recorder.coverage.frameworks[NAME]["recorded"] is False
