"""The receiver on the loopback interface: recorded requests of the real SDK, and requests that it must refuse."""

import gzip
import http.client
import json
import socket
import threading

import pytest

import stagescope
from otlp_requests import recorded, request, span
from stagescope import api
from stagescope.ingest.otlp import receiver as module
from stagescope.ingest.otlp.messages import DECODER
from stagescope.vocabulary.errors import CommandError, UsageError

JSON = {"Content-Type": "application/json"}
ONE = json.dumps(request([span("F0.0", 0, 10, 1, step=1)])).encode()


@pytest.fixture
def receiver(tmp_path):
    with api.TraceReceiver(tmp_path / "out", port=0) as found:
        yield found


def post(receiver, body, headers=None, path="/v1/traces", method="POST"):
    """Return status and body of the answer."""
    host, port = receiver.endpoint.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_requests_of_the_real_sdk_are_stored_and_read(tmp_path):
    count, requests = recorded()
    seen = []
    with api.TraceReceiver(
        tmp_path / "out", port=0, on_new=lambda *process: seen.append(process)
    ) as receiver:
        answers = [post(receiver, body, headers) for headers, body in requests]
    assert answers == [(200, b"")] * len(requests)
    assert {headers.get("Content-Encoding") for headers, _ in requests} == {None, "gzip"}
    assert (receiver.counts.span_count, receiver.counts.requests) == (count, len(requests))
    assert sorted(seen) == [(0, "node1"), (1, "node1")]
    found = stagescope.read(tmp_path / "out", align=False)
    kinds = dict(found.spans.group_by("kind").len().iter_rows())
    assert kinds == {"forward": 12, "backward": 12, "optimizer": 4, "send_forward": 6, "recv_forward": 6,
                     "send_backward": 6, "recv_backward": 6}  # fmt: skip
    assert found.spans["peer"].count() == 24
    assert found.steps.height == 4


def test_an_answer_states_its_own_type_and_repeats_no_header(tmp_path):
    headers, body = recorded()[1][0]
    with api.TraceReceiver(tmp_path, port=0) as receiver:
        host, port = receiver.endpoint.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        foreign = {**headers, "Content-Type": "Application/X-Protobuf ; name=<script>"}
        connection.request("POST", "/v1/traces", body, foreign)
        answer = connection.getresponse()
        connection.close()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-protobuf")


def test_protobuf_and_json_become_the_same_lines(tmp_path):
    _, requests = recorded()
    with api.TraceReceiver(tmp_path / "a", port=0) as first:
        for headers, body in requests:
            post(first, body, headers)
    lines = first.path.read_bytes().splitlines()
    with api.TraceReceiver(tmp_path / "b", port=0) as second:
        answers = [post(second, gzip.compress(line), {**JSON, "Content-Encoding": "gzip"}) for line in lines]
    assert answers == [(200, b"{}")] * len(lines)
    assert second.path.read_bytes() == first.path.read_bytes()


@pytest.mark.parametrize(
    ("headers", "body", "status", "sentence"),
    [
        ({**JSON, "Host": "evil.example"}, ONE, 403, "This receiver accepts requests to its loopback address only."),
        ({**JSON, "Origin": "http://evil.example"}, ONE, 403, "This receiver accepts no requests from web pages."),
        ({**JSON, "Sec-Fetch-Site": "cross-site"}, ONE, 403, "This receiver accepts no requests from web pages."),
        ({"Content-Type": "text/plain"}, ONE, 415, "Content-Type must be application/x-protobuf or application/json."),
        ({**JSON, "Content-Encoding": "br"}, ONE, 415, "Content-Encoding must be gzip, or absent."),
        ({**JSON, "Content-Encoding": "gzip"}, gzip.compress(ONE)[:-9], 400, "The body is truncated gzip data."),
        (JSON, b"{", 400, "The body is no ExportTraceServiceRequest: Input data was truncated."),
        (JSON, b"[" * 100_000, 400, "The body is no ExportTraceServiceRequest: "),
        ({"Content-Type": "application/x-protobuf"}, b"\x0a\xff", 400, "The body is no ExportTraceServiceRequest: "),
        ({**JSON, "Content-Length": "99999999"}, b"", 413, "The body is larger than 16 MiB."),
        ({**JSON, "Content-Length": "many"}, b"", 411, "Content-Length is needed."),
        ({**JSON, "Transfer-Encoding": "chunked"}, b"0\r\n\r\n", 411, "Content-Length is needed; "),
    ],
)  # fmt: skip
def test_refuses_with_one_sentence(receiver, headers, body, status, sentence):
    found, text = post(receiver, body, headers)
    assert found == status
    assert text.decode().startswith(sentence)
    assert text.decode().count("\n") == 1
    assert receiver.counts.refused == 1
    assert receiver.counts.span_count == 0


def test_a_small_body_that_expands_to_a_large_one_is_refused(receiver):
    bomb = gzip.compress(b" " * (65 << 20))
    status, text = post(receiver, bomb, {**JSON, "Content-Encoding": "gzip"})
    assert (status, text) == (413, b"The body is larger than 64 MiB after decompression.\n")


def test_metrics_and_logs_are_discarded_and_counted(receiver):
    assert post(receiver, b"{}", JSON, "/v1/metrics")[0] == 200
    assert post(receiver, b"{}", JSON, "/v1/logs")[0] == 200
    assert post(receiver, b"{}", JSON, "/etc/passwd")[0] == 404
    assert post(receiver, None, JSON, "/v1/traces", "GET")[0] == 501
    assert (receiver.counts.discarded, receiver.counts.refused) == (2, 1)


def test_a_full_file_rejects_spans_and_counts_them(tmp_path):
    with api.TraceReceiver(tmp_path / "out", port=0, most_bytes=len(ONE) + 10) as receiver:
        assert post(receiver, ONE, JSON) == (200, b"{}")
        status, text = post(receiver, ONE, JSON)
        assert (status, json.loads(text)["partialSuccess"]["rejectedSpans"]) == (200, "1")
        _, requests = recorded()
        headers, body = requests[0]
        status, text = post(receiver, body, headers)
    assert status == 200
    assert b"The file has reached its size limit" in text
    assert receiver.counts.not_stored > 1
    assert len(receiver.path.read_bytes().splitlines()) == 1


def test_lines_of_many_senders_at_once_are_whole(tmp_path):
    with api.TraceReceiver(tmp_path / "out", port=0) as receiver:
        senders = [
            threading.Thread(target=lambda: [post(receiver, ONE, JSON) for _ in range(10)]) for _ in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    lines = receiver.path.read_bytes().splitlines()
    assert len(lines) == 80
    assert all(DECODER.decode(line).span_count == 1 for line in lines)


def test_a_slow_sender_is_cut_off_and_others_are_served(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONNECTION_SECONDS", 0.3)
    with api.TraceReceiver(tmp_path / "out", port=0) as receiver:
        host, port = receiver.endpoint.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"POST /v1/traces HTTP/1.1\r\nHost: ")
            assert post(receiver, ONE, JSON)[0] == 200
            assert slow.recv(100) == b""


def test_connections_above_the_limit_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    with api.TraceReceiver(tmp_path / "out", port=0) as receiver:
        host, port = receiver.endpoint.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(3)]
        assert idle[2].recv(1) == b""
        for one in idle:
            one.close()


def test_listens_on_the_loopback_interface_only(tmp_path):
    with pytest.raises(UsageError, match=r"--host 0.0.0.0: expected one of 127.0.0.1, localhost, ::1"):
        api.TraceReceiver(tmp_path, host="0.0.0.0", port=0)  # noqa: S104 - must be refused


def test_a_port_in_use_is_an_error(tmp_path, receiver):
    port = int(receiver.endpoint.rpartition(":")[2])
    with pytest.raises(CommandError, match=str(port)):
        api.TraceReceiver(tmp_path, port=port)


def test_without_spans_no_file_remains(tmp_path):
    with api.TraceReceiver(tmp_path / "out", port=0) as receiver:
        pass
    assert not receiver.path.exists()
