"""Send the metrics of a training, and on request its spans, to an OpenTelemetry collector.

Names, units and values of the metrics are those of METRICS (api/metrics.py), as for Prometheus. A step and the actions
in it are spans of one trace per step: the step of the first rank is its root, and each action links to the action
whose result it needs. The SDK makes and encodes both; nothing is sent before the first measured step.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.api.metrics import METRICS, Snapshot
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.kinds import ACTION_KINDS, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagescope.api.metrics import Metric
    from stagescope.api.watching import Update
    from stagescope.model import Timeline

INSTALL = "pip install 'stagescope[telemetry]'"
OPTION = "--otlp"
LIBRARY = "opentelemetry"
SERVICE = "stagescope"
EVERY_MS = 10_000
PATIENCE_S = 5.0
SHARED = ("dp", "tp", "cp")
"""The coordinates that all stages of a pipeline share."""
MOST_SPANS = 512
"""Spans of one request, as in the SDK's own batches."""


class MetricsSender:
    """Gives the present values to the SDK's readers of metrics, such as one that sends them every ten seconds."""

    def __init__(self, readers: Sequence[Any], *, per_rank: bool = False) -> None:
        """Create the instruments; they report nothing before the first update."""
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - an optional library
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        self._snapshot = Snapshot(per_rank=per_rank)
        self._lock = Lock()
        self._observation = Observation
        resource = Resource.create({"service.name": SERVICE})
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._provider.get_meter(SERVICE)
        for metric in METRICS:
            create = meter.create_observable_counter if metric.is_count else meter.create_observable_gauge
            create(metric.name, [self._values_of(metric)], metric.unit, metric.description)

    def add(self, update: Update) -> None:
        """Take what is new in the training."""
        with self._lock:
            self._snapshot.add(update)

    def close(self) -> None:
        """Send the last values."""
        self._provider.shutdown(timeout_millis=2 * PATIENCE_S * 1000)

    def _values_of(self, metric: Metric) -> Callable[[object], list[Any]]:
        def values(_options: object) -> list[Any]:
            with self._lock:
                samples = list(metric.samples(self._snapshot))
            return [
                self._observation(value, dict(zip(metric.labels, labels, strict=True)))
                for labels, value in samples
            ]

        return values


class SpansSender:
    """Gives steps and actions to one of the SDK's exporters of spans; `warn` gets a sentence if it fails."""

    def __init__(self, exporter: Any, warn: Callable[[str], object]) -> None:
        """Set up the exporter without sending anything."""
        self._exporter = exporter
        self._warn = warn
        self._tracers: dict[int, Any] = {}
        self._ended: list[Any] = []
        self.lost = 0

    def add(self, update: Update) -> None:
        """Send the steps that are new, with their actions."""
        if update.timeline is None:
            return
        for step in sorted(set(update.timeline.steps["step"])):
            self._add_step(update.timeline, step)
        self._send()

    def close(self) -> None:
        """End the exporter, and state how many spans were not delivered."""
        self._exporter.shutdown()
        if self.lost:
            self._warn(f"{OPTION}: {self.lost} spans were not delivered")

    def _add_step(self, timeline: Timeline, step: int) -> None:
        from opentelemetry import trace  # noqa: PLC0415

        roots: dict[int, Any] = {}
        parent = None
        for rank, start_ns, end_ns in (
            timeline.steps.filter(step=step).sort("rank").select("rank", "start_ns", "end_ns").iter_rows()
        ):
            span = self._tracer(timeline, rank).start_span(
                f"step {step}", parent, attributes={"step": step, "rank": rank}, start_time=start_ns
            )
            roots[rank] = trace.set_span_in_context(span)
            parent = parent or roots[rank]
            span.end(end_ns)
        self._add_actions(timeline, step, roots)

    def _add_actions(self, timeline: Timeline, step: int, roots: dict[int, Any]) -> None:
        from opentelemetry import trace  # noqa: PLC0415

        places = {rank: tuple(shared) for rank, *shared in timeline.ranks.select("rank", *SHARED).iter_rows()}
        known: dict[tuple[object, ...], Any] = {}
        columns = ("rank", "kind", "stage", "microbatch", "chunk", "start_ns", "end_ns")
        actions = timeline.spans.filter(pl.col("step") == step, pl.col("kind").is_in(ACTION_KINDS))
        for rank, kind, stage, microbatch, chunk, start_ns, end_ns in (
            actions.sort("start_ns").select(columns).iter_rows()
        ):
            place = places.get(rank)
            needed = (known.get((place, *each, microbatch)) for each in _needed(kind, stage))
            links = [trace.Link(context) for context in needed if context is not None]
            numbers = {"step": step, "rank": rank, "stage": stage, "microbatch": microbatch, "chunk": chunk}
            attributes = {name: number for name, number in numbers.items() if number is not None}
            span = self._tracer(timeline, rank).start_span(
                label(kind, stage, microbatch), roots.get(rank), attributes={"kind": kind, **attributes},
                links=links, start_time=start_ns,
            )  # fmt: skip
            if stage is not None and microbatch is not None:
                known[place, kind, stage, microbatch] = span.get_span_context()
            span.end(end_ns)

    def _tracer(self, timeline: Timeline, rank: int) -> Any:
        """Return what starts the spans of a rank: its resource states which one it is."""
        if rank not in self._tracers:
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415

            ended = self._ended

            class Collected(SpanProcessor):  # type: ignore[misc]  # the library is optional, so its types are unknown
                """Keeps the spans until they are sent: a queue of the SDK drops those that do not fit, silently."""

                def on_end(self, span: Any) -> None:
                    ended.append(span)

            hosts = dict(timeline.ranks.select("rank", "host").iter_rows())
            facts = {"service.name": SERVICE, "rank": rank, "host.name": hosts.get(rank) or ""}
            provider = TracerProvider(resource=Resource.create(facts), shutdown_on_exit=False)
            provider.add_span_processor(Collected())
            self._tracers[rank] = provider.get_tracer(SERVICE)
        return self._tracers[rank]

    def _send(self) -> None:
        """Send what has ended; after a failure, the rest of it is lost and counted, because the training goes on."""
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        spans, self._ended[:] = list(self._ended), []
        for first in range(0, len(spans), MOST_SPANS):
            if self._exporter.export(spans[first : first + MOST_SPANS]) is not SpanExportResult.SUCCESS:
                self.lost += len(spans) - first
                return


def _needed(kind: str, stage: int | None) -> list[tuple[str, int]]:
    """Return kind and stage of the actions, of the same micro-batch, whose results an action needs."""
    if stage is None:
        return []
    if kind == "forward":
        return [("forward", stage - 1)]
    if kind == "backward_weight":
        return [("backward_input", stage)]
    return [("forward", stage), ("backward", stage + 1), ("backward_input", stage + 1)]


@contextmanager
def send_telemetry(
    url: str, warn: Callable[[str], object], *, per_rank: bool = False, spans: bool = False
) -> Iterator[list[Callable[[Update], None]]]:
    """Send metrics, and with `spans` steps and actions, to a collector until the block ends; yield what takes updates.

    `url` is that of the collector, such as ``http://127.0.0.1:4318``; OTLP over HTTP with protobuf is spoken. `warn` is
    called with a sentence if something cannot be delivered. Raises CommandError if the SDK is missing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    except ImportError:
        raise CommandError.missing_library("opentelemetry-sdk", OPTION, INSTALL) from None
    base = url.rstrip("/")
    with _warnings_of_the_sdk(warn):
        exporter = OTLPMetricExporter(f"{base}/v1/metrics", timeout=PATIENCE_S)
        metrics = MetricsSender([PeriodicExportingMetricReader(exporter, EVERY_MS)], per_rank=per_rank)
        senders: list[MetricsSender | SpansSender] = [metrics]
        if spans:
            senders.append(SpansSender(OTLPSpanExporter(f"{base}/v1/traces", timeout=PATIENCE_S), warn))
        try:
            yield [sender.add for sender in senders]
        finally:
            for sender in senders:
                sender.close()


class _Warnings(logging.Handler):
    """Passes each message on once: the SDK repeats itself with every attempt."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._seen: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self._seen:
            self._seen.add(record.msg)
            self._warn(f"{OPTION}: {record.getMessage().splitlines()[0][:200]}")


@contextmanager
def _warnings_of_the_sdk(warn: Callable[[str], object]) -> Iterator[None]:
    logger, handler = logging.getLogger(LIBRARY), _Warnings(warn)
    was_passed_on = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_passed_on
