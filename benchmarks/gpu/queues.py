"""Part A: how long the recorder's anchor waits behind the work of a training. Part B: what events serialize."""

from __future__ import annotations

import os
import statistics
from typing import Any

from gpu.device import kernels_of, profile, sleep_ms, wait_for
from gpu.measures import Measure

WORK_MS = 100
PIECES = 10
TRIES = 5
POOL = 32
"""Streams of one priority in torch's pool (torch 2.13.0, c10/cuda/CUDAStream.cpp); the next is the first again."""
SIDE_MS = 20.0


def anchor_delays(torch: Any) -> list[Measure]:
    """Measure the delay of an event on another stream behind 100 ms of queued kernels."""
    is_single = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    where = "one connection" if is_single else "default connections"
    high = None if is_single else 20.0
    priorities = [
        Measure(f"stream of priority {priority}, {where}", _delay_us(torch, priority), "us", high=high)
        for priority in (0, -1)
    ]
    if is_single:
        return priorities
    return [
        *priorities,
        Measure("priority 0 beside 40 busy streams", _delay_beside_us(torch, 40, 0), "us"),
        Measure("priority -1 beside 40 busy streams", _delay_beside_us(torch, 40, -1), "us"),
        Measure("the 33rd stream, an alias of the first", _aliased_delay_us(torch), "us"),
    ]


def overlaps(torch: Any) -> list[Measure]:
    """Measure which share of a kernel on a second stream overlaps the first, behind events on the first."""
    where = (
        "one connection" if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1" else "default connections"
    )
    return [
        Measure(f"overlap behind {name}, {where}", _overlap(torch, options) * 100, "%", low=low)
        for name, options, low in (
            ("nothing", None, 90.0),
            ("an event without time", {"enable_timing": False}, 90.0 if "default" in where else None),
            ("an event with time", {"enable_timing": True}, 90.0 if "default" in where else None),
        )
    ]


def _queue_work(torch: Any) -> None:
    for _ in range(PIECES):
        sleep_ms(torch, WORK_MS / PIECES)


def _event_delay_us(torch: Any, stream: Any, queue: Any) -> float:
    """Return the median delay of an event on `stream` after `queue` was called."""
    delays_ns = []
    for _ in range(TRIES):
        torch.cuda.synchronize()
        queue()
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        delays_ns.append(wait_for(event))
    torch.cuda.synchronize()
    return statistics.median(delays_ns) / 1e3


def _delay_us(torch: Any, priority: int) -> float:
    stream = torch.cuda.Stream(priority=priority)
    return _event_delay_us(torch, stream, lambda: _queue_work(torch))


def _delay_beside_us(torch: Any, count: int, priority: int) -> float:
    streams = [torch.cuda.Stream() for _ in range(count)]

    def queue() -> None:
        for stream in streams:
            with torch.cuda.stream(stream):
                sleep_ms(torch, WORK_MS / PIECES)
                sleep_ms(torch, WORK_MS / PIECES)

    return _event_delay_us(torch, torch.cuda.Stream(priority=priority), queue)


def _aliased_delay_us(torch: Any) -> float:
    streams = [torch.cuda.Stream() for _ in range(POOL + 1)]

    def queue() -> None:
        with torch.cuda.stream(streams[0]):
            _queue_work(torch)

    return _event_delay_us(torch, streams[POOL], queue)


def _overlap(torch: Any, options: dict[str, bool] | None) -> float:
    """Return the share of the second stream's kernel that overlaps the first stream's, as CUPTI saw them."""
    side = torch.cuda.Stream()
    sleep_ms(torch, 1)

    def run() -> None:
        torch.cuda.synchronize()
        sleep_ms(torch, SIDE_MS)
        if options is not None:
            torch.cuda.Event(**options).record()
        with torch.cuda.stream(side):
            sleep_ms(torch, SIDE_MS)

    first, second = kernels_of(profile(torch, run))[-2:]
    both_ns = min(first.end_ns, second.end_ns) - max(first.start_ns, second.start_ns)
    return max(0, both_ns) / (second.end_ns - second.start_ns)
