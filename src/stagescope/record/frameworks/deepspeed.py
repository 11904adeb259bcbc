"""Instruments DeepSpeed's pipeline engines without a change to the training; DeepSpeed 0.14 to 0.19.8.

An engine looks up each instruction of its schedule in the class dict ``_INSTRUCTION_MAP`` (runtime/pipe/engine.py,
``_exec_schedule``), so the functions in that dict are observed: patching the methods by name has no effect.
DualPipeVEngine has a dict of its own, copied from that of PipelineEngine. A class with other functions in its dict is
not recorded, and the recording states that.

An instruction contains its buffer, not its micro-batch. Each kind of instruction processes the micro-batches of a
batch in order (runtime/pipe/schedule.py), in DualPipeV those of each phase, so the micro-batch is the number of
earlier instructions of the same kind and phase.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call, Signature, never_raises
from stagescope.record.clock import now_ns
from stagescope.record.data_sizes import count_data
from stagescope.record.format import NONE
from stagescope.record.frameworks.action_watch import ActionWatch
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.deepspeed_facts import engine_facts, stage_of
from stagescope.record.frameworks.deepspeed_transfers import TRANSFERS, DeepSpeedTransfers
from stagescope.record.frameworks.host_activities import CHECKPOINT, activities_of
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, Runs
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import prepared
from stagescope.record.installation import Installation, modules_by_name, version_of
from stagescope.record.patching import MARK
from stagescope.record.points.deepspeed import CHECKPOINTS, COMM_MODULE, DUALPIPEV, ENGINE, P2P_MODULE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from stagescope.record.hooks import Preparation, Watch
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]
    Observation = Generator[None, Any, Any]
    Observer = Callable[[Call], Observation]

ACTIONS = {"ForwardPass": FORWARD, "BackwardPass": BACKWARD}
REDUCTIONS = ("ReduceGrads", "ReduceTiedGrads")
OTHER = BY_NAME["other"].code
REQUIRED = (*ACTIONS, *TRANSFERS)
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
        self._counts: Counter[tuple[str, int]] = Counter()
        self.is_known = True
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
        if name in ACTIONS:
            return prepared(functools.partial(self._action, name))
        if name in TRANSFERS:
            return functools.partial(self._transfer, name)
        if name in REDUCTIONS:
            return self._reduce
        if name == "LoadMicroBatch":
            return prepared(functools.partial(Load, self, name))
        if name == "CommitP2P":
            return self._commit
        return self.optimizers.step if name == "OptimizerStep" else None

    def train_batch(self, call: Call) -> Observation:
        """Observe a training step."""
        del call
        return self.runs.observe_step()

    def eval_batch(self, call: Call) -> Observation:
        """Observe an evaluation."""
        del call
        return self.runs.observe_evaluation()

    def checkpoint(self, call: Call) -> Observation:
        """Observe the saving or loading of a checkpoint."""
        del call
        return self.activities.observe(CHECKPOINT)

    def exec_schedule(self, call: Call) -> Observation:
        """Observe the execution of a schedule: of a training step or an evaluation."""
        engine = call.owner
        self._counts.clear()
        self.transfers.forget()
        self.optimizers.forget()
        self.is_known = self._knows(engine)
        if self.recorder.enabled and self.is_known:
            self._describe(engine, call.get("pipe_schedule"))
        yield

    def shapes(self, call: Call) -> Observation:
        """Observe a method that sends or receives shapes."""
        del call
        return self.transfers.observe_shapes()

    def moved(self, call: Call) -> Observation:
        """Observe a blocking send or receive of one tensor."""
        stage = call.get("dest_stage", call.get("src_stage"))
        return self.transfers.observe_move(call.get("tensor"), stage)

    def queued(self, call: Call) -> Observation:
        """Observe the queuing of tensors to send or receive."""
        return self.transfers.observe_queue(call.get("tensors"), call.get("stage"))

    def launched(self, call: Call) -> Observation:
        """Observe the issuing of a batch of operations."""
        del call
        return self.transfers.observe_launch()

    def _action(self, name: str, signature: Signature) -> Watch:
        def place_of(call: Call) -> Place | None:
            return self.next_place(name, call) if self.is_known else None

        return Pass(self.runs, ACTIONS[name], signature, place_of)

    def _transfer(self, name: str, call: Call) -> Observation:
        if self.is_known:
            yield from self.transfers.observe_instruction(TRANSFERS[name], self.next_place(name, call))

    def _commit(self, call: Call) -> Observation:
        del call
        return self.transfers.observe_commit()

    def _reduce(self, call: Call) -> Observation:
        """Observe an instruction whose collectives reduce gradients."""
        return self.collectives.observe_reduction(self._stage_of(call))

    @never_raises(default=NONE)
    def _stage_of(self, call: Call) -> int:
        return stage_of(call.owner, 0)

    @never_raises()
    def count(self, call: Call, place: Place) -> None:
        """Count the data that the first stage has loaded."""
        loaded = getattr(call.owner, "pipe_buffers", {}).get("inputs", ())
        number = call.get("buffer_id", 0)
        if number < len(loaded):
            count_data(self.recorder, loaded[number], place.stage, place.microbatch)

    @never_raises(default=Place())
    def next_place(self, name: str, call: Call) -> Place:
        """Return the place of the next instruction of a kind and phase. Counts even while recording is off."""
        phase = int(call.get("phase", 0))
        microbatch = self._counts[name, phase]
        self._counts[name, phase] = microbatch + 1
        return Place(stage_of(call.owner, phase), microbatch, phase)

    @never_raises(default=True)
    def _knows(self, engine: Any) -> bool:
        """Return whether the instructions of this engine are observed; an engine class may bring its own."""
        instructions = engine._INSTRUCTION_MAP  # noqa: SLF001  # no public name
        unknown = any(
            not hasattr(function, MARK)
            for instruction, function in instructions.items()
            if instruction.__name__ in REQUIRED
        )
        name = f"{ENGINE.framework} {type(engine).__name__}"
        if unknown and name not in self.recorder.coverage.frameworks:
            version = version_of(ENGINE.distribution)
            self.recorder.coverage.refused(name, version, ["this engine has its own instructions"])
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


class Pass(ActionWatch):
    """Watches the instruction of a forward or a backward, which counts even while recording is off."""

    def pass_by(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a micro-batch that is not recorded."""
        self._place_of(Call(self._signature, args, kwargs))


class Load:
    """Watches the instruction that loads a micro-batch."""

    def __init__(self, engines: Instrumentation, name: str, signature: Signature) -> None:
        self._engines = engines
        self._recorder = engines.recorder
        self._name = name
        self._signature = signature

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Place, int] | None:
        """Note when the loading began."""
        call = Call(self._signature, args, kwargs)
        place = self._engines.next_place(self._name, call)
        if not self._recorder.enabled or not self._engines.is_known:
            return None
        return call, place, now_ns()

    def end(self, state: tuple[Call, Place, int], result: Any) -> None:
        """Record the loading, and count the data."""
        del result
        (call, place, start_ns), end_ns, recorder = state, now_ns(), self._recorder
        stage, microbatch, chunk = place
        none = (NONE, NONE, NONE, NONE)
        recorder.emit(OTHER, start_ns, end_ns, stage, microbatch, chunk, *none, recorder.name_id(self._name))
        if stage == 0:
            self._engines.count(call, place)

    def abandon(self, state: Any) -> None:
        """Forget a loading that failed."""


def instrumentation(recorder: Recorder, patches: Patches) -> Instrumentation:
    """Return the Instrumentation of this recorder, which both engines share: one inherits the batch of the other."""
    return shared(recorder, Instrumentation, recorder, patches)
