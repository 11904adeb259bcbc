"""Instruments every schedule of torch.distributed.pipelining (torch 2.13) without a change to the training.

Wrapped functions and what they show (torch 2.13.0, torch/distributed/pipelining/schedules.py and stage.py):

* The compute methods of ``_PipelineStageBase``: they exclude the wait for the input.
* ``get_*_ops``: they know stage and micro-batch of each P2POp, so the operations are tagged there.
* The module globals ``_batch_p2p`` and ``_wait_batch_p2p``, through which every schedule issues and waits.
* ``step`` of the two base classes of schedules, which count the training steps.
* The module global ``record_function``, entered for every action of the runtime schedules: it shows which actions
  overlap, and catches actions that a custom function performs without the stage's methods.

Do not use ``pipeline_order`` to judge the bubble of the last rank of 1F1B: torch 2.13.0 numbers its forwards from 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.torch_actions import make_action_range
from stagescope.record.frameworks.torch_messages import Messages
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, GRAD_REDUCE, LOSS = (
    BY_NAME[name].code
    for name in (
        "forward",
        "backward",
        "backward_input",
        "backward_weight",
        "grad_reduce",
        "loss",
    )
)
COMPUTE_METHODS = (
    "forward_one_chunk",
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "perform_reduce_grad",
)


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `schedules`, the imported module torch.distributed.pipelining.schedules, and what it uses."""
    from torch.distributed.pipelining import stage as stages  # already imported by schedules

    Instrumentation(recorder, patches).install(schedules, stages)


class Instrumentation:
    """The wrappers and their shared state: the messages in progress and the actions recorded in this step."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.messages = Messages(recorder)
        self.chunk_of_stage: dict[int, int] = {}
        self.seen: set[tuple[int, int, int]] = set()
        self.evaluates = False
        self._entered: set[tuple[int, int, int]] = set()
        self.optimizers = optimizer_steps(recorder)
        self._described: object = None

    def install(self, schedules: ModuleType, stages: ModuleType) -> None:
        """Replace class attributes and module globals; `patches` can restore them."""
        wrap = self.patches.wrap
        self._base = stages._PipelineStageBase  # noqa: SLF001  # the common base class has no public name
        self.wrap_stage_class(self._base)
        for method, kind in self.messages.SOURCES.items():
            wrap(self._base, method, self.messages.tag_operations(kind))
        wrap(schedules, "_batch_p2p", self.messages.watch_issue)
        wrap(schedules, "_wait_batch_p2p", self.messages.watch_wait)
        wrap(schedules._PipelineSchedule, "_maybe_compute_loss", self._loss)  # noqa: SLF001  # same
        for schedule in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
            wrap(schedule, "step", self._step)
        self.patches.replace(schedules, "record_function", make_action_range(schedules.record_function, self))
        self.optimizers.watch_torch(self.patches)

    def wrap_stage_class(self, stage_class: type) -> None:
        """Wrap the compute methods that `stage_class` itself defines."""
        makers = (self._forward, self._backward, self._backward_weight, self._reduce_grad)
        for method, maker in zip(COMPUTE_METHODS, makers, strict=True):
            self.patches.wrap(stage_class, method, maker)

    def end_action(self, token: Any, kind: int, stage: int, microbatch: int) -> None:
        """Record the action from `token` until now, and remember that it has been recorded."""
        recorder = self.recorder
        recorder.timer.end(
            token, kind, stage, microbatch, self.chunk_of_stage.get(stage, NONE), 0, recorder.pair
        )
        self.seen.add((kind, stage, microbatch))

    def _timed(self, kind: int, stage: int, microbatch: int, call: Callable[[], Any]) -> Any:
        """Run `call` as one action. If a subclass's method calls its parent's, only the outer one is recorded."""
        key = (kind, stage, microbatch)
        if not self.recorder.enabled or key in self._entered:
            return call()
        self._entered.add(key)
        if self.recorder.mirror is not None:
            call = self.recorder.mirror.around(kind, stage, microbatch, call)
        token = self.recorder.timer.begin()
        try:
            result = call()
            self.end_action(token, kind, stage, microbatch)
        finally:
            self._entered.discard(key)
        return result

    def _forward(self, original: Function) -> Function:
        def forward_one_chunk(stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            return self._timed(
                FORWARD,
                stage.stage_index,
                fwd_chunk_id,
                lambda: original(stage, fwd_chunk_id, *args, **kwargs),
            )

        return forward_one_chunk

    def _backward(self, original: Function) -> Function:
        def backward_one_chunk(
            stage: Any,
            bwd_chunk_id: int,
            loss: Any = None,
            full_backward: bool = True,  # noqa: FBT001, FBT002  # torch's signature
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if not stage.has_backward:  # an evaluation: torch calls this, but it does nothing
                return original(stage, bwd_chunk_id, loss, full_backward, *args, **kwargs)
            return self._timed(
                BACKWARD if full_backward else BACKWARD_INPUT,
                stage.stage_index,
                bwd_chunk_id,
                lambda: original(stage, bwd_chunk_id, loss, full_backward, *args, **kwargs),
            )

        return backward_one_chunk

    def _backward_weight(self, original: Function) -> Function:
        def backward_weight_one_chunk(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            return self._timed(
                BACKWARD_WEIGHT,
                stage.stage_index,
                bwd_chunk_id,
                lambda: original(stage, bwd_chunk_id, *args, **kwargs),
            )

        return backward_weight_one_chunk

    def _reduce_grad(self, original: Function) -> Function:
        def perform_reduce_grad(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if not stage.has_backward:
                return original(stage, *args, **kwargs)
            return self._timed(GRAD_REDUCE, stage.stage_index, NONE, lambda: original(stage, *args, **kwargs))

        return perform_reduce_grad

    def _loss(self, original: Function) -> Function:
        def _maybe_compute_loss(
            schedule: Any,
            stage: Any,
            output: Any,
            target_mbs: Any,
            mb_index: int,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def call() -> Any:
                return original(schedule, stage, output, target_mbs, mb_index, *args, **kwargs)

            if not stage.is_last or schedule._loss_fn is None:  # noqa: SLF001  # torch computes no loss here
                return call()
            return self._timed(LOSS, stage.stage_index, mb_index, call)

        return _maybe_compute_loss

    def _step(self, original: Function) -> Function:
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if schedule._loss_fn and not schedule._has_backward:  # noqa: SLF001  # `eval`: belongs to no step
                return self._evaluation(original, schedule, args, kwargs)
            start_ns = self.recorder.begin_step()
            self._prepare(schedule)
            result = original(schedule, *args, **kwargs)
            self.messages.close()
            self.recorder.end_step(start_ns)
            return result

        return step

    def _evaluation(self, original: Function, schedule: Any, args: Any, kwargs: Any) -> Any:
        step, self.recorder.step = self.recorder.step, NONE
        self._prepare(schedule)
        self.evaluates = True
        try:
            return original(schedule, *args, **kwargs)
        finally:
            self.evaluates = False
            self.messages.close()
            self.recorder.step = step

    def _prepare(self, schedule: Any) -> None:
        """Prepare for one run of `schedule`: discard the state of the last one, find its stages, describe it once."""
        self.seen.clear()
        self._entered.clear()
        self.optimizers.forget()
        self.messages.close()
        if schedule is self._described or not self.recorder.enabled:
            return
        self._described = schedule
        stages = local_stages(schedule)
        self.recorder.timer.set_tensor_device(str(stages[0].device))
        self.chunk_of_stage = {
            stage.stage_index: chunk
            for chunk, stage in enumerate(sorted(stages, key=lambda stage: stage.stage_index))
        }
        for stage in stages:
            for stage_class in type(stage).__mro__:
                if issubclass(stage_class, self._base):
                    self.wrap_stage_class(stage_class)
        self.recorder.describe(**schedule_facts(schedule, stages))


def local_stages(schedule: Any) -> list[Any]:
    """Return the stages that `schedule` runs on this rank."""
    many = getattr(schedule, "_stages", None)
    return list(many) if many is not None else [schedule._stage]  # noqa: SLF001  # no public name


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
