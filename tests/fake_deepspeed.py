"""Replacements of deepspeed.runtime.pipe.engine and .dualpipev with the signatures and the data flow of 0.19.8."""

# ruff: noqa: ARG001, ARG002, FBT002 - the signatures are DeepSpeed's

from __future__ import annotations

import types

NAMES = (
    "ForwardPass", "BackwardPass", "SendActivation", "RecvActivation", "SendGrad", "RecvGrad", "ReduceTiedGrads",
    "OptimizerStep", "CommitP2P", "Unheard",
)  # fmt: skip
INSTRUCTIONS = {name: type(name, (), {}) for name in NAMES}
MICROBATCHES = 8


class Tensor:
    def __init__(self, elements=4):
        self.elements = elements

    def numel(self):
        return self.elements

    def element_size(self):
        return 2

    @property
    def nbytes(self):
        return 2 * self.elements


class Work:
    """The handle of an asynchronous transfer."""

    def wait(self, timeout=None):
        return True


class TrainSchedule:
    """Executes instructions by name, with their arguments."""

    def __init__(self, commands):
        self.commands = commands


def make_engine(commands=(), *, send=lambda *_: None):
    """Return the module of PipelineEngine: an instruction map, two batch methods, and p2p functions."""
    schedule = TrainSchedule(commands)
    p2p = types.ModuleType("deepspeed.runtime.pipe.p2p")

    def p2p_send(tensor, dest_stage, async_op=False):
        return send(tensor, dest_stage)

    def p2p_recv(tensor, src_stage, async_op=False):
        return None

    p2p.send, p2p.recv = p2p_send, p2p_recv
    p2p._grid = types.SimpleNamespace(stage_to_global=lambda stage_id: 10 + stage_id)

    class PipelineEngine:
        stage_id = 1
        num_stages = 4

        def _exec_other(self, buffer_id=0):
            return None

        def _exec_forward_pass(self, buffer_id):
            return None

        def _exec_send_activations(self, buffer_id):
            self._send_tensor_meta(None, 2)
            for size in (3, 5):
                p2p.send(Tensor(size), 2)

        def _send_tensor_meta(self, buffer, recv_stage):
            p2p.send(Tensor(100), recv_stage)

        def _recv_tensor_meta(self, send_stage):
            return None

        _INSTRUCTION_MAP = dict.fromkeys(
            (instruction for name, instruction in INSTRUCTIONS.items() if name != "CommitP2P"), _exec_other
        ) | {
            INSTRUCTIONS["ForwardPass"]: _exec_forward_pass,
            INSTRUCTIONS["SendActivation"]: _exec_send_activations,
        }

        def train_batch(self, data_iter=None):
            self._exec_schedule(schedule)
            return "loss"

        def eval_batch(self, data_iter, return_logits=False):
            self._exec_schedule(schedule)

        def _exec_schedule(self, pipe_schedule):
            for name, *arguments in pipe_schedule.commands:
                kwargs = dict(zip(("buffer_id", "phase"), arguments, strict=False))
                types.MethodType(self._INSTRUCTION_MAP[INSTRUCTIONS[name]], self)(**kwargs)

    module = types.ModuleType("deepspeed.runtime.pipe.engine")
    module.PipelineEngine, module.p2p = PipelineEngine, p2p
    return module


def make_dualpipev(engine, *, works=lambda operations: [Work() for _ in operations]):
    """Return the module of DualPipeVEngine, whose instructions have a phase and only queue what they move.

    `works` returns the handles of a batch: gloo has one for each operation, NCCL one for all of them.
    """
    parent = engine.PipelineEngine
    dist = types.ModuleType("deepspeed.comm")

    def batch_isend_irecv(p2p_op_list, prof=False):
        return works(p2p_op_list)

    dist.batch_isend_irecv = batch_isend_irecv

    class DualPipeVEngine(parent):
        def __init__(self):
            self._p2p_ops = []
            self.waited = 0

        def _queue_p2p(self, op, tensors, stage):
            for tensor in tensors:
                self._p2p_ops.append((op, tensor, stage))

        def _exec_commit_p2p(self):
            if not self._p2p_ops:
                return
            for request in dist.batch_isend_irecv(self._p2p_ops):
                request.wait()
                self.waited += 1
            self._p2p_ops = []

        def _exec_forward_pass(self, buffer_id, phase):
            super()._exec_forward_pass(buffer_id)

        def _exec_backward_pass(self, buffer_id, phase):
            return None

        def _exec_send_activations(self, buffer_id, phase):
            self._send_tensor_meta(None, self.stage_id)
            self._queue_p2p("isend", [Tensor(3), Tensor(5)], self.stage_id + (-1 if phase else 1))

        def _exec_recv_activations(self, buffer_id, phase):
            self._queue_p2p("irecv", [Tensor(3), Tensor(5)], self.stage_id + (1 if phase else -1))

        def _exec_send_grads(self, buffer_id, phase):
            self._queue_p2p("isend", [Tensor(3)], self.stage_id + (1 if phase else -1))

        def _exec_recv_grads(self, buffer_id, phase):
            self._queue_p2p("irecv", [Tensor(3)], self.stage_id + (-1 if phase else 1))

        _INSTRUCTION_MAP = parent._INSTRUCTION_MAP | {
            INSTRUCTIONS["ForwardPass"]: _exec_forward_pass,
            INSTRUCTIONS["BackwardPass"]: _exec_backward_pass,
            INSTRUCTIONS["SendActivation"]: _exec_send_activations,
            INSTRUCTIONS["RecvActivation"]: _exec_recv_activations,
            INSTRUCTIONS["SendGrad"]: _exec_send_grads,
            INSTRUCTIONS["RecvGrad"]: _exec_recv_grads,
            INSTRUCTIONS["CommitP2P"]: _exec_commit_p2p,
        }

    module = types.ModuleType("deepspeed.runtime.pipe.dualpipev")
    module.DualPipeVEngine, module.dist = DualPipeVEngine, dist
    return module
