"""The parts of the check on a GPU: what each measures, in which environments, and what its result means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpu import accuracy, costs, graphs, pipeline, queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu.measures import Measure

ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class Part(NamedTuple):
    """A part. `measure` is called with torch, once in each of the `environments`, in a process of its own.

    `as_expected` and `refuted` are the meaning of its result: all values within their limits, or not.
    """

    letter: str
    name: str
    measure: Callable[[Any], list[Measure]]
    as_expected: str
    refuted: str
    environments: tuple[dict[str, str], ...] = ({},)
    limit_s: float = 90.0


PARTS = (
    Part(
        "A",
        "anchors behind queued work",
        queues.anchor_delays,
        "a stream of the recorder's own is not delayed by a few busy streams",
        "anchors are late where the delay is about 100 ms: their brackets are as wide as two looks are apart",
        ({}, ONE_CONNECTION),
    ),
    Part(
        "B",
        "overlap beside events",
        queues.overlaps,
        "events on the stream of the actions do not serialize other streams",
        "events serialize: record with --timing host, or only some steps, where the overlap is lost",
        ({}, ONE_CONNECTION),
    ),
    Part(
        "C",
        "events of graphs",
        graphs.graph_events,
        "events of a graph are reset by its replay, and as accurate as others",
        "events of a graph are stale until the replay reaches them: the event behind each replay is needed, and "
        "their distance is not to be trusted if it is off",
    ),
    Part(
        "D",
        "captures beside a harvest",
        graphs.captures,
        "a harvest in another thread does not disturb a capture, a plain query does",
        "a failed capture beside a harvest breaks trainings; if the plain query fails none, the part shows nothing",
    ),
    Part(
        "E",
        "cost of an event on the device",
        costs.device_costs,
        "an action costs the device at most 5 us",
        "an event costs the device more than assumed: record fewer actions or use --timing host",
        limit_s=60.0,
    ),
    Part(
        "F",
        "accuracy of actions",
        accuracy.errors,
        "recorded actions equal those of CUPTI within the stated errors",
        "stated errors of the device's times cannot be relied on",
        ({}, ONE_CONNECTION),
        limit_s=120.0,
    ),
    Part(
        "G",
        "rate of the clock",
        accuracy.drift,
        "the device's clock keeps its rate between two anchors",
        "interpolation between anchors adds an error that is not stated",
        limit_s=120.0,
    ),
    Part(
        "H",
        "cost of an action on the host",
        costs.host_costs,
        "an action costs the host at most 25 us",
        "recording actions costs the host more than assumed",
    ),
    Part(
        "I",
        "forked children",
        costs.forks,
        "children of a process with pending events exit",
        "children of a recorded process, such as workers of a data loader, hang or fail",
        limit_s=180.0,
    ),
    Part(
        "J",
        "a pipeline of two processes",
        pipeline.pipeline,
        "recording does not change the training, and its actions contain their kernels",
        "recorded actions of a real pipeline are wrong, or recording changes the training",
        limit_s=180.0,
    ),
)
