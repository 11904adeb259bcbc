"""Watches the functions of a framework that compute one action each, without a generator for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import begin_action, end_action, leave_action

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.calls import Signature
    from stagescope.record.frameworks.runs import Place, Runs

    State = tuple[Place, Any]


class ActionWatch:
    """Records each call of a function as one action of `kind`.

    `place_of` returns the place of a call that begins while recording, None for a call that is no action. `done`
    receives the result and the place of a call that has ended, and `left` is called after each action, failed or not.
    """

    def __init__(
        self,
        runs: Runs,
        kind: int,
        signature: Signature,
        place_of: Callable[[Call], Place | None],
        done: Callable[[Any, Place], object] | None = None,
    ) -> None:
        self._runs = runs
        self._recorder = runs.recorder
        self._kind = kind
        self._signature = signature
        self._place_of = place_of
        self._done = done

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State | None:
        """Begin the action."""
        recorder = self._recorder
        if not recorder.enabled or (recorder.alone is not None and recorder.alone is not self._runs):
            self.pass_by(args, kwargs)
            return None
        place = self._place_of(Call(self._signature, args, kwargs))
        if place is None:
            return None
        recorder.actions += 1
        if recorder.mirror is not None:
            recorder.mirror.open(self._kind, place[0], place[1])
        begin_action(recorder, place[0], place[2])
        return place, recorder.timer.begin()

    def end(self, state: State, result: Any) -> None:
        """Record the action."""
        recorder, (place, token) = self._recorder, state
        if recorder.timer.device is None and recorder.computed is None:
            recorder.emit_action(self._kind, token, now_ns(), *place)
        else:
            end_action(recorder, token, self._kind, place)
        if self._done is not None:
            self._done(result, place)
        recorder.stage = recorder.chunk = NONE
        recorder.counts_collectives = False
        self.left()
        if recorder.mirror is not None:
            recorder.mirror.close()

    def abandon(self, state: State | None) -> None:
        """Leave an action that has failed."""
        leave_action(self._recorder)
        self.left()
        if state is not None and self._recorder.mirror is not None:
            self._recorder.mirror.close()

    def describe(self, state: State) -> dict[str, object]:
        """Return the action in progress, see record/process_state.py."""
        from stagescope.record.process_state import action_facts  # only needed when nothing else happens

        (stage, microbatch, chunk), token = state
        return action_facts((self._kind, stage, microbatch, chunk), token)

    def pass_by(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See a call that is not recorded."""

    def left(self) -> None:
        """Note that a call has ended."""
