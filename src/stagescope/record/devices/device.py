"""The interface of a device: mark a moment on it, and report later when that moment was.

A device is a module with a `find` that returns a Device if the training uses that kind, and is listed in
`find_device`. It may use the framework, which the training has imported. It must never initialize a device, wait for
it, or raise where `find` could have returned None.

Two methods are optional: `memory` returns the bytes allocated, reserved, and allocated at the peak, as the framework's
allocator counts them; `uuid` returns what NVIDIA's tools call the device. They may raise as well.
"""

from __future__ import annotations

from typing import Any, Protocol


class OtherDeviceError(RuntimeError):
    """An action runs on another device than the one that is timed."""


class Device(Protocol):
    """One device, using the events of its framework. All methods except the first two are called in every action.

    Any of them may raise; the affected span is then counted as dropped.
    """

    name: str
    """The framework's name for it, such as ``cuda:0``."""
    model: str
    """The vendor's name for it, such as ``NVIDIA H200``; empty if unknown."""
    resolution_ns: int
    """Maximum error of the time between two events, in addition to its rounding to float32."""

    def new_event(self) -> Any:
        """Return an event with timing enabled, which can be recorded repeatedly."""

    def new_graph_event(self) -> Any | None:
        """Return an event that can be recorded during a graph capture and then fires at each replay."""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""

    def record(self, event: Any) -> None:
        """Record `event` on the current stream of this device, after the work already queued.

        Raises OtherDeviceError if the framework only has a current stream for its current device, and that is another.
        """

    def record_on_side_stream(self, event: Any) -> None:
        """Record `event` on a stream of the recorder's own, which holds no other work and therefore never delays it."""

    def is_done(self, event: Any) -> bool:
        """Return whether `event` has happened, without waiting."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two completed events; every driver rounds them to float32."""
