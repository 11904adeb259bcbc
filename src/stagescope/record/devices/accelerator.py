"""Any other device that torch supports, through torch.accelerator and torch.Event (torch 2.6 and later).

These do not show whether the device is initialized, so one is used only if the framework reported that its tensors
are on it.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record.devices.event_device import EventDevice

_OWN_MODULE = ("cpu", "cuda", "npu", "meta")


class Accelerator(EventDevice):
    """One device of torch.accelerator."""

    resolution_ns = 1000
    """A conservative guess: the drivers behind torch.Event guarantee nothing."""

    def __init__(self, torch: Any, name: str) -> None:
        self._torch = torch
        self._accelerator = torch.accelerator
        device = torch.device(name)
        self._index = device.index if device.index is not None else self._accelerator.current_device_index()
        self.name = f"{device.type}:{self._index}"
        self.model = ""
        self._side_stream = torch.Stream(device=self.name)

    def new_event(self) -> Any:
        """Return an event with timing enabled."""
        return self._torch.Event(device=self.name, enable_timing=True)

    def record(self, event: Any) -> None:
        """Record `event` on the current stream of this device."""
        event.record(self._accelerator.current_stream(self._index))

    def memory(self) -> tuple[int, int, int]:
        """Return the bytes that are allocated and reserved now, and the peak of those allocated (torch 2.9)."""
        stats = self._accelerator.memory_stats(self._index)
        names = ("allocated_bytes.all.current", "reserved_bytes.all.current", "allocated_bytes.all.peak")
        allocated, reserved, peak = (stats[name] for name in names)
        return allocated, reserved, peak


def find(reported: str | None) -> Accelerator | None:
    """Return the device that the framework reported, if torch.accelerator supports its kind."""
    torch = sys.modules.get("torch")
    kind = (reported or "cpu").partition(":")[0]
    if torch is None or kind in _OWN_MODULE or not hasattr(torch, "accelerator"):
        return None
    known = torch.accelerator.current_accelerator()
    return Accelerator(torch, str(reported)) if known is not None and known.type == kind else None
