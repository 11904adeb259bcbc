"""Part C: what the events of a graph report, and when. Part D: whether a harvest disturbs a capture."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpu.device import kernels_of, profile, recorder_on_device, sleep_ms
from gpu.measures import Measure, Unavailable
from stagescope import record

if TYPE_CHECKING:
    from collections.abc import Callable

KERNEL_MS = 20.0
SHORT_MS = 1.0
TIMES = 21
CAPTURE_S = 0.3


def graph_events(torch: Any) -> list[Measure]:
    """Measure whether external events are stale right after a replay, and how far they are from CUPTI's times."""
    try:
        begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    except TypeError as error:
        raise Unavailable("this torch has no external events") from error
    sleep_ms(torch, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        begin.record()
        sleep_ms(torch, KERNEL_MS)
        end.record()
    answers = [_is_done_after_replay(torch, graph, end) for _ in range(2)]
    (kernel,) = kernels_of(profile(torch, graph.replay))[-1:]
    profiled_us = begin.elapsed_time(end) * 1e3 - (kernel.end_ns - kernel.start_ns) / 1e3
    return [
        Measure("event of a graph is done right after the first replay", answers[0], "of 1", high=0),
        Measure("the same after the second replay", answers[1], "of 1", high=0),
        Measure("distance of two external events less their kernel, profiled", profiled_us, "us"),
        Measure(
            "the same less that of two ordinary events, unprofiled", _distance_us(torch), "us", -3.0, 3.0
        ),
    ]


def _distance_us(torch: Any) -> float:
    """Return how much longer a kernel takes between two events of a graph than between two ordinary events.

    A profiler adds to the time between the nodes of a graph, so there is none here. Kernels of a fixed number of cycles
    take equally long; a longer one before them keeps the host ahead.
    """
    outer = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    inner = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _between(torch, inner)
    differences_us = []
    for _ in range(TIMES):
        sleep_ms(torch, SHORT_MS)
        _between(torch, outer)
        graph.replay()
        torch.cuda.synchronize()
        in_graph_ms, outside_ms = (begin.elapsed_time(end) for begin, end in (inner, outer))
        differences_us.append((in_graph_ms - outside_ms) * 1e3)
    return statistics.median(differences_us)


def _between(torch: Any, events: list[Any]) -> None:
    """Queue a kernel between two events."""
    events[0].record()
    sleep_ms(torch, SHORT_MS)
    events[1].record()


def _is_done_after_replay(torch: Any, graph: Any, event: Any) -> float:
    graph.replay()
    is_done = float(event.query())
    torch.cuda.synchronize()
    return is_done


def captures(torch: Any) -> list[Measure]:
    """Measure how many captures fail while a thread harvests, and while one queries an event directly."""
    with recorder_on_device(torch) as recorder:
        _record_actions(torch, 3)
        harvested = _failed_captures(torch, recorder.timer.harvest)
    event = torch.cuda.Event()
    event.record()
    queried = _failed_captures(torch, event.query)
    return [
        Measure("captures that fail while a thread harvests", harvested, "of 1", high=0),
        Measure("captures that fail while a thread queries", queried, "of 1", low=1),
    ]


def _record_actions(torch: Any, count: int) -> None:
    for microbatch in range(count):
        with record.span("forward", microbatch=microbatch):
            sleep_ms(torch, 1)


def _failed_captures(torch: Any, disturb: Callable[[], object]) -> float:
    """Return 1 if a capture in the global mode fails while a thread calls `disturb` again and again."""
    is_over = threading.Event()
    thread = threading.Thread(target=_repeat, args=(disturb, is_over))
    thread.start()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            sleep_ms(torch, 1)
            time.sleep(CAPTURE_S)
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        return 1.0
    else:
        return 0.0
    finally:
        is_over.set()
        thread.join()


def _repeat(function: Callable[[], object], is_over: threading.Event) -> None:
    with suppress(RuntimeError):  # the driver refuses the query, too
        while not is_over.wait(0.001):
            function()
