"""What the recorder needs of a device: to mark a moment on it, and to ask later when that moment was.

A device is written as one module with a `find` that returns a Device if the training has begun to use that kind,
and is listed in `find_device`. It may touch the framework, which the training has imported, and must never
initialize a device, wait for it, or raise where `find` could have said no.
"""

from __future__ import annotations

from typing import Any, Protocol


class Device(Protocol):
    """One device, with the events of its framework. All methods but the first two are called in every action.

    Any of them may raise; the span that needed the answer is then counted as dropped.
    """

    name: str
    """As the framework spells it, such as ``cuda:0``."""
    model: str
    """What the maker calls it, such as ``NVIDIA H200``; empty where nobody says."""
    resolution_ns: int
    """By how much the time between two events may be off beside its rounding to float32."""

    def new_event(self) -> Any:
        """Return an event that keeps its time; it may be recorded again and again."""

    def new_graph_event(self) -> Any | None:
        """Return an event that can be recorded while a graph is captured, and then at each of its replays."""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""

    def record(self, event: Any) -> None:
        """Have `event` happen on the current stream, after the work that is there; raises on another device."""

    def record_aside(self, event: Any) -> None:
        """Have `event` happen on a stream of the recorder's own, which holds no work and so never makes it wait."""

    def is_done(self, event: Any) -> bool:
        """Return whether `event` has happened; never waits."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two events that have happened: a float32, as every driver rounds it."""
