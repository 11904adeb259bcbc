"""The clock of the compute lane: the host's, or that of the device which does the work.

A action is timed where it runs. On a host clock a moment is the number of nanoseconds that it is; on a device it is
an event on the stream, whose time is known later, so the action is recorded later. Whoever times a action need not
know:

    token = recorder.timer.begin()
    ...
    recorder.timer.end(token, FORWARD, stage, microbatch)

Sends, receives and everything else that the host does are host times: they are read and emitted directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device_timer import DeviceTimer
    from stagescope.record.recorder import Recorder


class Timer:
    """Times the actions of one process; never raises and never waits for a device.

    `begin()` returns a moment, `end(token, kind, ...)` records the action that began at `token` and ends now. The two
    are attributes that change when a device is found, so that a host clock costs nothing but itself: look them up
    again for each action. `resolve(function, *moments)` calls `function` with these moments in nanoseconds of
    the host clock once they are known, which on a host clock is at once.
    """

    __slots__ = ("_recorder", "_told", "begin", "device", "end", "resolve")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: str | None = None
        self.device: DeviceTimer | None = None
        self.begin: Callable[[], Any]
        self.end: Callable[..., None]
        self.resolve: Callable[..., None]
        self._wait_for_first_action()

    def tensors_are_on(self, device: str) -> None:
        """Say where the framework computes, such as ``cpu`` or ``cuda:1``: no other clock will do then."""
        if device != self._told:
            self._told = device
            self.look_for_device()

    def look_for_device(self) -> None:
        """Use the device's clock once the training has begun to use one, and the host's until then."""
        try:
            self._choose()
        except Exception as error:  # noqa: BLE001  # an unknown build of a framework must not stop the training
            self._use_host()
            self._recorder.warn(
                f"cannot time on the device, so that actions show when they were launched: {error!r}"
            )

    def _choose(self) -> None:
        from stagescope.record.devices import find_device  # needed from the first action on only

        found = find_device(self._told)
        if found is not None and self.device is not None and found.name == self.device.name:
            return
        self.finish()
        if found is None:
            self._use_host()
            return
        from stagescope.record.devices.device_timer import DeviceTimer  # only where there is a device

        self._use_device(DeviceTimer(self._recorder, found))

    def begin_step(self) -> None:
        """Look for a device again: the training may have begun to use one after its first actions."""
        if self.device is None and self._told is None:
            self.look_for_device()

    def harvest(self) -> None:
        """Record the actions that the device has done by now."""
        if self.device is not None:
            self.device.harvest()

    def finish(self) -> None:
        """Record what the device has done, and count what it has not: waits for it a moment at most."""
        if self.device is not None:
            self.device.finish()

    def restart_in_child(self) -> None:
        """Forget the parent's device in a forked child, which cannot use it."""
        self._told = None
        self._wait_for_first_action()

    def _wait_for_first_action(self) -> None:
        self._use_host()
        self.begin = self._begin_first
        self.end = self._end_first

    def _use_host(self) -> None:
        self.device = None
        self.begin = now_ns
        self.end = self._end_on_host
        self.resolve = _call_now

    def _use_device(self, device: DeviceTimer) -> None:
        from stagescope.record import spans  # which imports this module

        spans.time_on_device()
        self.device = device
        self.begin = device.begin
        self.end = device.end
        self.resolve = device.resolve
        self._recorder.expect_spans()
        self._recorder.describe(device=device.name, device_model=device.model)

    def _begin_first(self) -> Any:
        self._use_host()
        self.look_for_device()
        return self.begin()

    def _end_first(self, *arguments: Any, **keywords: Any) -> None:
        """Hand on to what the first action has chosen; reached by whoever looked `end` up before that."""
        if self.end == self._end_first:
            self._use_host()
        self.end(*arguments, **keywords)

    def _end_on_host(  # noqa: PLR0917  # the fields of a record, as in Recorder.emit
        self,
        token: Any,
        kind: int,
        stage: int = NONE,
        microbatch: int = NONE,
        chunk: int = NONE,
        name: int = 0,
        pair: int = NONE,
    ) -> None:
        self._recorder.emit(
            kind, token, now_ns(), stage, microbatch, chunk, NONE, NONE, NONE, NONE, name, pair
        )


def _call_now(function: Callable[..., None], *moments: int) -> None:
    function(*moments)
