"""Clock, power, temperature and slowdowns of an NVIDIA GPU through NVML, if the package nvidia-ml-py is installed.

Source: NVML API Reference Guide, "Device Queries" and "NvmlClocksEventReasons"; functions as in nvidia-ml-py 11 to 13.
The GPU is found by its UUID, because CUDA_VISIBLE_DEVICES renumbers devices for CUDA, but not for NVML. A MIG instance
has no clock of its own, so nothing is read there.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.vocabulary.counters import GPU_CLOCK, GPU_POWER, GPU_SLOWDOWNS, GPU_TEMPERATURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device

    Source = Callable[[], list[tuple[str, float]]]

MILLI = 1e-3


def gpu_sources(device: Device) -> list[Source]:
    """Return functions that read the counters of a GPU; none for other devices and without the package.

    Each raises where the GPU does not support its counter.
    """
    try:
        uuid = device.uuid()  # type: ignore[attr-defined]  # only devices of CUDA have one
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # noqa: BLE001  # no such package, no driver, or a device that NVML does not know
        return []
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    asked: list[tuple[str, Callable[[], Any], float]] = [
        (GPU_CLOCK, partial(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), 1),
        (GPU_POWER, partial(nvml.nvmlDeviceGetPowerUsage, handle), MILLI),
        (GPU_TEMPERATURE, partial(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1),
        *([(GPU_SLOWDOWNS, partial(reasons, handle), 1)] if reasons else []),
    ]
    return [partial(_read, *each) for each in asked]


def _read(name: str, ask: Callable[[], Any], factor: float) -> list[tuple[str, float]]:
    return [(name, ask() * factor)]
