"""GPUs and other devices through Paddle's own streams and events.

Read in Paddle 3.3.1 (paddle/device/__init__.py, and paddle/phi/api/profiler/event.h: the distance of two events is a
float, whatever its docstring says). Paddle does not tell whether a device is initialized, so one is used only where its
own hook said that the pipeline computes there, in Paddle's spelling: ``gpu:0``.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record.devices.event_device import EventDevice, model_name

_OF_TORCH = ("cpu", "cuda")


class PaddleDevice(EventDevice):
    """The current device of Paddle."""

    resolution_ns = 500
    """As of CUDA's events, which these are on a GPU."""

    def __init__(self, paddle: Any, name: str) -> None:
        self._paddle = paddle
        self.name = name
        self.model = model_name(lambda: paddle.device.cuda.get_device_name(name))
        self._aside = paddle.device.Stream(device=name)  # made not to block the default stream
        core = getattr(getattr(paddle, "base", None), "core", None)
        self._asks_capture = getattr(core, "is_cuda_graph_capturing", super().is_capturing)

    def new_event(self) -> Any:
        """Return an event that keeps its time."""
        return self._paddle.device.Event(enable_timing=True)

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        return bool(self._asks_capture())

    def record(self, event: Any) -> None:
        """Have `event` happen on the current stream of this device."""
        if self._paddle.get_device() != self.name:
            raise RuntimeError(f"the action runs on {self._paddle.get_device()} and not on {self.name}")
        event.record()


def find(told: str | None) -> PaddleDevice | None:
    """Return the device that Paddle's hook told of."""
    paddle = sys.modules.get("paddle")
    if paddle is None or told is None or told.partition(":")[0] in _OF_TORCH:
        return None
    return PaddleDevice(paddle, told)
