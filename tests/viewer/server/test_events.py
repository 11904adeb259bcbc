"""The stream of events, over real sockets: who gets it, what is in it, and when it ends."""

import http.client
import json
import time

import pytest

from drawing import timeline_from_text
from running_server import PATIENCE_S, assets_in, resting, run_of, serving
from stagescope.viewer.server import events as events_module
from stagescope.viewer.server.live import VersionedRun


@pytest.fixture
def served(tmp_path):
    """Return a run and the visitor of its server, who has entered."""
    live = resting(run_of(timeline_from_text("F0 B0\nF0 B0"), tmp_path / "run"))
    with serving(live, assets_in(tmp_path / "assets")) as visitor:
        yield live, visitor.enter()


def connect(visitor):
    """Return an open connection and its stream of events."""
    connection = http.client.HTTPConnection(visitor.host, visitor.port, timeout=PATIENCE_S)
    connection.request("GET", "/events", headers={"Cookie": visitor.cookie})
    return connection, connection.getresponse()


def next_event(answer):
    """Return the name and the data of the next event."""
    name, data = "message", ""
    while line := answer.readline().decode().rstrip("\n"):
        field, _, value = line.partition(":")
        name = value.strip() if field == "event" else name
        data = value.strip() if field == "data" else data
    return name, data


def test_only_a_page_of_this_server_gets_the_stream(served):
    _, visitor = served
    cookie, visitor.cookie = visitor.cookie, ""
    assert visitor.ask("/events")[0] == 403
    assert visitor.ask("/trend?since=0")[0] == 403
    visitor.cookie = cookie
    assert visitor.ask("/events", Origin="http://evil.example")[0] == 403
    assert visitor.ask("/events", Sec_Fetch_Site="cross-site")[0] == 403
    assert visitor.ask("/events", Host="evil.example")[0] == 403


def test_first_event_has_the_state_and_later_ones_what_changed(served):
    live, visitor = served
    connection, answer = connect(visitor)
    assert answer.getheader("content-type").startswith("text/event-stream")
    assert answer.getheader("cache-control") == "no-store"
    name, data = next_event(answer)
    assert name == "message"
    assert json.loads(data) == {"version": live.current.version, "problem": None, "training": None}
    live.training = {"outcome": "hangs"}
    live.number += 1
    assert json.loads(next_event(answer)[1])["training"] == {"outcome": "hangs"}
    connection.close()


def test_stream_without_news_beats(served, monkeypatch):
    monkeypatch.setattr(events_module, "BEAT_S", 0.1)
    _, visitor = served
    connection, answer = connect(visitor)
    next_event(answer)
    assert next_event(answer) == ("beat", "")
    connection.close()


def test_slow_client_gets_the_newest_state_and_nothing_is_queued_for_it(served):
    live, visitor = served
    connection, answer = connect(visitor)
    next_event(answer)
    for number in range(1000):
        live.training = {"number": number}
        live.number += 1
    until = time.monotonic() + PATIENCE_S
    seen = []
    while not seen or seen[-1] != 999:
        assert time.monotonic() < until
        seen.append(json.loads(next_event(answer)[1])["training"]["number"])
    assert len(seen) < 100
    connection.close()


def test_there_are_only_so_many_streams_and_a_closed_one_can_be_replaced(served, monkeypatch):
    monkeypatch.setattr(events_module, "MOST_STREAMS", 2)
    _, visitor = served
    opened = [connect(visitor) for _ in range(2)]
    for _, answer in opened:
        next_event(answer)
    status, _, body = visitor.ask("/events")
    assert status == 503
    assert "follow" in json.loads(body)["error"]
    opened[0][0].close()
    opened[0][1].close()
    until = time.monotonic() + PATIENCE_S
    while True:
        connection, answer = connect(visitor)
        if answer.status == 200:
            break
        connection.close()
        assert time.monotonic() < until
        time.sleep(0.05)
    connection.close()
    opened[1][0].close()


def test_trend_is_asked_for_by_number(served):
    _, visitor = served
    assert json.loads(visitor.ask("/trend?since=7")[2]) == {"first": 7, "steps": []}
    assert visitor.ask("/trend?since=x")[0] == 400
    assert visitor.ask("/trend")[0] == 400


def test_ending_the_server_ends_its_streams(tmp_path):
    live = resting(run_of(timeline_from_text("F0 B0\nF0 B0"), tmp_path / "run"))
    with serving(live, assets_in(tmp_path / "assets")) as visitor:
        connection, answer = connect(visitor.enter())
        next_event(answer)
    assert answer.read() == b""
    connection.close()


def test_versions_that_pages_show_are_kept_and_others_are_dropped(monkeypatch):
    class Run:
        def __init__(self, version):
            self.version = version

    dropped = []
    live = VersionedRun(Run("0"), drop=lambda run: dropped.append(run.version))
    for number in range(1, 40):
        live.show(Run(str(number)))
        assert (live.version("5") is not None) == (number >= 5)
    assert live.version("5").version == "5"
    assert dropped == [str(number) for number in range(37) if number != 5]
    monkeypatch.setattr("stagescope.viewer.server.live.SHOWN_S", -1.0)
    live.show(Run("40"))
    assert live.version("5") is None
