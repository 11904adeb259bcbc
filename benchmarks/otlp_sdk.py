"""Send the spans of a small pipeline with the OpenTelemetry SDK to `stagescope receive`, and compare what is read.

    python benchmarks/otlp_sdk.py [--record FOLDER]

Needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http. Two processes run 1F1B with the spans, attributes
and resources of Megatron-LM (docs/user-guide/observability); actions sleep, and what is sent carries the context of its
span, to which the receiving span links. One process compresses its requests, the other does not. The line printed has
how many spans were made, received and read. With `--record`, the requests are also stored as test data.
"""

from __future__ import annotations

import argparse
import base64
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope import api as workflow

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

STAGES, MICROBATCHES, STEPS = 2, 3, 2
FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.004, 0.008, 0.002
SECOND_REQUEST_S = 0.05


class Rank:
    """One process of the training: its tracer, and the connections to the stages before and after."""

    def __init__(self, rank: int, endpoint: str, before: Connection | None, after: Connection | None) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415 - only in the processes
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        attributes = {
            "service.name": "megatron-lm", "service.instance.id": f"run42-rank{rank}", "nemo.run.id": "run42",
            "host.name": "node1", "dl.local_rank": rank, "dl.pipeline_parallel.size": STAGES,
        }  # fmt: skip
        compression = Compression.Gzip if rank else Compression.NoCompression
        self.provider = TracerProvider(resource=Resource.create(attributes))
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", compression=compression)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer("nemo.lens")
        self.rank, self.before, self.after = rank, before, after
        self.made = 0

    def span(self, name: str, **attributes: int) -> Any:
        """Return a context manager with a span."""
        self.made += 1
        named = {f"megatron.{key}": value for key, value in attributes.items()}
        return self.tracer.start_as_current_span(f"megatron.{name}", attributes=named)

    def receive(self, kind: str, connection: Connection | None) -> None:
        """Receive, and link to the span that sent."""
        from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

        if connection is not None:
            with self.span(f"p2p.{kind}") as span:
                trace, number = connection.recv()
                span.add_link(SpanContext(trace, number, is_remote=True, trace_flags=TraceFlags(1)))

    def send(self, kind: str, connection: Connection | None) -> None:
        """Send the context of the span."""
        if connection is not None:
            with self.span(f"p2p.{kind}") as span:
                context = span.get_span_context()
                connection.send((context.trace_id, context.span_id))

    def forward(self) -> None:
        """Run a forward."""
        self.receive("recv_forward", self.before)
        with self.span("microbatch.forward"):
            time.sleep(FORWARD_S)
        self.send("send_forward", self.after)

    def backward(self) -> None:
        """Run a backward."""
        self.receive("recv_backward", self.after)
        with self.span("microbatch.backward"):
            time.sleep(BACKWARD_S)
        self.send("send_backward", self.before)

    def train(self) -> int:
        """Run all steps; return the number of spans."""
        warm = min(STAGES - self.rank - 1, MICROBATCHES)
        for step in range(1, STEPS + 1):
            with self.span("train_step", iteration=step):
                with self.span("forward_backward", num_microbatches=MICROBATCHES):
                    for _ in range(warm):
                        self.forward()
                    for _ in range(MICROBATCHES - warm):
                        self.forward()
                        self.backward()
                    for _ in range(warm):
                        self.backward()
                with self.span("optimizer_step"):
                    time.sleep(OPTIMIZER_S)
            if self.rank == 0:
                self.provider.force_flush()
        self.provider.shutdown()
        return self.made


def train(
    rank: int, endpoint: str, before: Connection | None, after: Connection | None, made: Connection
) -> None:
    """Run a rank in a process of its own."""
    made.send(Rank(rank, endpoint, before, after).train())


def run_training(endpoint: str) -> int:
    """Return the number of spans that all processes made."""
    links = [Pipe() for _ in range(STAGES - 1)]
    counts = [Pipe() for _ in range(STAGES)]
    processes = []
    for rank in range(STAGES):
        before = links[rank - 1][1] if rank else None
        after = links[rank][0] if rank < STAGES - 1 else None
        processes.append(Process(target=train, args=(rank, endpoint, before, after, counts[rank][1])))
    for process in processes:
        process.start()
    made = sum(count.recv() for count, _ in counts)
    for process in processes:
        process.join()
    return int(made)


def record(folder: Path) -> None:
    """Store the requests of a training: their headers, and their bodies in base64."""
    stored: list[dict[str, str]] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept = {
                name: self.headers[name]
                for name in ("Content-Type", "Content-Encoding")
                if name in self.headers
            }
            stored.append({**kept, "body": base64.b64encode(body).decode()})
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = run_training(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests.json").write_text(json.dumps({"spans": made, "requests": stored}, indent=1) + "\n")


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.record:
        record(given.record)
    with tempfile.TemporaryDirectory() as folder:
        with workflow.TraceReceiver(folder, port=0) as receiver:
            made = run_training(receiver.endpoint)
        timeline = workflow.read(folder)
        kinds = dict(timeline.spans.group_by("kind").len().sort("kind").iter_rows())
        linked = timeline.spans["peer"].count()
    print(f"{made} spans made, {receiver.counts.span_count} received; read: {kinds}, {linked} with a peer")


if __name__ == "__main__":
    main()
