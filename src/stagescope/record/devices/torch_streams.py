"""Devices that torch offers as a module with streams and events: torch.cuda, and torch.npu with torch_npu.

Read in torch 2.13.0 (torch/cuda/streams.py, torch/cuda/graphs.py) and in Ascend/pytorch of 2025
(torch_npu/npu/streams.py), where every stream except a SyncLaunchStream hands its work to a separate host thread.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record.devices.event_device import EventDevice, model_name


class TorchStreams(EventDevice):
    """The device `index` of a module such as ``torch.cuda``. It need not be the current one."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self._module = getattr(torch, kind)
        self._index = index
        self.name = f"{kind}:{index}"
        self.model = model_name(lambda: self._module.get_device_name(index))
        self.resolution_ns = _resolution_ns(torch, kind)
        self._side_stream = _side_stream(self._module, index)
        self._asks_capture = getattr(self._module, "is_current_stream_capturing", super().is_capturing)

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
        event.record(self._module.current_stream(self._index))

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


def _resolution_ns(torch: Any, kind: str) -> int:
    """Return the maximum error of the time between two events.

    CUDA's reference states "around 0.5 microseconds" for cudaEventElapsedTime, and HIP's "approximately 1 us" for
    hipEventElapsedTime (HIP 7.1, Event Management). CANN states nothing better than CUDA.
    """
    is_rocm = kind == "cuda" and getattr(getattr(torch, "version", None), "hip", None) is not None
    return 1000 if is_rocm else 500


def _side_stream(module: Any, index: int) -> Any:
    """Return a stream of the recorder's own, which does not synchronize with the default stream.

    A stream of high priority has a hardware queue of its own, where the device has one left.
    """
    if hasattr(module, "SyncLaunchStream"):
        return module.SyncLaunchStream(device=index)
    try:
        return module.Stream(device=index, priority=-1)
    except TypeError:  # without priorities
        return module.Stream(device=index)


def find_streams(kind: str, reported: str | None) -> TorchStreams | None:
    """Return the device of torch's module `kind` if it is initialized, unless the framework reported another kind.

    Raises RuntimeError if the framework did not report which device it is, and the training uses several.
    """
    reported_kind, _, index = (reported or kind).partition(":")
    torch = sys.modules.get("torch")
    module = getattr(torch, kind, None)
    is_initialized = getattr(module, "is_initialized", None)
    if reported_kind != kind or is_initialized is None or not is_initialized():
        return None
    return TorchStreams(torch, kind, int(index) if index else _used_index(module))


def _used_index(module: Any) -> int:
    """Return the current device, or the only one with tensors if the current one has none.

    A training that names its device, as in ``model.to("cuda:3")``, leaves the first device current.
    """
    current = int(module.current_device())
    if not hasattr(module, "memory_allocated"):
        return current
    used = [index for index in range(module.device_count()) if module.memory_allocated(index)]
    if current in used or not used:
        return current
    if len(used) > 1:
        names = ", ".join(map(str, used))
        raise RuntimeError(f"the training uses the devices {names}, but the current device is {current}")
    return used[0]
