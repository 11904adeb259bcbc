"""Devices that torch offers as a module with streams and events: torch.cuda, and torch.npu with torch_npu.

Read in torch 2.13.0 (torch/cuda/streams.py, torch/cuda/graphs.py) and in Ascend/pytorch of 2025
(torch_npu/npu/streams.py), where every stream except a SyncLaunchStream hands its work to a separate host thread.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record.devices.event_device import EventDevice, model_name


class TorchStreams(EventDevice):
    """The current device of a module such as ``torch.cuda``."""

    resolution_ns = 500
    """CUDA's reference promises "around 0.5 microseconds" for cudaEventElapsedTime; CANN promises nothing better."""

    def __init__(self, module: Any, kind: str) -> None:
        self._module = module
        self._index = module.current_device()
        self.name = f"{kind}:{self._index}"
        self.model = model_name(lambda: module.get_device_name(self._index))
        make_stream = getattr(module, "SyncLaunchStream", module.Stream)
        # Streams from torch's pool do not synchronize with the default stream.
        self._side_stream = make_stream(device=self._index)
        self._asks_capture = getattr(module, "is_current_stream_capturing", super().is_capturing)

    def new_event(self) -> Any:
        """Return an event with timing enabled."""
        return self._module.Event(enable_timing=True)

    def new_graph_event(self) -> Any | None:
        """Return an event that a graph records itself, or None if this version of torch has none."""
        try:
            return self._module.Event(enable_timing=True, external=True)
        except TypeError:
            return None

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        return bool(self._asks_capture())

    def record(self, event: Any) -> None:
        """Record `event` on the current stream of this device."""
        if self._module.current_device() != self._index:
            raise RuntimeError(f"the action runs on {self._module.current_device()} and not on {self.name}")
        event.record()

    def memory(self) -> tuple[int, int, int]:
        """Return the bytes that are allocated and reserved now, and the peak of those allocated.

        The allocator counts on the host, in the order in which the program allocates, and is not asked to reset
        anything. As a flat dictionary, its counters would cost three times as much.
        """
        stats = self._module.memory_stats_as_nested_dict(self._index)
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]

    def uuid(self) -> str:
        """Return the identifier of the device in NVIDIA's tools. Raises AttributeError for other devices."""
        return f"GPU-{str(self._module.get_device_properties(self._index).uuid).removeprefix('GPU-')}"


def find_streams(kind: str, reported: str | None) -> TorchStreams | None:
    """Return the device of torch's module `kind` if it is initialized, unless the framework reported another device."""
    if reported is not None and reported.partition(":")[0] != kind:
        return None
    module = getattr(sys.modules.get("torch"), kind, None)
    is_initialized = getattr(module, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return TorchStreams(module, kind)
