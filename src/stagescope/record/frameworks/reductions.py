"""Calls whose collectives reduce the gradients of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.frameworks.collectives import Collectives


class Reduction:
    """Watches a function whose collectives reduce the gradients of a stage.

    `place` returns the stage and the chunk of a call.
    """

    def __init__(
        self, collectives: Collectives, place: Callable[[tuple[Any, ...], dict[str, Any]], tuple[int, int]]
    ) -> None:
        self._collectives = collectives
        self._recorder = collectives.recorder
        self._place = place

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, bool]:
        """Record the collectives of the call one by one, as reductions."""
        recorder = self._recorder
        stage, chunk = self._place(args, kwargs)
        before = recorder.stage, recorder.chunk, recorder.counts_collectives
        recorder.stage, recorder.chunk = stage, chunk
        recorder.counts_collectives = False
        self._collectives.reductions += 1
        return before

    def end(self, state: tuple[int, int, bool], result: Any) -> None:
        """Continue as before the call."""
        del result
        recorder = self._recorder
        recorder.stage, recorder.chunk, recorder.counts_collectives = state
        self._collectives.reductions -= 1

    def abandon(self, state: tuple[int, int, bool] | None) -> None:
        """Continue as before a call that failed."""
        if state is not None:
            self.end(state, None)
