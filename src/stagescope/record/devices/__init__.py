"""Devices: one module per kind, each of which can mark a moment on a stream and report later when that was.

`device.py` defines the interface of a device, `device_clock.py` converts its times to the host's clock,
`device_timer.py` uses both to record actions, and `cuda_graphs.py` handles actions inside captured graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope.record.devices.device import Device


def find_device(reported: str | None) -> Device | None:
    """Return the device that the training computes on, None for the host.

    `reported` is the device of the framework's tensors, such as ``cuda:1``, or None if the framework has not reported
    one. Never initializes a device.
    """
    from stagescope.record.devices import (  # not needed in a process without actions
        accelerator,
        cuda,
        npu,
        paddle,
    )

    for kind in (cuda, npu, accelerator, paddle):
        found: Device | None = kind.find(reported)
        if found is not None:
            return found
    return None
