"""Instruments the three schedules of Megatron-core without a change to the training.

Wrapped functions and what they show (megatron-core 0.16.1, and Megatron-LM d98e8a64 of August 2026):

* ``forward_step`` and ``backward_step`` of pipeline_parallel/schedules.py, module globals that the schedules look up
  for each action: they exclude the communication. The arguments of a forward contain micro-batch and chunk. Those of
  a backward contain neither, but the tensor that its forward returned, which is tagged with its action.
* ``combined_forward_backward_step`` of combined_1f1b.py: see megatron_overlap.
* ``_batched_p2p_ops`` and ``_p2p_ops`` of p2p_communication.py: see megatron_messages.
* ``forward_backward_*``: one call is one step, unless ``train_step`` of megatron.training exists and is the step;
  with ``forward_only`` it is an evaluation, which belongs to no step.
* ``finalize_model_grads`` and ``DistributedDataParallel.finish_grad_sync``: the outermost is the gradient reduction,
  as far as the training waits for it.
* ``step`` of MegatronOptimizer's classes, and torch's own optimizer hooks for trainings that use one of torch's.

Code that imported one of these functions by name earlier (``from ... import finalize_model_grads``) keeps the
unwrapped one. ``stagescope run`` always comes first; ``record.start`` should be called before Megatron is imported.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stagescope.record.calls import Call, Signature, never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.megatron_facts import describe_run, pipeline_place
from stagescope.record.frameworks.megatron_messages import NO_PLACE, Messages, tag, tagged
from stagescope.record.frameworks.megatron_overlap import Part, run_overlapped
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, Runs
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

GRAD_REDUCE = BY_NAME["grad_reduce"].code
SCHEDULES = {
    "forward_backward_no_pipelining": "no-pipelining",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "interleaved",
}
"""Megatron's functions, and the schedule that each implements."""


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap the relevant functions of one of Megatron's modules, right after its import."""
    instrumentation = _of_recorder.get(recorder)
    if instrumentation is None:
        instrumentation = _of_recorder[recorder] = Instrumentation(recorder, patches)
    instrumentation.install(module)


class Instrumentation:
    """The wrappers and their shared state: the coordinates of this rank, the actions and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.messages = Messages(recorder)
        self.optimizers = optimizer_steps(recorder)
        self.chunks = 1
        self.pp_rank, self.pp_size = NONE, NONE
        self._places: dict[tuple[int | None, int | None], Place] = {}
        self._waiting: deque[Place] = deque()
        self._reduces = False
        self._described: object = None

    def install(self, module: ModuleType) -> None:
        """Wrap the functions that `module` contains."""
        wrap = self.patches.wrap
        name = module.__name__.rpartition(".")[2]
        if name == "schedules":
            self._install_schedules(module)
        elif name == "finalize_model_grads":
            wrap(module, "finalize_model_grads", self._grad_reduce)
        elif name == "distributed_data_parallel":
            wrap(module.DistributedDataParallel, "finish_grad_sync", self._grad_reduce)
        elif name == "training":
            wrap(module, "train_step", self._train_step)
        elif name == "optimizer":
            for each in list(vars(module).values()):
                if isinstance(each, type) and issubclass(each, module.MegatronOptimizer):
                    wrap(each, "step", self.optimizers.watch)

    def _install_schedules(self, schedules: ModuleType) -> None:
        wrap = self.patches.wrap
        package = schedules.__name__.rpartition(".")[0]
        wrap(schedules, "forward_step", self._forward_step)
        for name in ("backward_step", "backward_step_multimodule"):
            wrap(schedules, name, self._backward_step)
        for name in SCHEDULES:
            wrap(schedules, name, partial(self._forward_backward, name))
        for issue in ("_batched_p2p_ops", "_p2p_ops"):
            self._wrap_in(f"{package}.p2p_communication", issue, self.messages.watch_issue)
        self._wrap_in(f"{package}.combined_1f1b", "combined_forward_backward_step", self._combined_step)
        self.optimizers.watch_torch(self.patches)

    def _wrap_in(self, module: str, name: str, make: Callable[[Function], Function]) -> None:
        """Wrap a function of a module that the schedules have imported; some modules do not exist in older versions."""
        if module in sys.modules:
            self.patches.wrap(sys.modules[module], name, make)

    def _forward_step(self, original: Function) -> Function:
        signature = Signature(original)

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.enabled:
                return original(*args, **kwargs)
            place = self._begin_forward(signature.call(args, kwargs))
            result = self.runs.action(FORWARD, place, lambda: original(*args, **kwargs))
            self._end_forward(result, place)
            return result

        return forward_step

    def _backward_step(self, original: Function) -> Function:
        signature = Signature(original)

        def backward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.enabled:
                return original(*args, **kwargs)
            call = signature.call(args, kwargs)
            place = self._begin_backward(call.get("output_tensor"), call.get("output_tensor_grad"))
            result = self.runs.action(BACKWARD, place, lambda: original(*args, **kwargs))
            self._tag(result, place)
            return result

        return backward_step

    def _combined_step(self, original: Function) -> Function:
        signature = Signature(original)

        def combined_forward_backward_step(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.enabled:
                return original(*args, **kwargs)
            parts = self._begin_parts(signature.call(args, kwargs))
            result = run_overlapped(self.recorder, parts, partial(original, *args), kwargs)
            for part in parts:
                if part.kind == FORWARD:
                    self._end_forward(result, part.place)
                else:
                    self._end_combined_backward(result, part.place)
            return result

        return combined_forward_backward_step

    def _forward_backward(self, name: str, original: Function) -> Function:
        signature = Signature(original)

        def forward_backward(*args: Any, **kwargs: Any) -> Any:
            call = signature.call(args, kwargs)

            def run() -> Any:
                self._begin_run(name, call)
                try:
                    return original(*args, **kwargs)
                finally:
                    self.messages.close()

            return self.runs.evaluation(run) if call.get("forward_only") else self.runs.step(run)

        return forward_backward

    def _train_step(self, original: Function) -> Function:
        def train_step(*args: Any, **kwargs: Any) -> Any:
            return self.runs.step(lambda: original(*args, **kwargs))

        return train_step

    def _grad_reduce(self, original: Function) -> Function:
        def reduce(*args: Any, **kwargs: Any) -> Any:
            if self._reduces or not self.recorder.enabled:
                return original(*args, **kwargs)
            self._reduces = True
            try:
                start_ns = now_ns()
                result = original(*args, **kwargs)
                self.recorder.emit(GRAD_REDUCE, start_ns, now_ns(), self.messages.default_place[0])
            finally:
                self._reduces = False
            return result

        return reduce

    @never_raises()
    def _begin_run(self, name: str, call: Call) -> None:
        """Prepare for one call of a schedule: reset the state, find this rank's place, describe it once."""
        self.messages.close()
        self.messages.is_on = True
        self._waiting.clear()
        self._places.clear()
        self.optimizers.forget()
        model = call.get("model")
        self.chunks = len(model) if isinstance(model, (list, tuple)) else 1
        self.pp_rank, self.pp_size = pipeline_place(name, call)
        self.messages.default_place = NO_PLACE if self.chunks > 1 else Place(self._stage(0), NONE, 0)
        facts = (name, call.get("num_microbatches"), self.chunks, self.pp_rank, self.pp_size)
        if facts != self._described and self.recorder.enabled and not call.get("forward_only"):
            self._described = facts
            describe_run(self.recorder, SCHEDULES[name], facts, model)

    @never_raises(default=Place())
    def _begin_forward(self, call: Call) -> Place:
        """Return the place of a forward, and assign it to the message that brought its input."""
        given = call.get("current_microbatch"), call.get("vp_stage", call.get("f_model_chunk_id"))
        place = self._places.get(given) or self._new_place(*given)
        self._waiting.append(place)
        self.messages.used_by(call.get("input_tensor"), place)
        return place

    @never_raises(default=())
    def _begin_parts(self, call: Call) -> list[Part]:
        """Return the actions of a merged call: a forward, a backward, or both."""
        parts = []
        if call.get("f_model") is not None:
            place = self._begin_forward(call)
            parts.append(Part(FORWARD, place, place.stage != self.chunks * self.pp_size - 1))
        if call.get("b_model") is not None:
            place = self._begin_backward(call.get("b_output_tensor"), call.get("b_output_tensor_grad"))
            parts.append(Part(BACKWARD, place, place.stage != 0))
        return parts

    @never_raises()
    def _end_combined_backward(self, result: Any, place: Place) -> None:
        """Tag the gradient that a merged call returns last, if it has not been sent yet."""
        tag(result[-1], place)

    @never_raises()
    def _end_forward(self, result: Any, place: Place) -> None:
        """Tag the output of a forward. Older versions return the tensors without the number of tokens."""
        tag(result[0] if isinstance(result, tuple) else result, place)

    @never_raises(default=Place())
    def _begin_backward(self, made: Any, grad: Any) -> Place:
        """Return the place of a backward: that of its forward.

        If the tensor is not tagged, the forwards of a single chunk are assumed to be used in order.
        """
        known = tagged(made)
        if known is not None:
            place = Place(*known)
            if self._waiting and self._waiting[0] == place:
                self._waiting.popleft()
            elif place in self._waiting:
                self._waiting.remove(place)
        else:
            place = self._waiting.popleft() if self.chunks == 1 and self._waiting else Place()
        self.messages.used_by(grad, place)
        return place

    @never_raises()
    def _tag(self, value: Any, place: Place) -> None:
        tag(value, place)

    def _new_place(self, microbatch: int | None, chunk: int | None) -> Place:
        """Return the place of a micro-batch on a chunk. With a single chunk Megatron passes None for it."""
        known = chunk if chunk is not None else 0 if self.chunks == 1 else NONE
        place = Place(self._stage(known), NONE if microbatch is None else microbatch, known)
        self._places[microbatch, chunk] = place
        return place

    def _stage(self, chunk: int) -> int:
        """Return the global stage of a local chunk: Megatron assigns stages to ranks round-robin."""
        known = NONE not in (chunk, self.pp_rank, self.pp_size)
        return chunk * self.pp_size + self.pp_rank if known else NONE


_of_recorder: WeakKeyDictionary[Recorder, Instrumentation] = WeakKeyDictionary()
