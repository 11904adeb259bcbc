"""Instruments all schedulers of Paddle fleet's dynamic-graph pipeline but DualPipeV, for which see paddle_dualpipe.py.

Observed functions (points/paddle.py) and what they show, Paddle 2.6.2 to 3.3.1,
paddle/distributed/fleet/meta_parallel/pipeline_parallel.py:

* ``register_global_pipeline_parallel_hook``, public, from 3.0: hooks at the start and end of each pass, around the
  layers only. In versions without hooks, ``_forward_step`` and ``_backward_step`` are timed themselves.
* ``_forward_step`` and ``_backward_step`` know the chunk, which the hooks do not receive. The passes of a chunk run in
  micro-batch order (Paddle keeps their tensors in queues); `step_id` equals the micro-batch only with a single chunk.
  A backward receives its chunk from 3.3; before, Paddle stores it in the pipeline right before the call. It is also
  the chunk of the forward that returned the same output.
* ``train_batch``, ``forward_backward_pipeline`` (the only one that PaddleNLP's trainer calls) and ``eval_batch``: the
  runs.
* ``_forward_backward_helper``: a forward and a backward that overlap, if `overlap_schedule_mode` is set. Paddle calls
  neither the hooks nor the two functions for them.
* ``P2pHelper`` and the module global ``_p2p_helper``, which all transfers go through (see paddle_transfers.py).

Paddle's own timeline (``pp_configs.profiling``) synchronizes the device at every timestamp; this module does not.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.paddle_facts import OwnStage, describe_device, pipeline_facts
from stagescope.record.frameworks.paddle_transfers import PaddleTransfers
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, LOSS, OPTIMIZER, UNKNOWN, Place, Runs, within
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.transfers import first_of
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.patching import MARK
from stagescope.record.points.paddle import FLEET, PIPELINES

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

SCHEDULES = {
    "PipelineParallel": "1f1b",
    "PipelineParallelWithInterleave": "interleaved",
    "PipelineParallelWithInterleaveFthenB": "looped-bfs",
}
"""Paddle's schedulers, and the usual names of their orders.

VPPFhenBInBalancedMemory is not listed: it runs all forwards but those of the last chunk, whose forwards alternate with
the first backwards, and that order has no usual name.
"""

METHODS = {
    point.name: point.hook
    for point in FLEET.points
    if point.hook and point.owner.startswith(f"{PIPELINES}:Pipeline")
}
"""Methods that a subclass may redefine, and their observers."""


def instrument(pipelines: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe `pipelines`, the imported module paddle.distributed.fleet.meta_parallel.pipeline_parallel."""
    Instrumentation(recorder, patches).install(pipelines)
    if hasattr(pipelines, "NoPipelineParallel"):
        from stagescope.record.frameworks import paddle_single  # Paddle before 3.3.1 does not need it

        paddle_single.instrument(pipelines, recorder, patches)


class FleetRuns(Runs):
    """The runs of fleet's schedulers. Messages in progress end with their run."""

    def __init__(self, recorder: Recorder, framework: str) -> None:
        super().__init__(recorder, framework)
        self.transfers = PaddleTransfers(self)

    def forget(self) -> None:
        """Discard the actions of the last run; record the messages that no action used, without a place."""
        super().forget()
        self.transfers.close()


class Instrumentation:
    """The observers and their shared state: the run, the action inside it and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.runs = FleetRuns(recorder, FLEET.framework)
        self.transfers = self.runs.transfers
        self.enter, self.move = self.transfers.enter, self.transfers.move
        self._collectives = collectives_of(recorder)
        self._own = shared(recorder, OwnStage)
        self._patches = patches
        self._guard = Installation(recorder, patches).guard(FLEET.framework)
        self._base: type | None = None
        self._has_hooks = False
        self._pass: tuple[int, Place] | None = None
        self._open: Observation | None = None
        self._pair: tuple[Place, Place] | None = None
        self._in_optimizer = False
        self._described: object = None

    def install(self, pipelines: ModuleType) -> None:
        """Observe the functions of this version, all of them or none; `patches` can undo it."""
        self._base = getattr(pipelines, "PipelineParallel", None)
        installation = Installation(self.recorder, self._patches)
        more = partial(self._register_hooks, pipelines)
        installation.install(FLEET, self, modules_by_name(pipelines), more)

    def _register_hooks(self, pipelines: Any) -> None:
        """Register hooks at the start and end of passes, if this version of Paddle has them."""
        register = getattr(pipelines, "register_global_pipeline_parallel_hook", None)
        if register is None:
            return
        callbacks, locations = (
            pipelines.pipeline_parallel_callbacks_,
            pipelines.PipelineParallelMicroStepLocations,
        )
        begin, end = self._guard.callback(self._begin_pass), self._guard.callback(self._end_pass)
        for name, hook in (
            ("FORWARD_BEGIN", begin),
            ("FORWARD_END", end),
            ("BACKWARD_BEGIN", begin),
            ("BACKWARD_END", end),
        ):
            location = getattr(locations, name)
            hooks = callbacks.hooks[location]  # before `register`: without it, the hook could not be removed
            register(location, hook)
            self._patches.on_undo(partial(hooks.remove, hook))
        self._has_hooks = True

    def build(self, call: Call) -> Observation:
        """Observe the constructor: a subclass in the training may redefine what its base class does."""
        yield
        self._observe_class(type(call.owner))

    def _observe_class(self, pipeline: type) -> None:
        """Observe what a class redefines, unless other hooks (paddle_dualpipe.py) observe it already."""
        for defining in pipeline.__mro__ if self._base else ():
            for name in METHODS if issubclass(defining, self._base) else ():  # type: ignore[arg-type]  # not None
                if not hasattr(vars(defining).get(name), MARK):
                    self._patches.observe(defining, name, getattr(self, METHODS[name]), self._guard)

    def step(self, call: Call) -> Observation:
        """Observe a run of the schedule, which is a training step unless it only prints its order or evaluates."""
        if self.runs.inside or call.get("static_scheduler"):
            return None
        self._describe_once(call.owner)
        if call.get("forward_only"):
            return (yield from self.runs.observe_evaluation())
        return (yield from self.runs.observe_step())

    def evaluation(self, call: Call) -> Observation:
        """Observe an evaluation."""
        if self.runs.inside:
            return None
        self._describe_once(call.owner)
        return (yield from self.runs.observe_evaluation())

    def _describe_once(self, pipeline: Any) -> None:
        self._pass = self._open = self._pair = None
        if pipeline is not self._described:
            self._described = pipeline
            self._observe_class(type(pipeline))
            self._describe(pipeline)

    @never_raises()
    def _describe(self, pipeline: Any) -> None:
        """Describe the pipeline and its device in the header."""
        device = describe_device(self.recorder)
        self.transfers.learn(pipeline, device)
        chunks = getattr(pipeline, "num_model_chunks", 1)
        stages = [chunk * pipeline.num_stages + pipeline.stage_id for chunk in range(chunks)]
        self._own.stage = stages[0] if chunks == 1 else NONE
        facts = pipeline_facts(pipeline, schedule_of(pipeline), stages, pipeline.num_stages * chunks)
        self.recorder.describe(**facts)

    def forward(self, call: Call) -> Observation:
        """Observe the forward of one micro-batch through one chunk."""
        if not self.runs.inside or self._pass is not None:
            return None
        pipeline = call.owner
        place = self._next_place(pipeline, FORWARD, call.get("chunk_id"))
        self.transfers.arrived(call.get("input_tensor"), place)
        result = yield from self._observe_pass(FORWARD, place)
        output = result[0] if isinstance(result, tuple) and result else result
        self.runs.places.keep(first_of(output), place)
        if not pipeline.is_pipeline_last_stage():  # the loss is not sent and would be kept
            self.transfers.made(output, place)
        return None

    def backward(self, call: Call) -> Observation:
        """Observe the backward of one micro-batch through one chunk."""
        if not self.runs.inside or self._pass is not None:
            return None
        counted = self._next_place(call.owner, BACKWARD, chunk_of_backward(call))
        place = self.runs.places.take(first_of(call.get("output_tensor")), counted)
        self.transfers.arrived(call.get("output_tensor_grad"), place)
        gradient = yield from self._observe_pass(BACKWARD, place)
        self.transfers.made(gradient, place)
        return None

    def _next_place(self, pipeline: Any, kind: int, chunk: int | None) -> Place:
        """Return the place of the chunk's next action; without chunks, the chunk has no number."""
        if chunk is None and getattr(pipeline, "num_model_chunks", 1) > 1:
            return UNKNOWN
        rank = getattr(pipeline, "stage_id", NONE)
        number = self.runs.next_number(kind, chunk or 0)
        if chunk is None:
            return Place(rank, number)
        return Place(chunk * getattr(pipeline, "num_stages", 1) + rank, number, chunk)

    def _observe_pass(self, kind: int, place: Place) -> Observation:
        """Observe a pass, which is recorded by its hooks or, in versions without hooks, here."""
        self._pass = (kind, place)
        try:
            if not self._has_hooks:
                return (yield from self.runs.observe_action(kind, place))
            return (yield)
        finally:
            self._pass = None
            if self._open is not None:  # the pass has failed before its end
                opened, self._open = self._open, None
                opened.close()

    def _begin_pass(self, **arguments: Any) -> None:
        del arguments
        if self._pass is not None and self._open is None:
            self._open = self.runs.observe_action(*self._pass)
            next(self._open)

    def _end_pass(self, **arguments: Any) -> None:
        del arguments
        opened, self._open = self._open, None
        if opened is not None:
            with suppress(StopIteration):
                opened.send(None)

    def loss(self, call: Call) -> Observation:
        """Observe the computation of the loss, which Paddle does on the last stage only."""
        pipeline = call.owner
        if self._pass is None or not getattr(pipeline, "_compute_loss", False):
            return None
        if not pipeline.is_pipeline_last_stage():
            return None
        return (yield from self.runs.observe_action(LOSS, self._pass[1]))

    def overlapped(self, call: Call) -> Observation:
        """Observe the function that overlaps a forward and a backward, if it does."""
        pipeline = call.owner
        if not self.runs.inside or not getattr(pipeline, "overlap_schedule_mode", False):
            return None
        of_rank = pipeline._get_virtual_pp_rank  # noqa: SLF001  # no public name
        forward, backward = call.get("forward_micro_step_id"), call.get("backward_micro_step_id")
        of_forward = self._next_place(pipeline, FORWARD, of_rank(forward, forward=True))
        of_backward = self._next_place(pipeline, BACKWARD, of_rank(backward, forward=False))
        self._pair = (of_forward, of_backward)
        try:
            output, gradient = yield from self.runs.observe_pair(of_forward, of_backward)
        finally:
            self._pair = None
        self.transfers.made(output, of_forward)
        self.transfers.made(gradient, of_backward)
        return None

    def forward_input(self, call: Call) -> Observation:
        """Observe how an overlapped forward takes its input."""
        del call
        received = yield
        if self._pair is not None:
            self.transfers.arrived(received, self._pair[0])

    def backward_input(self, call: Call) -> Observation:
        """Observe how an overlapped backward takes its input: input, output, gradient, and more."""
        del call
        received = yield
        if self._pair is not None:
            self.transfers.arrived(received[2], self._pair[1])

    def forward_output(self, call: Call) -> Observation:
        """Observe how an overlapped forward sends its output before the pair ends."""
        if self._pair is not None:
            self.transfers.made(call.get("output_tensor"), self._pair[0])
        yield

    def backward_output(self, call: Call) -> Observation:
        """Observe how an overlapped backward sends its gradient before the pair ends."""
        if self._pair is not None:
            self.transfers.made(call.get("input_tensor_grad"), self._pair[1])
        yield

    def optimizer(self, call: Call) -> Observation:
        """Observe the optimizer step, once if optimizers call one another."""
        del call
        if self._in_optimizer:
            return
        self._in_optimizer = True
        try:
            action = self.runs.observe_action(OPTIMIZER, UNKNOWN)
            yield from within(action, self._collectives.observe_one_by_one())
        finally:
            self._in_optimizer = False


def chunk_of_backward(call: Call) -> int | None:
    """Return the chunk of a backward: an argument from Paddle 3.3, before an attribute set right before the call."""
    chunk: int | None = call.get("chunk_id")
    return chunk if chunk is not None else getattr(call.owner, "_virtual_pp_rank", None)


def schedule_of(pipeline: Any) -> str | None:
    """Return the usual name of the order of a pipeline, None if unknown, as of a subclass with its own order."""
    name = next((c.__name__ for c in type(pipeline).__mro__ if "forward_backward_pipeline" in vars(c)), "")
    schedule = SCHEDULES.get(name)
    if schedule == "interleaved" and getattr(pipeline, "overlap_schedule_mode", False):
        return "interleaved-overlap"
    return schedule
