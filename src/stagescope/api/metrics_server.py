"""Serve the metrics of a training to Prometheus."""

from __future__ import annotations

import re
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from stagescope.api.metrics import METRICS, Snapshot
from stagescope.vocabulary.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.api.watching import Update

INSTALL = "pip install 'stagescope[telemetry]'"
LOOPBACK = "127.0.0.1"
MOST_PORT = 65_535
ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:\s]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})", re.ASCII)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of an address such as ``127.0.0.1:9877``, ``[::1]:9877`` or ``9877``.

    A port alone is one of the loopback interface. Raises UsageError for anything else.

    >>> parse_address("9877")
    ('127.0.0.1', 9877)
    """
    found = ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > MOST_PORT:
        raise UsageError.unusable_value("--metrics", text, "expected HOST:PORT, such as 127.0.0.1:9877")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


class MetricsCollector:
    """The present values in the form that prometheus_client asks for; updates and scrapes are in different threads."""

    def __init__(self, *, per_rank: bool = False) -> None:
        """Begin without any value."""
        self._snapshot = Snapshot(per_rank=per_rank)
        self._lock = Lock()

    def add(self, update: Update) -> None:
        """Take what is new in the training."""
        with self._lock:
            self._snapshot.add(update)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that have a value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an optional library

        with self._lock:
            found = [(metric, list(metric.samples(self._snapshot))) for metric in METRICS]
        for metric, samples in found:
            if not samples:
                continue
            family = CounterMetricFamily if metric.is_count else GaugeMetricFamily
            one = family(metric.name, metric.description, labels=metric.labels)
            for labels, value in samples:
                one.add_metric(labels, value)
            yield one


@contextmanager
def serve_metrics(host: str, port: int, collector: MetricsCollector) -> Iterator[int]:
    """Serve the metrics at ``/metrics`` until the block ends, and yield the port; 0 picks a free one.

    Any program that reaches the address can read them. Raises CommandError if prometheus_client is missing, or if the
    address cannot be used, and UsageError if no machine has such a name.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an optional library
    except ImportError:
        raise CommandError.missing_library("prometheus_client", "--metrics", INSTALL) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as reason:
        hint = "give another port, or 0 to pick a free one: --metrics 127.0.0.1:0"
        raise CommandError.cannot_listen(host, port, reason, hint) from reason
    except UnicodeError:  # from the encoding of names of machines
        raise UsageError.unusable_value(
            "--metrics", f"{host}:{port}", "no name of a machine is like this"
        ) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
