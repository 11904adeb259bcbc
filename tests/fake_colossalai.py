"""A replacement of ColossalAI's schedules with the same modules, classes, methods, arguments and data flow.

`make` returns the modules of a version: 0.5.0 has handles and ZBV, 0.4.6 no ZBV, 0.3.9 neither handles nor the combined
transfers of the interleaved schedule. Each run appends the executed actions to `done`, in the notation of schedules,
with the global stage.
"""

# ruff: noqa: ARG002, FBT002, PLR0917 - the signatures are ColossalAI's

from __future__ import annotations

import types
from collections import deque

from stagescope import schedules

PACKAGE = "colossalai.pipeline"


class Tensor:
    def numel(self):
        return 5

    def element_size(self):
        return 2

    def clone(self):
        return Tensor()


class Work:
    def wait(self, timeout=None):
        return True


class StageManager:
    def __init__(self, stage, num_stages):
        self.stage, self.num_stages = stage, num_stages

    def get_next_rank(self):
        return (self.stage + 1) % self.num_stages

    def get_prev_rank(self):
        return (self.stage - 1) % self.num_stages


def value():
    return {"hidden_states": Tensor()}


class OldCommunication:
    """Up to 0.3.9: every method waits and returns what it received."""

    def __init__(self, stage_manager):
        self.stage_manager = stage_manager

    def recv_forward(self, prev_rank=None, metadata_recv=None):
        return value()

    def recv_backward(self, next_rank=None, metadata_recv=None):
        return value()

    def send_forward(self, output_object, next_rank=None, send_metadata=True):
        return None

    def send_backward(self, input_object, prev_rank=None, send_metadata=True):
        return None

    def send_forward_recv_backward(
        self, input_object, next_rank=None, send_metadata=True, metadata_recv=None, send_prior_fallback=None
    ):
        return value()

    def send_backward_recv_forward(
        self, input_object, prev_rank=None, send_metadata=True, metadata_recv=None, send_prior_fallback=None
    ):
        return value()


class Communication:
    """From 0.4.0 on: a list of handles is returned as well, empty if the method has waited."""

    def __init__(self, stage_manager, overlap_p2p=True):
        self.stage_manager = stage_manager
        self.overlap_p2p = overlap_p2p

    def _handles(self, *, sends=False, receives=False):
        return [Work() for _ in range(sends + receives)] if self.overlap_p2p else []

    def recv_forward(self, prev_rank=None, metadata_recv=None):
        return value(), self._handles(receives=True)

    def recv_backward(self, next_rank=None, metadata_recv=None):
        return value(), self._handles(receives=True)

    def send_forward(self, output_object, next_rank=None, send_metadata=True):
        return self._handles(sends=True)

    def send_backward(self, input_object, prev_rank=None, send_metadata=True):
        return self._handles(sends=True)

    def send_forward_recv_forward(
        self, output_object, is_send, is_recv, send_first, send_metadata=True, metadata_recv=None
    ):
        return value() if is_recv else None, self._handles(sends=is_send, receives=is_recv)

    def send_backward_recv_backward(
        self, input_object, is_send, is_recv, send_first, send_metadata=True, metadata_recv=None
    ):
        return value() if is_recv else None, self._handles(sends=is_send, receives=is_recv)

    def send_forward_recv_backward(
        self, input_object, send_metadata=True, metadata_recv=None, send_first=None
    ):
        return value(), []

    def send_backward_recv_forward(
        self, input_object, send_metadata=True, metadata_recv=None, send_first=None
    ):
        return value(), []


class WeightGradStore:
    def __init__(self):
        self.cache = []
        self.queues = (deque(), deque())

    def put(self, entry):
        self.cache.append(entry)

    def flush(self, chunk=0):
        self.queues[chunk].append(self.cache)
        self.cache = []

    def pop(self, chunk=0):
        return self.queues[chunk].popleft()


class Fake:
    """What the schedules below share, and what ColossalAI's have in other forms."""

    chunks = 1
    order_name = ""

    def start(self, stage, num_stages, microbatches, *, overlap):
        self.stage_manager = StageManager(stage, num_stages)
        self.num_microbatches = self.num_microbatch = microbatches
        self.comm = self.make_communication(self.stage_manager, overlap)
        self.done = []

    def order(self):
        sizes = {"ranks": self.stage_manager.num_stages, "microbatches": self.num_microbatches}
        more = {"chunks": self.chunks} if self.order_name == "interleaved" else {}
        return schedules.order(self.order_name, **sizes, **more)[self.stage_manager.stage]

    def received(self, result):
        """Wait for what was received, if the version has handles."""
        if not isinstance(result, tuple):
            return result
        for handle in result[1]:
            handle.wait()
        return result[0]

    def chunk_of(self, action):
        return action.stage // self.stage_manager.num_stages

    def last_stage(self):
        return self.stage_manager.num_stages * self.chunks - 1


def make(version="0.5.0"):
    """Return the modules of a version by name."""
    communication = OldCommunication if version == "0.3.9" else Communication
    has_handles = communication is Communication

    class PipelineP2PCommunication(communication):
        pass

    for name in [name for name in vars(communication) if name.startswith(("send_", "recv_"))]:
        setattr(PipelineP2PCommunication, name, vars(communication)[name])  # as in ColossalAI: not inherited

    def make_communication(manager, overlap):
        return PipelineP2PCommunication(manager, *([overlap] if has_handles else []))

    class PipelineSchedule(Fake):
        def __init__(self, stage, num_stages, microbatches, *, overlap=True):
            self.make_communication = make_communication
            self.start(stage, num_stages, microbatches, overlap=overlap)

        def forward_backward_step(self, model, data_iter, criterion, optimizer=None, return_loss=False):
            raise NotImplementedError

    modules = {
        "p2p": {"PipelineP2PCommunication": PipelineP2PCommunication},
        "schedule.base": {"PipelineSchedule": PipelineSchedule},
        "schedule.generate": {"GenerateSchedule": type("GenerateSchedule", (PipelineSchedule,), {})},
        "schedule.one_f_one_b": {"OneForwardOneBackwardSchedule": one_f_one_b(PipelineSchedule)},
        "schedule.interleaved_pp": {"InterleavedSchedule": interleaved(PipelineSchedule, has_handles)},
    }
    if version >= "0.4.7":
        modules["schedule.zero_bubble_pp"] = {"ZeroBubbleVPipeScheduler": zero_bubble(PipelineSchedule)}
    exported = {
        name: one
        for module in modules.values()
        for name, one in module.items()
        if name.endswith(("le", "er"))
    }
    return {
        f"{PACKAGE}.{name}": module_of(f"{PACKAGE}.{name}", names)
        for name, names in {"schedule": exported, **modules}.items()
    }


def module_of(name, names):
    module = types.ModuleType(name)
    vars(module).update(names)
    return module


def one_f_one_b(base):
    class OneForwardOneBackwardSchedule(base):
        order_name = "1f1b"

        def __init__(self, stage, num_stages, microbatches):
            super().__init__(stage, num_stages, microbatches, overlap=False)

        def forward_step(self, model, input_obj, criterion, accum_loss=None, outputs=None):
            return value()

        def backward_step(self, optimizer, input_obj, output_obj, output_obj_grad):
            return value() if input_obj else None

        def forward_backward_step(self, model, data_iter, criterion, optimizer=None, return_loss=False):
            """Receive, compute and send, with the combined call where a backward follows a forward."""
            waiting, actions = deque(), self.order() if optimizer else [None] * self.num_microbatches
            is_last = self.stage_manager.stage == self.last_stage()
            gradient = None
            for number, action in enumerate(actions):
                is_forward = action is None or action.kind == "F"
                self.done.append(str(action))
                if is_forward:
                    received = self.received(self.comm.recv_forward()) if self.stage_manager.stage else None
                    output = self.forward_step(model, received, criterion)
                    waiting.append((received, output))
                    following = actions[number + 1] if number + 1 < len(actions) else None
                    if is_last:
                        gradient = None
                    elif following is not None and following.kind == "B":
                        gradient = self.received(self.comm.send_forward_recv_backward(output))
                    else:
                        self.comm.send_forward(output)
                else:
                    if gradient is None and not is_last:
                        gradient = self.received(self.comm.recv_backward())
                    made = self.backward_step(optimizer, *waiting.popleft(), gradient)
                    gradient = None
                    if made:
                        self.comm.send_backward(made)

    return OneForwardOneBackwardSchedule


def interleaved(base, has_handles):
    class InterleavedSchedule(base):
        order_name, chunks, num_model_chunks = "interleaved", 2, 2

        def forward_step(
            self, model_chunk, model_chunk_id, input_obj, criterion, accum_loss=None, outputs=None
        ):
            return value()

        def backward_step(self, optimizer, input_obj, output_obj, output_obj_grad):
            return value()

        def exchange(self, direction, sent, *, is_send, is_recv):
            """Send one output and receive the next input, with one call from 0.4.0 on."""
            if has_handles:
                call = getattr(self.comm, f"send_{direction}_recv_{direction}")
                result, handles = call(sent, is_send, is_recv, send_first=True)
                return self.received((result, handles))
            if is_send:
                getattr(self.comm, f"send_{direction}")(sent)
            return getattr(self.comm, f"recv_{direction}")() if is_recv else None

        def forward_backward_step(self, model_chunk, data_iter, criterion, optimizer=None, return_loss=False):
            actions, waiting = self.order(), (deque(), deque())
            forwards = deque(action for action in actions if action.kind == "F")
            backwards = deque(action for action in actions if action.kind == "B")
            receives_first = forwards[0].stage > 0
            value_in = self.received(self.comm.recv_forward()) if receives_first else None
            gradient = (
                self.received(self.comm.recv_backward()) if backwards[0].stage < self.last_stage() else None
            )
            for action in actions:
                self.done.append(str(action))
                chunk = self.chunk_of(action)
                queue = forwards if action.kind == "F" else backwards
                queue.popleft()
                if action.kind == "F":
                    output = self.forward_step(model_chunk, chunk, value_in, criterion)
                    waiting[chunk].append((value_in, output))
                    is_send, is_recv = action.stage < self.last_stage(), bool(queue and queue[0].stage)
                    if is_send or is_recv:
                        value_in = self.exchange("forward", output, is_send=is_send, is_recv=is_recv)
                    else:
                        value_in = None
                else:
                    made = self.backward_step(optimizer, *waiting[chunk].popleft(), gradient)
                    is_send = action.stage > 0
                    is_recv = bool(queue and queue[0].stage < self.last_stage())
                    gradient = (
                        self.exchange("backward", made, is_send=is_send, is_recv=is_recv)
                        if is_send or is_recv
                        else None
                    )

    return InterleavedSchedule


def zero_bubble(base):
    class ZeroBubbleVPipeScheduler(base):
        order_name, chunks, num_model_chunks = "zb-v", 2, 2

        def __init__(self, stage, num_stages, microbatches, *, overlap=True):
            super().__init__(stage, num_stages, microbatches, overlap=overlap)
            self.store = WeightGradStore()
            self.forward_queues, self.backward_queues = (deque(), deque()), (deque(), deque())
            self.to_send, self.gradients_to_send = (deque(), deque()), (deque(), deque())
            self.kept = (deque(), deque())
            self.handles = []

        def is_first(self):
            return self.stage_manager.stage == 0

        def is_last(self):
            return self.stage_manager.stage == self.stage_manager.num_stages - 1

        def chunk_of(self, action):
            return int(action.stage >= self.stage_manager.num_stages)

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
            return value()

        def backward_b_step(
            self, model_chunk, model_chunk_id, optimizer, input_obj, output_obj, output_obj_grad
        ):
            self.store.put("weight gradient")
            return value() if input_obj else {}

        def backward_w_step(self, model_chunk, model_chunk_id, optimizer, output_obj, output_obj_grad):
            raise AssertionError("ColossalAI does not call this")

        def schedule_f(self, scheduled_node, model_chunk, model_chunk_id, criterion):
            queue = self.forward_queues[model_chunk_id]
            received = self.received(queue.popleft()) if queue else None
            output = self.forward_step(model_chunk, model_chunk_id, None, received, criterion)
            self.kept[model_chunk_id].append((received, output))
            sent = {name: tensor.clone() for name, tensor in output.items()}
            if model_chunk_id == 0 and self.is_last():
                self.forward_queues[1].append((sent, []))
            elif model_chunk_id == 0 or not self.is_first():
                self.to_send[model_chunk_id].append(sent)

        def schedule_b(self, scheduled_node, model_chunk, model_chunk_id, optimizer):
            queue = self.backward_queues[model_chunk_id]
            gradient = self.received(queue.popleft()) if queue else None
            kept = self.kept[model_chunk_id].popleft()
            made = self.backward_b_step(model_chunk, model_chunk_id, optimizer, *kept, gradient)
            if model_chunk_id == 1 and self.is_last():
                self.backward_queues[0].append((made, []))
            elif model_chunk_id == 1 or not self.is_first():
                self.gradients_to_send[model_chunk_id].append(made)
            self.store.flush(chunk=model_chunk_id)

        def schedule_w(self, scheduled_node, model_chunk, model_chunk_id, optimizer):
            self.store.pop(chunk=model_chunk_id)

        def recv_forward(self, model_chunk_id, prev_rank=None):
            if (self.is_last if model_chunk_id else self.is_first)():
                return []
            manager = self.stage_manager
            peer = manager.get_next_rank() if model_chunk_id else manager.get_prev_rank()
            self.forward_queues[model_chunk_id].append(self.comm.recv_forward(peer))
            return []

        def recv_backward(self, model_chunk_id, next_rank=None):
            if (self.is_first if model_chunk_id else self.is_last)():
                return []
            manager = self.stage_manager
            peer = manager.get_prev_rank() if model_chunk_id else manager.get_next_rank()
            self.backward_queues[model_chunk_id].append(self.comm.recv_backward(peer))
            return []

        def send_forward(self, model_chunk_id, next_rank=None):
            if (self.is_first if model_chunk_id else self.is_last)():
                return []
            manager = self.stage_manager
            peer = manager.get_prev_rank() if model_chunk_id else manager.get_next_rank()
            return self.comm.send_forward(self.to_send[model_chunk_id].popleft(), peer)

        def send_backward(self, model_chunk_id, prev_rank=None):
            if (self.is_last if model_chunk_id else self.is_first)():
                return []
            manager = self.stage_manager
            peer = manager.get_next_rank() if model_chunk_id else manager.get_prev_rank()
            return self.comm.send_backward(self.gradients_to_send[model_chunk_id].popleft(), peer)

        def forward_backward_step(self, model_chunk, data_iter, criterion, optimizer=None, return_loss=False):
            """Run the nodes of a schedule in which sends come one action late, as in the real one."""
            late = []
            for action in self.order():
                self.done.append(str(action))
                chunk = self.chunk_of(action)
                if action.kind == "F":
                    self.recv_forward(chunk)
                    self.schedule_f(action, model_chunk, chunk, criterion)
                elif action.kind == "I":
                    self.recv_backward(chunk)
                    self.schedule_b(action, model_chunk, chunk, optimizer)
                else:
                    self.schedule_w(action, model_chunk, chunk, optimizer)
                for send, sent_chunk in late:
                    self.handles += send(sent_chunk)
                sends = {"F": self.send_forward, "I": self.send_backward}
                late = [(sends[action.kind], chunk)] if action.kind in sends else []
            for send, sent_chunk in late:
                self.handles += send(sent_chunk)
            for handle in self.handles:
                handle.wait()

    return ZeroBubbleVPipeScheduler
