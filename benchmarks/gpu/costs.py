"""Part E: what an event costs the device. Part H: what an action costs the host. Part I: what a fork costs."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import time
from typing import Any

from gpu.device import recorder_on_device, sleep_ms
from gpu.measures import SETTINGS, Measure, Unavailable

HEAD_START = 5.0
"""How many times longer the kernel before them is than the host takes to queue the small kernels."""
BATCH = 250
"""Small kernels queued at once. With an event after each, they fit the device's queue of 1,024 launches; the host waits
when that is full."""
FORWARD = 1
ROUNDS = 20
SPANS = 200
FORK_LIMIT_S = 5.0


def device_costs(torch: Any) -> list[Measure]:
    """Measure how much longer the device takes for a small kernel if an event follows it, over 10,000 of each."""
    tensor = torch.zeros(1, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(BATCH)]
    bare, timed = [], []
    for _ in range(max(3, SETTINGS.kernels // BATCH)):
        bare.append(_device_ms(torch, tensor, None))
        timed.append(_device_ms(torch, tensor, events))
    more_us = (statistics.median(timed) - statistics.median(bare)) * 1e3 / BATCH
    return [
        Measure("time of a small kernel", statistics.median(bare) * 1e3 / BATCH, "us"),
        Measure("increase by an event", more_us, "us", high=2.5),
    ]


def _device_ms(torch: Any, tensor: Any, events: list[Any] | None) -> float:
    """Return the device's time for the kernels and events, all of which are queued before the first one runs."""
    begun_ns = time.perf_counter_ns()
    _queue(tensor, events)
    host_ms = (time.perf_counter_ns() - begun_ns) / 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    sleep_ms(torch, HEAD_START * host_ms)
    begun_ns = time.perf_counter_ns()
    begin.record()
    _queue(tensor, events)
    end.record()
    if (time.perf_counter_ns() - begun_ns) / 1e6 > HEAD_START * host_ms:
        raise Unavailable("the host was too slow to queue all kernels before the first one ran")
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def _queue(tensor: Any, events: list[Any] | None) -> None:
    for number in range(BATCH):
        tensor.add_(1)
        if events is not None:
            events[number].record()


def host_costs(torch: Any) -> list[Measure]:
    """Measure the host's time for the begin and the end of an action, without and with its share of the harvest."""
    costs_us, with_harvest_us = [], []
    with recorder_on_device(torch) as recorder:
        timer = recorder.timer
        timer.end(timer.begin(), FORWARD)
        for _ in range(ROUNDS):
            begun_ns = time.perf_counter_ns()
            for action in range(SPANS):
                timer.end(timer.begin(), FORWARD, 0, action)
            ended_ns = time.perf_counter_ns()
            torch.cuda.synchronize()
            resumed_ns = time.perf_counter_ns()
            timer.harvest()
            harvest_ns = time.perf_counter_ns() - resumed_ns
            costs_us.append((ended_ns - begun_ns) / SPANS / 1e3)
            with_harvest_us.append((ended_ns - begun_ns + harvest_ns) / SPANS / 1e3)
    return [
        Measure("begin and end of an action", statistics.median(costs_us), "us", high=14.0),
        Measure("the same with its harvest", statistics.median(with_harvest_us), "us", high=25.0),
    ]


def forks(torch: Any) -> list[Measure]:
    """Measure how many of 200 forked children hang or fail while the parent's events are pending."""
    hung = failed = 0
    with recorder_on_device(torch) as recorder:
        timer = recorder.timer
        for number in range(SETTINGS.forks):
            token = timer.begin()
            sleep_ms(torch, 1)
            timer.end(token, FORWARD, 0, number)
            code = _fork()
            hung += code is None
            failed += code not in (None, 0)
    return [
        Measure(f"children of {SETTINGS.forks} that hang for {FORK_LIMIT_S:g} s", hung, "", high=0),
        Measure(f"children of {SETTINGS.forks} that fail", failed, "", high=0),
    ]


def _fork() -> int | None:
    """Return the exit code of a child that collects garbage and exits; end it and return None if it hangs."""
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    give_up_s = time.monotonic() + FORK_LIMIT_S
    while time.monotonic() < give_up_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
