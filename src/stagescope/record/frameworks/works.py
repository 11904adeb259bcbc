"""Waits for transfers, observed where torch waits: at ``Work.wait``, the handle of an asynchronous transfer.

Schedules pass handles on, store them, and wait for them somewhere else. The handles themselves are left as they are
(a replaced handle would be another object to the framework). Instead the method of their class is observed, and the
few handles that belong to a message are known by identity. All other waits cost one lookup in a dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record import compiled
from stagescope.record.frameworks.runs import IdentityMap
from stagescope.record.frameworks.shared import shared
from stagescope.record.hooks import Waits, prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stagescope.record.calls import Signature
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]
    Clock = Callable[[], Any]


class Works:
    """The handles whose waits are recorded; `waits` is empty if there are none.

    `values` and `classes` are for `Messages.issued`, which cannot afford to call `watch`. `pending` are the messages
    that wrappers in C know, None without them; `when_ended` receives one that has ended where something is unusual.
    `transfers` are those of Megatron-core, likewise.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._timer = recorder.timer
        self.pending = compiled.pending(recorder)
        self.transfers = compiled.transfers(recorder)
        self.when_ended: Callable[..., None] | None = None
        self._waits = IdentityMap()
        self.waits = self._waits.ids
        self.values = self._waits.values
        self.classes: set[type] = set()
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
        self.classes.clear()
        for known in (self.pending, self.transfers):
            if known is not None:
                known.known_class = None
        return True

    def watch(
        self, work: object, waited: Callable[..., object], clock: Clock | None = None, what: object = None
    ) -> None:
        """Call `waited` after the next wait for `work`, with the moments at which it began and ended.

        They are moments of `clock`, by default of the timer. Before them, it receives `what` unless that is None.
        """
        self._waits.keep(work, (waited, what, clock))
        if type(work) not in self.classes:
            self.observe_overrides(type(work))

    def forget(self, user: object) -> None:
        """Discard the handles that were never waited for of `user`, whose methods are called after waits.

        The training may wait for those of others in a later step. Handles that do not exist any more are discarded too.
        """
        self._waits.discard(lambda value: value is None or _user_of(value[0]) is user)

    def clear(self) -> None:
        """Discard all handles."""
        self._waits.clear()

    @prepared
    def wait(self, signature: Signature) -> Waits:
        """Observe a wait for any handle."""
        del signature
        return Waits(self._waits.values, self._timer, self.pending, self._ended, self.transfers)

    def _ended(self, *message: Any) -> None:
        if self.when_ended is not None:
            self.when_ended(*message)

    def observe_wait(self, work: object) -> Observation:
        """Observe a call of another function that waits for a handle, which may be unknown."""
        waited, what, clock = self._waits.take(work, (None, None, None))
        if waited is None:
            return
        start = self._timer.begin() if clock is None else clock()
        yield
        known = () if what is None else (what,)
        waited(*known, start, self._timer.begin() if clock is None else clock())

    def observe_overrides(self, work_class: type) -> None:
        """Observe the ``wait`` of subclasses of Work, which backends and trainings define in Python."""
        self.classes.add(work_class)
        for owner in work_class.__mro__:
            if "wait" in vars(owner):
                self._observe(owner)


def _user_of(waited: Any) -> object:
    """Return the object of a method, or of a method with arguments; None for any other function."""
    return getattr(getattr(waited, "func", waited), "__self__", None)


def works_of(recorder: Recorder) -> Works:
    """Return the Works of this recorder, shared by all frameworks of the process."""
    return shared(recorder, Works, recorder)
