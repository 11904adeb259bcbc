"""Times actions on the clock of the place where they run: the host or a device.

On the host, a moment is a number of nanoseconds. On a device it is an event on a stream, whose time becomes known
later, so the action is recorded later. Callers need not know which one applies:

    token = recorder.timer.begin()
    ...
    recorder.timer.end(token, FORWARD, stage, microbatch)

Sends, receives and all other host activities are timed on the host and emitted directly.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device_timer import DeviceTimer
    from stagescope.record.recorder import Recorder

TIMING_VARIABLE = "STAGESCOPE_TIMING"
HOST = "host"
"""The value of `TIMING_VARIABLE` that times all actions on the host."""

CONNECTIONS_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
SERIALIZED = (
    f"{CONNECTIONS_VARIABLE}=1: events with times may make transfers wait for computations that they would otherwise "
    "overlap; compare the step times, or record with --timing host"
)


class Timer:
    """Times the actions of one process; never raises and never waits for a device.

    `begin()` returns a moment, `end(token, kind, ...)` records the action from `token` until now. Both are attributes
    that change when a device is found, so the host case has no overhead; look them up again for each action.
    `reported` is the device on which the framework computes, None before that.
    `resolve(function, *moments)` calls `function` with these moments in nanoseconds of the host clock as soon as they
    are known, on the host immediately.
    """

    __slots__ = ("_is_looking", "_memory", "_recorder", "begin", "device", "end", "reported", "resolve")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.reported: str | None = None
        self._is_looking = False
        self.device: DeviceTimer | None = None
        self.begin: Callable[[], Any]
        self.end: Callable[..., None]
        self.resolve: Callable[..., None]
        self._wait_for_first_action()

    def set_tensor_device(self, *devices: str) -> None:
        """Set the device that the framework computes on, such as ``cuda:1``. Only its clock is used from now on.

        A process that computes on several devices is timed on the host: its actions share no stream.
        """
        if len(set(devices)) > 1:
            self._recorder.warn(
                f"this process computes on {' and '.join(sorted(set(devices)))}; its actions show their launch on the "
                "host, because only the actions of one device per process can be timed"
            )
            devices = ("cpu",)
        if devices[0] != self.reported:
            self.reported = devices[0]
            self.look_for_device()

    def look_for_device(self) -> None:
        """Use the device's clock if the training has started to use a device, otherwise the host's.

        A signal handler that records a span may interrupt this in the middle of an import. Its own span is timed on
        the host: importing the same module again would find it incomplete.
        """
        if self._is_looking:
            return
        self._is_looking = True
        try:
            self._choose()
        except Exception as error:  # noqa: BLE001  # an unknown build of a framework must not stop the training
            self._use_host()
            self._recorder.warn(
                f"cannot time actions on the device; they show their launch on the host instead: {error!r}"
            )
        finally:
            self._is_looking = False

    def _choose(self) -> None:
        from stagescope.record.devices import find_device  # not needed before the first action

        is_on_host = os.environ.get(TIMING_VARIABLE) == HOST
        found = None if is_on_host else find_device(self.reported)
        if found is not None and self.device is not None and found.name == self.device.name:
            return
        self.finish()
        if found is None:
            self._use_host()
            return
        from stagescope.record.devices.device_timer import DeviceTimer  # only needed with a device

        self._use_device(DeviceTimer(self._recorder, found))

    def begin_step(self) -> None:
        """Look for a device again: the training may have started to use one after its first actions.

        Outside of the recorded steps, read what the device has completed of them.
        """
        if self.device is None:
            if self.reported is None:
                self.look_for_device()
        elif not self._recorder.enabled and self.device.is_waiting:
            self.device.harvest()
            self._recorder.flush_soon()

    def harvest(self) -> None:
        """Record the actions that the device has finished, and at most once a second its memory."""
        if self.device is not None:
            self.device.harvest()
            self._memory.sample()

    def follow_details(self) -> None:
        """Record the memory of the device at the end of each action from now on, or no longer."""
        if self.device is not None:
            samples = self._recorder.details_memory
            self.end = self._memory.end if samples else self.device.end
            self._recorder.device_records = None if samples else self.device.records
            self._recorder.unsettle()

    def sample_memory(self) -> None:
        """Record the memory of the device now."""
        if self.device is not None:
            self._memory.sample(is_last=True)

    def finish(self) -> None:
        """Record what the device has finished and count the rest as dropped; waits for a short time at most."""
        if self.device is not None:
            self.device.finish()

    def restart_in_child(self) -> None:
        """In a forked child, abandon the parent's device, which the child cannot use.

        Its events are never destroyed there: the driver's functions hang or fail in a child.
        """
        if self.device is not None:
            import ctypes  # only a child of a process with a device needs it

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.device))
        self.reported = None
        self._is_looking = False
        self._wait_for_first_action()

    def _wait_for_first_action(self) -> None:
        self._use_host()
        self.begin = self._begin_first
        self.end = self._end_first
        self._recorder.unsettle()

    def _use_host(self) -> None:
        self.device = self._recorder.device_records = None
        self.begin = now_ns
        self.end = self._end_on_host
        self.resolve = _call_now

    def _use_device(self, device: DeviceTimer) -> None:
        from stagescope.record import spans  # circular: spans imports this module

        spans.time_on_device()
        if device.name.startswith("cuda") and os.environ.get(CONNECTIONS_VARIABLE) == "1":
            self._recorder.warn(SERIALIZED)
        from stagescope.record.sampling.memory import DeviceMemory  # only needed with a device

        self.device = device
        self._memory = DeviceMemory(self._recorder, device)
        self.begin = device.begin
        self.follow_details()
        self.resolve = device.resolve
        self._recorder.unsettle()
        self._recorder.expect_spans()
        self._recorder.describe(device=device.name, device_model=device.model)

    def _begin_first(self) -> Any:
        self._use_host()
        self.look_for_device()
        return self.begin()

    def _end_first(self, *arguments: Any, **keywords: Any) -> None:
        """Delegate to the clock that the first action has chosen, for callers that looked `end` up before that."""
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
        if pair == NONE:
            self._recorder.emit_action(kind, token, now_ns(), stage, microbatch, chunk, name)
        else:
            self._recorder.emit(
                kind, token, now_ns(), stage, microbatch, chunk, NONE, NONE, NONE, NONE, name, pair
            )


def _call_now(function: Callable[..., None], *moments: int) -> None:
    function(*moments)
