"""Instruments DeepSpeed's pipeline engines without a change to the training; DeepSpeed 0.14 to 0.19.8.

An engine looks up each instruction of its schedule in the class dict ``_INSTRUCTION_MAP`` (runtime/pipe/engine.py,
``_exec_schedule``), so the functions in that dict are observed: patching the methods by name has no effect.
DualPipeVEngine has a dict of its own, copied from that of PipelineEngine. A class with other functions in its dict is
not recorded, and the recording states that.

See deepspeed_actions for how the micro-batch of an instruction is known.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Signature, never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.deepspeed_actions import KINDS, LOAD, Actions, Load
from stagescope.record.frameworks.deepspeed_facts import engine_facts
from stagescope.record.frameworks.deepspeed_transfers import (
    TRANSFERS,
    DeepSpeedTransfers,
    Instruction,
    Move,
)
from stagescope.record.frameworks.host_activities import CHECKPOINT, activities_of
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.reductions import Reduction
from stagescope.record.frameworks.runs import Runs, RunWatch
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import prepared
from stagescope.record.installation import Installation, modules_by_name, version_of
from stagescope.record.patching import MARK
from stagescope.record.points.deepspeed import CHECKPOINTS, COMM_MODULE, DUALPIPEV, ENGINE, P2P_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.hooks import Preparation, Watch
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]
    Observation = Generator[None, Any, Any]
    Observer = Callable[[Call], Observation]

REDUCTIONS = ("ReduceGrads", "ReduceTiedGrads")
REQUIRED = (*KINDS, *TRANSFERS)
"""The instructions without which a recording would mislead."""


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe the imported module deepspeed.runtime.pipe.engine or deepspeed.runtime.pipe.dualpipev."""
    hooks = instrumentation(recorder, patches)
    install = Installation(recorder, patches).install
    if module.__name__ == CHECKPOINTS.trigger:
        install(CHECKPOINTS, hooks, modules_by_name(module))
    elif hasattr(module, "DualPipeVEngine"):
        modules = {DUALPIPEV.trigger: module, COMM_MODULE: getattr(module, "dist", None)}
        install(DUALPIPEV, hooks, modules, lambda: hooks.observe_dualpipev(module.DualPipeVEngine))
    else:
        modules = {ENGINE.trigger: module, P2P_MODULE: getattr(module, "p2p", None)}
        install(ENGINE, hooks, modules, lambda: hooks.observe_engine(module))


class Instrumentation:
    """The observers and their shared state: the current batch and its transfers."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder, ENGINE.framework)
        self.transfers = DeepSpeedTransfers(recorder)
        self.collectives = collectives_of(recorder)
        self.activities = activities_of(recorder)
        self.optimizers = optimizer_steps(recorder)
        self.actions = Actions(self.runs, self.transfers.moves)
        self._known: tuple[object, object] = (None, None)
        self._described: object = None

    def observe_engine(self, module: Any) -> None:
        """Observe the instructions of PipelineEngine; raises LookupError if one that is needed does not fit."""
        p2p = module.p2p
        self.transfers.rank_of = lambda stage: p2p._grid.stage_to_global(stage_id=stage)  # noqa: SLF001  # as in p2p
        self._observe_instructions(module.PipelineEngine, ENGINE.framework, REQUIRED)

    def observe_dualpipev(self, engine: type) -> None:
        """Observe the instructions of DualPipeVEngine; raises LookupError as above."""
        self._observe_instructions(engine, DUALPIPEV.framework, (*REQUIRED, "CommitP2P"), reads=("phase",))
        try:
            works_of(self.recorder).install(self.patches, self.recorder.guards[DUALPIPEV.framework])
        except (AttributeError, ImportError):
            missing = "the wait for each message of DualPipeV"
            self.recorder.coverage.installed(DUALPIPEV.framework, None, [missing])

    def _observe_instructions(
        self, engine: Any, framework: str, required: tuple[str, ...], reads: tuple[str, ...] = ()
    ) -> None:
        instructions = engine._INSTRUCTION_MAP  # noqa: SLF001  # no public name
        names = {instruction.__name__: instruction for instruction in instructions}
        for name in required:
            if name not in names:
                raise LookupError(f"instruction `{name}` not found")
            lacking = Signature(instructions[names[name]]).lacks(reads if name in REQUIRED else ())
            if lacking:
                raise LookupError(f"instruction `{name}` has no parameter `{'`, `'.join(lacking)}`")
        guard = self.recorder.guards[framework]
        for name, instruction in names.items():
            observer = self._observer_of(name)
            if observer is not None:
                self.patches.observe_entry(instructions, instruction, observer, guard)

    def _observer_of(self, name: str) -> Observer | Preparation | None:
        """Return what observes an instruction; None for an unknown one."""
        if name in KINDS:
            return prepared(functools.partial(self.actions.passes, name))
        if name in TRANSFERS:
            return prepared(functools.partial(Instruction, self.actions, self.transfers, name))
        if name in REDUCTIONS:
            return self.reduce
        if name == LOAD:
            return prepared(functools.partial(Load, self.actions))
        if name == "CommitP2P":
            return self._commit
        return self.optimizers.step if name == "OptimizerStep" else None

    @prepared
    def train_batch(self, signature: Signature) -> Watch:
        """Observe a training step."""
        del signature
        return RunWatch(self.runs)

    @prepared
    def eval_batch(self, signature: Signature) -> Watch:
        """Observe an evaluation."""
        del signature
        return RunWatch(self.runs, evaluates=True)

    def checkpoint(self, call: Call) -> Observation:
        """Observe the saving or loading of a checkpoint."""
        del call
        return self.activities.observe(CHECKPOINT)

    @prepared
    def exec_schedule(self, signature: Signature) -> Watch:
        """Observe the execution of a schedule: of a training step or an evaluation."""
        return Batch(self, signature)

    def begin_batch(self, engine: Any, schedule: Any) -> None:
        """Prepare for the execution of a schedule."""
        self.actions.begin_batch(engine, is_known=self._knows(engine))
        self.transfers.forget()
        if self.optimizers.tokens:
            self.optimizers.forget()
        if self.recorder.enabled and self.actions.is_known:
            self._describe(engine, schedule)

    @prepared
    def reduce(self, signature: Signature) -> Watch:
        """Observe an instruction whose collectives reduce gradients."""
        del signature
        return Reduction(self.collectives, lambda args, _: (getattr(args[0], "stage_id", NONE), NONE))

    def shapes(self, call: Call) -> Observation:
        """Observe a method that sends or receives shapes."""
        del call
        return self.transfers.observe_shapes()

    @prepared
    def moved(self, signature: Signature) -> Watch:
        """Observe a blocking send or receive of one tensor."""
        return Move(self.transfers, signature)

    def queued(self, call: Call) -> Observation:
        """Observe the queuing of tensors to send or receive."""
        return self.transfers.observe_queue(call.get("tensors"), call.get("stage"))

    def launched(self, call: Call) -> Observation:
        """Observe the issuing of a batch of operations."""
        del call
        return self.transfers.observe_launch()

    def _commit(self, call: Call) -> Observation:
        del call
        return self.transfers.observe_commit()

    @never_raises(default=True)
    def _knows(self, engine: Any) -> bool:
        """Return whether the instructions of this engine are observed; an engine class may bring its own."""
        instructions = engine._INSTRUCTION_MAP  # noqa: SLF001  # no public name
        if self._known == (type(engine), len(instructions)):
            return True
        unknown = any(
            not hasattr(function, MARK)
            for instruction, function in instructions.items()
            if instruction.__name__ in REQUIRED
        )
        name = f"{ENGINE.framework} {type(engine).__name__}"
        if unknown and name not in self.recorder.coverage.frameworks:
            version = version_of(ENGINE.distribution)
            self.recorder.coverage.refused(name, version, ["this engine has its own instructions"])
        self._known = (None, None) if unknown else (type(engine), len(instructions))
        return not unknown

    @never_raises()
    def _describe(self, engine: Any, schedule: Any) -> None:
        """Describe a training schedule in the header, once per schedule."""
        schedule_class = type(schedule).__name__
        facts = (schedule_class, engine.micro_batches)
        is_evaluation = schedule_class == "InferenceSchedule" or getattr(schedule, "forward_only", False)
        if is_evaluation or facts == self._described:
            return
        self._described = facts
        self.recorder.timer.set_tensor_device(str(engine.device))
        self.recorder.describe(**engine_facts(engine, schedule_class))


class Batch:
    """Watches the execution of a schedule."""

    def __init__(self, instrumentation: Instrumentation, signature: Signature) -> None:
        self._instrumentation = instrumentation
        self._schedule = signature.parameter("pipe_schedule").place

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Begin to observe the call."""
        place = self._schedule
        schedule = args[place] if place < len(args) else kwargs.get("pipe_schedule")
        self._instrumentation.begin_batch(args[0], schedule)
        return True

    def end(self, state: bool, result: Any) -> None:  # noqa: FBT001  # what `begin` returns
        """Count the data of its micro-batches."""
        del state, result
        self._instrumentation.actions.end_batch()

    def abandon(self, state: bool | None) -> None:  # noqa: FBT001  # same
        """Count the data of a batch that failed."""
        del state
        self._instrumentation.actions.end_batch()


def instrumentation(recorder: Recorder, patches: Patches) -> Instrumentation:
    """Return the Instrumentation of this recorder, which both engines share: one inherits the batch of the other."""
    return shared(recorder, Instrumentation, recorder, patches)
