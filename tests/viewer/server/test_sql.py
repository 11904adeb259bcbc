"""SQL of the page: only for those who came by the link, from this page, and only to read."""

import json

import pytest

from running_server import assets_in, resting, run_of, serving
from stagescope.vocabulary.errors import UsageError
from synthetic import Shape, pipeline_timeline

ANSWER = {"columns": [{"name": "n", "type": "number"}], "rows": [["1"]], "count": 1}
PATH = "/run/run/api/sql?q=select+1"


def answer(query):
    if "bad" in query:
        raise UsageError.query_failed("bad")
    return ANSWER


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=2, steps=1))
    return run_of(timeline, tmp_path_factory.mktemp("sql") / "run")


@pytest.fixture
def stranger(run, tmp_path):
    with serving(resting(run), assets_in(tmp_path / "assets"), query=answer) as visitor:
        yield visitor


def test_a_query_is_answered_and_an_error_is_one_sentence(stranger):
    known = stranger.enter()
    assert known.json("sql", q="select 1 as n") == ANSWER
    status, body = known.api("sql", q="bad")
    assert status == 400
    assert json.loads(body)["error"].startswith("the query failed: bad")
    status, body = known.api("sql", q="x" * 10_001)
    assert (status, json.loads(body)["error"]) == (400, "q: expected at most 10000 characters")


def test_no_one_else_can_query(stranger):
    assert stranger.ask(PATH)[0] == 403
    known = stranger.enter()
    assert known.ask(PATH)[0] == 200
    assert known.ask(PATH, Origin="http://evil.example")[0] == 403
    assert known.ask(PATH, Host="evil.example")[0] == 403
    assert known.ask(PATH, Sec_Fetch_Site="cross-site")[0] == 403
    for method in ("POST", "PUT", "DELETE"):
        assert known.ask(PATH, method)[0] == 405


def test_a_server_without_queries_states_so(run, tmp_path):
    with serving(resting(run), assets_in(tmp_path / "assets")) as visitor:
        status, body = visitor.enter().api("sql", q="select 1")
    assert status == 400
    assert "stagescope sql" in json.loads(body)["error"]
