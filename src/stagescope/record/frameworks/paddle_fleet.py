"""Instruments all schedulers of Paddle fleet's dynamic-graph pipeline without a change to the training.

Wrapped functions and what they show (Paddle 3.3.1, paddle/distributed/fleet/meta_parallel/pipeline_parallel.py):

* ``register_global_pipeline_parallel_hook``, public: hooks at the begin and end of each pass, around the layers only.
* ``_forward_step`` and ``_backward_step``: they know the chunk, which the hooks do not receive. In versions without
  hooks these functions are timed themselves. The passes of a chunk run in micro-batch order; `step_id` equals the
  micro-batch only with a single chunk.
* ``train_batch``, ``forward_backward_pipeline`` (the only one that PaddleNLP's trainer calls) and ``eval_batch``: the
  runs.
* ``P2pHelper`` and the module global ``_p2p_helper``, which all transfers go through (see paddle_transfers.py).

Paddle's own timeline (``pp_configs.profiling``) synchronizes the device at every timestamp; this module does not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.paddle_transfers import PaddleTransfers
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, LOSS, OPTIMIZER, UNKNOWN, Place, Runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

SCHEDULES = {
    "PipelineParallel": "1f1b",
    "PipelineParallelWithInterleave": "interleaved",
    "PipelineParallelWithInterleaveFthenB": "looped-bfs",
    "VPPFhenBInBalancedMemory": "looped-bfs",
}
"""Paddle's schedulers, and the usual names of their orders."""


def instrument(pipelines: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `pipelines`, the imported module paddle.distributed.fleet.meta_parallel.pipeline_parallel."""
    Instrumentation(recorder, patches).install(pipelines)


class Instrumentation:
    """The wrappers and their shared state: the run, the action inside it and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.transfers = PaddleTransfers(self.runs)
        self._has_hooks = False
        self._action: tuple[int, Place] | None = None
        self._token: Any = None
        self._begun = False
        self._in_optimizer = False
        self._described: object = None

    def install(self, pipelines: ModuleType) -> None:
        """Register the hooks, and replace class attributes and a module global; `patches` can undo both."""
        self._base = pipelines.PipelineParallel
        for value in list(vars(pipelines).values()):
            if isinstance(value, type) and issubclass(value, self._base):
                self._wrap_class(value)
        self._register_hooks(pipelines)
        self.transfers.install(pipelines.p2p, self.patches)
        self.patches.wrap(pipelines.HybridParallelOptimizer, "step", self._optimizer)

    def _wrap_class(self, pipeline: type) -> None:
        """Wrap the methods that a scheduler class itself defines."""
        for name, maker in (
            ("train_batch", self._step),
            ("forward_backward_pipeline", self._step),
            ("eval_batch", self._evaluation),
            ("_forward_step", self._forward),
            ("_backward_step", self._backward),
            ("_maybe_loss_compute", self._loss),
            ("_forward_backward_helper", self._overlapped),
        ):
            self.patches.wrap(pipeline, name, maker)

    def _register_hooks(self, pipelines: ModuleType) -> None:
        """Register hooks at the begin and end of passes.

        In a version of Paddle without hooks, the whole ``_forward_step`` is recorded instead.
        """
        callbacks = getattr(pipelines, "pipeline_parallel_callbacks_", None)
        locations = getattr(pipelines, "PipelineParallelMicroStepLocations", None)
        if callbacks is None or locations is None:
            return
        for name, hook in (
            ("FORWARD_BEGIN", self._begin_action),
            ("FORWARD_END", self._end_action),
            ("BACKWARD_BEGIN", self._begin_action),
            ("BACKWARD_END", self._end_action),
        ):
            location = getattr(locations, name)
            pipelines.register_global_pipeline_parallel_hook(location, hook)
            self.patches.on_undo(partial(callbacks.hooks[location].remove, hook))
        self._has_hooks = True

    def _begin_action(self, **arguments: Any) -> None:
        del arguments
        if self._action is None:
            return
        kind, place = self._action
        if self.recorder.mirror is not None:
            self.recorder.mirror.open(kind, place.stage, place.microbatch)
        self._begun = True
        self._token = self.recorder.timer.begin()

    def _end_action(self, **arguments: Any) -> None:
        del arguments
        if self._action is None or not self._begun:
            return
        kind, place = self._action
        token, self._token, self._begun = self._token, None, False
        self.recorder.timer.end(token, kind, *place)
        if self.recorder.mirror is not None:
            self.recorder.mirror.close()

    def _step(self, original: Function) -> Function:
        def run(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
            def call() -> Any:
                return original(pipeline, *args, **kwargs)

            if kwargs.get("static_scheduler"):  # only prints the schedule
                return call()
            return self.runs.step(lambda: self._prepared(pipeline, call))

        return run

    def _evaluation(self, original: Function) -> Function:
        def eval_batch(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
            def call() -> Any:
                return original(pipeline, *args, **kwargs)

            return self.runs.evaluation(lambda: self._prepared(pipeline, call))

        return eval_batch

    def _prepared(self, pipeline: Any, call: Callable[[], Any]) -> Any:
        """Run `call`; before it, describe the pipeline once; after it, discard the messages in progress."""
        self._action, self._begun = None, False
        if pipeline is not self._described and self.recorder.enabled:
            self._described = pipeline
            for defining in type(pipeline).__mro__:
                if issubclass(defining, self._base):
                    self._wrap_class(defining)
            self._describe(pipeline)
        try:
            return call()
        finally:
            self.transfers.close()

    @never_raises()
    def _describe(self, pipeline: Any) -> None:
        """Describe the pipeline and its device in the header."""
        import paddle  # already imported by the training

        device = paddle.get_device()
        self.recorder.timer.set_tensor_device(device)
        if not device.startswith("cpu") and self.recorder.timer.device is None:
            self.recorder.warn(
                f"Paddle's passes on {device} are recorded with their launch times on the host"
            )
            self.recorder.describe(clock_of_actions="host launches")
        self.transfers.learn(pipeline, device)
        self.recorder.describe(device=device, **pipeline_facts(pipeline))

    def _place(self, pipeline: Any, kind: int, chunk: int | None) -> Place:
        """Return the place of the chunk's next action; without chunks, the chunk has no number."""
        rank = getattr(pipeline, "stage_id", NONE)
        number = self.runs.next_number(kind, chunk or 0)
        if chunk is None:
            return Place(rank, number)
        return Place(chunk * getattr(pipeline, "num_stages", 1) + rank, number, chunk)

    def _forward(self, original: Function) -> Function:
        def _forward_step(
            pipeline: Any,
            input_tensor: Any,
            micro_dataset: Any,
            chunk_id: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if not self.runs.inside:
                return original(pipeline, input_tensor, micro_dataset, chunk_id, *args, **kwargs)
            place = self._place(pipeline, FORWARD, chunk_id)
            self.transfers.arrived(input_tensor, place)
            result = self._run_action(
                (FORWARD, place),
                lambda: original(pipeline, input_tensor, micro_dataset, chunk_id, *args, **kwargs),
            )
            if not pipeline.is_pipeline_last_stage():  # the loss is not sent and would be kept
                self.transfers.made(result[0] if isinstance(result, tuple) and result else result, place)
            return result

        return _forward_step

    def _backward(self, original: Function) -> Function:
        def _backward_step(
            pipeline: Any,
            input_tensor: Any,
            output_tensor: Any,
            output_tensor_grad: Any,
            chunk_id: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:  # fmt: skip
            def call() -> Any:
                return original(
                    pipeline, input_tensor, output_tensor, output_tensor_grad, chunk_id, *args, **kwargs
                )

            if not self.runs.inside:
                return call()
            place = self._place(pipeline, BACKWARD, chunk_id)
            self.transfers.arrived(output_tensor_grad, place)
            gradient = self._run_action((BACKWARD, place), call)
            self.transfers.made(gradient, place)
            return gradient

        return _backward_step

    def _run_action(self, action: tuple[int, Place], call: Callable[[], Any]) -> Any:
        """Run a pass. It is recorded by its hooks or, in versions without hooks, here."""
        if not self._has_hooks:
            return self.runs.action(*action, call)
        self._action = action if self.recorder.enabled else None
        try:
            return call()
        finally:
            if self._begun and self.recorder.mirror is not None:  # the pass has failed before its end
                self.recorder.mirror.close()
            self._action, self._begun = None, False

    def _loss(self, original: Function) -> Function:
        def _maybe_loss_compute(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
            def call() -> Any:
                return original(pipeline, *args, **kwargs)

            if self._action is None or not getattr(pipeline, "_compute_loss", False):
                return call()
            if not pipeline.is_pipeline_last_stage():  # Paddle computes the loss on the last stage only
                return call()
            return self.runs.action(LOSS, self._action[1], call)

        return _maybe_loss_compute

    def _overlapped(self, original: Function) -> Function:
        """Return the wrapper of the function that overlaps a forward and a backward.

        Paddle calls no hooks for the two.
        """

        def _forward_backward_helper(
            pipeline: Any, dataset: Any, forward: int, backward: int, *args: Any, **kwargs: Any
        ) -> Any:
            def call() -> Any:
                return original(pipeline, dataset, forward, backward, *args, **kwargs)

            if not self.runs.inside or not getattr(pipeline, "overlap_schedule_mode", False):
                return call()
            of_rank = pipeline._get_virtual_pp_rank  # noqa: SLF001  # no public name
            forward_place = self._place(pipeline, FORWARD, of_rank(forward, forward=True))
            backward_place = self._place(pipeline, BACKWARD, of_rank(backward, forward=False))
            return self.runs.pair(forward_place, backward_place, call)

        return _forward_backward_helper

    def _optimizer(self, original: Function) -> Function:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_optimizer:
                return original(optimizer, *args, **kwargs)
            self._in_optimizer = True
            try:
                return self.runs.action(OPTIMIZER, UNKNOWN, lambda: original(optimizer, *args, **kwargs))
            finally:
                self._in_optimizer = False
                self.recorder.flush_soon()

        return step


def pipeline_facts(pipeline: Any) -> dict[str, object]:
    """Return the header facts about a pipeline: its order, sizes, and the coordinates of this rank."""
    import paddle  # already imported by the training
    from paddle import distributed  # same

    groups = pipeline._hcg  # noqa: SLF001  # no public name
    class_name = next((c.__name__ for c in type(pipeline).__mro__ if c.__name__ in SCHEDULES), "")
    schedule = SCHEDULES.get(class_name)
    if schedule == "interleaved" and getattr(pipeline, "overlap_schedule_mode", False):
        schedule = "interleaved-overlap"
    sharded = (
        groups.get_sharding_parallel_world_size()
    )  # its ranks are replicas, each with a part of the optimizer state
    chunks = getattr(pipeline, "num_model_chunks", 1)
    stages = [chunk * pipeline.num_stages + pipeline.stage_id for chunk in range(chunks)]
    return {
        "framework": {"name": "paddle", "version": paddle.__version__},
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "parallel": {
            "pp": pipeline.stage_id,
            "pp_size": pipeline.num_stages,
            "dp": groups.get_data_parallel_rank() * sharded + groups.get_sharding_parallel_rank(),
            "dp_size": groups.get_data_parallel_world_size() * sharded,
            "tp": groups.get_model_parallel_rank(),
            "tp_size": groups.get_model_parallel_world_size(),
            "pp_ranks": list(groups.get_pipe_parallel_group().ranks),
        },
        "schedule": {
            "name": schedule,
            "class": type(pipeline).__name__,
            "microbatches": pipeline.accumulate_steps,
            "stages": pipeline.num_stages * chunks,
            "local_stages": stages,
        },
    }
