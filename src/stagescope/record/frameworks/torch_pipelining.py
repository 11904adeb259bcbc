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
from stagescope.record.data_sizes import count_data
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import (
    ACTIONS,
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LOSS,
    Place,
    Runs,
    begin_action,
    end_action,
    leave_action,
)
from stagescope.record.frameworks.torch_actions import ActionRanges, customized_actions, range_class
from stagescope.record.frameworks.torch_coordinates import find_coordinates
from stagescope.record.frameworks.torch_messages import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Messages,
)
from stagescope.record.frameworks.torch_schedules import Pipelines
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.torch_pipelining import FRAMEWORK, OF_STAGES, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]


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
        self.chunk_of_stage: dict[int, int] = {}
        self.seen: set[tuple[int, int, int]] = set()
        self.evaluates = False
        self._entered: set[tuple[int, int, int]] = set()
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
        ranges = range_class(schedules.record_function, schedules.__name__)
        self.patches.observe(ranges, "__enter__", self.enter_range, guard)
        self.patches.observe(ranges, "__exit__", self.exit_range, guard)
        self.patches.replace(schedules, "record_function", ranges)
        self.optimizers.register(self.patches, guard)

    def forward(self, call: Call) -> Observation:
        """Observe ``forward_one_chunk``."""
        return self._action(FORWARD, call.owner, microbatch_of(call, "fwd_chunk_id"))

    def backward(self, call: Call) -> Observation:
        """Observe ``backward_one_chunk``, which torch also calls in an evaluation, where it does nothing."""
        kind = BACKWARD if call.get("full_backward", default=True) else BACKWARD_INPUT
        is_done = call.owner.has_backward
        return self._action(kind, call.owner, microbatch_of(call, "bwd_chunk_id"), is_done=is_done)

    def backward_weight(self, call: Call) -> Observation:
        """Observe ``backward_weight_one_chunk``."""
        return self._action(BACKWARD_WEIGHT, call.owner, microbatch_of(call, "bwd_chunk_id"))

    def loss(self, call: Call) -> Observation:
        """Observe ``_maybe_compute_loss``, which computes a loss on the last stage only."""
        stage = call.get("stage")
        is_done = stage.is_last and call.owner._loss_fn is not None  # noqa: SLF001  # no public name
        return self._action(LOSS, stage, call.get("mb_index"), is_done=is_done)

    def reduce_grad(self, call: Call) -> Observation:
        """Observe a method that reduces the gradients of a stage, or starts to: its collectives are recorded."""
        stage = call.owner.stage_index
        return self.collectives.observe_reduction(stage, self.chunk_of_stage.get(stage, NONE))

    def forward_receives(self, call: Call) -> Observation:
        """Observe ``get_fwd_recv_ops``."""
        microbatch = microbatch_of(call, "fwd_chunk_id")
        return self.messages.observe_creation(RECV_FORWARD, call.owner, microbatch)

    def forward_sends(self, call: Call) -> Observation:
        """Observe ``get_fwd_send_ops``."""
        microbatch = microbatch_of(call, "fwd_chunk_id")
        return self.messages.observe_creation(SEND_FORWARD, call.owner, microbatch)

    def backward_receives(self, call: Call) -> Observation:
        """Observe ``get_bwd_recv_ops``."""
        microbatch = microbatch_of(call, "bwd_chunk_id")
        return self.messages.observe_creation(RECV_BACKWARD, call.owner, microbatch)

    def backward_sends(self, call: Call) -> Observation:
        """Observe ``get_bwd_send_ops``."""
        microbatch = microbatch_of(call, "bwd_chunk_id")
        return self.messages.observe_creation(SEND_BACKWARD, call.owner, microbatch)

    def issue(self, call: Call) -> Observation:
        """Observe ``_batch_p2p``."""
        return self.messages.observe_issue(call.get("p2p_ops"))

    def issue_batch(self, call: Call) -> Observation:
        """Observe ``dist.batch_isend_irecv``, in which only the operations of stages are of interest."""
        return self.messages.observe_issue(call.get("p2p_op_list"))

    def enter_range(self, call: Call) -> Observation:
        """Observe the beginning of a range."""
        return self.ranges.observe_enter(call.owner)

    def exit_range(self, call: Call) -> Observation:
        """Observe the end of a range."""
        return self.ranges.observe_exit(call.owner, call.arguments[1])

    def inputs(self, call: Call) -> Observation:
        """Observe ``_check_inputs``, which returns the arguments of the first stage for each micro-batch of a step."""
        found = yield
        recorder = self.recorder
        if recorder.enabled and recorder.step != NONE and not self.evaluates and has_first_stage(call.owner):
            for microbatch, (args, kwargs) in enumerate(zip(*found, strict=True)):
                positional = dict(enumerate(args)) if isinstance(args, (list, tuple)) else {0: args}
                count_data(recorder, {**positional, **kwargs}, 0, microbatch)

    def step(self, call: Call) -> Observation:
        """Observe ``step``, which ``eval`` calls as well."""
        schedule = call.owner
        self._prepare(schedule)
        has_loss = schedule._loss_fn is not None  # noqa: SLF001  # no public name
        self.evaluates = has_loss and not schedule._has_backward  # noqa: SLF001  # same
        try:
            yield from self.runs.observe_evaluation() if self.evaluates else self.runs.observe_step()
        finally:
            self.evaluates = False
            self.messages.close()

    def end_action(self, token: Any, kind: int, stage: int, microbatch: int) -> None:
        """Record the action from `token` until now, and remember that it has been recorded."""
        recorder = self.recorder
        place = Place(stage, microbatch, self.chunk_of_stage.get(stage, NONE))
        end_action(recorder, token, kind, place, recorder.pair)
        recorder.actions += kind in ACTIONS
        self.seen.add((kind, stage, microbatch))

    def _action(self, kind: int, stage: Any, microbatch: int, *, is_done: bool = True) -> Observation:
        """Record a call as one action. If a subclass's method calls its parent's, only the outer one is recorded."""
        recorder = self.recorder
        key = (kind, stage.stage_index, microbatch)
        if not (is_done and recorder.enabled) or key in self._entered:
            return
        self._entered.add(key)
        mirror = recorder.mirror
        if mirror is not None:
            mirror.open(*key)
        begin_action(recorder, key[1], self.chunk_of_stage.get(key[1], NONE))
        try:
            token = recorder.timer.begin()
            if self.messages.expected:
                self.messages.used(*key, token)
            yield
            self.end_action(token, *key)
        finally:
            self._entered.discard(key)
            leave_action(recorder)
            if mirror is not None:
                mirror.close()

    def _prepare(self, schedule: Any) -> None:
        """Prepare for one run of `schedule`: discard the state of the last one, find its stages, describe it once."""
        self.seen.clear()
        self._entered.clear()
        self.optimizers.forget()
        self.messages.close()
        self.recorder.pair = NONE
        self.ranges.customized = customized_actions(schedule)
        if schedule is not self._described():
            self._described = weakref.ref(schedule)
            self._describe(schedule)

    @never_raises()
    def _describe(self, schedule: Any) -> None:
        stages = local_stages(schedule)
        self.recorder.timer.set_tensor_device(*(str(stage.device) for stage in stages))
        self.chunk_of_stage = {
            stage.stage_index: chunk
            for chunk, stage in enumerate(sorted(stages, key=lambda stage: stage.stage_index))
        }
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


def microbatch_of(call: Call, name: str) -> int:
    """Return the micro-batch of a call of a stage's method, which torch passes first.

    A subclass of the training may take ``*args`` or use another name.
    """
    microbatch = call.get(name)
    return call.arguments[1] if microbatch is None else microbatch  # type: ignore[no-any-return]  # as torch passes it


def local_stages(schedule: Any) -> list[Any]:
    """Return the stages that `schedule` runs on this rank."""
    many = getattr(schedule, "_stages", None)
    return list(many) if many is not None else [schedule._stage]  # noqa: SLF001  # no public name


def has_first_stage(schedule: Any) -> bool:
    """Return whether this rank runs the stage that gets the data."""
    return any(stage.is_first for stage in local_stages(schedule))


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
