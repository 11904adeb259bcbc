"""A replacement of fleet's DualPipeV: one rank whose transfers arrive at once, with the signatures of three versions.

It runs the steps of https://github.com/deepseek-ai/DualPipe (dualpipe/dualpipev.py) as Paddle does and lists in `done`
and `moved` what it did.
"""

# ruff: noqa: ARG001, ARG002, FBT002, PLR0917 - the signatures are Paddle's

from __future__ import annotations

import queue
import types
from typing import ClassVar

from fake_paddle import Groups, Tensor, module_of
from stagescope.record.points import paddle as points

VERSIONS = ("3.1.0", "3.1.1", "3.3.1")


class Task:
    def wait(self):
        return True


def make_store():
    """Return zero_bubble_utils.py."""

    class WeightGradStore:
        enabled = False
        cache: ClassVar[list] = []
        funcs_queue: ClassVar[queue.Queue] = queue.Queue()

        @classmethod
        def put(cls, func):
            cls.cache.append(func)

        @classmethod
        def flush(cls):
            cls.funcs_queue.put(cls.cache)
            cls.cache = []

        @classmethod
        def pop(cls):
            for func in cls.funcs_queue.get_nowait():
                func()

    module = module_of(points.ZERO_BUBBLE)
    module.WeightGradStore = WeightGradStore
    return WeightGradStore


def make(version="3.3.1", base=object):
    """Return the module of one version, its scheduler derived from `base`."""
    module = module_of(points.DUALPIPE)
    store = make_store()

    def batch_isend_irecv(p2p_op_list):
        return [Task() for _ in p2p_op_list]

    class DualPipeVParallel(Schedule, base):
        def _commit(self):
            lists = [self.forward_ops] if version == "3.1.0" else [self.forward_ops, self.backward_ops]
            for operations in filter(None, lists):
                self.moved.append([(one.kind, one.phase, one.number) for one in operations])
                for task in module.batch_isend_irecv(operations):
                    task.wait()
                operations.clear()

        def _queue(self, kind, phase, number, tensors):
            is_forward = kind.endswith("forward") or version == "3.1.0"
            operations = self.forward_ops if is_forward else self.backward_ops
            operations += [
                types.SimpleNamespace(tensor=tensor, kind=kind, phase=phase, number=number)
                for tensor in tensors
            ]

    DualPipeVParallel.store = store
    for name, function in methods_of(version).items():
        setattr(DualPipeVParallel, name, function)
    for name in METHODS:  # Paddle's class defines all of them itself
        setattr(DualPipeVParallel, name, getattr(Schedule, name))
    module.DualPipeVParallel, module.batch_isend_irecv = DualPipeVParallel, batch_isend_irecv
    return module


METHODS = (
    "train_batch",
    "forward_backward_pipeline",
    "_forward_compute",
    "_backward_compute",
    "_send_forward",
    "_recv_forward",
    "_send_backward",
    "_recv_backward",
)


def methods_of(version):
    """Return the functions whose signatures differ."""

    def _commit_and_wait_comm_of_3_1(self):
        self._commit()

    def _commit_and_wait_comm(self, p2p_overlap=False, use_outer_event_wait=False):
        self._commit()

    def _forward_backward_compute_of_3_1_0(self, forward_phase, backward_phase, micro_datasets=None):
        self._both(forward_phase, backward_phase)

    def _forward_backward_compute(
        self,
        forward_phase,
        backward_phase,
        micro_datasets=None,
        combine_backward_event_to_wait=None,
        pass_pp_stream=False,
    ):
        self._both(forward_phase, backward_phase)

    is_first = version == "3.1.0"
    return {
        "_commit_and_wait_comm": _commit_and_wait_comm_of_3_1 if version < "3.2" else _commit_and_wait_comm,
        "_forward_backward_compute": _forward_backward_compute_of_3_1_0
        if is_first
        else _forward_backward_compute,
    }


class Schedule:
    """One rank of DualPipeV. `splits` states whether its layers put weight gradients aside."""

    def __init__(self, rank, ranks, accumulate_steps, *, overlapped=False, splits=True):
        super().__init__(*() if type(self).__bases__[-1] is object else (rank, ranks, accumulate_steps))
        self.group_rank = self.stage_id = rank
        self.num_ranks = self.num_stages = ranks
        self.prev_rank, self.next_rank = (rank - 1) % ranks, (rank + 1) % ranks
        self.accumulate_steps, self.splits = accumulate_steps, splits
        self.overlapped_forward_backward = overlapped
        self._hcg, self.done, self.moved = Groups(ranks), [], []

    def _is_end(self, rank_is_first, phase):
        """Return whether a phase begins or ends at this rank: at the first one for 0 or 1, at the last one else."""
        return self.group_rank == (0 if rank_is_first else self.num_ranks - 1) and phase in {0, 1}

    def _reset(self):
        self.input_tensors, self.output_tensors = ([], []), ([], [])
        self.input_grad_tensors, self.output_grad_tensors = ([], []), ([], [])
        for name in ("f", "b", "send_f", "send_b", "recv_f", "recv_b"):
            setattr(self, f"current_{name}_acc_id", [0, 0])
        self.forward_ops, self.backward_ops = [], []

    def _next(self, name, phase):
        numbers = getattr(self, f"current_{name}_acc_id")
        numbers[phase] += 1
        return numbers[phase] - 1

    def _forward_compute(self, phase, micro_datasets=None):
        self._forward(phase, self._next("f", phase))

    def _forward(self, phase, number):
        self.done.append(("forward", phase, number))
        outputs = [Tensor()]
        if self.group_rank == self.num_ranks - 1 and phase == 0:
            self.input_tensors[1].append([Tensor()])
        self.output_tensors[phase].append(outputs)

    def _backward_compute(self, phase, enable_zb=False):
        if self.forward_only:
            return
        number = self._next("b", phase)
        is_split = enable_zb and self.splits
        self.done.append(("backward_input" if is_split else "backward", phase, number))
        if is_split:
            self.store.put(lambda: self.done.append(("backward_weight", phase, number)))
        if enable_zb:
            self.store.flush()
        self._store_gradients(phase)

    def _store_gradients(self, phase):
        gradients = self.output_grad_tensors[0] if self._turns(phase) else self.input_grad_tensors[phase]
        gradients.append([Tensor()])

    def _turns(self, phase):
        return self.group_rank == self.num_ranks - 1 and phase == 1

    def _both(self, forward_phase, backward_phase):
        if not self.overlapped_forward_backward or self.forward_only:
            self._forward_compute(forward_phase)
            self._backward_compute(backward_phase)
            return
        forward, backward = self._next("f", forward_phase), self._next("b", backward_phase)
        self._forward(forward_phase, forward)
        self.done[-1] = ("pair", (forward_phase, forward), (backward_phase, backward))
        self.store.put(lambda: None)  # a model may do this inside its overlapped passes
        self.store.flush()
        if self.store.funcs_queue.qsize() == 1:
            self.store.pop()
        self._store_gradients(backward_phase)

    def _send_forward(self, phase):
        if (self.group_rank == 0 and phase == 1) or (self.group_rank == self.num_ranks - 1 and phase == 0):
            return
        number = self._next("send_f", phase)
        self._queue("send_forward", phase, number, self.output_tensors[phase][number])

    def _recv_forward(self, phase):
        if (self.group_rank == 0 and phase == 0) or self._turns(phase):
            return
        tensors = [Tensor()]
        self._queue("recv_forward", phase, self._next("recv_f", phase), tensors)
        self.input_tensors[phase].append(tensors)

    def _send_backward(self, phase):
        if self.forward_only or (self.group_rank == 0 and phase == 0) or self._turns(phase):
            return
        number = self._next("send_b", phase)
        tensors, self.input_grad_tensors[phase][number] = self.input_grad_tensors[phase][number], None
        self._queue("send_backward", phase, number, tensors)

    def _recv_backward(self, phase):
        at_end = (self.group_rank == 0 and phase == 1) or (
            self.group_rank == self.num_ranks - 1 and phase == 0
        )
        if self.forward_only or at_end:
            return
        tensors = [Tensor()]
        self._queue("recv_backward", phase, self._next("recv_b", phase), tensors)
        self.output_grad_tensors[phase].append(tensors)

    def _forward_pass(self, phase, *, recv=True, send=True):
        if recv:
            self._recv_forward(phase)
        self._commit_and_wait_comm()
        self._forward_compute(phase)
        if send:
            self._send_forward(phase)

    def _backward_pass(self, phase, *, zero_bubble=False):
        self._recv_backward(phase)
        self._commit_and_wait_comm()
        self._backward_compute(phase, zero_bubble)
        self._send_backward(phase)

    def _both_passes(self, forward_phase, backward_phase):
        self._recv_forward(forward_phase)
        self._recv_backward(backward_phase)
        self._commit_and_wait_comm()
        self._forward_backward_compute(forward_phase, backward_phase)
        self._send_forward(forward_phase)
        self._send_backward(backward_phase)

    def _weight_pass(self):
        self._commit_and_wait_comm()
        self.store.pop()

    def train_batch(self, data, optimizer, lr_scheduler=None, scaler=None):
        return self.forward_backward_pipeline(data, scaler)

    def forward_backward_pipeline(self, data, scaler, forward_only=False, compute_loss=True):
        """Run nF0, nF0F1, nB1W1F1, n(F0B1 F1B0), nB1(F1B0), nB1B0, nWB0, nW."""
        self.forward_only = forward_only
        self._reset()
        behind = self.num_ranks - self.group_rank - 1
        for _ in range(2 * behind):
            self._forward_pass(0)
        for _ in range(self.group_rank + 1):
            self._forward_pass(0)
            self._forward_pass(1)
        for _ in range(behind):
            self._backward_pass(1, zero_bubble=True)
            self._weight_pass()
            self._forward_pass(1)
        for _ in range(self.accumulate_steps - 2 * self.num_ranks + self.group_rank + 1):
            self._both_passes(0, 1)
            self._both_passes(1, 0)
        for _ in range(behind):
            self._backward_pass(1)
            self._both_passes(1, 0)
        for number in range(self.group_rank + 1):
            zero_bubble = number >= (self.group_rank + 1) // 2
            self._backward_pass(1, zero_bubble=zero_bubble)
            self._backward_pass(0, zero_bubble=zero_bubble)
        for _ in range(behind):
            self._weight_pass()
            self._backward_pass(0, zero_bubble=True)
        while not self.store.funcs_queue.empty():
            self._weight_pass()
        self._commit_and_wait_comm()
        return "loss"
