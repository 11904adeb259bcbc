"""A replacement of torch.distributed.pipelining with the call sequences of torch 2.5 to 2.15.

`FakeTorch(release)` builds modules in which operations are issued and waited for as in that release: 5 (also 2.6 and
2.7), 8, 13, 14 and 15 are those in which something changed. No tensor has data. A handle notes when it is waited for.
"""

# ruff: noqa: ARG001, ARG002, FBT002 - the signatures are torch's

from __future__ import annotations

import time
import types
from typing import NamedTuple


class Tensor:
    nbytes = 24


class Group:
    def __init__(self, group_name, *, coalesces=False, has_this_rank=True):
        self.group_name = group_name
        self.coalesces = coalesces
        self.has_this_rank = has_this_rank


class P2POp:
    def __init__(self, op, tensor, peer, group):
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group
        self.tag, self.group_peer = 0, peer


class Work:
    """A handle of one tensor or, if the backend coalesces, of a whole batch."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.waited_ns = []

    def wait(self, timeout=None):
        self.waited_ns.append(time.monotonic_ns())
        return True


class OwnWork(Work):
    """A handle that overrides ``wait``, as a backend written in Python does."""

    def wait(self, timeout=None):
        return super().wait(timeout)


class RecordFunction:
    """torch.profiler.record_function."""

    entered = ()

    def __init__(self, name, args=None):
        self.name, self.args = name, args

    def __enter__(self):
        RecordFunction.entered = (*RecordFunction.entered, self.name)
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        RecordFunction.entered = (*RecordFunction.entered, f"end of {self.name}")


RecordFunction.__qualname__ = RecordFunction.__name__ = "record_function"


class ComputationType(NamedTuple):
    name: str


def distributed(work_class):
    """Return torch.distributed, as far as the schedules use it."""
    module = types.ModuleType("torch.distributed")
    module.works = []

    def work_of(*tensors):
        module.works.append(work_class(tensors))
        return module.works[-1]

    def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
        return work_of(tensor) if group.has_this_rank else None

    def irecv(tensor, src=None, group=None, tag=0, group_src=None):
        return work_of(tensor) if group.has_this_rank else None

    def batch_isend_irecv(p2p_op_list):
        assert len({op.group.group_name for op in p2p_op_list}) == 1
        if p2p_op_list[0].group.coalesces:
            return [work_of(*(op.tensor for op in p2p_op_list))]
        works = [op.op(op.tensor, group=op.group, tag=op.tag) for op in p2p_op_list]
        return [work for work in works if work]

    module.isend, module.irecv, module.batch_isend_irecv = isend, irecv, batch_isend_irecv
    module.P2POp, module.is_initialized = P2POp, lambda: False
    return module


def add_batch_p2p(schedules, dist, release):
    """Add ``_batch_p2p`` and the waits of a release to the module of the schedules."""

    def issue_each(operations):
        return [op.op(op.tensor, group=op.group, tag=op.tag) for op in operations]

    def _batch_p2p(p2p_ops, desc=None):
        if not p2p_ops:
            return None if release < 8 else []
        if release < 8:
            return dist.batch_isend_irecv(p2p_ops).pop()
        groups = {}
        for op in p2p_ops:
            groups.setdefault(op.group.group_name, []).append(op)
        if release >= 14 and len(groups) > 1:
            return [
                work for _, ops in sorted(groups.items()) for work in schedules._batch_p2p(ops, desc=desc)
            ]
        if release >= 13 and len({op.op for op in p2p_ops}) == 1:
            works = issue_each(p2p_ops)
            return [work for work in works if work is not None] if release >= 14 else works
        return dist.batch_isend_irecv(p2p_ops)

    def _wait_batch_p2p(work):
        for one in work:
            one.wait()

    schedules._batch_p2p = _batch_p2p
    if release >= 8:
        schedules._wait_batch_p2p = _wait_batch_p2p


def stage_class(dist, release):
    """Return torch's base class of stages."""

    class Stage:
        device = "cpu"
        group = None

        def __init__(self, stage_index=1, num_stages=3, groups=None, has_backward=True):
            self.stage_index, self.num_stages = stage_index, num_stages
            self.group_rank, self.group_size = stage_index, num_stages
            self.has_backward_, self.done = has_backward, []
            shared = Group("shared")
            self.groups = groups or {"up": shared, "down": shared}

        @property
        def has_backward(self):
            return self.has_backward_

        @property
        def is_last(self):
            return self.stage_index == self.num_stages - 1

        def operation(self, op, peer, direction):
            return [dist.P2POp(op, Tensor(), peer, self.groups[direction])]

        def get_fwd_recv_ops(self, fwd_chunk_id):
            return self.operation(dist.irecv, self.stage_index - 1, "down")

        def get_fwd_send_ops(self, fwd_chunk_id):
            return self.operation(dist.isend, self.stage_index + 1, "down")

        def get_bwd_recv_ops(self, bwd_chunk_id):
            return self.operation(dist.irecv, self.stage_index + 1, "up")

        def get_bwd_send_ops(self, bwd_chunk_id):
            return self.operation(dist.isend, self.stage_index - 1, "up")

        def forward_one_chunk(self, fwd_chunk_id, args, kwargs=None, save_forward_output=True):
            self.done.append(f"F{fwd_chunk_id}")
            return ("output", fwd_chunk_id)

        def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True, last_backward=False):
            self.done.append(f"{'B' if full_backward else 'I'}{bwd_chunk_id}")

        def backward_weight_one_chunk(self, bwd_chunk_id, last_backward=False):
            self.done.append(f"W{bwd_chunk_id}")

        if release >= 10:

            def perform_reduce_grad(self, grad_scale_factor):
                self.done.append("reduce")
                if release >= 15:
                    self.start_gradient_reduction()
                    self.wait_for_gradient_reduction(grad_scale_factor)

        if release >= 15:

            def start_gradient_reduction(self):
                self.done.append("start")

            def wait_for_gradient_reduction(self, grad_scale_factor):
                self.done.append("wait")

    if release == 5:  # without last_backward

        def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True):
            self.done.append(f"{'B' if full_backward else 'I'}{bwd_chunk_id}")

        def backward_weight_one_chunk(self, bwd_chunk_id):
            self.done.append(f"W{bwd_chunk_id}")

        Stage.backward_one_chunk, Stage.backward_weight_one_chunk = (
            backward_one_chunk,
            backward_weight_one_chunk,
        )
    return Stage


def add_schedules(schedules, release):
    """Add the base classes of schedules; what a step does is the function `body` of a schedule."""

    class Schedule:
        def __init__(self, stage, body, loss_fn=len, custom=None):
            self._stage, self.body = stage, body
            self._loss_fn, self._has_backward, self._n_microbatches = loss_fn, loss_fn is not None, 2
            if release >= 10:
                self._comp_type_to_function_map = {ComputationType(name): print for name in custom or ()}

        if release >= 13:

            def _maybe_compute_loss(self, stage, output, target_mbs, mb_index, loss_kwargs=None):
                return self._loss_fn(output) if stage.is_last else None
        else:

            def _maybe_compute_loss(self, stage, output, target_mbs, mb_index):
                return self._loss_fn(output) if stage.is_last else None

        def _check_inputs(self, arg_mbs=None, kwarg_mbs=None, target_mbs=None, losses=None):
            return arg_mbs or [()], kwarg_mbs or [{}]

    class PipelineScheduleSingle(Schedule):
        def step(self, *args, target=None, losses=None, **kwargs):
            return self.body(self)

        def eval(self, *args, target=None, losses=None, **kwargs):
            self._has_backward = False
            try:
                return self.step(*args, target=target, losses=losses, **kwargs)
            finally:
                self._has_backward = True

    class PipelineScheduleMulti(Schedule):
        def step(self, *args, target=None, losses=None, **kwargs):
            return self.body(self)

    schedules._PipelineSchedule = Schedule
    schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti = (
        PipelineScheduleSingle,
        PipelineScheduleMulti,
    )
    schedules.record_function = RecordFunction
    if release >= 9:
        schedules._get_profiler_function_name = lambda action: f"PP:{action}"


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


def optimizers():
    """Return torch.optim.optimizer with its two registries of global hooks."""
    module = types.ModuleType("torch.optim.optimizer")
    module.hooks = []

    def register(hook):
        module.hooks.append(hook)
        return Handle(module.hooks, hook)

    module.register_optimizer_step_pre_hook = module.register_optimizer_step_post_hook = register
    return module


class FakeTorch:
    """The modules of one release, and its handles in the order in which they were created."""

    def __init__(self, release, work_class=Work):
        self.release = release
        self.dist = distributed(work_class)
        self.schedules = types.ModuleType("torch.distributed.pipelining.schedules")
        self.stage = types.ModuleType("torch.distributed.pipelining.stage")
        self.stage._PipelineStageBase = stage_class(self.dist, release)
        add_batch_p2p(self.schedules, self.dist, release)
        add_schedules(self.schedules, release)
        self.optimizers = optimizers()
        c10d = types.ModuleType("torch.distributed.distributed_c10d")
        c10d.Work = Work
        torch, optim = types.ModuleType("torch"), types.ModuleType("torch.optim")
        torch.__version__, torch.distributed, torch.optim = f"2.{release}.0", self.dist, optim
        optim.optimizer = self.optimizers
        pipelining = types.ModuleType("torch.distributed.pipelining")
        pipelining.schedules, pipelining.stage = self.schedules, self.stage
        self.modules = {
            module.__name__: module
            for module in (
                torch,
                self.dist,
                c10d,
                pipelining,
                self.schedules,
                self.stage,
                optim,
                self.optimizers,
            )
        }

    def wait(self, works):
        """Wait for the result of ``_batch_p2p``, as the schedules of this release do."""
        if self.release >= 8:
            self.schedules._wait_batch_p2p(works)
        elif works is not None:
            works.wait()
