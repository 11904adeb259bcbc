"""Records the optimizer step once, even if several optimizers call each other.

The optimizer of a framework (Megatron's MegatronOptimizer, DeepSpeed's engine) steps one of torch's optimizers
inside, for which torch's own hooks fire as well. Only the outermost call is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import OPTIMIZER
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.torch_transfers import plain_transfers_of
from stagescope.record.hooks import prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.calls import Signature
    from stagescope.record.hooks import Guard, Watch
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]


class OptimizerSteps:
    """Times the outermost optimizer step of a process.

    `tokens` are the steps of torch's own that are in progress. `is_inside` is set in a step of a framework.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.is_inside = False
        self.tokens: dict[int, Any] = {}
        self._watches_torch = False

    def forget(self) -> None:
        """Discard a step that failed. Called at the beginning of each training step."""
        self.tokens.clear()

    @prepared
    def step(self, signature: Signature) -> Watch:
        """Observe a function or method of a framework that is the complete optimizer step."""
        del signature
        return OptimizerStep(self)

    def register(self, patches: Patches, guard: Guard) -> None:
        """Time the steps of torch's own optimizers through torch's public hooks. Registers them once."""
        from torch.optim import optimizer as optimizers  # already imported by the training

        if self._watches_torch:
            return
        self._watches_torch = True
        before, after = guard.callback(self._before), guard.callback(self._after)
        patches.on_undo(optimizers.register_optimizer_step_pre_hook(before).remove)
        patches.on_undo(optimizers.register_optimizer_step_post_hook(after).remove)
        patches.on_undo(self._forget_torch)

    def _forget_torch(self) -> None:
        self._watches_torch = False

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        recorder = self.recorder
        if self.is_inside or not recorder.enabled:
            return
        # Other trainings than those of a pipeline must not leave a recording.
        if recorder.seen.spans or recorder.is_training or plain_transfers_of(recorder).has_early:
            self.tokens[id(optimizer)] = recorder.timer.begin()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        token = self.tokens.pop(id(optimizer), None)
        if token is not None and not self.tokens and not self.is_inside and self.recorder.enabled:
            self.record(token)

    def record(self, token: Any) -> None:
        """Record a step that began at `token`."""
        recorder = self.recorder
        if recorder.timer.device is None:
            recorder.emit_action(OPTIMIZER, token, now_ns(), NONE, NONE, NONE)
        else:
            recorder.timer.end(token, OPTIMIZER)


class OptimizerStep:
    """Watches a function that is the complete optimizer step."""

    def __init__(self, steps: OptimizerSteps) -> None:
        self._steps = steps
        self._recorder = steps.recorder

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return when it begins, None inside another step and outside of the recorded ones."""
        del args, kwargs
        if self._steps.is_inside or not self._recorder.enabled:
            return None
        self._steps.is_inside = True
        return self._recorder.timer.begin()

    def end(self, state: Any, result: Any) -> None:
        """Record it."""
        del result
        self._steps.record(state)
        self._steps.is_inside = False

    def abandon(self, state: Any) -> None:
        """Leave a call that failed, without a record."""
        del state
        self._steps.is_inside = False


def optimizer_steps(recorder: Recorder) -> OptimizerSteps:
    """Return the OptimizerSteps of this recorder, shared by all frameworks of the process."""
    return shared(recorder, OptimizerSteps, recorder)
