"""The actions of one framework that are in progress, for the wrapper of the functions that compute them.

If a subclass's method calls its parent's, only the outer one is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.runs import end_action, leave_action

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stagescope.record.recorder import Recorder

    Action = tuple[int, int, int, int]


class ActionsInProgress:
    """Actions as (kind, stage, micro-batch, chunk): those that have been `entered`."""

    def __init__(self, recorder: Recorder, expected: Collection[Any] = ()) -> None:
        self.recorder = recorder
        self.expected = expected
        self.note: Callable[[Action], object] = bool
        self.entered: set[Action] = set()

    def used(self, action: Action, token: Any) -> None:
        """Note that an action begins at `token`, while there is `expected` data."""

    def end(self, action: Action, token: Any) -> None:
        """Record the action from `token` until now."""
        kind, stage, microbatch, chunk = action
        end_action(self.recorder, token, kind, (stage, microbatch, chunk), self.recorder.pair)

    def open(self, action: Action) -> None:
        """Show the beginning of an action in other profilers."""
        if self.recorder.mirror is not None:
            self.recorder.mirror.open(*action[:3])

    def abandon(self, state: Action | None) -> None:
        """Leave an action that has failed, all of them if it is unknown which."""
        leave_action(self.recorder)
        if state is None:
            self.entered.clear()
        elif state in self.entered:
            self.entered.discard(state)
            if self.recorder.mirror is not None:
                self.recorder.mirror.close()
