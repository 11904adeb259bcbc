"""Records every schedule of torch.distributed.pipelining (torch 2.5 to 2.15) without a change to the training.

What is observed, and what it shows (torch/distributed/pipelining/schedules.py and stage.py):

* The compute methods of ``_PipelineStageBase``: they exclude the wait for the input.
* ``get_*_ops``: they know stage and micro-batch of each P2POp.
* The module global ``_batch_p2p``, through which every schedule issues its operations, and ``Work.wait``.
* ``_check_inputs`` of a schedule, which knows what the first stage gets.
* ``step`` of the two base classes of schedules, which count the training steps.
* The module global ``record_function``, entered for every action of the runtime schedules from torch 2.9 on: it shows
  which actions overlap, and catches actions that a custom function performs without the stage's methods.

Do not use ``pipeline_order`` to judge the bubble of the last rank of 1F1B: torch 2.13.0 numbers its forwards from 1.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.data_sizes import count_step
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.host_activities import INITIALIZATION, Occasional
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.reductions import Reduction
from stagescope.record.frameworks.runs import BACKWARD_WEIGHT, FORWARD, Runs
from stagescope.record.frameworks.torch_actions import (
    ActionRanges,
    RangeEnd,
    customized_actions,
    range_class,
)
from stagescope.record.frameworks.torch_coordinates import find_coordinates
from stagescope.record.frameworks.torch_messages import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Messages,
)
from stagescope.record.frameworks.torch_passes import Passes
from stagescope.record.frameworks.torch_schedules import Pipelines
from stagescope.record.hooks import prepared
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.torch_pipelining import FRAMEWORK, OF_STAGES, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.runs import Run
    from stagescope.record.hooks import Creation, Guard, Issues, Result, Timed, Watch
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]


INITIALIZERS = {
    "PipelineScheduleSingle": "_initialize_stage",
    "PipelineScheduleMulti": "_initialize_stages",
}
"""Called in each step; the first time, the ranks agree on the shapes of their transfers. Not all versions have them."""


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe `schedules`, the imported module torch.distributed.pipelining.schedules, and what it uses."""
    instrumentation = Instrumentation(recorder, patches)
    installation = Installation(recorder, patches)
    for part in PARTS:
        guard = installation.guard(part.framework)
        more = partial(instrumentation.install_more, schedules, guard)
        installation.install(part, instrumentation, modules_by_name(schedules), more)


class Instrumentation:
    """The observers and their shared state: the messages in progress and the actions recorded in this step."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder, FRAMEWORK)
        self.messages = Messages(recorder)
        self.collectives = collectives_of(recorder)
        self.ranges = ActionRanges(self)
        self.optimizers = optimizer_steps(recorder)
        self.pipelines = Pipelines()
        self.passes = Passes(recorder, self.messages)
        self.trains = self.evaluates = False
        self._has_first_stage: bool | None = None
        self._functions: Any = None
        self._are_functions = False
        self._observe_class: Callable[[type], object] = bool
        self._described: Callable[[], object] = bool

    def install_more(self, schedules: ModuleType, guard: Guard) -> None:
        """Observe the waits for messages, the ranges of actions, and the optimizers."""
        import torch.distributed as dist  # already imported by schedules

        self._observe_class = partial(self._observe_overrides, guard)
        self.messages.works.install(self.patches, guard)
        if not hasattr(
            schedules, "_wait_batch_p2p"
        ):  # torch 2.5 to 2.7 discard all handles of a batch but one
            self.patches.observe(dist, "batch_isend_irecv", self.issue_batch, guard)
        for class_name, method in INITIALIZERS.items():
            self.patches.observe(getattr(schedules, class_name), method, self.initialize, guard)
        ranges = range_class(schedules.record_function, schedules.__name__, self.ranges, guard)
        self.patches.observe(ranges, "__enter__", self.enter_range, guard)
        self.patches.observe(ranges, "__exit__", self.exit_range, guard)
        self.patches.replace(schedules, "record_function", ranges)
        self.optimizers.register(self.patches, guard)

    @prepared
    def forward(self, signature: Signature) -> Timed:
        """Observe ``forward_one_chunk``."""
        return self.passes.methods(FORWARD, signature, "fwd_chunk_id")

    @prepared
    def backward(self, signature: Signature) -> Timed:
        """Observe ``backward_one_chunk``."""
        return self.passes.backwards(signature)

    @prepared
    def backward_weight(self, signature: Signature) -> Timed:
        """Observe ``backward_weight_one_chunk``."""
        return self.passes.methods(BACKWARD_WEIGHT, signature, "bwd_chunk_id")

    @prepared
    def loss(self, signature: Signature) -> Timed:
        """Observe ``_maybe_compute_loss``."""
        return self.passes.losses(signature)

    @prepared
    def reduce_grad(self, signature: Signature) -> Watch:
        """Observe a method that reduces the gradients of a stage, or starts to: its collectives are recorded."""
        del signature
        return Reduction(self.collectives, self._place_of_stage)

    def _place_of_stage(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        del kwargs
        stage = args[0].stage_index
        return stage, self.passes.chunk_of_stage.get(stage, NONE)

    @prepared
    def forward_receives(self, signature: Signature) -> Creation:
        """Observe ``get_fwd_recv_ops``."""
        return self.messages.creation(RECV_FORWARD, signature, "fwd_chunk_id")

    @prepared
    def forward_sends(self, signature: Signature) -> Creation:
        """Observe ``get_fwd_send_ops``."""
        return self.messages.creation(SEND_FORWARD, signature, "fwd_chunk_id")

    @prepared
    def backward_receives(self, signature: Signature) -> Creation:
        """Observe ``get_bwd_recv_ops``."""
        return self.messages.creation(RECV_BACKWARD, signature, "bwd_chunk_id")

    @prepared
    def backward_sends(self, signature: Signature) -> Creation:
        """Observe ``get_bwd_send_ops``."""
        return self.messages.creation(SEND_BACKWARD, signature, "bwd_chunk_id")

    @prepared
    def issue(self, signature: Signature) -> Issues:
        """Observe ``_batch_p2p``."""
        return self.messages.issues(signature.parameter("p2p_ops"))

    @prepared
    def issue_batch(self, signature: Signature) -> Issues:
        """Observe ``dist.batch_isend_irecv``, in which only the operations of stages are of interest."""
        return self.messages.issues(signature.parameter("p2p_op_list"))

    @prepared
    def enter_range(self, signature: Signature) -> Result:
        """Observe the beginning of a range."""
        del signature
        return self.ranges.entered

    @prepared
    def exit_range(self, signature: Signature) -> Watch:
        """Observe the end of a range."""
        del signature
        return RangeEnd(self.ranges)

    @prepared
    def inputs(self, signature: Signature) -> Result:
        """Observe ``_check_inputs``, which returns the arguments of the first stage for each micro-batch of a step."""
        del signature
        return self._count_inputs

    def _count_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        del kwargs
        recorder = self.recorder
        if self._has_first_stage is None:
            self._has_first_stage = any(stage.is_first for stage in local_stages(args[0]))
        if self._has_first_stage and recorder.enabled and recorder.step != NONE and not self.evaluates:
            count_step(recorder, *found)

    @prepared
    def initialize(self, signature: Signature) -> Watch:
        """Observe a method that initializes the stages of a schedule before their first step."""
        del signature
        return Occasional(self.recorder, INITIALIZATION)

    @prepared
    def step(self, signature: Signature) -> Watch:
        """Observe ``step``, which ``eval`` calls as well."""
        del signature
        return StepOfSchedule(self)

    def create(self, call: Call) -> Observation:
        """Observe the construction of a schedule: one with a loss trains, then one without a loss evaluates."""
        yield
        self.trains |= call.owner._loss_fn is not None  # noqa: SLF001  # no public name

    def prepare(self, schedule: Any) -> None:
        """Prepare for one run of `schedule`: discard the state of the last one, find its stages, describe it once."""
        self.passes.seen.clear()
        self.passes.forget()
        if self.optimizers.tokens:
            self.optimizers.forget()
        messages = self.messages
        if messages.pending or messages.under_way or messages.created:
            messages.close()
        self.ranges.leave_all()
        functions = getattr(schedule, "_comp_type_to_function_map", None)
        if functions is not self._functions or self._are_functions is not bool(functions) or functions:
            self._functions, self._are_functions = functions, bool(functions)
            self.ranges.customize(customized_actions(functions))
        if schedule is not self._described():
            self._described = weakref.ref(schedule)
            self._describe(schedule)
        self.trains |= schedule._loss_fn is not None  # noqa: SLF001  # no public name
        self.evaluates = self.trains and not schedule._has_backward  # noqa: SLF001  # same
        self.passes.expect(schedule, local_stages(schedule))

    @never_raises()
    def _describe(self, schedule: Any) -> None:
        stages = local_stages(schedule)
        self._has_first_stage = None
        self.recorder.timer.set_tensor_device(*(str(stage.device) for stage in stages))
        chunks = self.passes.chunk_of_stage  # always the same object: see Passes.methods
        chunks.clear()
        chunks.update(
            (index, chunk) for chunk, index in enumerate(sorted(stage.stage_index for stage in stages))
        )
        self.passes.last_stages.clear()
        self.passes.last_stages.update(stage.stage_index for stage in stages if stage.is_last)
        label = self.recorder.step_label = self.pipelines.label_of(schedule, stages)
        for stage in stages:
            self._observe_class(type(stage))
        is_known = label in self.pipelines.facts
        if is_known and len(self.pipelines.facts) > 1:  # schedules that alternate have been described
            return
        facts = schedule_facts(schedule, stages)
        self.pipelines.facts[label] = short_facts(facts["schedule"])
        if len(self.pipelines.facts) > 1:
            self.recorder.describe(schedules=dict(self.pipelines.facts))
            return
        parallel: dict[str, Any] = facts["parallel"]  # type: ignore[assignment]  # a dict of schedule_facts
        facts["parallel"] = {**parallel, **self._coordinates(stages, parallel.get("pp_ranks"))}
        self.recorder.describe(**facts)

    @never_raises(default={})
    def _coordinates(self, stages: list[Any], pipeline: list[int] | None) -> dict[str, int]:
        """Return the coordinates of this rank beside `pp`; without process groups there are none."""
        return find_coordinates(stages, pipeline) if pipeline else {}

    def _observe_overrides(self, guard: Guard, stage_class: type) -> None:
        """Observe the methods that subclasses of a stage override."""
        for owner in stage_class.__mro__:
            for point in OF_STAGES:
                self.patches.observe(owner, point.name, getattr(self, point.hook), guard)


class StepOfSchedule:
    """Watches the method that runs a schedule: a step of the training, or an evaluation."""

    def __init__(self, instrumentation: Instrumentation) -> None:
        self._instrumentation = instrumentation
        self._runs = instrumentation.runs
        self._messages = instrumentation.messages

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Prepare for the run of a schedule, and begin it."""
        del kwargs
        self._instrumentation.prepare(args[0])
        return self._runs.begin(evaluates=self._instrumentation.evaluates)

    def end(self, state: Run, result: Any) -> None:
        """End the run."""
        del result
        self._instrumentation.ranges.leave_all()
        self._runs.end(state)
        self._instrumentation.evaluates = False
        messages = self._messages
        if messages.pending or messages.under_way or messages.created:
            messages.close()

    def abandon(self, state: Run | None) -> None:
        """End a run that has failed."""
        self._instrumentation.ranges.leave_all()
        if state is not None:
            self._runs.fail(state)
        self._instrumentation.evaluates = False
        self._messages.close(is_done=False)


def local_stages(schedule: Any) -> list[Any]:
    """Return the stages that `schedule` runs on this rank."""
    many = getattr(schedule, "_stages", None)
    return list(many) if many is not None else [schedule._stage]  # noqa: SLF001  # no public name


def short_facts(schedule: Any) -> dict[str, object]:
    """Return the facts about one of several schedules, without its long list of actions."""
    return {name: value for name, value in schedule.items() if name != "actions"}


def schedule_facts(schedule: Any, stages: list[Any]) -> dict[str, object]:
    """Return the header facts about a schedule: its name, sizes, coordinates of this rank, and its actions."""
    import torch  # already imported by the training
    import torch.distributed as dist  # same

    first = stages[0]
    class_name = type(schedule).__name__
    with_comms = getattr(schedule, "pipeline_order_with_comms", None) or {}
    facts: dict[str, object] = {
        "framework": {"name": "torch", "version": torch.__version__},
        "device": str(first.device),
        "parallel": {"pp": first.group_rank, "pp_size": first.group_size},
        "schedule": {
            "name": class_name.removeprefix("Schedule"),
            "class": class_name,
            "microbatches": schedule._n_microbatches,  # noqa: SLF001  # no public name
            "stages": first.num_stages,
            "local_stages": sorted(stage.stage_index for stage in stages),
            "actions": [str(action) for action in with_comms.get(first.group_rank, ()) if action is not None],
        },
    }
    if dist.is_initialized():
        facts |= {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        facts["parallel"] = {
            **facts["parallel"],  # type: ignore[dict-item]  # the dict created above
            "pp_ranks": dist.get_process_group_ranks(first.group or dist.group.WORLD),
        }
    return facts
