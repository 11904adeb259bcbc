"""Gradient reductions at the end of a step of torch.distributed.pipelining.

From torch 2.10 on, ``perform_reduce_grad`` is a reduction. With torch 2.15 and FSDP, the runtime schedules begin it in
the action REDUCE_GRAD and end it in WAIT_REDUCE_GRAD, with other actions in between; the schedules with one stage still
call ``perform_reduce_grad``, which does both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]

GRAD_REDUCE = BY_NAME["grad_reduce"].code


class Reductions:
    """The asynchronous reductions in progress, by stage."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._begun: dict[int, Any] = {}

    def forget(self) -> None:
        """Discard reductions that have not ended."""
        self._begun.clear()

    def observe_start(self, stage: int) -> Observation:
        """Observe a call that starts the reduction of a stage without waiting for it."""
        self._begun[stage] = self.recorder.timer.begin()
        yield

    def observe_wait(self, stage: int, chunk: int) -> Observation:
        """Observe the wait that ends the reduction of a stage."""
        timer, step = self.recorder.timer, self.recorder.step
        wait_start = timer.begin()
        yield

        def emit(start_ns: int, wait_start_ns: int, end_ns: int) -> None:
            wait = {"wait_start_ns": wait_start_ns, "wait_end_ns": end_ns}
            self.recorder.emit(GRAD_REDUCE, start_ns, end_ns, stage, chunk=chunk, step=step, **wait)

        timer.resolve(emit, self._begun.pop(stage, wait_start), wait_start, timer.begin())
