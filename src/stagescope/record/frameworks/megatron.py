"""Observes the three schedules of Megatron-core, from 0.5.0 to 0.19.2 and Megatron-LM d98e8a64 (August 2026).

Observed functions (declared in record/points/megatron.py) and what they show:

* ``forward_step`` and ``backward_step`` of pipeline_parallel/schedules.py, module globals that the schedules look up
  for each action: they exclude the communication. The arguments of a backward contain neither micro-batch nor chunk,
  but the tensor that its forward returned. Those of a forward contain the micro-batch since 0.7; before that, the
  forwards of a chunk are counted, which every schedule runs in order. They contain the chunk since 0.13; before that,
  it is the position of the given model in the list that the schedule received.
* ``combined_forward_backward_step`` of combined_1f1b.py: see megatron_overlap.
* ``_batched_p2p_ops`` and ``_p2p_ops`` of p2p_communication.py: see megatron_messages, and megatron_bridge for
  transfers between the modules of a model.
* ``forward_backward_*``: one call is one step, unless ``train_step`` of megatron.training exists and is the step;
  with ``forward_only`` it is an evaluation, which belongs to no step.
* ``finalize_model_grads``, and ``start_grad_sync`` and ``finish_grad_sync`` of the classes for data parallelism: the
  collectives that they issue reduce gradients.
* ``training_log``, ``save_checkpoint_and_time`` and ``evaluate`` of megatron.training.
* ``step`` of MegatronOptimizer's classes, and torch's own optimizer hooks for trainings that use one of torch's.

Code that imported one of these functions by name earlier (``from ... import finalize_model_grads``) keeps the
unobserved one. ``stagescope run`` always comes first; ``record.start`` should be called before Megatron is imported.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks import host_activities
from stagescope.record.frameworks.action_watch import ActionWatch
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.host_activities import activities_of
from stagescope.record.frameworks.megatron_bridge import observe_bridge
from stagescope.record.frameworks.megatron_facts import ask, describe_run, pipeline_place, unrecorded
from stagescope.record.frameworks.megatron_messages import Messages
from stagescope.record.frameworks.megatron_overlap import Part
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, UNKNOWN, Place, Runs, within
from stagescope.record.frameworks.shared import shared
from stagescope.record.hooks import prepared
from stagescope.record.installation import Installation
from stagescope.record.points.megatron import NAME, PARTS, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record import points
    from stagescope.record.calls import Call, Signature
    from stagescope.record.hooks import Watch
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

NAME_OF_SCHEDULE = {
    "forward_backward_no_pipelining": "no-pipelining",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "interleaved",
}
"""Megatron's functions, and the schedule that each implements."""

REPLACED = "forwards or backwards, whose function another project has replaced"
"""Such as ``backward_step`` by MindSpeed's multi-parameter pipelines."""

OUTSIDE = "stages and transfers outside of Megatron's own schedules"


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe the functions of one of Megatron's modules, right after its import."""
    shared(recorder, Instrumentation, recorder, patches).install(module)


class Instrumentation:
    """The observers and their shared state: the coordinates of this rank, the actions and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.installation = Installation(recorder, patches)
        self.runs = Runs(recorder, NAME)
        self.messages = Messages(recorder, self.runs)
        self.collectives = collectives_of(recorder)
        self.activities = activities_of(recorder)
        self.optimizers = optimizer_steps(recorder)
        self.optimizer_step = self.optimizers.step
        self.issue = self.messages.issue
        self.node = self.messages.overlap.node
        self.chunks = 1
        self.pp_rank, self.pp_size = NONE, NONE
        self._models: list[Any] = []
        self._waiting: deque[Place] = deque()
        self._is_refused = False
        self._described: object = None
        self._is_outside = False
        self._seen: set[int] = set()  # kinds of the actions of this run

    def install(self, module: ModuleType) -> None:
        """Install the part that `module` triggers; nothing if the schedules do not fit.

        A module that is named like one of Megatron's, such as a copy of it, is taken for it, with its siblings.
        """
        for part in _parts_of(module.__name__):
            if self._is_refused:
                return
            more = self._install_shared if part.trigger == SCHEDULES else None
            fits = self.installation.install(part, self, _modules_beside(module, part), more)
            if part.trigger == SCHEDULES and not fits:
                self._is_refused = self.installation.guard(NAME).is_off = True

    def _install_shared(self) -> None:
        guard = self.installation.guard(NAME)
        self.messages.works.install(self.patches, guard)
        self.optimizers.register(self.patches, guard)

    def schedule(self, call: Call) -> Observation:
        """Observe one of the schedules: a step, or with ``forward_only`` an evaluation."""
        run = self.runs.observe_evaluation() if call.get("forward_only") else self.runs.observe_step()
        return (yield from within(run, self._run(call)))

    def train_step(self, call: Call) -> Observation:
        """Observe a complete training step, with its optimizer step."""
        del call
        return (yield from self.runs.observe_step())

    @prepared
    def forward(self, signature: Signature) -> Watch:
        """Observe a forward."""
        return Forward(self, signature)

    def forward_begins(self, call: Call) -> Place:
        """Note a forward, which may load data, and return its place."""
        if not self.messages.is_on:
            self._check_schedule()
        self._seen.add(FORWARD)
        place = self.activities.forward = self._begin_forward(call)
        return place

    def forward_ends(self, result: Any, place: Place) -> None:
        """Note what a forward has made. Older versions return the tensors without the number of tokens."""
        self.messages.made(result[0] if isinstance(result, tuple) else result, place)

    @prepared
    def backward(self, signature: Signature) -> Watch:
        """Observe a backward."""
        return ActionWatch(self.runs, BACKWARD, signature, self._backward_begins, self.messages.made)

    def _backward_begins(self, call: Call) -> Place:
        self._seen.add(BACKWARD)
        return self._begin_backward(call.get("output_tensor"), call.get("output_tensor_grad"))

    def combined(self, call: Call) -> Observation:
        """Observe a merged call: a forward, a backward, or both."""
        if not self.recorder.enabled or self.runs.is_muted:
            return
        self._check_schedule()
        parts = self._begin_parts(call)
        self._seen.update(part.kind for part in parts)
        result = yield from self.messages.overlap.observe(parts)
        for part in parts:
            self.messages.made(result[0] if part.kind == FORWARD else result[-1], part.place)

    def reduce(self, call: Call) -> Observation:
        """Observe a call that issues the reduction of gradients, or waits for it: its collectives are recorded."""
        del call
        stage = self.recorder.stage
        return self.collectives.observe_reduction(
            self.messages.default_place.stage if stage == NONE else stage
        )

    def gather(self, call: Call) -> Observation:
        """Observe a call that issues the gathering of parameters, or waits for it; a forward may contain it."""
        del call
        return self.collectives.observe_one_by_one()

    def log(self, call: Call) -> Observation:
        """Observe the logging of a step."""
        del call
        return self.activities.observe(host_activities.LOGGING)

    def checkpoint(self, call: Call) -> Observation:
        """Observe the saving of a checkpoint."""
        del call
        return self.activities.observe(host_activities.CHECKPOINT)

    def evaluate(self, call: Call) -> Observation:
        """Observe an evaluation."""
        del call
        return self.activities.observe(host_activities.EVALUATION)

    def bridge(self, call: Call) -> Observation:
        """Observe a transfer between two modules of a model."""
        return (yield from observe_bridge(self.messages, call))

    def _run(self, call: Call) -> Observation:
        self._begin_run(call)
        try:
            result = yield
            if len(self._seen) == 1 and not call.get("forward_only"):
                self.recorder.coverage.installed(NAME, None, [REPLACED])
            return result
        finally:
            self.messages.close()
            self._models = []
            self.pp_rank, self.pp_size = NONE, NONE

    def _check_schedule(self) -> None:
        """State once that a schedule runs whose layout is unknown, such as a copy in another project."""
        if not self.messages.is_on and not self._is_outside:
            self._is_outside = True
            self.recorder.coverage.installed(NAME, None, [OUTSIDE])

    def _begin_run(self, call: Call) -> None:
        """Prepare for one call of a schedule: reset the state, find this rank's place, describe it once."""
        self.messages.close()
        self.runs.forget()
        self.optimizers.forget()
        self._waiting.clear()
        self.messages.is_on = True
        self._seen.clear()
        model = call.get("model")
        self._models = list(model) if isinstance(model, (list, tuple)) else [model]
        self.chunks = len(self._models)
        self.pp_rank, self.pp_size = pipeline_place(call.name, call)
        self.messages.default_place = UNKNOWN if self.chunks > 1 else Place(self._stage(0), NONE, 0)
        if self.recorder.enabled and not call.get("forward_only"):
            self._describe(call)

    @never_raises()
    def _describe(self, call: Call) -> None:
        """Describe the run in the header, once."""
        facts = (call.name, call.get("num_microbatches"), self.chunks, self.pp_rank, self.pp_size)
        if facts == self._described:
            return
        self._described = facts
        describe_run(self.recorder, NAME_OF_SCHEDULE.get(call.name, call.name), facts, self._models)
        missing = unrecorded(self._models)
        if missing:
            self.recorder.coverage.installed(NAME, None, missing)

    def _begin_forward(self, call: Call) -> Place:
        """Return the place of a forward, and assign it to the message that brought its input."""
        chunk = self._chunk_of(call)
        microbatch = call.get("current_microbatch")
        if microbatch is None and self.messages.is_on and chunk != NONE:
            microbatch = self.runs.next_number(FORWARD, chunk)
        place = Place(self._stage(chunk), NONE if microbatch is None else microbatch, chunk)
        self._waiting.append(place)
        self.messages.used_by(call.get("input_tensor"), place)
        return place

    def _begin_parts(self, call: Call) -> list[Part]:
        """Return the actions of a merged call: a forward, a backward, or both."""
        parts = []
        if call.get("f_model") is not None:
            place = self._begin_forward(call)
            sends = place.stage != self.chunks * self.pp_size - 1
            parts.append(Part(FORWARD, place, call.get("pre_forward") is not None, sends))
        if call.get("b_model") is not None:
            place = self._begin_backward(call.get("b_output_tensor"), call.get("b_output_tensor_grad"))
            parts.append(Part(BACKWARD, place, call.get("pre_backward") is not None, place.stage != 0))
        return parts

    def _begin_backward(self, made: Any, grad: Any) -> Place:
        """Return the place of a backward: that of its forward.

        If the tensor is unknown, the forwards of a single chunk are assumed to be used in order.
        """
        place = self.messages.place_of(made)
        if place is None:
            place = self._waiting.popleft() if self.chunks == 1 and self._waiting else UNKNOWN
        elif place in self._waiting:
            self._waiting.remove(place)
        self.messages.used_by(grad, place)
        return place

    def _chunk_of(self, call: Call) -> int:
        """Return the local chunk of a forward."""
        given = call.get("vp_stage", call.get("f_model_chunk_id"))
        if given is None and self.chunks == 1:
            return 0
        if given is None:  # not an argument before 0.13
            model = call.get("model", call.get("f_model"))
            given = next((chunk for chunk, each in enumerate(self._models) if each is model), None)
        if given is None:
            given = ask("get_virtual_pipeline_model_parallel_rank")
        return given if isinstance(given, int) else NONE

    def _stage(self, chunk: int) -> int:
        """Return the global stage of a local chunk: Megatron assigns stages to ranks round-robin."""
        known = NONE not in (chunk, self.pp_rank, self.pp_size)
        return chunk * self.pp_size + self.pp_rank if known else NONE


class Forward(ActionWatch):
    """Watches the function that computes a forward, and loads its data."""

    def __init__(self, instrumentation: Instrumentation, signature: Signature) -> None:
        begins, ends = instrumentation.forward_begins, instrumentation.forward_ends
        super().__init__(instrumentation.runs, FORWARD, signature, begins, ends)
        self._activities = instrumentation.activities

    def left(self) -> None:
        """Note that data loaded from now on are not those of a forward."""
        self._activities.forward = None


def _parts_of(name: str) -> list[points.Part]:
    """Return the parts that the module `name` triggers, by its whole name or else by the last part of it."""
    exact = [part for part in PARTS if part.trigger == name]
    return exact or [part for part in PARTS if part.trigger.rpartition(".")[2] == name.rpartition(".")[2]]


def _modules_beside(module: ModuleType, part: points.Part) -> dict[str, object]:
    """Return `module` and those in its package, by the names that `part` has for them."""
    package = module.__name__.rpartition(".")[0]
    beside = {
        name: f"{package}.{name.rpartition('.')[2]}" for name in {point.module for point in part.points}
    }
    found = {name: sys.modules[other] for name, other in beside.items() if other in sys.modules}
    return {**found, part.trigger: module}
