"""one_process_training.py on a fake device whose work takes no time, with the same arguments."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

from fake_device import FakeDevice
from stagescope.record import devices

DEVICE = FakeDevice(
    time.monotonic_ns, latency_ns=0, late_ns=0, offset_ns=-(10**12), drift_ppm=40.0, tick_ns=1
)
devices.find_device = lambda reported: DEVICE

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("one_process_training.py")), run_name="__main__")
