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
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks import host_activities
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.host_activities import activities_of
from stagescope.record.frameworks.megatron_actions import Actions
from stagescope.record.frameworks.megatron_bridge import observe_bridge
from stagescope.record.frameworks.megatron_facts import describe_run, pipeline_place, unrecorded
from stagescope.record.frameworks.megatron_messages import Messages
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import FORWARD, UNKNOWN, Place, Runs, RunWatch
from stagescope.record.frameworks.shared import shared
from stagescope.record.hooks import prepared
from stagescope.record.installation import Installation
from stagescope.record.points.megatron import NAME, PARTS, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import ModuleType

    from stagescope.record import points
    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.runs import Run
    from stagescope.record.hooks import Timed, Watch
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
        self.actions = Actions(self.runs, self.messages, self.activities, self._note_outside)
        self._is_refused = False
        self._described: object = None
        self._is_outside = False

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

    @prepared
    def schedule(self, signature: Signature) -> Watch:
        """Observe one of the schedules: a step, or with ``forward_only`` an evaluation."""
        return ScheduleRun(self, signature)

    @prepared
    def train_step(self, signature: Signature) -> Watch:
        """Observe a complete training step, with its optimizer step."""
        del signature
        return RunWatch(self.runs)

    @prepared
    def forward(self, signature: Signature) -> Timed:
        """Observe a forward, which may load data."""
        return self.actions.forwards(signature)

    @prepared
    def backward(self, signature: Signature) -> Timed:
        """Observe a backward."""
        return self.actions.backwards(signature)

    def combined(self, call: Call) -> Observation:
        """Observe a merged call: a forward, a backward, or both."""
        if not self.recorder.enabled or self.runs.is_muted:
            return
        if not self.messages.is_on:
            self._note_outside()
        parts = self.actions.parts(call)
        result = yield from self.messages.overlap.observe(parts)
        for part in parts:
            self.messages.made(result[0] if part.kind == FORWARD else result[-1], part.place)

    def reduce(self, call: Call) -> Observation:
        """Observe a call that issues the reduction of gradients, or waits for it: its collectives are recorded."""
        del call
        stage = self.recorder.stage
        return self.collectives.observe_reduction(self.messages.default_place[0] if stage == NONE else stage)

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

    def _note_outside(self) -> None:
        """State once that a schedule runs whose layout is unknown, such as a copy in another project."""
        if not self._is_outside:
            self._is_outside = True
            self.recorder.coverage.installed(NAME, None, [OUTSIDE])

    def begin_run(self, call: Call) -> None:
        """Prepare for one call of a schedule: reset the state, find this rank's place, describe it once."""
        messages, actions = self.messages, self.actions
        messages.close()
        if self.runs.has_places:
            self.runs.forget()
        if self.optimizers.tokens:
            self.optimizers.forget()
        messages.open()
        model = call.get("model")
        models = model if isinstance(model, (list, tuple)) else (model,)
        actions.begin_run(models, *pipeline_place(call.name, call))
        messages.default_place = UNKNOWN if actions.chunks > 1 else Place(actions.stage(0), NONE, 0)
        if self.recorder.enabled and not call.get("forward_only"):
            self._describe(call, models)

    def end_run(self, *, is_done: bool) -> None:
        """End one call of a schedule; one that `is_done` has trained."""
        if is_done and len(self.actions.kinds) == 1:
            self.recorder.coverage.installed(NAME, None, [REPLACED])
        self.messages.close()
        self.actions.end_run()

    @never_raises()
    def _describe(self, call: Call, models: Sequence[Any]) -> None:
        """Describe the run in the header, once."""
        actions = self.actions
        facts = (call.name, call.get("num_microbatches"), actions.chunks, actions.pp_rank, actions.pp_size)
        if facts == self._described:
            return
        self._described = facts
        describe_run(self.recorder, NAME_OF_SCHEDULE.get(call.name, call.name), facts, models)
        missing = unrecorded(models)
        if missing:
            self.recorder.coverage.installed(NAME, None, missing)


class ScheduleRun:
    """Watches one of the schedules."""

    def __init__(self, instrumentation: Instrumentation, signature: Signature) -> None:
        self._instrumentation = instrumentation
        self._runs = instrumentation.runs
        self._signature = signature

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, bool]:
        """Begin a step or an evaluation."""
        call = self._signature.call(args, kwargs)
        trains = not call.get("forward_only")
        run = self._runs.begin(evaluates=not trains)
        try:
            self._instrumentation.begin_run(call)
        except BaseException:  # re-raised
            self._runs.fail(run)
            raise
        return run, trains

    def end(self, state: tuple[Run, bool], result: Any) -> None:
        """Record the end of the call."""
        del result
        run, trains = state
        self._instrumentation.end_run(is_done=trains)
        self._runs.end(run)

    def abandon(self, state: tuple[Run, bool] | None) -> None:
        """Leave a call that has failed."""
        self._instrumentation.end_run(is_done=False)
        if state is not None:
            self._runs.fail(state[0])


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
