"""Waits for transfers, observed where torch waits: at ``Work.wait``, the handle of an asynchronous transfer.

Schedules pass handles on, store them, and wait for them somewhere else. The handles themselves are left as they are
(a replaced handle would be another object to the framework). Instead the method of their class is observed, and the
few handles that belong to a message are known by identity. All other waits cost one lookup in a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.runs import IdentityMap
from stagescope.record.frameworks.shared import shared
from stagescope.record.hooks import prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stagescope.record.calls import Signature
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder
    from stagescope.record.timing import Timer

    Observation = Generator[None, Any, None]
    Waited = Callable[[Any, Any], object]
    Clock = Callable[[], Any]


class Works:
    """The handles whose waits are recorded; `waits` is empty if there are none."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._waits = IdentityMap()
        self.waits = self._waits.ids
        self._classes: set[type] = set()
        self._observe: Callable[[type], object] = bool
        self._guard: Guard | None = None

    def install(self, patches: Patches, guard: Guard) -> None:
        """Observe ``Work.wait``; raises AttributeError or ImportError if this version of torch has no such class."""
        from torch.distributed.distributed_c10d import Work  # already imported by the training

        if self.observe_classes(patches, guard):
            self._observe(Work)

    def observe_classes(self, patches: Patches, guard: Guard) -> bool:
        """Observe ``wait`` of the classes of all handles from now on; returns whether it was not observed before."""
        if self._guard is not None and not self._guard.is_off:  # installed for another framework
            return False
        self._guard = guard
        self._observe = lambda owner: patches.observe(owner, "wait", self.wait, guard)
        self._classes.clear()
        return True

    def watch(self, work: object, waited: Waited, clock: Clock | None = None) -> None:
        """Call `waited` after the next wait for `work`, with the moments at which it began and ended.

        They are moments of `clock`, by default of the timer.
        """
        self._waits.keep(work, (waited, clock))
        if type(work) not in self._classes:
            self._observe_overrides(type(work))

    def forget(self, user: object) -> None:
        """Discard the handles that were never waited for of `user`, whose methods are called after waits.

        The training may wait for those of others in a later step. Handles that do not exist any more are discarded too.
        """
        self._waits.discard(lambda value: value is None or _user_of(value[0]) is user)

    def clear(self) -> None:
        """Discard all handles."""
        self._waits.clear()

    @prepared
    def wait(self, signature: Signature) -> Wait:
        """Observe a wait for any handle."""
        del signature
        return Wait(self._waits, self._timer)

    def observe_wait(self, work: object) -> Observation:
        """Observe a call of another function that waits for a handle, which may be unknown."""
        wait = Wait(self._waits, self._timer)
        state = wait.begin((work,), {})
        if state is None:
            return
        yield
        wait.end(state, None)

    def _observe_overrides(self, work_class: type) -> None:
        """Observe the ``wait`` of subclasses of Work, which backends and trainings define in Python."""
        self._classes.add(work_class)
        for owner in work_class.__mro__:
            if "wait" in vars(owner):
                self._observe(owner)


class Wait:
    """Watches the waits for all handles, and times those for the known ones."""

    may_be_traced = True

    def __init__(self, waits: IdentityMap, timer: Timer) -> None:
        self._values = waits.values
        self.watched = waits.ids
        self._timer = timer

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Waited, Clock | None, Any] | None:
        """Return who receives the moments, the clock, and the first of them; None for any other handle."""
        del kwargs
        refer, found = self._values.pop(id(args[0]), (None, None))
        if refer is None or found is None or refer() is not args[0]:
            return None
        waited, clock = found
        return waited, clock, self._timer.begin() if clock is None else clock()

    def end(self, state: tuple[Waited, Clock | None, Any], result: Any) -> None:
        """Report a wait that has ended."""
        del result
        waited, clock, start = state
        waited(start, self._timer.begin() if clock is None else clock())

    def abandon(self, state: Any) -> None:
        """Leave a wait that failed unreported."""

    def describe(self, state: tuple[Waited, Clock | None, Any]) -> dict[str, object] | None:
        """Return what a wait in progress is for, see record/process_state.py."""
        from stagescope.record.process_state import wait_facts  # only needed when nothing else happens

        return wait_facts(state[0], state[2])


def _user_of(waited: Any) -> object:
    """Return the object of a method, or of a method with arguments; None for any other function."""
    return getattr(getattr(waited, "func", waited), "__self__", None)


def works_of(recorder: Recorder) -> Works:
    """Return the Works of this recorder, shared by all frameworks of the process."""
    return shared(recorder, Works, recorder.timer)
