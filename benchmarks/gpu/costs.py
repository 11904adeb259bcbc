"""Part E: what an event costs the device. Part H: what an action costs the host. Part I: what a fork costs."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import time
from typing import TYPE_CHECKING, Any

from gpu.device import recorder_on_device, sleep_ms
from gpu.hooked import FORWARD, HookedStage, Stage
from gpu.measures import SETTINGS, Measure, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

HEAD_START = 5.0
"""How many times longer the kernel before them is than the host takes to queue the small kernels."""
BATCH = 250
"""Small kernels queued at once. With an event after each, they fit the device's queue of 1,024 launches; the host waits
when that is full."""
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
    """Measure the host's time for the begin and the end of an action, without and with its share of the harvest.

    Those of the timer are what a hook in Python calls, and what it takes besides. A call of a wrapper is all that an
    action of a framework takes.
    """
    with recorder_on_device(torch) as recorder:
        timer, stage = recorder.timer, HookedStage(recorder)

        def by_hand(action: int) -> None:
            timer.end(timer.begin(), FORWARD, 0, action)

        def wrapped(action: int) -> None:
            stage.forward(action, bool)

        by_hand(0)
        wrapped(0)
        bare_us = _bare_us(stage)
        for way in (by_hand, wrapped):  # which makes as many events as are needed
            _costs(torch, recorder, way)
        found = {way: _costs(torch, recorder, way) for way in (by_hand, wrapped)}
        way = "in C" if stage.is_compiled else "in Python"
    (cost_us, harvest_us), (wrapped_us, wrapped_harvest_us) = found[by_hand], found[wrapped]
    most = (9.0, 14.0) if way == "in C" else (20.0, 31.0)
    return [
        Measure("begin and end of an action", cost_us, "us", high=14.0),
        Measure("the same with its harvest", cost_us + harvest_us, "us", high=25.0),
        Measure(f"an action of a wrapper {way}", wrapped_us - bare_us, "us", high=most[0]),
        Measure("the same with its harvest", wrapped_us - bare_us + wrapped_harvest_us, "us", high=most[1]),
    ]


def _costs(torch: Any, recorder: Recorder, action: Callable[[int], object]) -> tuple[float, float]:
    """Return the host's time for an action, and for the harvest of one: medians in microseconds.

    What a round leaves to the writer is written before the next one, because there are more actions than in a training.
    """
    costs_us, harvests_us = [], []
    for _ in range(ROUNDS):
        recorder.flush()
        begun_ns = time.perf_counter_ns()
        for number in range(SPANS):
            action(number)
        ended_ns = time.perf_counter_ns()
        torch.cuda.synchronize()
        resumed_ns = time.perf_counter_ns()
        recorder.timer.harvest()
        harvests_us.append((time.perf_counter_ns() - resumed_ns) / SPANS / 1e3)
        costs_us.append((ended_ns - begun_ns) / SPANS / 1e3)
    return statistics.median(costs_us), statistics.median(harvests_us)


def _bare_us(stage: HookedStage) -> float:
    """Return the time of a call that is not recorded, in microseconds."""
    one = Stage()
    begun_ns = time.perf_counter_ns()
    for number in range(ROUNDS * SPANS):
        stage.bare(one, number, bool)
    return (time.perf_counter_ns() - begun_ns) / (ROUNDS * SPANS) / 1e3


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
