"""A replacement of fleet's pipeline for schedulers that do not run on a CPU, with the signatures of several versions.

`installed` adds a ``paddle`` package that knows its device; `make` adds a replacement of pipeline_parallel.py and of
the modules it uses, and returns it. The differences between the versions are in `VERSIONS`.
"""

# ruff: noqa: ARG001, ARG002, FBT002, PLR0917 - the signatures are Paddle's

from __future__ import annotations

import enum
import sys
import types
from contextlib import contextmanager
from typing import NamedTuple

from stagescope.record.points import paddle as points

MODULES = (
    points.PIPELINES,
    points.P2P,
    points.FOUR_DIRECTIONS,
    points.LAYERS,
    points.DUALPIPE,
    points.ZERO_BUBBLE,
    points.OPTIMIZERS,
    "paddle.autograd",
)


class Features(NamedTuple):
    """What a version has."""

    hooks: bool = True
    loss: bool = True
    overlap: bool = True
    chunk_of_backward: bool = True
    single: bool = True


VERSIONS = {
    "2.6.2": Features(hooks=False, loss=False, overlap=False, chunk_of_backward=False, single=False),
    "3.0.0": Features(loss=False, overlap=False, chunk_of_backward=False, single=False),
    "3.2.2": Features(chunk_of_backward=False, single=False),
    "3.3.1": Features(),
}


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
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield paddle
    for name in MODULES:
        sys.modules.pop(name, None)


def module_of(name):
    """Return a new module that counts as imported."""
    module = sys.modules[name] = types.ModuleType(name)
    return module


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


class P2PAsyncHandle:
    """Sends and receives inside a pair (``overlap_p2p_comm``)."""

    def __init__(self, helper):
        self.helper, self.received = helper, []

    def forward_async_comm(self, output_tensor):
        self.received.append(self.helper.send_forward_recv_forward(output_tensor, recv_prev=True))

    def backward_async_comm(self, input_tensor_grad):
        self.received.append(self.helper.send_backward_recv_backward(input_tensor_grad, recv_next=True))


class HybridParallelOptimizer:
    """Copied for each module, so that no test sees the observers of another."""

    def step(self):
        return None


def make_transfers(features, name=points.P2P):
    """Return p2p_communication.py, or its variant that moves in four directions."""
    p2p = module_of(name)

    def move(recv_prev, recv_next):
        return (Tensor() if recv_prev else None), (Tensor() if recv_next else None)

    def _p2p_helper_of_2_6(
        tensor_send_next, tensor_send_prev, recv_prev, recv_next, sync_recv=True, send_recv_meta=None
    ):
        return move(recv_prev, recv_next)

    def _p2p_helper(
        tensor_send_next,
        tensor_send_prev,
        recv_prev,
        recv_next,
        sync_recv=True,
        send_recv_meta=None,
        batch_p2p_comm=True,
        wait_on_reqs=True,
        dynamic_shape=False,
    ):
        return *move(recv_prev, recv_next), None

    class P2pHelper:
        def recv_forward(self, first, sync_recv=True):
            return None if first else p2p._p2p_helper(None, None, recv_prev=True, recv_next=False)[0]

        def send_backward(self, tensor, first):
            if not first:
                p2p._p2p_helper(None, tensor, recv_prev=False, recv_next=False)

        def send_forward_recv_forward(self, tensor, recv_prev):
            return p2p._p2p_helper(tensor, None, recv_prev=recv_prev, recv_next=False, wait_on_reqs=False)[0]

        def send_backward_recv_backward(self, tensor, recv_next):
            return p2p._p2p_helper(None, tensor, recv_prev=False, recv_next=recv_next, wait_on_reqs=False)[1]

    p2p._p2p_helper = _p2p_helper if features.hooks else _p2p_helper_of_2_6
    p2p.P2pHelper = P2pHelper
    return p2p


def make(version="3.3.1", *, four_directions=False):
    """Return the module of one version; with `four_directions` it uses the other module for transfers."""
    features = VERSIONS[version]
    module = module_of(points.PIPELINES)
    module.p2p = make_transfers(features, points.FOUR_DIRECTIONS if four_directions else points.P2P)
    callbacks = Callbacks()
    if features.hooks:
        module.pipeline_parallel_callbacks_ = callbacks
        module.PipelineParallelMicroStepLocations = Locations
        module.register_global_pipeline_parallel_hook = lambda at, hook: callbacks.hooks[at].append(hook)
    optimizers = module_of(points.OPTIMIZERS)
    optimizers.HybridParallelOptimizer = type("Optimizer", (), dict(vars(HybridParallelOptimizer)))
    module.HybridParallelOptimizer = optimizers.HybridParallelOptimizer
    module.PipelineParallel = base = make_base(module, features, callbacks, module.HybridParallelOptimizer)
    module.PipelineParallelWithInterleave = interleaved = make_interleaved(base, features)
    module.PipelineParallelWithInterleaveFthenB = type(
        "PipelineParallelWithInterleaveFthenB",
        (interleaved,),
        {
            "forward_backward_pipeline": lambda self, data, scaler: interleaved.forward_backward_pipeline(
                self, data
            )
        },
    )
    if features.overlap:
        module.P2PAsyncHandle = type("P2PAsyncHandle", (), dict(vars(P2PAsyncHandle)))
    if features.single:
        make_single(module)
    return module


def make_base(module, features, callbacks, optimizer):
    """Return the 1F1B scheduler; it runs all micro-batches one after the other."""

    class PipelineParallel:
        overlap_schedule_mode = False
        _virtual_pp_rank = None

        def __init__(self, stage_id, num_stages, accumulate_steps):
            self.stage_id, self.num_stages, self.accumulate_steps = stage_id, num_stages, accumulate_steps
            self._hcg, self._compute_loss = Groups(num_stages), True
            self.optimizer, self.helper = optimizer(), module.p2p.P2pHelper()
            self.done, self.fails_at = [], None

        def is_pipeline_last_stage(self, ignore_virtual=False):
            return self.stage_id == self.num_stages - 1

        def train_batch(self, data, optimizer):
            loss = self.forward_backward_pipeline(data)
            optimizer.step()
            return loss

        def eval_batch(self, data):
            for _ in range(self.accumulate_steps):
                self._forward_step(None, None)

        def get_static_scheduler(self):
            return self.forward_backward_pipeline(data=None, static_scheduler=True)

        def forward_backward_pipeline(self, data, scaler=None, static_scheduler=False):
            if static_scheduler:
                return "f0;b0;"
            for step in range(self.accumulate_steps):
                if step == self.fails_at:
                    raise ZeroDivisionError
                received = self.helper.recv_forward(self.stage_id == 0)
                number = {"step_id": step} if features.hooks else {}
                output = self._output(self._forward_step(received, None, **number))
                gradient = self._backward_step(received, output, None, **number)
                self.helper.send_backward(gradient, self.stage_id == 0)
            return "loss"

        def _output(self, result):
            return result[0] if features.loss else result

        def _run_forward(self):
            callbacks.on_location(Locations.FORWARD_BEGIN)
            callbacks.on_location(Locations.FORWARD_END)
            if features.loss:
                self._maybe_loss_compute(None, None)
            return (Tensor(), None, None) if features.loss else Tensor()

        def _run_backward(self):
            callbacks.on_location(Locations.BACKWARD_BEGIN)
            callbacks.on_location(Locations.BACKWARD_END)
            return Tensor()

    for name, function in step_functions(features).items():
        setattr(PipelineParallel, name, function)
    return PipelineParallel


def step_functions(features):
    """Return the functions of one version that run a pass: their signatures differ most."""

    def _forward_step_of_2_6(self, input_tensor, micro_dataset, chunk_id=None):
        return self._run_forward()

    def _forward_step(
        self, input_tensor, micro_dataset, chunk_id=None, step_id=None, overlap_schedule_mode=False
    ):
        return self._run_forward()

    def _backward_step_of_2_6(self, input_tensor, output_tensor, output_tensor_grad):
        return self._run_backward()

    def _backward_step_until_3_2(
        self, input_tensor, output_tensor, output_tensor_grad, step_id=None, overlap_schedule_mode=False
    ):
        return self._run_backward()

    def _backward_step(
        self,
        input_tensor,
        output_tensor,
        output_tensor_grad,
        chunk_id=None,
        step_id=None,
        overlap_schedule_mode=False,
    ):
        return self._run_backward()

    def _maybe_loss_compute(self, output_tensor, micro_dataset, overlap_schedule_mode=False):
        return None, None

    if not features.hooks:
        return {"_forward_step": _forward_step_of_2_6, "_backward_step": _backward_step_of_2_6}
    backward = _backward_step if features.chunk_of_backward else _backward_step_until_3_2
    loss = {"_maybe_loss_compute": _maybe_loss_compute} if features.loss else {}
    return {"_forward_step": _forward_step, "_backward_step": backward, **loss}


def make_interleaved(base, features):
    """Return the interleaved scheduler: chunk after chunk, in groups of as many micro-batches as there are stages."""

    class PipelineParallelWithInterleave(base):
        def __init__(self, stage_id, num_stages, accumulate_steps, chunks, overlap=False):
            super().__init__(stage_id, num_stages, accumulate_steps)
            self.num_model_chunks, self.overlap_schedule_mode = chunks, overlap
            self.handle = None

        def train_batch(self, data, optimizer):
            self.forward_backward_pipeline(data, None)
            optimizer.step()

        def eval_batch(self, data):
            for micro_step in range(self.accumulate_steps * self.num_model_chunks):
                self._one(micro_step, forward=True)

        def _get_virtual_pp_rank(self, micro_step, forward):
            chunk = micro_step // self.num_stages % self.num_model_chunks
            return chunk if forward else self.num_model_chunks - 1 - chunk

        def _one(self, micro_step, *, forward):
            chunk = self._virtual_pp_rank = self._get_virtual_pp_rank(micro_step, forward)
            kind = "forward" if forward else "backward"
            self.step.append((kind, chunk, sum(one[:2] == (kind, chunk) for one in self.step)))
            names = {"step_id": micro_step} if features.hooks else {}
            if forward:
                self.outputs[chunk].append(self._output(self._forward_step(None, None, chunk, **names)))
                return
            names |= {"chunk_id": chunk} if features.chunk_of_backward else {}
            self._backward_step(None, self.outputs[chunk].pop(0), None, **names)

        def forward_backward_pipeline(self, data, scaler=None, forward_only=False, static_scheduler=False):
            self.step, self.outputs = [], [[] for _ in range(self.num_model_chunks)]
            passes, early = self.accumulate_steps * self.num_model_chunks, 4
            for micro_step in range(early):
                self._one(micro_step, forward=True)
            for micro_step in range(early, passes):
                if features.overlap:
                    self._forward_backward_helper(None, micro_step, micro_step - early, self.handle)
                else:
                    self._one(micro_step, forward=True)
                    self._one(micro_step - early, forward=False)
            for micro_step in range(passes - early, passes):
                self._one(micro_step, forward=False)
            self.done += self.step

    if features.overlap:
        for function in (_forward_backward_helper, _get_forward_input, _get_backward_input):
            setattr(PipelineParallelWithInterleave, function.__name__, function)
    return PipelineParallelWithInterleave


def _forward_backward_helper(
    self, micro_dataset, forward_micro_step_id, backward_micro_step_id, p2p_async_handle=None
):
    if not self.overlap_schedule_mode:
        self._one(forward_micro_step_id, forward=True)
        self._one(backward_micro_step_id, forward=False)
        return None
    self.done.append((("forward", "backward"), forward_micro_step_id, backward_micro_step_id))
    chunk = self._get_virtual_pp_rank(backward_micro_step_id, forward=False)
    self._get_forward_input(self._get_virtual_pp_rank(forward_micro_step_id, forward=True))
    self._get_backward_input(chunk)
    if self.outputs[chunk]:
        self.outputs[chunk].pop(0)
    output, gradient = Tensor(), Tensor()
    self.outputs[self._get_virtual_pp_rank(forward_micro_step_id, forward=True)].append(output)
    if p2p_async_handle is not None:
        p2p_async_handle.forward_async_comm(output)
        p2p_async_handle.backward_async_comm(gradient)
    return output, gradient


def _get_forward_input(self, virtual_pp_rank):
    return self.helper.recv_forward(first=False)


def _get_backward_input(self, virtual_pp_rank):
    return None, None, None, None, None


def make_single(module):
    """Add the training of a pipeline model on one stage."""
    autograd, layers = module_of("paddle.autograd"), module_of(points.LAYERS)

    def backward(tensors, grad_tensors=None, retain_graph=False):
        if isinstance(tensors, list):  # a recomputed part of the model
            autograd.backward("part")

    class PipelineLayer:
        def forward(self, input, chunk_id=None):  # noqa: A002
            return Tensor()

    class NoPipelineParallel:
        def __init__(self, layers, accumulate_steps):
            self._layers, self.accumulate_steps = layers, accumulate_steps

        def forward_backward_pipeline(self, data, scaler=None, return_micro_batch_loss=False):
            for _ in range(self.accumulate_steps):
                output = self._layers.forward(data)
                autograd.backward([output])
            return "loss"

        def train_batch(self, data, optimizer=None):
            return self.forward_backward_pipeline(data)

        def eval_batch(self, data):
            for _ in range(self.accumulate_steps):
                self._layers.forward(data)

    autograd.backward, layers.PipelineLayer = backward, PipelineLayer
    module.NoPipelineParallel = NoPipelineParallel
