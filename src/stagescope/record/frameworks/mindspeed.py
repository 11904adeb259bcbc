"""MindSpeed's DualPipeV, without a change to its source.

What is wrapped, and why there (MindSpeed 0d202f97, mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py):

* ``forward_step_with_model_graph`` and ``forward_step_no_model_graph``, module globals: they are told chunk and
  micro-batch (the second chunk counts on from `num_microbatches`). With `extra_block_kwargs` the former runs a
  backward as well, and the graph in it tells which;
* ``backward_step_with_model_graph`` and ``backward_step``: they are told neither, but get the graph or the tensor
  that their forward returned. A backward without a graph where the forward had one is that of the logits;
* ``WeightGradStore.pop``: what it computes is known by the cache that it empties. An empty one is no action, and a pop
  inside an overlapped pair is part of that;
* ``_communicate`` and the functions that call it. What the overlapped pairs move inside the model is not seen;
* ``forward_backward_pipelining_with_cutinhalf``: the run.

MindSpeed puts these into Megatron's modules when it is set up, which is after the import that brings us here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.calls import Call, Signature, harmless
from stagescope.record.frameworks.mindspeed_transfers import MindSpeedTransfers
from stagescope.record.frameworks.npu_marks import NpuMarks
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LOSS,
    UNKNOWN,
    Kept,
    Place,
    Runs,
)
from stagescope.record.patching import MARK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

OVERLAPPED = "forward_backward_overlaping"
"""What Ascend's guide calls a pair, spelled as there."""


class Made(NamedTuple):
    """What a forward has returned: its place, and the tensor and the graph that the backward gets."""

    place: Place
    tensor: Any
    graph: Any


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `schedules`, the imported module dualpipev_schedules."""
    Instrumentation(recorder, patches).install(schedules)


class Instrumentation:
    """The wrappers and what they share: the run, what its forwards made, and the caches of weight gradients."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.transfers = MindSpeedTransfers(recorder)
        self.marks = NpuMarks(recorder)
        self._weights = Kept()
        self._in_action = False
        self._is_evaluation = False
        self._microbatches = 0
        self._rank = self._ranks = NONE
        self._described: object = None
        self._schedules: Any = None
        self._store: Any = None

    def install(self, schedules: ModuleType) -> None:
        """Replace module globals and a class method; `patches` can put them back."""
        self._schedules = schedules
        self._store = schedules.WeightGradStore
        for name, maker in (
            ("forward_step_with_model_graph", self._forward),
            ("forward_step_no_model_graph", self._forward),
            ("backward_step_with_model_graph", self._backward),
            ("backward_step", self._backward),
            ("forward_backward_pipelining_with_cutinhalf", self._run),
        ):
            self._wrap_unwrapped(schedules, name, maker)
        pop = vars(self._store).get("pop")
        if isinstance(pop, classmethod) and not hasattr(pop, MARK):
            make = functools.wraps(pop.__func__)(self._pop(pop.__func__))
            self.patches.replace(self._store, "pop", classmethod(make))
        self.transfers.install(schedules, self.patches)
        if not hasattr(
            schedules, "step_wrapper"
        ):  # the guide's decorator: then the actions are marked by hand
            self.marks.install(self.patches)

    def _wrap_unwrapped(self, module: ModuleType, name: str, make: Callable[[Function], Function]) -> None:
        """Wrap a function that Megatron's hooks may have wrapped where it comes from: it is one action, not two."""
        function = getattr(module, name, None)
        if hasattr(function, MARK):
            setattr(module, name, getattr(function, MARK))
        self.patches.wrap(module, name, make)

    def _run(self, original: Function) -> Function:
        signature = Signature(original)

        def forward_backward_pipelining_with_cutinhalf(*args: Any, **kwargs: Any) -> Any:
            call = signature.call(args, kwargs)

            def run() -> Any:
                self._begin_run(call)
                try:
                    return original(*args, **kwargs)
                finally:
                    self._end_run()

            return self.runs.evaluation(run) if call.get("forward_only") else self.runs.step(run)

        return forward_backward_pipelining_with_cutinhalf

    @harmless()
    def _begin_run(self, call: Call) -> None:
        """Get ready for one run: forget the last one, learn where this rank stands, tell it once."""
        self._end_run()
        self._is_evaluation = bool(call.get("forward_only"))
        self._microbatches = int(call.get("num_microbatches", 0))
        state = self._schedules.parallel_state
        self._rank = state.get_pipeline_model_parallel_rank()
        self._ranks = state.get_pipeline_model_parallel_world_size()
        self.transfers.learn(state)
        self._describe(state)

    def _end_run(self) -> None:
        self._in_action = False
        self.runs.forget()
        self.transfers.close()
        self._weights.clear()

    def _describe(self, state: Any) -> None:
        told = (self._microbatches, self._rank, self._ranks)
        if self._is_evaluation or told == self._described:
            return
        self._described = told
        sizes = parallel_sizes(state)
        self.marks.describe(
            pp_info={"pp_type": "dualpipev", "microbatch_num": self._microbatches}, distributed_args=sizes
        )
        self.recorder.describe(
            framework={"name": "mindspeed"},
            parallel={"pp": self._rank, "pp_size": self._ranks, **parallel_ranks(state)},
            schedule={
                "name": "dualpipev",
                "class": "forward_backward_pipelining_with_cutinhalf",
                "microbatches": self._microbatches,
                "stages": 2 * self._ranks,
                "local_stages": [self._stage(0), self._stage(1)],
            },
        )

    def _stage(self, chunk: int) -> int:
        """Return the global stage of a chunk: down the ranks with the first, up again with the second."""
        return self._rank if chunk == 0 else 2 * self._ranks - 1 - self._rank

    def _forward(self, original: Function) -> Function:
        signature = Signature(original)

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            call = signature.call(args, kwargs)
            place = self._begin_forward(call)
            overlapped = call.get("extra_block_kwargs")

            def run() -> Any:
                if overlapped is None:
                    return self.runs.action(FORWARD, place, lambda: original(*args, **kwargs))
                backward = self._begin_overlapped(overlapped)
                return self.runs.pair(place, backward, lambda: original(*args, **kwargs))

            name = original.__name__ if overlapped is None else OVERLAPPED
            said = call.get("current_microbatch")
            message = {"name": name} | ({} if said is None else {"current_microbatch": said})
            result = self._action(message, run)
            self._end_forward(result, place)
            return result

        return forward_step

    def _action(self, message: dict[str, object], run: Callable[[], Any]) -> Any:
        """Run a action with its mark; what is computed inside another action is part of that."""
        if self._in_action:
            return run()
        self._in_action = True
        try:
            return self.marks.run(message, run)
        finally:
            self._in_action = False

    @harmless(default=UNKNOWN)
    def _begin_forward(self, call: Call) -> Place:
        """Return which action a forward is, and tell so to what was received for it."""
        chunk, said = call.get("model_chunk_id"), call.get("current_microbatch")
        number = self.runs.next_number(FORWARD, chunk) if said is None else said - chunk * self._microbatches
        place = Place(self._stage(chunk), number, chunk)
        self.transfers.arrived(call.get("input_tensor"), place)
        return place

    @harmless(default=UNKNOWN)
    def _begin_overlapped(self, extra: Any) -> Place:
        """Return which backward runs together with a forward."""
        made = self._take(extra.get("bwd_model_graph"))
        self.transfers.arrived(extra.get("bwd_model_grad"), made.place)
        return made.place

    @harmless()
    def _end_forward(self, result: Any, place: Place) -> None:
        """Remember what the backward will get: a tensor, and with it a graph where the model makes one."""
        output = result[0] if isinstance(result, tuple) else result
        output = output[0] if isinstance(output, list) else output
        tensor, graph = output[:2] if isinstance(output, tuple) else (output, None)
        if self._is_evaluation or not self.recorder.enabled:  # no backward will let go of it
            return
        made = Made(place, tensor, graph)
        self.runs.places.keep(tensor, made)
        self.runs.places.keep(graph, made)
        self.transfers.made(tensor, place)

    def _take(self, owner: Any) -> Made:
        """Return what a backward works on, and let go of it."""
        made: Made = self.runs.places.take(owner, Made(UNKNOWN, None, None))
        self.runs.places.take(made.tensor)
        self.runs.places.take(made.graph)
        return made

    def _backward(self, original: Function) -> Function:
        signature = Signature(original)

        def backward_step(*args: Any, **kwargs: Any) -> Any:
            kind, place = self._begin_backward(signature.call(args, kwargs))
            result = self._action(
                {"name": original.__name__},
                lambda: self.runs.action(
                    kind, place, lambda: original(*args, **kwargs), lambda: self._kind_after(kind, place)
                ),
            )
            if kind != LOSS:
                self.transfers.made_backward(result, place)
            return result

        return backward_step

    @harmless(default=(BACKWARD, UNKNOWN))
    def _begin_backward(self, call: Call) -> tuple[int, Place]:
        """Return which action a backward is, and tell so to what was received for it."""
        output = call.get("output_tensor")
        output = output[0] if isinstance(output, list) and output else output
        graph = call.get("model_graph")
        made: Made | None = self.runs.places.find(output)
        if graph is None and made is not None and made.graph is not None:
            kind, place = LOSS, made.place
        else:
            kind, place = BACKWARD, self._take(output if graph is None else graph).place
        self.transfers.arrived(call.get("output_tensor_grad"), place)
        return kind, place

    def _kind_after(self, kind: int, place: Place) -> int:
        """Return the kind of a backward that is over: the input gradient's where weights were put off."""
        cache = getattr(self._store, "cache", None)
        if not cache or not getattr(self._store, "is_decoupleBlock", False):
            return kind
        self._weights.keep(cache, place)
        return BACKWARD_INPUT if kind == BACKWARD else kind

    def _pop(self, original: Function) -> Function:
        def pop(store: Any, *args: Any, **kwargs: Any) -> Any:
            cache = getattr(store, "cache", None)
            if not cache or self._in_action:
                return original(store, *args, **kwargs)
            place = self._weights.take(cache, UNKNOWN)
            return self._action(
                {"name": "WeightGradStore.pop"},
                lambda: self.runs.action(BACKWARD_WEIGHT, place, lambda: original(store, *args, **kwargs)),
            )

        return pop


def parallel_sizes(state: Any) -> dict[str, object]:
    """Return the sizes of the parallel groups, spelled as Ascend's tools read them."""
    names = {
        "tensor_model_parallel_size": "get_tensor_model_parallel_world_size",
        "pipeline_model_parallel_size": "get_pipeline_model_parallel_world_size",
        "data_parallel_size": "get_data_parallel_world_size",
        "context_parallel_size": "get_context_parallel_world_size",
        "expert_model_parallel_size": "get_expert_model_parallel_world_size",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}


def parallel_ranks(state: Any) -> dict[str, object]:
    """Return this rank's coordinates beside the pipeline's."""
    names = {
        "dp": "get_data_parallel_rank",
        "tp": "get_tensor_model_parallel_rank",
        "cp": "get_context_parallel_rank",
        "ep": "get_expert_model_parallel_rank",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}
