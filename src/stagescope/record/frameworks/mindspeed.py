"""Observes DualPipeV of MindSpeed, and FlagScale's copy of it, without a change to their source.

Observed functions and what they show (MindSpeed 0d202f97 and 028de58c,
mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py; FlagScale da4935ec,
flagscale/train/dualpipev/dualpipev_schedules.py); points/mindspeed.py declares them:

* ``forward_step_with_model_graph`` and ``forward_step_no_model_graph``, module globals: their arguments contain chunk
  and micro-batch (the second chunk continues counting at `num_microbatches`). With `extra_block_kwargs` the former
  runs a backward as well, which is identified by the graph in it.
* ``backward_step_with_model_graph`` and ``backward_step``: their arguments contain neither, only the graph or the
  tensor that the forward returned. A backward without a graph whose forward had one is that of the logits.
* ``WeightGradStore.pop``: its action is identified by the cache that it empties. With an empty cache it is no action,
  and inside an overlapped pair it is part of the pair. FlagScale has none.
* ``_communicate`` and its callers. Transfers inside the model of overlapped pairs are not visible.
* ``forward_backward_pipelining_with_cutinhalf``, in FlagScale ``.._with_dualpipev``: one run.

MindSpeed installs these functions into Megatron's modules when it is set up, which is after the import that triggers
this instrumentation. ``backward_step`` is Megatron's; what Megatron's hooks see of it outside of Megatron's schedules
they do not record.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.mindspeed_transfers import MindSpeedTransfers
from stagescope.record.frameworks.npu_marks import NpuMarks
from stagescope.record.frameworks.parallel_groups import parallel_ranks, parallel_sizes
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
    within,
)
from stagescope.record.installation import Installation
from stagescope.record.points.mindspeed import MINDSPEED, PARTS

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.points import Part
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

OVERLAPPED = "forward_backward_overlaping"
"""The name of a pair in Ascend's guide, with its spelling."""

GRAPHS = ("bwd_block_graphs", "bwd_model_graph")
GRADIENTS = ("bwd_block_output_grad", "bwd_model_grad")
"""Keys of `extra_block_kwargs`. The latter of each pair are those of FlagScale and of MindSpeed's core_r0.8.0."""

UNKNOWN_BACKWARDS = "stages and micro-batches of overlapped backwards"
HIDDEN = "sends and receives inside overlapped pairs"


class ForwardOutput(NamedTuple):
    """Result of a forward: its place, and the tensor and the graph that the backward receives."""

    place: Place
    tensor: Any
    graph: Any


def instrument(
    schedules: ModuleType, recorder: Recorder, patches: Patches, modules: Mapping[str, object] | None = None
) -> None:
    """Observe `schedules`, the imported module dualpipev_schedules of MindSpeed or FlagScale.

    `modules` are other modules by name that take precedence over ``sys.modules``.
    """
    Instrumentation(recorder, patches).install(schedules, {schedules.__name__: schedules, **(modules or {})})


class Instrumentation:
    """The observers and their state: the run, the results of its forwards, and the caches of weight gradients."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.part: Part = MINDSPEED
        self.runs = Runs(recorder, MINDSPEED.framework)
        self.transfers = MindSpeedTransfers(recorder)
        self.marks = NpuMarks(recorder)
        self._weights = IdentityMap()
        self._in_action = False
        self._is_evaluation = False
        self._microbatches = 0
        self._rank = self._ranks = NONE
        self._described: object = None
        self._state: Any = None
        self._store: Any = None

    def install(self, schedules: ModuleType, modules: Mapping[str, object]) -> None:
        """Observe the module globals and the class method; `patches` can restore them."""
        self.part = next((part for part in PARTS if part.trigger == schedules.__name__), MINDSPEED)
        self.runs.framework = self.part.framework
        self._state = getattr(schedules, "parallel_state", None)
        self._store = getattr(schedules, "WeightGradStore", None)
        # The decorator from Ascend's guide: the training marks its actions itself.
        self.marks.is_on = not hasattr(schedules, "step_wrapper")
        if Installation(self.recorder, self.patches).install(self.part, self, modules):
            self.recorder.coverage.installed(self.part.framework, None, [HIDDEN])

    def run(self, call: Call) -> Observation:
        """Observe the schedule."""
        run = self.runs.observe_evaluation if call.get("forward_only") else self.runs.observe_step
        return (yield from within(run(), within(self.runs.observe_alone(), self._schedule(call))))

    def forward(self, call: Call) -> Observation:
        """Observe a forward, or a pair of a forward and a backward."""
        place = self._begin_forward(call)
        overlapped = call.get("extra_block_kwargs")
        if overlapped is None:
            name, action = call.name, self.runs.observe_action(FORWARD, place)
        else:
            name, action = OVERLAPPED, self.runs.observe_pair(place, self._begin_overlapped(overlapped))
        given = call.get("current_microbatch")
        message = {"name": name} | ({} if given is None else {"current_microbatch": given})
        result = yield from self._marked(message, action)
        self._end_forward(result, place)
        return result

    def backward(self, call: Call) -> Observation:
        """Observe a backward, or that of the logits."""
        kind, place = self._begin_backward(call)
        action = self.runs.observe_action(kind, place, lambda: self._kind_after(kind, place))
        result = yield from self._marked({"name": call.name}, action)
        if kind != LOSS:
            self.transfers.made_backward(result, place)
        return result

    def pop(self, call: Call) -> Observation:
        """Observe the computation of postponed weight gradients."""
        cache = getattr(call.owner, "cache", None)
        if not cache or self._in_action:
            return (yield)
        action = self.runs.observe_action(BACKWARD_WEIGHT, self._weights.take(cache, UNKNOWN))
        return (yield from self._marked({"name": "WeightGradStore.pop"}, action))

    def transfer(self, call: Call) -> Observation:
        """Observe a function that moves tensors."""
        return self.transfers.enter(call)

    def communicate(self, call: Call) -> Observation:
        """Observe the function that all of them call."""
        return self.transfers.move(call)

    def profiler_started(self, call: Call) -> Observation:
        """Observe the start of torch_npu's profiler."""
        return self.marks.started(call)

    def profiler_stopped(self, call: Call) -> Observation:
        """Observe the stop of torch_npu's profiler."""
        return self.marks.stopped(call)

    def _marked(self, message: dict[str, object], action: Observation) -> Observation:
        """Observe an action, with its mark. An action inside another action is part of that one."""
        if self._in_action:
            return (yield from action)
        self._in_action = True
        number = self.marks.open(message)
        try:
            return (yield from action)
        finally:
            self.marks.close(number)
            self._in_action = False

    def _schedule(self, call: Call) -> Observation:
        self._begin_run(call)
        try:
            return (yield)
        finally:
            self._end_run()

    @never_raises()
    def _begin_run(self, call: Call) -> None:
        """Prepare for one run: discard the state of the last one, find this rank's place, describe it once."""
        self._end_run()
        self._is_evaluation = bool(call.get("forward_only"))
        self._microbatches = int(call.get("num_microbatches", 0))
        state = self._state or sys.modules["megatron.core.parallel_state"]
        self._rank = state.get_pipeline_model_parallel_rank()
        self._ranks = state.get_pipeline_model_parallel_world_size()
        self.transfers.learn(state)
        self._describe(state, call.name)

    def _end_run(self) -> None:
        self._in_action = False
        self.runs.forget()
        self.transfers.close()
        self._weights.clear()

    def _describe(self, state: Any, function: str) -> None:
        facts = (self._microbatches, self._rank, self._ranks)
        if self._is_evaluation or facts == self._described:
            return
        self._described = facts
        sizes = parallel_sizes(state)
        self.marks.describe(
            pp_info={"pp_type": "dualpipev", "microbatch_num": self._microbatches}, distributed_args=sizes
        )
        self.recorder.describe(
            framework={"name": self.part.distribution},
            parallel={"pp": self._rank, "pp_size": self._ranks, **parallel_ranks(state)},
            schedule={
                "name": "dualpipev",
                "class": function,
                "microbatches": self._microbatches,
                "stages": 2 * self._ranks,
                "local_stages": [self._stage(0), self._stage(1)],
            },
        )

    def _stage(self, chunk: int) -> int:
        """Return the global stage of a chunk: the first goes down the ranks, the second back up."""
        return self._rank if chunk == 0 else 2 * self._ranks - 1 - self._rank

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
        graph, gradient = (_first_in(extra, names) for names in (GRAPHS, GRADIENTS))
        if graph is None:
            self.recorder.coverage.installed(self.part.framework, None, [UNKNOWN_BACKWARDS])
        made = self._take(graph)
        self.transfers.arrived(gradient, made.place)
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


def _first_in(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of these keys that is present."""
    return next((values[name] for name in names if name in values), None)
