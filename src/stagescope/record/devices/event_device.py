"""What all frameworks' events have in common: they are recorded, queried, and tell the time between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class EventDevice:
    """The part of a Device that does not depend on the framework; `_aside` is a stream of the recorder's own."""

    _aside: Any

    def new_graph_event(self) -> Any | None:
        """Return None: no external events are known here."""
        return None

    def is_capturing(self) -> bool:
        """Return False: no graphs are known here that could be asked about."""
        return False

    def record_aside(self, event: Any) -> None:
        """Have `event` happen on a stream that holds nothing else."""
        event.record(self._aside)

    def is_done(self, event: Any) -> bool:
        """Return whether `event` has happened."""
        return bool(event.query())

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the milliseconds between two events that have happened."""
        return float(start.elapsed_time(end))


def model_name(ask: Callable[[], object]) -> str:
    """Return what the maker calls a device, or nothing where asking fails."""
    try:
        return str(ask())
    except Exception:  # noqa: BLE001  # only a name: the device works without one
        return ""
