"""Paddle's collectives, with process groups that behave like those of Paddle 3.3.1."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import polars as pl
import pytest

from stagescope import api as workflow
from stagescope.model.collectives import find_collectives
from stagescope.record.frameworks import paddle_distributed
from stagescope.record.frameworks.runs import Runs
from stagescope.record.points.paddle_distributed import GRADIENTS, GROUPS


class Tensor:
    """A tensor of 6 float32."""

    size = 6

    def element_size(self):
        return 4


class Task:
    """What a method of a process group returns."""

    def wait(self):
        return True


class ProcessGroup:
    """Process groups of Paddle: methods return tasks, and end with whether they are synchronous."""

    # ruff: noqa: ARG002  # the signatures of Paddle

    def size(self):
        return 2

    def all_reduce(self, tensor, op, sync_op):
        return Task()

    def all_gather(self, out, tensor, sync_op):
        return Task()

    def broadcast(self, tensor, src, sync_op):
        return Task()

    def gather(self, tensor, gather_list, dst, sync_op, use_calc_stream):
        return Task()

    def send(self, tensor, dst, sync_op):
        return Task()


@pytest.fixture
def paddle(recorder, patches, monkeypatch):
    """The observed modules of Paddle: a group of the ranks 4 and 6, and a function that reduces gradients."""
    library, groups, gradients = (ModuleType(name) for name in ("paddle.base.libpaddle", GROUPS, GRADIENTS))
    library.ProcessGroup = type("ProcessGroup", (ProcessGroup,), dict(vars(ProcessGroup)))
    owner = library.ProcessGroup()
    known = {0: SimpleNamespace(process_group=owner, ranks=[4, 6], name="_default_pg")}
    groups._GroupManager = SimpleNamespace(group_map_by_id=known)
    gradients.fused_allreduce_gradients = lambda: owner.all_reduce(Tensor(), "sum", True).wait()
    for module in (library, groups, gradients):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for module in (groups, gradients):
        paddle_distributed.instrument(module, recorder, patches)
    recorder.begin_step()
    return SimpleNamespace(group=owner, gradients=gradients)


def spans_of(recorder, tmp_path):
    recorder.stop("test")
    return workflow.read(tmp_path).spans


def test_collectives_have_group_number_size_and_wait_and_are_asynchronous_if_their_task_is_passed_on(
    recorder, tmp_path, paddle
):
    paddle.group.all_reduce(Tensor(), "sum", True).wait()  # as Paddle calls it
    paddle.group.all_gather([Tensor(), Tensor()], Tensor(), False).wait()
    paddle.gradients.fused_allreduce_gradients()
    table = find_collectives(spans_of(recorder, tmp_path))
    assert table.select("group", "sequence", "operation", "is_async", "is_reduction", "bytes").rows() == [
        ("4,6 (_default)", 0, "all_reduce", False, False, 24),
        ("4,6 (_default)", 1, "all_gather", True, False, 48),
        ("4,6 (_default)", 2, "all_reduce", False, True, 24),
    ]
    assert not table["exposed_ns"].has_nulls()


def test_the_peer_of_a_collective_with_a_root_is_the_root(recorder, tmp_path, paddle):
    paddle.group.broadcast(Tensor(), 1, True).wait()  # as Paddle calls it
    paddle.group.gather(Tensor(), [Tensor(), Tensor()], 0, True, False).wait()
    paddle.group.all_reduce(Tensor(), "sum", True).wait()
    spans = spans_of(recorder, tmp_path).filter(kind="collective").sort("pair")
    assert spans["peer"].to_list() == [6, 4, None]


def test_transfers_are_recorded_outside_of_the_runs_of_a_pipeline_only(recorder, tmp_path, paddle):
    paddle.group.send(Tensor(), 1, True).wait()  # as Paddle calls it
    run = Runs(recorder).observe_evaluation()
    next(run)
    paddle.group.send(Tensor(), 1, True).wait()
    run.close()
    sends = spans_of(recorder, tmp_path).filter(pl.col("kind") == "send")
    assert sends.select("name", "peer", "bytes").rows() == [("send in 4,6 (_default)", 6, 24)]
