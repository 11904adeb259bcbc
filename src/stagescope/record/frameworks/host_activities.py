"""What the host does between the steps of a pipeline: data loading, checkpoints and the like, as spans with a name.

Only the main thread is recorded: what another thread does meanwhile makes no step longer. Of an activity inside
another one of the same name, only the outer one is recorded: a framework's checkpoint consists of those of torch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.frameworks.shared import shared
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

OTHER = BY_NAME["other"].code
DATA_LOADING = "data loading"
CHECKPOINT = "checkpoint"
CLIPPING = "gradient clipping"
LEARNING_RATE = "learning rate"
EVALUATION = "evaluation"
LOGGING = "logging"
INITIALIZATION = "stage initialization"
SHORTEST_NS = 100_000
"""Activities of functions that mostly have nothing to do are recorded from this length on."""


class HostActivities:
    """Records the activities of one process. `forward` is the place of a forward that may load its data."""

    __slots__ = ("_inside", "forward", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.forward: tuple[int, int, int] | None = None
        self._inside: set[str] = set()

    def observe(self, name: str) -> Observation:
        """Observe a call that is an activity, even if it raises: the end of an epoch is an exception."""
        recorder = self.recorder
        is_main = threading.get_ident() == threading.main_thread().ident
        if not recorder.is_training or not is_main or name in self._inside:
            return (yield)
        self._inside.add(name)
        start_ns = now_ns()
        try:
            return (yield)
        finally:
            self._inside.discard(name)
            recorder.emit(OTHER, start_ns, now_ns(), name=recorder.name_id(name))


class Occasional:
    """Watches a function that does its work in few of its calls, such as the first, as an activity of that name."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Return when the call began."""
        del args, kwargs
        return now_ns() if self._recorder.enabled else None

    def end(self, state: int, result: Any) -> None:
        """Record a call that did something."""
        del result
        end_ns, recorder = now_ns(), self._recorder
        if end_ns - state >= SHORTEST_NS and recorder.is_training:
            recorder.emit(OTHER, state, end_ns, name=recorder.name_id(self._name))

    def abandon(self, state: Any) -> None:
        """Forget a call that failed."""


def activities_of(recorder: Recorder) -> HostActivities:
    """Return the HostActivities of this recorder, shared by all frameworks of the process."""
    return shared(recorder, HostActivities, recorder)
