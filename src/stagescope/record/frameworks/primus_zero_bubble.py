"""Observes the zero-bubble runtime of Primus, which replaces Megatron's schedules, without a change to its source.

Observed functions and what they show (Primus fd1eeabb,
primus/backends/megatron/core/pipeline_parallel/zerobubble/runtime.py); points/primus.py declares them:

* ``TrainingIteration.run``: one run. Its iteration_config has the schedule: all nodes of this rank.
* ``schedule_f_impl`` and ``schedule_b_impl`` of TrainingIteration: their node has micro-batch, chunk and stage (as
  `layer_group_idx`). They also wait for the input, so the action itself is the call inside of
* ``forward_step`` or ``backward_step``, Megatron's functions in this module. A backward leaves its weight gradients to
  a later action if ``WeightGradStore.should_split_bw`` is set.
* ``WeightGradStore.pop``: the postponed weight gradients of one backward. The store is a queue per chunk, so they come
  in the order of the backwards of that chunk.

Not recorded: sends and receives, and recomputations that are nodes of their own. Not recorded at all are schedules
that split sequences, whose actions have no number of their own in a recording, and iterations that begin in the
optimizer step of the one before (`--enable-optimizer-post-validation`).
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.parallel_groups import parallel_ranks
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    UNKNOWN,
    Place,
    Runs,
    within,
)
from stagescope.record.installation import Installation
from stagescope.record.points.primus import GRADIENTS, STATE, ZERO_BUBBLE

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

HIDDEN = "sends and receives of Primus' schedules"
RECOMPUTATION = "R"


def instrument(
    runtime: ModuleType, recorder: Recorder, patches: Patches, modules: Mapping[str, object] | None = None
) -> None:
    """Observe `runtime`, the imported module; `modules` are others by name that replace those of ``sys.modules``."""
    given = {runtime.__name__: runtime, **(modules or {})}
    Installation(recorder, patches).install(ZERO_BUBBLE, Instrumentation(recorder, patches, given), given)


class Instrumentation:
    """The observers and their state: the place of the action under way, and the backwards without weight gradients."""

    def __init__(
        self, recorder: Recorder, patches: Patches, modules: Mapping[str, object] | None = None
    ) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder, ZERO_BUBBLE.framework)
        self._unrecorded = Runs(recorder, ZERO_BUBBLE.framework)
        self._modules = modules or {}
        self._node: Any = None
        self._postponed: defaultdict[tuple[int, int], deque[Place]] = defaultdict(deque)
        self._described: object = None

    def iteration(self, call: Call) -> Observation:
        """Observe one run of the schedule."""
        config = getattr(call.owner, "iteration_config", None)
        run = (
            self.runs.observe_evaluation if getattr(config, "forward_only", False) else self.runs.observe_step
        )
        unrecorded = self._why_unrecorded(call.owner, config)
        inner = self._name(unrecorded) if unrecorded else self._schedule(config)
        alone = (self._unrecorded if unrecorded else self.runs).observe_alone()
        return (yield from within(run(), within(alone, inner)))

    def scheduled(self, call: Call) -> Observation:
        """Observe the function that runs a node, from the wait for its input to its result."""
        self._node = call.get("scheduled_node")
        try:
            return (yield)
        finally:
            self._node = None

    def forward(self, call: Call) -> Observation:
        """Observe Megatron's forward."""
        del call
        return (yield from self.runs.observe_action(FORWARD, place_of(self._node)))

    def backward(self, call: Call) -> Observation:
        """Observe Megatron's backward."""
        del call
        place, node = place_of(self._node), self._node
        is_split = bool(getattr(self._module_class(GRADIENTS), "should_split_bw", False))
        result = yield from self.runs.observe_action(BACKWARD_INPUT if is_split else BACKWARD, place)
        if is_split:
            self._postponed[place.chunk, getattr(node, "seq_split_idx", 0)].append(place)
        return result

    def weight(self, call: Call) -> Observation:
        """Observe the computation of the postponed weight gradients of one backward."""
        waiting = self._postponed.get((call.get("chunk", 0), call.get("seq_split_idx", 0)))
        place = waiting.popleft() if waiting else UNKNOWN
        return (yield from self.runs.observe_action(BACKWARD_WEIGHT, place))

    def _schedule(self, config: Any) -> Observation:
        self._postponed.clear()
        self._describe(config)
        return (yield)

    def _name(self, schedule: str) -> Observation:
        self.recorder.coverage.schedule_is_unrecorded(ZERO_BUBBLE.framework, schedule)
        return (yield)

    @never_raises(default="")
    def _why_unrecorded(self, iteration: Any, config: Any) -> str:
        """Return a name for the schedule if it cannot be recorded, else an empty text."""
        if any(node.seq_split_idx for node in config.schedules):
            return "zero-bubble runtime with num_seq_splits > 1"
        if iteration.states.it:
            return "zero-bubble runtime with enable_optimizer_post_validation"
        return ""

    @never_raises()
    def _describe(self, config: Any) -> None:
        state: Any = self._modules.get(STATE) or sys.modules[STATE]
        rank, ranks = (
            state.get_pipeline_model_parallel_rank(),
            state.get_pipeline_model_parallel_world_size(),
        )
        nodes = config.schedules
        facts = (config.num_microbatches, rank, ranks, len(nodes))
        if config.forward_only or facts == self._described:
            return
        self._described = facts
        has_recomputations = any(node.type.value == RECOMPUTATION for node in nodes)
        hidden = [HIDDEN, *(["recomputations that are scheduled on their own"] if has_recomputations else [])]
        self.recorder.coverage.installed(ZERO_BUBBLE.framework, None, hidden)
        stages = _stages(nodes)
        self.recorder.describe(
            framework={"name": "primus"},
            parallel={"pp": rank, "pp_size": ranks, **parallel_ranks(state)},
            schedule={
                "class": "TrainingIteration",
                "microbatches": config.num_microbatches,
                "stages": ranks * len(stages),
                "local_stages": stages,
            },
        )

    def _module_class(self, path: str) -> object:
        module, _, name = path.partition(":")
        return getattr(self._modules.get(module) or sys.modules.get(module), name, None)


def place_of(node: Any) -> Place:
    """Return the place of a node of the schedule."""
    if node is None:
        return UNKNOWN
    stage = node.layer_group_idx
    return Place(NONE if stage is None else stage, node.microbatch, node.chunk)


def _stages(nodes: Sequence[Any]) -> list[int]:
    """Return the stages of this rank in the order of its chunks."""
    of_chunk = {node.chunk: node.layer_group_idx for node in nodes if node.type.value == "F"}
    return [of_chunk[chunk] for chunk in sorted(of_chunk)]
