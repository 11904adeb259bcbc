"""An action as the hooks of a framework record it: a call of a method that the recorder has wrapped.

The wrapper is the one of torch's stages, in C where the extension has been built for this Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.hooks import Guard, StageMethod, Timed, observed, prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

FORWARD = 1


class Stage:
    """A stage of a pipeline."""

    stage_index = 0

    def forward(self, microbatch: int, work: Callable[[], Any]) -> Any:
        """Compute one micro-batch."""
        del microbatch
        return work()


class HookedStage:
    """A stage whose forwards are recorded."""

    def __init__(self, recorder: Recorder) -> None:
        def identify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int, int]:
            del kwargs
            return FORWARD, 0, args[1], 0

        method = StageMethod(FORWARD, 0, 1, {Stage.stage_index: 0})
        timed = Timed(ActionsInProgress(recorder), identify, method=method)
        self.bare = Stage.forward
        self._recorder = recorder
        self._stage = Stage()
        self._wrapper = observed(
            Stage.forward, prepared(lambda _: timed), Guard(recorder, "the check on a GPU")
        )

    def forward(self, microbatch: int, work: Callable[[], Any]) -> Any:
        """Return what `work` does, as an action that is recorded."""
        return self._wrapper(self._stage, microbatch, work)

    @property
    def is_compiled(self) -> bool:
        """Whether the last action was recorded in C: the next ones are, too, as long as nothing is unusual."""
        return self._recorder.device_records is not None and self._recorder.plain is not None
