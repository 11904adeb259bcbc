"""A GPU whose driver is simulated: functions of C for the extension, and a torch.cuda for everything else.

Both use the same events. Times are those of the host's monotonic clock until the driver reports them: then they include
the offset and the drift of the device, and the distance of two events is rounded to float32 milliseconds.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import struct
import time
from contextlib import contextmanager
from types import SimpleNamespace

from stagescope.record import compiled, devices
from stagescope.record.devices import cuda_driver
from stagescope.record.devices.torch_streams import TorchStreams

KEPT = []
"""All drivers: the extension may destroy an event at any time, as with a library that is never unloaded."""

NOT_READY, ILLEGAL_ADDRESS, INVALID_HANDLE = 600, 700, 400
STREAM, SIDE_STREAM = 0, 77
SIGNATURES = (
    (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint),
    (ctypes.c_void_p, ctypes.c_void_p),
    (ctypes.c_void_p,),
    (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p),
    (ctypes.c_void_p,),
    (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
    (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
)
"""Those of the functions of cuda_driver.py, in that order."""


class SimulatedDriver:
    """The driver of one device. `work` queues work on the stream of the training; `times` has the true time of events.

    `error` is returned by all functions, `current` is the device that is current for this thread, `is_capturing` states
    whether the stream is being captured, and with `late_ns` the side stream is delayed.
    """

    def __init__(self, *, offset_ns=10**12, drift_ppm=50.0):
        self.offset_ns, self.drift_ppm = offset_ns, drift_ppm
        self.handles = itertools.count(1000)
        self.devices, self.times = {}, {}
        self.free_ns = self.error = self.current = self.late_ns = 0
        self.is_capturing = False
        self.calls = dict.fromkeys(cuda_driver.FUNCTIONS, 0)
        self.destroyed = []
        functions = (
            self.create,
            self.record,
            self.query,
            self.elapsed,
            self.destroy,
            self.capture,
            self.describe,
        )
        self._callbacks = [
            ctypes.CFUNCTYPE(ctypes.c_int, *signature)(self._counted(name, function))
            for name, signature, function in zip(cuda_driver.FUNCTIONS, SIGNATURES, functions, strict=True)
        ]

    def addresses(self):
        return tuple(ctypes.cast(callback, ctypes.c_void_p).value for callback in self._callbacks)

    def _counted(self, name, function):
        def call(*args):
            self.calls[name] += 1
            return (self.error or function(*args)) if function != self.describe else function(*args)

        return call

    def work(self, duration_ns):
        """Queue work; return when it begins and ends."""
        begin_ns = max(self.free_ns, time.monotonic_ns())
        self.free_ns = begin_ns + duration_ns
        return begin_ns, self.free_ns

    def new_handle(self):
        handle = next(self.handles)
        self.devices[handle] = self.current
        return handle

    def create(self, event, flags):
        assert flags == 0
        event[0] = self.new_handle()
        return 0

    def record(self, event, stream):
        stream = stream or 0
        if stream == STREAM and self.devices[event] != self.current:
            return INVALID_HANDLE
        now_ns = time.monotonic_ns()
        self.times[event] = now_ns + self.late_ns if stream == SIDE_STREAM else max(now_ns, self.free_ns)
        return 0

    def query(self, event):
        assert not self.is_capturing, "this would break the capture"
        return 0 if self.times[event] <= time.monotonic_ns() else NOT_READY

    def elapsed(self, elapsed_ms, start, end):
        now_ns = time.monotonic_ns()
        if max(self.times[start], self.times[end]) > now_ns:
            return NOT_READY
        elapsed_ms[0] = (self.device_ns(self.times[end]) - self.device_ns(self.times[start])) / 1e6
        return 0

    def destroy(self, event):
        self.destroyed.append(event)
        return 0

    def capture(self, stream, found):
        del stream
        found[0] = int(self.is_capturing)
        return 0

    def describe(self, error, text):
        text[0] = b"planted" if error == ILLEGAL_ADDRESS else b"invalid"
        return 0

    def device_ns(self, host_ns):
        return round(host_ns * (1 + self.drift_ppm / 1e6)) + self.offset_ns


class SimulatedTorch:
    """What the recorder uses of torch, on a simulated driver."""

    def __init__(self, driver):
        self.driver = driver
        self._C = SimpleNamespace(
            _cuda_getCurrentRawStream=lambda index: STREAM,
            _cuda_getCurrentStream=lambda index: (STREAM, index, 1),
            _cuda_isCurrentStreamCapturing=lambda: driver.is_capturing,
        )
        streams = {number: SimpleNamespace(cuda_stream=number) for number in (STREAM, SIDE_STREAM)}
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing, external=False: TorchEvent(driver),
            Stream=lambda device, priority: streams[SIDE_STREAM],
            current_stream=lambda index: streams[STREAM],
            device=self._device,
            get_device_name=lambda index: "Simulated",
        )

    @contextmanager
    def _device(self, index):
        before, self.driver.current = self.driver.current, index
        try:
            yield
        finally:
            self.driver.current = before


class TorchEvent:
    """An event as torch has it, which calls the same driver."""

    def __init__(self, driver):
        self.driver = driver
        self.cuda_event = driver.new_handle()

    def record(self, stream):
        if error := self.driver.error or self.driver.record(self.cuda_event, stream.cuda_stream):
            raise RuntimeError(f"CUDA error {error}")

    def query(self):
        if self.driver.error:
            raise RuntimeError(f"CUDA error {self.driver.error}")
        return self.driver.query(self.cuda_event) == 0

    def elapsed_time(self, other):
        found = [0.0]
        if error := self.driver.error or self.driver.elapsed(found, self.cuda_event, other.cuda_event):
            raise RuntimeError(f"CUDA error {error}")
        return struct.unpack("<f", struct.pack("<f", found[0]))[0]


@atexit.register
def forget():
    """Let the extension call no Python when the interpreter destroys its last events."""
    if KEPT:
        harmless = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
        compiled.driver_events((harmless,) * len(cuda_driver.FUNCTIONS))


def use(monkeypatch, *, host="cpu"):
    """Let a recorder find a simulated GPU, unless its training reports the device `host`; return the driver."""
    driver = SimulatedDriver()
    KEPT.append(driver)

    def find(reported):
        is_host = host is not None and reported == host
        return None if is_host else TorchStreams(SimulatedTorch(driver), "cuda", 0)

    monkeypatch.setattr(cuda_driver, "addresses", driver.addresses)
    monkeypatch.setattr(devices, "find_device", find)
    return driver
