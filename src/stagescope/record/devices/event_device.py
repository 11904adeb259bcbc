"""The common part of devices whose framework has events with `record`, `query` and `elapsed_time`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class EventDevice:
    """The framework-independent part of a Device. `_side_stream` is a stream of the recorder's own."""

    _side_stream: Any

    def new_graph_event(self) -> Any | None:
        """Return None: this device has no events for graphs."""
        return None

    def is_capturing(self) -> bool:
        """Return False: this device has no graphs whose capture can be queried."""
        return False

    def record_on_side_stream(self, event: Any) -> None:
        """Record `event` on a stream that holds no other work."""
        event.record(self._side_stream)

    def is_done(self, event: Any) -> bool:
        """Return whether `event` has happened."""
        return bool(event.query())

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two completed events."""
        return float(start.elapsed_time(end))


def model_name(ask: Callable[[], object]) -> str:
    """Return the vendor's name for a device, or an empty string if `ask` raises."""
    try:
        return str(ask())
    except Exception:  # noqa: BLE001  # only a name; the device works without it
        return ""
