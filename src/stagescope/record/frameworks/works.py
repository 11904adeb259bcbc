"""Waits for transfers, observed where torch waits: at ``Work.wait``, the handle of an asynchronous transfer.

Schedules pass handles on, store them, and wait for them somewhere else. The handles themselves are left as they are
(a replaced handle would be another object to the framework). Instead the method of their class is observed, and the
few handles that belong to a message are known by identity. All other waits cost one lookup in a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.runs import IdentityMap
from stagescope.record.frameworks.shared import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stagescope.record.calls import Call
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, object]


class Works:
    """The handles whose waits are recorded."""

    def __init__(self) -> None:
        self._waits = IdentityMap()
        self._watched = self._waits.ids
        self._classes: set[type] = set()
        self._observe: Callable[[type], object] = bool
        self._guard: Guard | None = None

    def install(self, patches: Patches, guard: Guard) -> None:
        """Observe ``Work.wait``; raises AttributeError or ImportError if this version of torch has no such class."""
        from torch.distributed.distributed_c10d import Work  # already imported by the training

        if self._guard is not None and not self._guard.is_off:  # installed for another framework
            return
        self._guard = guard
        self._observe = lambda owner: patches.observe(owner, "wait", self.wait, guard, self.ignores)
        self._classes.clear()
        self._observe(Work)

    def watch(self, work: object, observe_wait: Callable[[], Observation]) -> None:
        """Let `observe_wait`, an observer without arguments, see the next wait for `work`."""
        self._waits.keep(work, observe_wait)
        if type(work) not in self._classes:
            self._observe_overrides(type(work))

    def forget(self) -> None:
        """Discard the handles that were never waited for."""
        self._waits.clear()

    def ignores(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a wait is certainly not for one of these handles."""
        return id(arguments[0]) not in self._watched

    def wait(self, call: Call) -> Observation:
        """Observe a wait for any handle."""
        return self.observe_wait(call.owner)

    def observe_wait(self, work: object) -> Observation:
        """Return the observation of a wait for a handle; one that ignores the wait if the handle is not known."""
        observe_wait = self._waits.take(work)
        return _ignored() if observe_wait is None else observe_wait()

    def _observe_overrides(self, work_class: type) -> None:
        """Observe the ``wait`` of subclasses of Work, which backends and trainings define in Python."""
        self._classes.add(work_class)
        for owner in work_class.__mro__:
            if "wait" in vars(owner):
                self._observe(owner)


def _ignored() -> Observation:
    return None
    yield


def works_of(recorder: Recorder) -> Works:
    """Return the Works of this recorder, shared by all frameworks of the process."""
    return shared(recorder, Works)
