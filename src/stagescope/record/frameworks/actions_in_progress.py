"""The actions of one framework that are in progress, for the wrapper of the functions that compute them.

If a subclass's method calls its parent's, only the outer one is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.runs import end_action

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.record.recorder import Recorder

    Action = tuple[int, int, int, int]


class ActionsInProgress:
    """Actions as (kind, stage, micro-batch, chunk).

    The last that has begun is `recorder.action`; those around it are in a set, which is usually empty.
    """

    __slots__ = ("_around", "expected", "pending", "recorder")

    def __init__(self, recorder: Recorder, expected: Collection[Any] = ()) -> None:
        self.recorder = recorder
        self.expected = expected
        self.pending: Any = None
        self._around: set[Action] = set()

    def forget(self) -> None:
        """Forget all actions in progress."""
        self.recorder.action = None
        self._around.clear()

    def enters(self, action: Action, outer: Action) -> bool:
        """Return whether an action that begins inside of `outer` is none of those in progress."""
        if action == outer or action in self._around:
            return False
        self._around.add(outer)
        self.recorder.unsettle()
        return True

    def leave(self, action: Action, outer: Action | None) -> None:
        """End an action that began inside of `outer`, or while another thread began or ended one."""
        self._around.discard(action)
        if self.recorder.action == action:
            around = self._around
            if outer is not None and outer in around:
                around.discard(outer)
                self.recorder.action = outer
            else:  # it failed, or the action around it has ended in another thread
                self.recorder.action = around.pop() if around else None

    def used(self, action: Action, token: Any) -> None:
        """Note that an action begins at `token`, while there is `expected` data."""

    def end(self, action: Action, token: Any, outer: Action | None) -> None:
        """Record the action from `token` until now, and end it."""
        recorder = self.recorder
        kind, stage, microbatch, chunk = action
        if recorder.computed is None:
            recorder.timer.end(token, kind, stage, microbatch, chunk, 0, recorder.pair)
        else:
            end_action(recorder, token, kind, (stage, microbatch, chunk), recorder.pair)
        if not recorder.has_actions:
            recorder.has_actions = recorder.seen.spans = True
        if recorder.noted is not None:
            recorder.noted.add(action)
        if outer is None and recorder.action is action:
            recorder.action = None
        else:
            self.leave(action, outer)
        if recorder.mirror is not None:
            recorder.mirror.close()
        if recorder.action is None and (recorder.timer.device is None or recorder.device_records is not None):
            recorder.settle()

    def open(self, action: Action) -> None:
        """Show the beginning of an action in other profilers."""
        if self.recorder.mirror is not None:
            self.recorder.mirror.open(*action[:3])

    def abandon(self, state: Action | None) -> None:
        """Leave an action that has failed, all of them if it is unknown which."""
        recorder = self.recorder
        recorder.computed = None
        if state is None:
            self.forget()
        elif state == recorder.action or state in self._around:
            self.leave(state, None)
            if recorder.mirror is not None:
                recorder.mirror.close()
