"""Devices: one module per kind, each able to mark a moment on a stream and to say later when that was.

`device.py` states what a device has to offer, `device_clock.py` brings its times to the host's clock,
`device_timer.py` records actions with both, and `cuda_graphs.py` sees to actions inside captured graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope.record.devices.device import Device


def find_device(told: str | None) -> Device | None:
    """Return the device that the training computes on, None for the host.

    `told` is what the framework said about its tensors, such as ``cuda:1``; None where it said nothing. Never
    initializes a device.
    """
    from stagescope.record.devices import (  # a process without actions needs none
        accelerator,
        cuda,
        npu,
        paddle,
    )

    for kind in (cuda, npu, accelerator, paddle):
        found: Device | None = kind.find(told)
        if found is not None:
            return found
    return None
