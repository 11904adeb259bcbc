"""The values of `stagescope watch` in OpenTelemetry, MLflow, W&B and TensorBoard, with their own packages."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from children import clean_environment
from pipeline_recordings import MICROBATCHES, RANKS, planted_training, write_training
from stagescope import api
from stagescope.api.metrics import METRICS, Snapshot
from stagescope.api.run_loggers import LOGGERS, parse_logger, scalars_of
from stagescope.api.telemetry import MetricsSender, SpansSender, send_telemetry
from stagescope.cli import main
from stagescope.vocabulary.errors import UsageError

STEPS = 60


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recordings")
    write_training(directory, planted_training(STEPS, 0, (), 1))
    return directory


@pytest.fixture(scope="module")
def updates(recordings):
    watcher, found = api.Watcher(recordings), []
    while not found or not found[-1].is_over:
        found.append(watcher.update())
    return found


@pytest.fixture(scope="module")
def expected(updates):
    """Return the last values by name."""
    snapshot = Snapshot(per_rank=True)
    for update in updates:
        snapshot.add(update)
    return scalars_of(snapshot)


def points_of(metrics):
    """Return the values of the SDK's metrics, named like scalars."""
    found = {}
    for resource in metrics.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                labels = next(each.labels for each in METRICS if each.name == metric.name)
                for point in metric.data.data_points:
                    found["/".join((metric.name, *(point.attributes[label] for label in labels)))] = (
                        point.value
                    )
    return found


def test_the_sdk_reads_the_metrics_of_the_table_with_their_units(updates, expected):
    reader = InMemoryMetricReader()
    sender = MetricsSender([reader], per_rank=True)
    for update in updates:
        sender.add(update)
    data = reader.get_metrics_data()
    assert points_of(data) == expected
    metrics = {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}
    for metric in METRICS:
        if metric.name in metrics:
            assert metrics[metric.name].unit == metric.unit
            assert metrics[metric.name].description == metric.description
            assert isinstance(metrics[metric.name].data, Sum) == metric.is_count
    assert metrics["stagescope_iteration_seconds"].unit == "s"
    sender.close()


def test_steps_and_actions_are_linked_spans_of_one_trace_per_step(updates):
    exporter, warnings = InMemorySpanExporter(), []
    sender = SpansSender(exporter, warnings.append)
    for update in updates:
        sender.add(update)
    spans = exporter.get_finished_spans()
    assert len(spans) == STEPS * RANKS * (1 + 2 * MICROBATCHES)
    assert len({span.context.trace_id for span in spans}) == STEPS
    by_context = {span.context.span_id: span for span in spans}
    of_step = [span for span in spans if span.attributes["step"] == 7]
    assert {span.context.trace_id for span in of_step} == {of_step[0].context.trace_id}
    named = {span.name: span for span in of_step if "kind" in span.attributes}
    needs = {
        name: sorted(by_context[link.context.span_id].name for link in span.links)
        for name, span in named.items()
    }
    assert (needs["F0.1"], needs["F2.1"], needs["B3.1"], needs["B1.0"]) == (
        [], ["F1.1"], ["F3.1"], ["B2.0", "F1.0"],
    )  # fmt: skip
    whole = updates[0].timeline.spans.filter(step=7, rank=2, kind="forward", microbatch=1).row(0, named=True)
    assert (named["F2.1"].start_time, named["F2.1"].end_time) == (whole["start_ns"], whole["end_ns"])
    assert named["F2.1"].resource.attributes["rank"] == 2
    assert by_context[named["F2.1"].parent.span_id].name == "step 7"
    sender.close()
    assert warnings == []


class Receiver(BaseHTTPRequestHandler):
    """An OTLP receiver: decodes what it gets with the messages of opentelemetry-proto."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def receiver():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.answer = [], 200
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_real_receiver_gets_the_last_values_over_http(recordings, receiver, expected, capsys):
    address = f"http://127.0.0.1:{receiver.server_port}"
    assert main(["watch", str(recordings), "--otlp", address, "--metrics-per-rank"]) == 0
    path, media, body = receiver.got[-1]
    assert (path, media) == ("/v1/metrics", "application/x-protobuf")
    request = ExportMetricsServiceRequest.FromString(body)
    (resource,) = request.resource_metrics
    assert resource.resource.attributes[0].key
    found = {}
    for metric in resource.scope_metrics[0].metrics:
        labels = next(each.labels for each in METRICS if each.name == metric.name)
        for point in metric.gauge.data_points or metric.sum.data_points:
            given = {attribute.key: attribute.value.string_value for attribute in point.attributes}
            value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
            found["/".join((metric.name, *(given[label] for label in labels)))] = value
    assert found == expected
    assert capsys.readouterr().err == ""


def test_the_spans_are_read_back_as_the_run_that_they_come_from(recordings, tmp_path):
    with api.TraceReceiver(tmp_path / "traces", port=0) as receiver:
        assert main(["watch", str(recordings), "--otlp", receiver.endpoint, "--otlp-spans"]) == 0
    sent, back = api.read(recordings), api.read(tmp_path / "traces")
    columns = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    actions = sent.spans.select(columns).sort(columns)
    assert back.spans.select(columns).sort(columns).equals(actions)
    assert back.steps.height == STEPS * RANKS


def test_a_collector_that_refuses_or_is_absent_is_reported_and_the_watch_goes_on(
    recordings, receiver, capsys
):
    receiver.answer = 400
    address = f"http://127.0.0.1:{receiver.server_port}"
    assert main(["watch", str(recordings), "--otlp", address, "--otlp-spans"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") <= 4
    assert "spans were not delivered" in err
    warnings = []
    with send_telemetry("http://127.0.0.1:9", warnings.append):
        pass
    assert warnings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--otlp", "127.0.0.1:4318"], "--otlp '127.0.0.1:4318': expected an address"),
        (["--otlp-spans"], "--otlp-spans: only with --otlp"),
        (["--log-to", "excel"], "expected NAME or NAME:DIR with one of mlflow, wandb, tensorboard"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, message, recordings, capsys):
    assert main(["watch", str(recordings), *words]) == 2
    assert message in capsys.readouterr().err


def test_names_of_loggers_may_have_a_directory():
    assert parse_logger("mlflow:a:b") == ("mlflow", "a:b")
    assert parse_logger("wandb") == ("wandb", None)
    with pytest.raises(UsageError):
        parse_logger("")


def watch(recordings, directory, name, **variables):
    """Watch in a process of its own: the libraries start threads and change global state."""
    command = [
        sys.executable,
        "-m",
        "stagescope",
        "watch",
        str(recordings),
        "--log-to",
        f"{name}:{directory}",
        "--json",
    ]
    environment = clean_environment(
        WANDB_MODE="offline",
        MLFLOW_DISABLE_TELEMETRY="true",
        MLFLOW_ALLOW_FILE_STORE="true",
        HOME=str(directory),
        **variables,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    steps = [
        event
        for event in map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines()))
        if event["event"] == "step"
    ]
    return {step["step"]: step["values"]["bubble"] for step in steps}


def test_tensorboard_reads_every_step(recordings, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    bubbles = watch(recordings, tmp_path, "tensorboard")
    events = reader.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    name = "stagescope_bubble_ratio"
    if name in tags["scalars"]:
        found = {event.step: event.value for event in events.Scalars(name)}
    else:
        found = {event.step: event.tensor_proto.float_val[0] for event in events.Tensors(name)}
    assert found == pytest.approx(bubbles, rel=1e-6)
    assert "stagescope_lost_time_ratio/schedule_bubble" in {*tags["scalars"], *tags["tensors"]}


def test_mlflow_has_every_step(recordings, tmp_path):
    if find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed")
    bubbles = watch(recordings, tmp_path, "mlflow")
    if find_spec("sqlalchemy") is None:  # mlflow-skinny alone: lines with time, value and step
        (path,) = tmp_path.rglob("metrics/stagescope_bubble_ratio")
        found = {int(step): float(value) for _, value, step in map(str.split, path.read_text().splitlines())}
    else:
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
            rows = database.execute("select step, value from metrics where key = 'stagescope_bubble_ratio'")
            found = dict(rows.fetchall())
            assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
    assert found == pytest.approx(bubbles)


def log_records(data):
    """Yield the records of a file of W&B: blocks of 32 KiB with records in pieces, as in the logs of LevelDB."""
    position, record = 7, b""  # a header of the file precedes
    data = b"\0" * 7 + data
    while position + 7 <= len(data):
        if 2**15 - position % 2**15 < 7:
            position += 2**15 - position % 2**15
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield record
            record = b""


def test_wandb_has_every_step(recordings, tmp_path):
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    bubbles = watch(recordings, tmp_path, "wandb")
    (path,) = tmp_path.rglob("*.wandb")
    found = {}
    for data in log_records(path.read_bytes()[7:]):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {
                (item.key or ".".join(item.nested_key)): json.loads(item.value_json)
                for item in record.history.item
            }
            found[row["stagescope_step"]] = row["stagescope_bubble_ratio"]
    assert found == pytest.approx(bubbles)


def test_every_logger_has_a_test():
    assert set(LOGGERS) == {"mlflow", "tensorboard", "wandb"}
