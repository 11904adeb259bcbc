"""Instruments DualPipeV of Paddle fleet: ``DualPipeVParallel`` in meta_parallel/dualpipev.py of Paddle 3.1.0 to 3.3.1.

Each of P ranks has two chunks, called phases: rank r holds the stages r and 2P - 1 - r. The scheduler does not use the
functions of fleet's other pipelines. It counts the micro-batches of each phase by what it did with them
(``current_f_acc_id`` and so on), so the counters give the micro-batch of each action and transfer.

* ``_forward_compute`` (with the loss on the first rank) and ``_backward_compute`` are actions. Their overlap,
  ``_forward_backward_compute``, calls both unless the model defines ``overlapped_forward_backward``.
* With `enable_zb`, a backward leaves the weight gradients of ``SplitBWLinear`` in ``WeightGradStore``. Its ``flush``
  closes the entry of one backward, its ``pop`` computes the oldest entry. An entry without functions means that the
  model has no such layers: the backward was a full one, and its ``pop`` is no action. A model may also flush and pop
  inside its own overlapped passes, whose spans then contain the weight gradients.
* ``_send_forward`` and so on only queue transfers. They are moved together in ``_commit_and_wait_comm``, forward and
  backward transfers one after the other (from 3.1.1), and are recorded with the times of their batch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.frameworks.paddle_dualpipe_transfers import DualPipeTransfers
from stagescope.record.frameworks.paddle_facts import describe_device, pipeline_facts
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    UNKNOWN,
    Place,
    Runs,
)
from stagescope.record.frameworks.transfers import RECV_BACKWARD, RECV_FORWARD, SEND_BACKWARD, SEND_FORWARD
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.paddle import DUALPIPEV

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


def instrument(dualpipe: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe `dualpipe`, the imported module paddle.distributed.fleet.meta_parallel.dualpipev."""
    hooks = Instrumentation(recorder, patches)
    Installation(recorder, patches).install(DUALPIPEV, hooks, modules_by_name(dualpipe))


class Instrumentation:
    """The observers, and what the scheduler is doing."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        del patches
        self.recorder = recorder
        self.runs = Runs(recorder, DUALPIPEV.framework)
        self.transfers = DualPipeTransfers(recorder)
        self.commit, self.batch = self.transfers.commit, self.transfers.batch
        self._described: object = None
        self._forget()

    def _forget(self) -> None:
        self._backward: Place | None = None  # in progress, also as a part of a pair
        self._weights: deque[tuple[Place, bool]] = deque()

    def step(self, call: Call) -> Observation:
        """Observe a run of the schedule."""
        if self.runs.inside:
            return None
        if call.owner is not self._described:
            self._described = call.owner
            self._describe(call.owner)
        self._forget()
        self.transfers.forget()
        if call.get("forward_only"):
            return (yield from self.runs.observe_evaluation())
        return (yield from self.runs.observe_step())

    @never_raises()
    def _describe(self, pipeline: Any) -> None:
        """Describe the pipeline and its device in the header."""
        device = describe_device(self.recorder)
        self.transfers.learn(device)
        stages = [stage_of(pipeline, phase) for phase in (0, 1)]
        self.recorder.describe(**pipeline_facts(pipeline, "dualpipev", stages, 2 * pipeline.num_stages))

    def forward(self, call: Call) -> Observation:
        """Observe the forward of one micro-batch through one phase."""
        if not self.runs.inside:
            return None
        place = place_of(call.owner, call.get("phase"), "current_f_acc_id")
        return (yield from self.runs.observe_action(FORWARD, place))

    def backward(self, call: Call) -> Observation:
        """Observe the backward of one micro-batch through one phase; it is split if it leaves weight gradients."""
        pipeline = call.owner
        if not self.runs.inside or pipeline.forward_only:
            return None
        self._backward = place_of(pipeline, call.get("phase"), "current_b_acc_id")
        try:
            return (yield from self.runs.observe_action(BACKWARD, self._backward, self._kind_of_backward))
        finally:
            self._backward = None

    def _kind_of_backward(self) -> int:
        return BACKWARD_INPUT if (self._backward, True) in self._weights else BACKWARD

    def pair(self, call: Call) -> Observation:
        """Observe a forward and a backward; they overlap only if the model knows how."""
        pipeline = call.owner
        if not self.runs.inside or pipeline.forward_only or not pipeline.overlapped_forward_backward:
            return None
        forward = place_of(pipeline, call.get("forward_phase"), "current_f_acc_id")
        self._backward = place_of(pipeline, call.get("backward_phase"), "current_b_acc_id")
        try:
            return (yield from self.runs.observe_pair(forward, self._backward))
        finally:
            self._backward = None

    def flush(self, call: Call) -> Observation:
        """Observe how the weight gradients of a backward are put aside."""
        if not self.runs.inside:
            return
        has_functions = bool(call.owner.cache)
        yield
        self._weights.append((self._backward or UNKNOWN, has_functions))

    def weight(self, call: Call) -> Observation:
        """Observe the computation of the weight gradients that were put aside first."""
        del call
        if not self.runs.inside:
            return
        place, has_functions = self._weights.popleft() if self._weights else (UNKNOWN, True)
        if has_functions and self._backward is None:
            yield from self.runs.observe_action(BACKWARD_WEIGHT, place)

    def send_forward(self, call: Call) -> Observation:
        """Observe how an output is queued."""
        return self._queue(call, SEND_FORWARD, "current_send_f_acc_id", "output_tensors")

    def recv_forward(self, call: Call) -> Observation:
        """Observe how a receive of an input is queued."""
        return self._queue(call, RECV_FORWARD, "current_recv_f_acc_id", "input_tensors")

    def send_backward(self, call: Call) -> Observation:
        """Observe how a gradient is queued."""
        return self._queue(call, SEND_BACKWARD, "current_send_b_acc_id", "input_grad_tensors")

    def recv_backward(self, call: Call) -> Observation:
        """Observe how a receive of a gradient is queued."""
        return self._queue(call, RECV_BACKWARD, "current_recv_b_acc_id", "output_grad_tensors")

    def _queue(self, call: Call, kind: int, counter: str, tensors: str) -> Observation:
        """Observe how a transfer is queued.

        Nothing is queued between the two phases of the last rank and at the ends of the pipeline. The counter then
        does not change.
        """
        pipeline, phase = call.owner, call.get("phase")
        if not self.runs.inside:
            return
        place = place_of(pipeline, phase, counter)
        queue = getattr(pipeline, tensors)[phase]
        is_sent = kind in (SEND_FORWARD, SEND_BACKWARD)
        sent = queue[place.microbatch] if is_sent and place.microbatch < len(queue) else None
        yield
        if getattr(pipeline, counter)[phase] == place.microbatch:
            return
        goes_on = (phase == 0) == (kind in (SEND_FORWARD, RECV_BACKWARD))
        peer = pipeline.next_rank if goes_on else pipeline.prev_rank
        self.transfers.queued(kind, place, peer, sent if is_sent else queue[-1])


def stage_of(pipeline: Any, phase: int) -> int:
    """Return the global stage of a phase: the V goes down in phase 0 and up in phase 1."""
    rank: int = pipeline.group_rank
    return rank if phase == 0 else 2 * int(pipeline.num_ranks) - 1 - rank


def place_of(pipeline: Any, phase: int, counter: str) -> Place:
    """Return the place of the next action or transfer that a counter of the pipeline counts."""
    return Place(stage_of(pipeline, phase), getattr(pipeline, counter)[phase], phase)
