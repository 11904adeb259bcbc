"""Devices that torch offers as a module with streams and events: torch.cuda, and torch.npu with torch_npu.

Read in torch 2.13.0 (torch/cuda/streams.py, torch/cuda/graphs.py) and in Ascend/pytorch of 2025
(torch_npu/npu/streams.py), where every stream except a SyncLaunchStream hands its work to a separate host thread.
"""

from __future__ import annotations

import sys
from typing import Any

from stagescope.record import compiled
from stagescope.record.devices import cuda_driver
from stagescope.record.devices.event_device import EventDevice, model_name

MOST_STREAMS = 64
"""Streams of which an object is kept. Making one costs the host as much as recording an event there."""


class TorchStreams(EventDevice):
    """The device `index` of a module such as ``torch.cuda``. It need not be the current one.

    `streams` are a function and its argument, with which it returns the handle of the current stream, where events are
    those of the extension in C; None where they are those of torch.
    """

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self._module = getattr(torch, kind)
        self._index = index
        self.name = f"{kind}:{index}"
        self.model = model_name(lambda: self._module.get_device_name(index))
        self.resolution_ns = _resolution_ns(torch, kind)
        self._side_stream = _side_stream(self._module, index)
        self._streams: dict[Any, Any] = {}
        self._find_stream = _function_of(torch, kind, "_cuda_getCurrentStream", index)
        asks = getattr(self._module, "is_current_stream_capturing", super().is_capturing)
        self._asks_capture = _function_of(torch, kind, "_cuda_isCurrentStreamCapturing") or asks
        self.streams: tuple[Any, int] | None = None
        self._own_events = self._find_own_events(torch, kind)

    def _find_own_events(self, torch: Any, kind: str) -> type | None:
        """Return the class of events of the extension, if it can record one; None if torch's have to do."""
        find_handle = _function_of(torch, kind, "_cuda_getCurrentRawStream", self._index)
        addresses = None if find_handle is None else cuda_driver.addresses()
        events = None if addresses is None else compiled.driver_events(addresses)
        if find_handle is None or events is None or not isinstance(find_handle(self._index), int):
            return None
        try:
            with self._module.device(self._index):
                events().record(self._side_stream.cuda_stream)
        except Exception:  # noqa: BLE001  # of an unknown driver: torch knows how to record events
            return None
        self.streams = find_handle, self._index
        return events

    def new_event(self) -> Any:
        """Return an event with timing enabled."""
        if self._own_events is not None:
            with self._module.device(self._index):
                return self._own_events()
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
        if self.streams is not None and event.__class__ is self._own_events:
            self._record_on(event, self.streams[0](self._index))
            return
        if self._find_stream is None:
            event.record(self._module.current_stream(self._index))
            return
        key = self._find_stream(self._index)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._keep_stream(key)
        event.record(stream)

    def record_on_side_stream(self, event: Any) -> None:
        """Record `event` on a stream that holds no other work."""
        if event.__class__ is self._own_events:
            self._record_on(event, self._side_stream.cuda_stream)
        else:
            super().record_on_side_stream(event)

    def _record_on(self, event: Any, stream: int) -> None:
        """Record an event of the extension on the stream with this handle."""
        try:
            event.record(stream)
        except RuntimeError:  # another device is the current one, whose default stream has the same handle
            with self._module.device(self._index):
                event.record(stream)

    def _keep_stream(self, key: Any) -> Any:
        """Return the current stream, and keep it under the numbers that identify it."""
        if len(self._streams) >= MOST_STREAMS:
            self._streams.clear()
        stream = self._streams[key] = self._module.current_stream(self._index)
        return stream

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


def _function_of(torch: Any, kind: str, name: str, *arguments: int) -> Any | None:
    """Return a function of ``torch._C``, which torch.cuda calls after checks that cost more than it does.

    None for other devices, or if this version of torch has no such function with these arguments.
    """
    function = getattr(getattr(torch, "_C", None), name, None) if kind == "cuda" else None
    try:
        return None if function is None or function(*arguments) is None else function
    except Exception:  # noqa: BLE001  # torch.cuda knows how to call it
        return None


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
