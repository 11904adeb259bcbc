"""GPUs and other devices through Paddle's streams and events.

Read in Paddle 3.3.1 (paddle/device/__init__.py, and paddle/phi/api/profiler/event.h: the distance of two events is a
float, unlike the docstring claims). Paddle does not show whether a device is initialized, so one is used only if
Paddle's hook reported that the pipeline computes there, in Paddle's spelling: ``gpu:0``.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record.devices.device import OtherDeviceError
from stagescope.record.devices.event_device import EventDevice, model_name

_OF_TORCH = ("cpu", "cuda")


class PaddleDevice(EventDevice):
    """The current device of Paddle."""

    resolution_ns = 500
    """The resolution of CUDA's events, which Paddle uses on a GPU."""

    def __init__(self, paddle: Any, name: str) -> None:
        self._paddle = paddle
        self.name = name
        self.model = model_name(lambda: paddle.device.cuda.get_device_name(name))
        self._side_stream = paddle.device.Stream(
            device=name
        )  # a stream that does not block the default stream
        core = getattr(getattr(paddle, "base", None), "core", None)
        self._asks_capture = getattr(core, "is_cuda_graph_capturing", super().is_capturing)

    def new_event(self) -> Any:
        """Return an event with timing enabled."""
        return self._paddle.device.Event(enable_timing=True)

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        return bool(self._asks_capture())

    def record(self, event: Any) -> None:
        """Record `event` on the current stream of this device."""
        if self._paddle.get_device() != self.name:
            raise OtherDeviceError(f"the action runs on {self._paddle.get_device()} and not on {self.name}")
        event.record()

    def memory(self) -> tuple[int, int, int]:
        """Return the bytes that are allocated and reserved now, and the peak of those allocated."""
        cuda = self._paddle.device.cuda
        return (
            cuda.memory_allocated(self.name),
            cuda.memory_reserved(self.name),
            cuda.max_memory_allocated(self.name),
        )


def find(reported: str | None) -> PaddleDevice | None:
    """Return the device that Paddle's hook reported."""
    paddle = sys.modules.get("paddle")
    if paddle is None or reported is None or reported.partition(":")[0] in _OF_TORCH:
        return None
    return PaddleDevice(paddle, reported)
