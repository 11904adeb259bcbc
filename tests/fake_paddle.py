"""A replacement of fleet's pipeline of Paddle 3.3.1, for schedulers that do not run on a CPU.

`installed` adds a ``paddle`` module that knows its device; `make` returns a replacement of pipeline_parallel.py.
"""

# ruff: noqa: ARG001, ARG002, FBT002 - the signatures are Paddle's

from __future__ import annotations

import enum
import sys
import types
from contextlib import contextmanager


class Tensor:
    size = 16

    def element_size(self):
        return 4


@contextmanager
def installed(monkeypatch):
    paddle = types.ModuleType("paddle")
    paddle.__version__ = "3.3.1"
    paddle.get_device = lambda: "cpu"
    paddle.distributed = types.ModuleType("paddle.distributed")
    paddle.distributed.get_rank = lambda: 0
    paddle.distributed.get_world_size = lambda: 2
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    monkeypatch.setitem(sys.modules, "paddle.distributed", paddle.distributed)
    yield paddle


class Groups:
    """The hybrid communicate group."""

    def __init__(self, stages):
        self.stages = stages

    def get_data_parallel_rank(self):
        return 1

    def get_data_parallel_world_size(self):
        return 2

    def get_sharding_parallel_rank(self):
        return 3

    def get_sharding_parallel_world_size(self):
        return 4

    def get_model_parallel_rank(self):
        return 0

    def get_model_parallel_world_size(self):
        return 1

    def get_pipe_parallel_group(self):
        return types.SimpleNamespace(ranks=range(self.stages))

    def _get_p2p_next_rank(self):
        return 1

    def _get_p2p_prev_rank(self):
        return 2


class Locations(enum.Enum):
    FORWARD_BEGIN = "forward_begin"
    FORWARD_END = "forward_end"
    BACKWARD_BEGIN = "backward_begin"
    BACKWARD_END = "backward_end"


class Callbacks:
    def __init__(self):
        self.hooks = {location: [] for location in Locations}

    def on_location(self, location, **arguments):
        for hook in self.hooks[location]:
            hook(**arguments)


def make(*, hooks=True):
    """Return the module; without `hooks` like the versions of Paddle that had none."""
    module = types.ModuleType("paddle.distributed.fleet.meta_parallel.pipeline_parallel")
    module.p2p = p2p = types.ModuleType("p2p_communication")
    callbacks = Callbacks()
    if hooks:
        module.pipeline_parallel_callbacks_ = callbacks
        module.PipelineParallelMicroStepLocations = Locations
        module.register_global_pipeline_parallel_hook = lambda at, hook: callbacks.hooks[at].append(hook)

    def _p2p_helper(tensor_send_next, tensor_send_prev, recv_prev, recv_next, sync_recv=True):
        return (Tensor() if recv_prev else None), (Tensor() if recv_next else None), None

    class P2pHelper:
        def recv_forward(self, first):
            return None if first else p2p._p2p_helper(None, None, recv_prev=True, recv_next=False)[0]

        def send_backward(self, tensor, first):
            if not first:
                p2p._p2p_helper(None, tensor, recv_prev=False, recv_next=False)

    p2p._p2p_helper, p2p.P2pHelper = _p2p_helper, P2pHelper

    class HybridParallelOptimizer:
        def step(self):
            return None

    class PipelineParallel:
        overlap_schedule_mode = False

        def __init__(self, stage_id, num_stages, accumulate_steps):
            self.stage_id, self.num_stages, self.accumulate_steps = stage_id, num_stages, accumulate_steps
            self._hcg, self._compute_loss = Groups(num_stages), True
            self.optimizer, self.helper = HybridParallelOptimizer(), P2pHelper()
            self.done, self.fails_at = [], None

        def is_pipeline_last_stage(self):
            return self.stage_id == self.num_stages - 1

        def train_batch(self, data, optimizer):
            self.forward_backward_pipeline(data)
            optimizer.step()

        def eval_batch(self, data):
            for _ in range(self.accumulate_steps):
                self._forward_step(None, None, step_id=None)

        def get_static_scheduler(self):
            return self.forward_backward_pipeline(data=None, static_scheduler=True)

        def forward_backward_pipeline(self, data, scaler=None, static_scheduler=False):
            if static_scheduler:
                return "f0;b0;"
            for step in range(self.accumulate_steps):
                if step == self.fails_at:
                    raise ZeroDivisionError
                received = self.helper.recv_forward(self.stage_id == 0)
                output = self._forward_step(received, None, step_id=step)
                gradient = self._backward_step(received, output[0], None, step_id=step)
                self.helper.send_backward(gradient, self.stage_id == 0)
            return None

        def _forward_step(self, input_tensor, micro_dataset, chunk_id=None, step_id=None):
            callbacks.on_location(Locations.FORWARD_BEGIN, step_id=step_id)
            callbacks.on_location(Locations.FORWARD_END, step_id=step_id)
            self._maybe_loss_compute(None, None)
            return Tensor(), None, None

        def _backward_step(
            self, input_tensor, output_tensor, output_tensor_grad, chunk_id=None, step_id=None
        ):
            callbacks.on_location(Locations.BACKWARD_BEGIN, step_id=step_id)
            callbacks.on_location(Locations.BACKWARD_END, step_id=step_id)
            return Tensor()

        def _maybe_loss_compute(self, output_tensor, micro_dataset):
            return None

    class PipelineParallelWithInterleave(PipelineParallel):
        """Runs chunk after chunk in groups of as many micro-batches as there are stages."""

        def __init__(self, stage_id, num_stages, accumulate_steps, chunks, overlap=False):
            super().__init__(stage_id, num_stages, accumulate_steps)
            self.num_model_chunks, self.overlap_schedule_mode = chunks, overlap

        def _get_virtual_pp_rank(self, micro_step, forward):
            chunk = micro_step // self.num_stages % self.num_model_chunks
            return chunk if forward else self.num_model_chunks - 1 - chunk

        def _forward_backward_helper(self, micro_dataset, forward_id, backward_id):
            if self.overlap_schedule_mode:
                self.done.append((("forward", "backward"), forward_id, backward_id))
                return
            self._one(forward_id, forward=True)
            self._one(backward_id, forward=False)

        def _one(self, micro_step, *, forward):
            chunk = self._get_virtual_pp_rank(micro_step, forward)
            number = sum(one[:2] == ("forward" if forward else "backward", chunk) for one in self.step)
            self.step.append(("forward" if forward else "backward", chunk, number))
            if forward:
                self._forward_step(None, None, chunk, step_id=micro_step)
            else:
                self._backward_step(None, Tensor(), None, chunk_id=chunk, step_id=micro_step)

        def forward_backward_pipeline(self, data, scaler=None, static_scheduler=False):
            self.step, passes, early = [], self.accumulate_steps * self.num_model_chunks, 4
            for micro_step in range(early):
                self._one(micro_step, forward=True)
            for micro_step in range(early, passes):
                self._forward_backward_helper(None, micro_step, micro_step - early)
            for micro_step in range(passes - early, passes):
                self._one(micro_step, forward=False)
            self.done += self.step

    module.HybridParallelOptimizer = HybridParallelOptimizer
    module.PipelineParallel = PipelineParallel
    module.PipelineParallelWithInterleave = PipelineParallelWithInterleave
    return module
