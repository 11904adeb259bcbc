"""Instruments MindSpeed's DualPipeV without a change to its source.

Wrapped functions and what they show (MindSpeed 0d202f97,
mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py):

* ``forward_step_with_model_graph`` and ``forward_step_no_model_graph``, module globals: their arguments contain chunk
  and micro-batch (the second chunk continues counting at `num_microbatches`). With `extra_block_kwargs` the former
  runs a backward as well, which is identified by the graph in it.
* ``backward_step_with_model_graph`` and ``backward_step``: their arguments contain neither, only the graph or the
  tensor that the forward returned. A backward without a graph whose forward had one is that of the logits.
* ``WeightGradStore.pop``: its action is identified by the cache that it empties. With an empty cache it is no action,
  and inside an overlapped pair it is part of the pair.
* ``_communicate`` and its callers. Transfers inside the model of overlapped pairs are not visible.
* ``forward_backward_pipelining_with_cutinhalf``: one run.

MindSpeed installs these functions into Megatron's modules when it is set up, which is after the import that triggers
this instrumentation.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.calls import Call, Signature, never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.mindspeed_transfers import MindSpeedTransfers
from stagescope.record.frameworks.npu_marks import NpuMarks
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LOSS,
    UNKNOWN,
    IdentityMap,
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
"""The name of a pair in Ascend's guide, with its spelling."""


class ForwardOutput(NamedTuple):
    """Result of a forward: its place, and the tensor and the graph that the backward receives."""

    place: Place
    tensor: Any
    graph: Any


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `schedules`, the imported module dualpipev_schedules."""
    Instrumentation(recorder, patches).install(schedules)


class Instrumentation:
    """The wrappers and their shared state: the run, the results of its forwards, and the caches of weight gradients."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.transfers = MindSpeedTransfers(recorder)
        self.marks = NpuMarks(recorder)
        self._weights = IdentityMap()
        self._in_action = False
        self._is_evaluation = False
        self._microbatches = 0
        self._rank = self._ranks = NONE
        self._described: object = None
        self._schedules: Any = None
        self._store: Any = None

    def install(self, schedules: ModuleType) -> None:
        """Replace module globals and a class method; `patches` can restore them."""
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
        ):  # the decorator from Ascend's guide: the training already marks its actions
            self.marks.install(self.patches)

    def _wrap_unwrapped(self, module: ModuleType, name: str, make: Callable[[Function], Function]) -> None:
        """Wrap a function that Megatron's hooks may have wrapped at its origin, so that it is not recorded twice."""
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

    @never_raises()
    def _begin_run(self, call: Call) -> None:
        """Prepare for one run: discard the state of the last one, find this rank's place, describe it once."""
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
        facts = (self._microbatches, self._rank, self._ranks)
        if self._is_evaluation or facts == self._described:
            return
        self._described = facts
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
        """Return the global stage of a chunk: the first goes down the ranks, the second back up."""
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
            given = call.get("current_microbatch")
            message = {"name": name} | ({} if given is None else {"current_microbatch": given})
            result = self._action(message, run)
            self._end_forward(result, place)
            return result

        return forward_step

    def _action(self, message: dict[str, object], run: Callable[[], Any]) -> Any:
        """Run an action with its mark. An action inside another action is part of that one."""
        if self._in_action:
            return run()
        self._in_action = True
        try:
            return self.marks.run(message, run)
        finally:
            self._in_action = False

    @never_raises(default=UNKNOWN)
    def _begin_forward(self, call: Call) -> Place:
        """Return the place of a forward, and assign it to the transfer that brought its input."""
        chunk, given = call.get("model_chunk_id"), call.get("current_microbatch")
        number = (
            self.runs.next_number(FORWARD, chunk) if given is None else given - chunk * self._microbatches
        )
        place = Place(self._stage(chunk), number, chunk)
        self.transfers.arrived(call.get("input_tensor"), place)
        return place

    @never_raises(default=UNKNOWN)
    def _begin_overlapped(self, extra: Any) -> Place:
        """Return the place of the backward that runs together with a forward."""
        made = self._take(extra.get("bwd_model_graph"))
        self.transfers.arrived(extra.get("bwd_model_grad"), made.place)
        return made.place

    @never_raises()
    def _end_forward(self, result: Any, place: Place) -> None:
        """Remember what the backward will receive: a tensor, and a graph if the model creates one."""
        output = result[0] if isinstance(result, tuple) else result
        output = output[0] if isinstance(output, list) else output
        tensor, graph = output[:2] if isinstance(output, tuple) else (output, None)
        if self._is_evaluation or not self.recorder.enabled:  # no backward would remove the entry
            return
        made = ForwardOutput(place, tensor, graph)
        self.runs.places.keep(tensor, made)
        self.runs.places.keep(graph, made)
        self.transfers.made(tensor, place)

    def _take(self, owner: Any) -> ForwardOutput:
        """Return the forward's result that a backward works on, and remove it."""
        made: ForwardOutput = self.runs.places.take(owner, ForwardOutput(UNKNOWN, None, None))
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

    @never_raises(default=(BACKWARD, UNKNOWN))
    def _begin_backward(self, call: Call) -> tuple[int, Place]:
        """Return kind and place of a backward, and assign it to the transfer that brought its gradient."""
        output = call.get("output_tensor")
        output = output[0] if isinstance(output, list) and output else output
        graph = call.get("model_graph")
        made: ForwardOutput | None = self.runs.places.find(output)
        if graph is None and made is not None and made.graph is not None:
            kind, place = LOSS, made.place
        else:
            kind, place = BACKWARD, self._take(output if graph is None else graph).place
        self.transfers.arrived(call.get("output_tensor_grad"), place)
        return kind, place

    def _kind_after(self, kind: int, place: Place) -> int:
        """Return the kind of a finished backward: only the input gradient if the weight gradients were postponed."""
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
    """Return the sizes of the parallel groups, under the names that Ascend's tools read."""
    names = {
        "tensor_model_parallel_size": "get_tensor_model_parallel_world_size",
        "pipeline_model_parallel_size": "get_pipeline_model_parallel_world_size",
        "data_parallel_size": "get_data_parallel_world_size",
        "context_parallel_size": "get_context_parallel_world_size",
        "expert_model_parallel_size": "get_expert_model_parallel_world_size",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}


def parallel_ranks(state: Any) -> dict[str, object]:
    """Return the coordinates of this rank in the other parallel groups."""
    names = {
        "dp": "get_data_parallel_rank",
        "tp": "get_tensor_model_parallel_rank",
        "cp": "get_context_parallel_rank",
        "ep": "get_expert_model_parallel_rank",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}
