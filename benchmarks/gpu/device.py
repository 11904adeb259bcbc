"""Work for the parts of the check on a GPU, and the kernels that CUPTI saw."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope import record
from stagescope.record import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.record.recorder import Recorder

CALIBRATION_CYCLES = 10_000_000
GIVE_UP_S = 30.0


class Kernel(NamedTuple):
    """A kernel as CUPTI saw it, in nanoseconds since the Unix epoch."""

    stream: int
    start_ns: int
    end_ns: int


@lru_cache(maxsize=1)
def cycles_per_ms(torch: Any) -> float:
    """Return how many cycles of ``torch.cuda._sleep`` take a millisecond."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CALIBRATION_CYCLES)  # noqa: SLF001  # torch's own tests use it
    begin.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)  # noqa: SLF001
    end.record()
    torch.cuda.synchronize()
    return CALIBRATION_CYCLES / begin.elapsed_time(end)


def sleep_ms(torch: Any, ms: float) -> None:
    """Queue a kernel of `ms` milliseconds on the current stream."""
    torch.cuda._sleep(round(ms * cycles_per_ms(torch)))  # noqa: SLF001


@contextmanager
def recorder_on_device(torch: Any) -> Iterator[Recorder]:
    """Record into a temporary directory, with actions on the GPU's clock; raise RuntimeError if they are not.

    The recorder only looks for devices that the training has initialized, and never initializes one itself.
    """
    sleep_ms(torch, 1)
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as name:
        record.start(name)
        try:
            session.recorder.begin_step()
            session.recorder.timer.look_for_device()
            if session.recorder.timer.device is None:
                raise RuntimeError("the recorder does not use the clock of the GPU")
            yield session.recorder
            torch.cuda.synchronize()
        finally:
            record.stop()


def wait_for(event: Any) -> int:
    """Return the nanoseconds until `event` has happened, without sleeping."""
    begun_ns = time.monotonic_ns()
    while not event.query():
        if time.monotonic_ns() - begun_ns > GIVE_UP_S * 1e9:
            raise TimeoutError(f"an event did not happen within {GIVE_UP_S:g} s")
    return time.monotonic_ns() - begun_ns


def profile(torch: Any, run: Callable[[], None]) -> dict[str, Any]:
    """Return the Kineto trace of `run`."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as name:
        with torch.profiler.profile(activities=activities) as profiler:
            run()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(Path(name) / "trace.json"))
        return json.loads((Path(name) / "trace.json").read_text(encoding="utf-8"))


def kernels_of(trace: dict[str, Any]) -> list[Kernel]:
    """Return the kernels of a Kineto trace by start."""
    base_ns = trace["baseTimeNanoseconds"]
    return sorted(
        (
            Kernel(
                event["args"]["stream"],
                base_ns + round(event["ts"] * 1000),
                base_ns + round((event["ts"] + event["dur"]) * 1000),
            )
            for event in trace["traceEvents"]
            if event.get("cat") == "kernel"
        ),
        key=lambda kernel: kernel.start_ns,
    )
