"""Memory of the device, as the framework's allocator counts it on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.counters import ALLOCATED, PEAK_ALLOCATED, RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device

    Source = Callable[[], list[tuple[str, float]]]


def memory_sources(device: Device) -> list[Source]:
    """Return the function that reads the memory of a device, if its framework counts it."""
    ask = getattr(device, "memory", None)
    if ask is None:
        return []

    def read() -> list[tuple[str, float]]:
        allocated, reserved, peak = ask()
        return [(ALLOCATED, allocated), (RESERVED, reserved), (PEAK_ALLOCATED, peak)]

    return [read]
