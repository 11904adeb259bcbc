"""Observes PrimusPipe, the schedules of Primus that replace Megatron's, without a change to its source.

Observed functions and what they show (Primus fd1eeabb, primus/backends/megatron/core/pipeline_parallel/primuspipe);
points/primus.py declares them:

* ``PrimusPipelineParallelLauncher.run``: one run.
* ``forward_step`` in fwd_handler.py, which is Megatron's: its arguments contain micro-batch and chunk.
* ``backward_step`` in bwd_handler.py: it receives the tensor that its forward returned. It leaves its weight gradients
  to a later action if ``WGradRunningCache.cur_minibatch`` is set.
* ``combined_forward_backward_step`` in three handlers: a forward, a backward, or an overlapped pair of them.
* ``WGradRunningCache.flush``: the weight gradients; its arguments are micro-batch and chunk.

Sends and receives are not recorded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.parallel_groups import parallel_ranks
from stagescope.record.frameworks.primus_zero_bubble import HIDDEN
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
from stagescope.record.frameworks.transfers import first_of
from stagescope.record.installation import Installation
from stagescope.record.points.primus import GRADIENT_CACHE, PIPE, STATE

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

V_SHAPED = ("zbv-formatted", "v-half", "v-min")
"""Values of `pp_algorithm` whose second chunk goes back up the ranks."""

NAMES = {"1f1b": "1f1b", "1f1b-interleaved": "interleaved", "v-half": "v-half", "v-min": "v-min"}
"""Values of `pp_algorithm` that are schedules of the catalog."""


def instrument(
    launcher: ModuleType, recorder: Recorder, patches: Patches, modules: Mapping[str, object] | None = None
) -> None:
    """Observe `launcher`, the imported module; `modules` are others by name that replace those of ``sys.modules``."""
    given = {launcher.__name__: launcher, **(modules or {})}
    Installation(recorder, patches).install(PIPE, Instrumentation(recorder, patches, given), given)


class Instrumentation:
    """The observers and their state: this rank's place, and the outputs of forwards."""

    def __init__(
        self, recorder: Recorder, patches: Patches, modules: Mapping[str, object] | None = None
    ) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder, PIPE.framework)
        self._modules = modules or {}
        self._rank = self._ranks = NONE
        self._is_v = False
        self._described: object = None

    def run(self, call: Call) -> Observation:
        """Observe one run of the schedule."""
        run = self.runs.observe_evaluation if call.get("forward_only") else self.runs.observe_step
        return (yield from within(run(), within(self.runs.observe_alone(), self._schedule(call))))

    def forward(self, call: Call) -> Observation:
        """Observe Megatron's forward."""
        place = self._place(call.get("current_microbatch"), call.get("vp_stage"))
        result = yield from self.runs.observe_action(FORWARD, place)
        self._keep(result, place)
        return result

    def backward(self, call: Call) -> Observation:
        """Observe Megatron's backward."""
        place = self._take(call.get("output_tensor"))
        return (yield from self.runs.observe_action(self._kind_of_backward(), place))

    def merged(self, call: Call) -> Observation:
        """Observe Megatron's combined step: a forward, a backward, or both."""
        has_forward, has_backward = call.get("f_model") is not None, call.get("b_model") is not None
        place = self._place(call.get("current_microbatch"), call.get("f_model_chunk_id"))
        made = self._take(call.get("b_output_tensor")) if has_backward else UNKNOWN
        if has_forward and has_backward:
            result = yield from self.runs.observe_pair(place, made, self._kind_of_backward())
        elif has_backward:
            return (yield from self.runs.observe_action(self._kind_of_backward(), made))
        else:
            result = yield from self.runs.observe_action(FORWARD, place)
        self._keep(result, place)
        return result

    def weight(self, call: Call) -> Observation:
        """Observe the computation of the postponed weight gradients of one backward."""
        place = self._place(call.get("minibatch"), call.get("chunk"))
        return (yield from self.runs.observe_action(BACKWARD_WEIGHT, place))

    def _schedule(self, call: Call) -> Observation:
        self._begin_run(call)
        return (yield)

    @never_raises()
    def _begin_run(self, call: Call) -> None:
        launcher = call.owner
        self._rank, self._ranks = launcher.pp_rank, launcher.pp_size
        algorithm, chunks = launcher.pp_algorithm, launcher.vpp_size
        self._is_v = algorithm in V_SHAPED
        facts = (call.get("num_microbatches"), self._rank, self._ranks, algorithm)
        if facts == self._described or call.get("forward_only"):
            return
        self._described = facts
        self.recorder.coverage.installed(PIPE.framework, None, [HIDDEN])
        state: Any = self._modules.get(STATE) or sys.modules[STATE]
        self.recorder.describe(
            framework={"name": "primus"},
            parallel={"pp": self._rank, "pp_size": self._ranks, **parallel_ranks(state)},
            schedule={
                **({"name": NAMES[algorithm]} if algorithm in NAMES else {}),
                "class": f"PrimusPipelineParallelLauncher {algorithm}",
                "microbatches": call.get("num_microbatches"),
                "stages": self._ranks * chunks,
                "local_stages": [self._stage(chunk) for chunk in range(chunks)],
            },
        )

    def _stage(self, chunk: int) -> int:
        """Return the global stage of a chunk: round-robin, or down and up the ranks."""
        goes_up = self._is_v and chunk % 2 == 1
        return chunk * self._ranks + (self._ranks - 1 - self._rank if goes_up else self._rank)

    @never_raises(default=UNKNOWN)
    def _place(self, microbatch: int | None, chunk: int | None) -> Place:
        known = chunk or 0
        return Place(self._stage(known), NONE if microbatch is None else microbatch, known)

    @never_raises()
    def _keep(self, result: Any, place: Place) -> None:
        """Remember the place of a forward's output until its backward."""
        if self.recorder.enabled:
            self.runs.places.keep(first_of(result[0]), place)

    @never_raises(default=UNKNOWN)
    def _take(self, outputs: Any) -> Place:
        place: Place = self.runs.places.take(first_of(outputs), UNKNOWN)
        return place

    def _kind_of_backward(self) -> int:
        module, _, name = GRADIENT_CACHE.partition(":")
        cache = getattr(self._modules.get(module) or sys.modules.get(module), name, None)
        return BACKWARD if getattr(cache, "cur_minibatch", None) is None else BACKWARD_INPUT
