"""A replacement of ColossalAI's schedules with the same classes, methods, arguments and data flow.

Each run appends the executed actions to `done`, in the notation of schedules, with the global stage.
"""

# ruff: noqa: ARG002, FBT002, PLR0917 - the signatures are ColossalAI's

from __future__ import annotations

import types

from stagescope import schedules

WARMUP = 4


class Tensor:
    def numel(self):
        return 5

    def element_size(self):
        return 2


class StageManager:
    def __init__(self, stage, num_stages):
        self.stage, self.num_stages = stage, num_stages

    def get_next_rank(self):
        return self.stage + 1

    def get_prev_rank(self):
        return self.stage - 1


class PipelineP2PCommunication:
    def __init__(self, stage_manager):
        self.stage_manager = stage_manager

    def recv_forward(self, prev_rank=None, metadata_recv=None):
        return {"hidden_states": Tensor()}

    def send_forward_recv_backward(self, output_object, next_rank=None, send_metadata=True):
        return {"hidden_states": Tensor()}

    def send_backward(self, input_object, prev_rank=None, send_metadata=True):
        return None


class Schedule:
    chunks = 1
    order_name = ""

    def __init__(self, stage, num_stages, microbatches):
        self.stage_manager = StageManager(stage, num_stages)
        self.num_microbatches = self.num_microbatch = microbatches
        self.comm = PipelineP2PCommunication(self.stage_manager)
        self.done = []

    def _order(self):
        sizes = {"ranks": self.stage_manager.num_stages, "microbatches": self.num_microbatches}
        more = {"chunks": self.chunks} if self.order_name == "interleaved" else {}
        return schedules.order(self.order_name, **sizes, **more)[self.stage_manager.stage]


def make():
    """Return the package colossalai.pipeline.schedule."""
    package = types.ModuleType("colossalai.pipeline.schedule")

    class OneForwardOneBackwardSchedule(Schedule):
        order_name = "1f1b"

        def forward_step(self, model, input_obj, criterion, accum_loss=None, outputs=None):
            return {"hidden_states": Tensor()}

        def backward_step(self, optimizer, input_obj, output_obj, output_obj_grad):
            return {"hidden_states": Tensor()}

        def forward_backward_step(self, model, data_iter, criterion, optimizer=None, return_loss=False):
            if optimizer is None:
                for _ in range(self.num_microbatches):
                    self.forward_step(model, None, criterion)
                return
            waiting = []
            for action in self._order():
                self.done.append(str(action))
                if action.kind == "F":
                    received = self.comm.recv_forward()
                    output = self.forward_step(model, received, criterion)
                    waiting.append((received, output))
                else:
                    received, output = waiting.pop(0)
                    gradient = self.comm.send_forward_recv_backward(output)
                    made = self.backward_step(optimizer, received, output, gradient)
                    self.comm.send_backward(made)

    class InterleavedSchedule(Schedule):
        order_name, chunks, num_model_chunks = "interleaved", 2, 2

        def forward_step(
            self, model_chunk, model_chunk_id, input_obj, criterion, accum_loss=None, outputs=None
        ):
            return {"hidden_states": Tensor()}

        def backward_step(self, optimizer, input_obj, output_obj, output_obj_grad):
            return {"hidden_states": Tensor()}

        def forward_backward_step(self, model_chunk, data_iter, criterion, optimizer=None, return_loss=False):
            waiting = ([], [])
            for action in self._order():
                self.done.append(str(action))
                chunk = action.stage // self.stage_manager.num_stages
                if action.kind == "F":
                    waiting[chunk].append(self.forward_step(model_chunk, chunk, None, criterion))
                else:
                    self.backward_step(optimizer, None, waiting[chunk].pop(0), None)

    class ZeroBubbleVPipeScheduler(Schedule):
        order_name, num_model_chunks = "zb-v", 2

        def forward_step(
            self,
            model_chunk,
            model_chunk_id,
            micro_batch,
            input_obj,
            criterion,
            accum_loss=None,
            outputs=None,
        ):
            return Tensor()

        def backward_b_step(
            self, model_chunk, model_chunk_id, optimizer, input_obj, output_obj, output_obj_grad
        ):
            return None

        def backward_w_step(self, model_chunk, model_chunk_id, optimizer, output_obj, output_obj_grad):
            return None

        def forward_backward_step(self, model_chunk, data_iter, criterion, optimizer=None, return_loss=False):
            of_b, of_w = ([], []), ([], [])
            for action in self._order():
                self.done.append(str(action))
                chunk = 0 if action.stage < self.stage_manager.num_stages else 1
                arguments = (model_chunk, chunk)
                if action.kind == "F":
                    output = self.forward_step(*arguments, None, None, criterion)
                    of_b[chunk].append(output)
                    of_w[chunk].append(output)
                elif action.kind == "I":
                    self.backward_b_step(*arguments, optimizer, None, of_b[chunk].pop(0), None)
                else:
                    self.backward_w_step(*arguments, optimizer, of_w[chunk].pop(0), None)

    package.OneForwardOneBackwardSchedule = OneForwardOneBackwardSchedule
    package.InterleavedSchedule = InterleavedSchedule
    package.ZeroBubbleVPipeScheduler = ZeroBubbleVPipeScheduler
    return package
