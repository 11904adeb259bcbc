"""Any other device that torch knows, through torch.accelerator and torch.Event (torch 2.6 and later).

These do not tell whether the device is initialized, so one is used only where the framework said that its tensors
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
    """A guess on the careful side: the drivers behind torch.Event promise nothing."""

    def __init__(self, torch: Any, name: str) -> None:
        self._torch = torch
        self._accelerator = torch.accelerator
        device = torch.device(name)
        self._index = device.index if device.index is not None else self._accelerator.current_device_index()
        self.name = f"{device.type}:{self._index}"
        self.model = ""
        self._aside = torch.Stream(device=self.name)

    def new_event(self) -> Any:
        """Return an event that keeps its time."""
        return self._torch.Event(device=self.name, enable_timing=True)

    def record(self, event: Any) -> None:
        """Have `event` happen on the current stream of this device."""
        if self._accelerator.current_device_index() != self._index:
            raise RuntimeError(f"the action does not run on {self.name}")
        event.record(self._accelerator.current_stream())


def find(told: str | None) -> Accelerator | None:
    """Return the device that the framework told of, where torch.accelerator knows its kind."""
    torch = sys.modules.get("torch")
    kind = (told or "cpu").partition(":")[0]
    if torch is None or kind in _OWN_MODULE or not hasattr(torch, "accelerator"):
        return None
    known = torch.accelerator.current_accelerator()
    return Accelerator(torch, str(told)) if known is not None and known.type == kind else None
